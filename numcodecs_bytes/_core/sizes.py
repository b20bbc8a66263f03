"""Sizes in bytes, as people write them: "64 KiB"."""

import math
import re


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
