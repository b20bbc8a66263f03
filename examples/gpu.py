"""Read a box of a large uncompressed array into the memory of a GPU: for CuPy and PyTorch.

Needs a GPU, and CuPy: pip install cupy-cuda12x (and torch)
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr

import numcodecs_bytes

try:
    import cupy
except ImportError as error:
    sys.exit(f"this example needs a GPU and CuPy: {error}")


def main() -> None:
    """Write a stack of images, big-endian, in one chunk of 64 MiB; read a box of it."""
    values = np.random.default_rng(0).random((64, 512, 512), np.float32)
    box = np.s_[10:20, 100:164, 100:164]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stack.zarr")
        codec = zarr.codecs.BytesCodec(endian="big")
        zarr.create_array(
            path, data=values, chunks=values.shape, serializer=codec, compressors=None
        )
        with zarr.config.enable_gpu(), numcodecs_bytes.trace() as traced:
            array = zarr.open_array(path, mode="r")
            on_gpu = array[box]
    assert isinstance(on_gpu, cupy.ndarray)
    assert np.array_equal(cupy.asnumpy(on_gpu), values[box])
    total = traced.report()["total"]
    print(f"{array.metadata.codecs[0]} of {type(array.metadata.codecs[0]).__module__}")
    of_chunk, read = f"{total['bytes_zarr_alone']:,}", f"{total['bytes_fetched']:,}"
    print(f"a box of {on_gpu.nbytes:,} bytes in a chunk of {of_chunk}: {read} were read")
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed; torch.from_dlpack makes a tensor of it, without a copy")
    else:
        print(f"and to a tensor of the same memory: {torch.from_dlpack(on_gpu).device}")


if __name__ == "__main__":
    main()
