"""Pipelines that are pickled as the pipeline that is configured where they are loaded."""

from collections.abc import Callable
from operator import methodcaller
from typing import Any

import zarr.registry

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._zarr_api.options import write_in_place


class _Call:
    """A call that is made when this is unpickled, and whose result takes its place."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = function, arguments

    def __reduce__(self) -> Any:
        return self._reduced


class PickledAsConfigured:
    """Mixin for one of zarr's pipelines.

    All that is called when it is loaded is zarr's and Python's: this package need not be installed
    there, unless a codec or the data type is ours. An attribute tells that parts of chunks had to
    be written in place where it was pickled, lest they are rewritten where nobody has set that.
    """

    _evolve: Any = None  # what made it the pipeline of an array, so that unpickling can do it again
    _was_required = False  # whether "require" was set where it was pickled

    def evolve_from_array_spec(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the pipeline for chunks of an array, like zarr's, whatever that takes."""
        pipeline: Any = super()
        evolved = pipeline.evolve_from_array_spec(*arguments, **keywords)
        evolve = methodcaller("evolve_from_array_spec", *arguments, **keywords)
        object.__setattr__(evolved, "_evolve", evolve)  # it is frozen
        return evolved

    def __reduce__(self) -> Any:
        configured = _Call(zarr.registry.get_pipeline_class)
        from_codecs = methodcaller("from_codecs", tuple(self))  # type: ignore[arg-type]
        made: tuple[Any, ...] = from_codecs, (configured,)
        if self._evolve is not None:
            made = self._evolve, (_Call(from_codecs, configured),)
        state = {name: value for name, value in vars(self).items() if name == "_keys_are_v2"}
        # A wrong value must not keep an array from being read elsewhere.
        if self._was_required or value_or_error(write_in_place) == "require":
            state["_was_required"] = True
        return (*made, state) if state else made

    def _check_required_is_set(self) -> None:
        """Raise RuntimeError if "require" was set where it was pickled, but nothing is set here."""
        key = write_in_place.key
        if self._was_required and not write_in_place.is_set:
            raise RuntimeError(
                f"{key} was 'require' where the array was pickled, but is not set in this process, "
                "which would rewrite chunks that others may write to; set it to 'require' here, too"
                " (by zarr.config.set, or ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE=require), or to "
                "False to let zarr rewrite them"
            )

    def __copy__(self) -> Any:
        """Return the pipeline itself: only what it caches changes."""
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self
