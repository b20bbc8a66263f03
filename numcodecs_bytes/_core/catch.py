"""Calls code of others that may raise anything: stores, their clients, codecs, settings, files."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import ParamSpec, TypeVar

from numcodecs_bytes._core.interrupts import raise_interrupt

P = ParamSpec("P")
T = TypeVar("T")


def value_or_error(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Exception:
    """Return what a function returns, or the error that it raises."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 # code of others raises anything
        raise_interrupt(error)
        return error


async def async_value_or_error(awaitable: Awaitable[T]) -> T | Exception:
    """Return what an awaitable returns, or the error that it raises."""
    try:
        return await awaitable
    except Exception as error:  # noqa: BLE001 # code of others raises anything
        raise_interrupt(error)
        return error


async def await_all(awaitables: Iterable[Awaitable[None]]) -> None:
    """Await all at once; raise an error of one when all have ended, so that nothing goes on."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    try:
        for error in results:
            if error is not None:
                raise error
    finally:
        del results  # the frames of the errors refer to this one, and to an output
