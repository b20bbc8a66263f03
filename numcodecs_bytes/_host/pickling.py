"""Pipelines that are pickled as the pipeline that is configured where they are loaded."""

from collections.abc import Callable
from operator import methodcaller
from typing import Any

import zarr.registry


class _Call:
    """A call that is made when this is unpickled, and whose result takes its place."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = function, arguments

    def __reduce__(self) -> Any:
        return self._reduced


class PickledAsConfigured:
    """Mixin for one of zarr's pipelines.

    All that is called when it is loaded is zarr's and Python's: this package need not be installed
    there, unless a codec or the data type is ours.
    """

    _evolve: Any = None  # what made it the pipeline of an array, so that unpickling can do it again

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
        if self._evolve is None:
            return from_codecs, (configured,)
        return self._evolve, (_Call(from_codecs, configured),)

    def __copy__(self) -> Any:
        """Return the pipeline itself: only what it caches changes."""
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self
