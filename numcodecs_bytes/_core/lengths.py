"""The length of a chunk."""

import math

from numcodecs_bytes._core.dtypes import AnyDType


def check_length(
    num_bytes: int, shape: tuple[int, ...], dtype: AnyDType, stored: AnyDType, name: str
) -> None:
    """Raise ValueError unless `num_bytes` is the length of a chunk of this shape and dtype."""
    expected = math.prod(shape) * stored.itemsize
    if num_bytes != expected:
        why = "truncated" if num_bytes < expected else "compressed or have another shape"
        raise ValueError(
            f"{name} holds {num_bytes} bytes, expected {expected} for shape {shape} of {dtype}; "
            f"it may be {why}"
        )
