"""Programs that are frozen have no entry points."""

from helpers import PIPELINES, run_python

WITHOUT = """
import importlib.metadata, sys
every = importlib.metadata.distributions
importlib.metadata.distributions = lambda **context: (
    d for d in every(**context) if d.metadata["Name"] != "numcodecs-bytes"
)
import numcodecs_bytes, zarr
numcodecs_bytes.set_options(pipeline=sys.argv[2], write_in_place=True)
array = zarr.create_array(sys.argv[1], shape=(8, 8), dtype="f8", compressors=None)
array[1, 1:] = 1
with numcodecs_bytes.trace() as traced:
    array[2, 1:] = 1
    total = zarr.open_array(sys.argv[1])[...].sum()
print(type(array.async_array.codec_pipeline).__name__, int(total))
print(traced.report()["total"]["chunks_in_place"])
"""


def test_pipelines_can_be_chosen(tmp_path):
    for name in ["BytesPipeline", "FusedBytesPipeline"][: len(PIPELINES)]:
        found = run_python("-c", WITHOUT, tmp_path / name, name).stdout.split()
        assert found == [name, "14", "1"]
