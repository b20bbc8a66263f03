"""Layouts of chunks and plans for selections, which are kept to be used again.

It takes up to `constants.KEPT_BYTES` for all arrays of the process together. When there is no room
for more, all of it is forgotten: most of it belongs to selections and arrays that are no longer
used, and the rest is soon made again.
"""

import os
import threading
from typing import Any, Protocol, TypeVar

from numcodecs_bytes._engine import constants


class Kept(Protocol):
    """What can be kept."""

    @property
    def most_memory(self) -> int:
        """The most memory that it takes, with the key under which it is kept, in bytes."""
        raise NotImplementedError


T = TypeVar("T", bound=Kept)

_values: dict[Any, Any] = {}
_num_bytes = 0
# Held to add a value. Nobody waits for it, and a child process gets its own.
_lock = threading.Lock()


def find(key: Any) -> Any:
    """Return the value that is kept under a key, or None; without a lock, as a dict needs none."""
    try:
        return _values.get(key)
    except TypeError:  # a selection with arrays has no hash
        return None


def add(key: Any, value: T) -> T:
    """Keep a value; return it, or the one that another thread has kept under the same key.

    It is not kept if it is too large, if the key has no hash, or if another thread adds one now.
    """
    global _num_bytes  # noqa: PLW0603
    num_bytes = value.most_memory
    try:
        hash(key)
    except TypeError:
        return value
    if num_bytes > constants.KEPT_BYTES or not _lock.acquire(blocking=False):
        return value
    try:
        if _num_bytes + num_bytes > constants.KEPT_BYTES:
            forget()
        _num_bytes += num_bytes
        kept: T = _values.setdefault(key, value)
        return kept
    finally:
        _lock.release()


def forget() -> None:
    """Forget everything that is kept."""
    global _num_bytes  # noqa: PLW0603
    _values.clear()
    _num_bytes = 0


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
