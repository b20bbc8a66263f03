"""What reads and writes share: how the chunks of an array are stored, and zarr's settings."""

from typing import TYPE_CHECKING, Any

import zarr
from zarr.codecs._v2 import V2Codec
from zarr.core.array_spec import ArraySpec

from numcodecs_bytes._host.options import warn_of_other_pipeline, warn_of_unknown_keys
from numcodecs_bytes._host.pickling import PickledAsConfigured
from numcodecs_bytes._pipeline.array_layouts import ArrayLayouts
from numcodecs_bytes._plan.shards import AnyLayout

if TYPE_CHECKING:
    from collections.abc import Iterable


class KnowsLayouts(PickledAsConfigured):
    """Mixin for one of zarr's pipelines: knows how the chunks of its array are stored."""

    array_bytes_codec: Any  # of zarr's pipeline
    _threads_setting: str  # zarr's setting for the number of threads

    @classmethod
    def from_codecs(cls, codecs: "Iterable[Any]", **settings: Any) -> Any:
        """Return a pipeline of the codecs, like zarr's."""
        warn_of_unknown_keys()
        warn_of_other_pipeline("used")
        pipeline: Any = super()
        return pipeline.from_codecs(codecs, **settings)

    def _layout_of(self, chunk_spec: ArraySpec) -> AnyLayout:
        """Return how a chunk is stored; raise `LeftToZarr` if zarr's own pipeline must read it."""
        known = vars(self)
        # Without a lock, which a child process may find taken: the first one is kept.
        layouts = known.get("_layouts") or known.setdefault("_layouts", ArrayLayouts(self))
        layout: AnyLayout = layouts.of(chunk_spec)
        return layout

    def _num_threads(self) -> int | None:
        """Return zarr's setting for the number of threads, if the user has set it."""
        num = zarr.config.get(self._threads_setting, None)
        return max(num, 1) if isinstance(num, int) else None

    def _is_v2(self) -> bool:
        return type(self.array_bytes_codec) is V2Codec
