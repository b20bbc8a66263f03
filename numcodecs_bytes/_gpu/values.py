"""Values on a GPU, which are written from host memory, group by group."""

from collections.abc import Sequence
from typing import Any

from zarr.core.buffer import NDBuffer

from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._gpu import staging
from numcodecs_bytes._plan.groups import Group
from numcodecs_bytes._plan.out_selections import OutSelection, is_within, out_selection_of
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._write.batch import Values, Write
from numcodecs_bytes._write.chunk_write import ChunkWrite


class GPUValues(Values):
    """Values on a GPU: each group of chunks is written from host memory of its own."""

    def __init__(self, buffer: NDBuffer) -> None:
        super().__init__(buffer)
        self.may_be_mapped, self.are_of_known_kind = False, True

    def out_selection_of(self, selector: Any) -> OutSelection:
        """Return the chunk's region in the values; raise `LeftToZarr` if their shape is another."""
        if not self._array.shape:  # it is a single value for all elements
            return ()
        out_selection = out_selection_of(selector)
        if not is_within(out_selection, self._array.shape):
            raise LeftToZarr("the values have another shape than the selection")
        return out_selection

    async def write(self, chunks: Sequence[ChunkWrite], write: Write) -> None:
        """Write chunks, group by group."""

        async def download_and_write(group: Group[ChunkWrite], host: Array) -> None:
            staging.download(group, self._array, host)
            await write(group.chunks, host)

        await staging.transfer_in_groups(chunks, self._array, download_and_write)
