"""Encoding and decoding one chunk, ours and zarr's own codec in groups, with pytest-benchmark.

    pytest tests/benchmarks/bench_codec.py

Not part of the tests. To compare with all peers: run.py.
"""

import itertools

import pytest

raw = pytest.importorskip(
    "raw", reason="the group benchmarks is not installed", exc_type=ImportError
)
pytest.importorskip("pytest_benchmark", reason="the group benchmarks is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

DATA_TYPES = ("bool", "i2", "f4", "f8", "c16", "struct (f4, f4)", "bfloat16")
CASES = [
    (operation, data_type, endian)
    for operation, data_type in itertools.product(raw.OPERATIONS, DATA_TYPES)
    for endian in raw.orders_of(data_type)
]


@pytest.mark.parametrize("who", ["ours", "zarr"])
@pytest.mark.parametrize("size", [64 * raw.KIB, 8 * raw.MIB], ids=raw.as_size)
@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_speed(benchmark, case, size, who):
    contenders = raw.contenders_of(*case, size)
    if who not in contenders:
        pytest.skip(f"{who} can't")
    benchmark.group = ", ".join([*case, raw.as_size(size)])
    benchmark(contenders[who])
