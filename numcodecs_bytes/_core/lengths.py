"""Lengths in bytes."""

import math
import re

from numcodecs_bytes._core.dtypes import AnyDType


class LengthError(ValueError):
    """A chunk has the wrong length."""


def check_length(
    num_bytes: int, shape: tuple[int, ...], dtype: AnyDType, stored: AnyDType, name: str
) -> None:
    """Raise LengthError unless `num_bytes` is the length of a chunk of this shape and dtype."""
    expected = math.prod(shape) * stored.itemsize
    if num_bytes != expected:
        why = "truncated" if num_bytes < expected else "compressed or have another shape"
        raise LengthError(
            f"{name} holds {num_bytes} bytes, expected {expected} for shape {shape} of {dtype}; "
            f"it may be {why}"
        )


def parse_size(size: object) -> int | None:
    """Return a number of bytes, perhaps written as in Dask ("1 MiB"); None if it is invalid."""
    pattern = r"\s*(\d*\.?\d+(?:e\+?\d+)?)\s*(?:([kmgtp])(i?))?b?\s*"
    match = re.fullmatch(pattern, str(size), re.IGNORECASE)
    if match is None or isinstance(size, bool):
        return None
    number, prefix, is_binary = match.groups()
    if not (prefix or float(number).is_integer()):
        return None
    power = " kmgtp".index((prefix or " ").lower())
    num_bytes = float(number) * (1024 if is_binary else 1000) ** power
    return int(num_bytes) if num_bytes < math.inf else None
