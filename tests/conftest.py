"""Fixtures: both codec pipelines, and zarr's config as it was."""

import pytest
import zarr

if not hasattr(zarr.dtype, "Struct"):  # zarr 3.1.6, which never loads the entry points
    import numcodecs_bytes.zarr_data_types  # noqa: F401

PIPELINES = ["zarr.core.codec_pipeline.BatchedCodecPipeline"]
if hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):  # since zarr 3.2
    PIPELINES.append("zarr.core.codec_pipeline.FusedCodecPipeline")

OUR_PIPELINES = ["numcodecs_bytes.zarr_pipeline.PartialReadPipeline"]
if len(PIPELINES) > 1:
    OUR_PIPELINES.append("numcodecs_bytes.zarr_pipeline.FusedPartialReadPipeline")


@pytest.fixture(params=PIPELINES, ids=lambda path: path.rsplit(".", 1)[-1])
def pipeline(request):
    """Run a test in the default and in the fused pipeline."""
    with zarr.config.set({"codec_pipeline.path": request.param}):
        yield request.param


@pytest.fixture(params=OUR_PIPELINES, ids=lambda path: path.rsplit(".", 1)[-1])
def our_pipeline(request):
    """Run a test in this package's pipelines, over zarr's default and its fused one."""
    with zarr.config.set({"codec_pipeline.path": request.param}):
        yield request.param


def pytest_ignore_collect(collection_path, config):
    """Leave the benchmarks out, which need more than the tests do, unless they are asked for."""
    named = any("benchmarks" in str(argument) for argument in config.invocation_params.args)
    return True if collection_path.name == "benchmarks" and not named else None
