"""What reads and writes share: how the chunks of an array are stored, and zarr's settings."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import zarr
from zarr.codecs._v2 import V2Codec

from numcodecs_bytes._host.options import warn_of_other_pipeline, warn_of_unknown_keys
from numcodecs_bytes._host.pickling import PickledAsConfigured
from numcodecs_bytes._pipeline.array_layouts import ArrayLayouts

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Once:
    """Like functools.cached_property, but no lock, which on Python 3.11 a child may find taken."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self._name, self._make(instance))


class KnowsLayouts(PickledAsConfigured):
    """Mixin for one of zarr's pipelines: knows how the chunks of its array are stored."""

    _threads_setting: str  # zarr's setting for the number of threads

    @classmethod
    def from_codecs(cls, codecs: "Iterable[Any]", **settings: Any) -> Any:
        """Return a pipeline of the codecs, like zarr's."""
        warn_of_unknown_keys()
        warn_of_other_pipeline("used")
        pipeline: Any = super()
        return pipeline.from_codecs(codecs, **settings)

    @_Once
    def _layouts(self) -> ArrayLayouts:
        return ArrayLayouts(self)

    def _num_threads(self) -> int | None:
        """Return zarr's setting for the number of threads, if the user has set it."""
        num = zarr.config.get(self._threads_setting, None)
        return max(num, 1) if isinstance(num, int) else None

    def _is_v2(self) -> bool:
        return type(self.array_bytes_codec) is V2Codec  # type: ignore[attr-defined]
