"""`SyncReader` caches indices of shards, and reads right values however their files change."""

import json
import os
import random
import tempfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import zarr
from helpers import create, reference_store

import numcodecs_bytes
from numcodecs_bytes import SyncReader

ROWS, COLUMNS = 8, 6
INDEX_BYTES, ROW_BYTES = 16 * ROWS + 4, 4 * COLUMNS
ORDERS = [list(np.random.default_rng(seed).permutation(ROWS)) for seed in range(4)]
AT = ["start", "end"]


@pytest.fixture(autouse=True)
def _is_fast(set_constants):
    """However busy the machine is: of a file that opens slowly, the index is read whole."""
    set_constants(CERTAIN_WAIT_SECONDS=60)


def shard_of(values, order, at="end", before=b"", *, checksum=True):
    """Return the bytes of a shard whose rows hold these values, and lie in such an order."""
    index = np.empty((ROWS, 2), "<u8")
    first = len(before) + (0 if at == "end" else 16 * ROWS + 4 * checksum)
    index[order] = [[first + ROW_BYTES * k, ROW_BYTES] for k in range(ROWS)]
    body = b"".join([np.full(COLUMNS, values[row], "<i4").tobytes() for row in order])
    raw = index.tobytes()
    if checksum:
        raw += int(google_crc32c.value(raw)).to_bytes(4, "little")
    return before + body + raw if at == "end" else raw + body


def sharded(store, at="end", *, checksum=True, shards=(ROWS, COLUMNS), chunks=(1, COLUMNS)):
    """Create an array of shards."""
    little = zarr.codecs.BytesCodec(endian="little")
    codec = zarr.codecs.ShardingCodec(
        chunk_shape=chunks,
        codecs=[little],
        index_codecs=[little, *[zarr.codecs.Crc32cCodec()] * checksum],
        index_location=at,
    )
    return zarr.create_array(
        store,
        shape=(2 * shards[0], shards[1]),
        chunks=shards,
        dtype="i4",
        compressors=None,
        serializer=codec,
        fill_value=-1,
    )


@pytest.fixture(params=["disk", "tmpfs"])
def folder(request, tmp_path):
    """Return an empty folder of a file system."""
    if request.param == "disk":
        yield tmp_path
    else:
        memory = Path("/dev/shm")  # noqa: S108 # nobody else's
        if not memory.is_dir():
            pytest.skip("this system has no tmpfs there")
        with tempfile.TemporaryDirectory(dir=memory) as name:
            yield Path(name)


def change_mapping(path, raw):
    """Change a file by a mapping: its times may stay the same."""
    mapped = np.memmap(path, "u1", "r+")
    mapped[:] = np.frombuffer(raw, "u1")


def change_with_times(path, raw):
    """Change a file, and set its time back."""
    status = path.stat()
    with path.open("r+b") as file:
        file.write(raw)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_with_times(path, raw):
    """Replace a file by one with the same time, as ``rsync -t`` does."""
    status, other = path.stat(), path.with_suffix(".other")
    other.write_bytes(raw)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [change_mapping, change_with_times, replace_with_times])
@pytest.mark.parametrize("checksum", [True, False], ids=["checksum", "no checksum"])
@pytest.mark.parametrize("at", AT)
def test_a_shard_changes_but_not_its_times(folder, change, checksum, at):
    """Six of twelve reads took rows of another version."""
    array = sharded(folder / "a", at, checksum=checksum)
    path = folder / "a/c/0/0"
    path.parent.mkdir(parents=True)
    path.write_bytes(shard_of(range(ROWS), ORDERS[0], at, checksum=checksum))
    os.utime(path, (1e9, 1e9))
    reader = SyncReader(array)
    for number in range(1, 13):
        before = [int(reader[row][0]) for row in range(ROWS)]
        assert before == [row + 100 * (number - 1) for row in range(ROWS)]
        values = [row + 100 * number for row in range(ROWS)]
        change(path, shard_of(values, ORDERS[number % 4], at, checksum=checksum))


@pytest.mark.usefixtures("our_pipeline")
def test_references_to_versions_of_a_growing_shard(tmp_path):
    """Of one file, with one start, but of other lengths: a row of one was taken for the other's."""
    sharded(tmp_path / "a")
    first = shard_of(range(ROWS), ORDERS[0])
    second = shard_of(range(100, 100 + ROWS), ORDERS[1], before=first)
    path = tmp_path / "shard"
    path.write_bytes(second)
    references = {
        "zarr.json": (tmp_path / "a/zarr.json").read_text(),
        "c/0/0": [path.as_uri(), 0, len(first)],
        "c/1/0": [path.as_uri(), 0, len(second)],
    }
    reader = SyncReader(zarr.open_array(reference_store(references), mode="r"))
    for _ in range(2):
        assert [int(reader[row][0]) for row in range(ROWS)] == list(range(ROWS))
        assert [int(reader[ROWS + row][0]) for row in range(ROWS)] == list(range(100, 100 + ROWS))


def test_arrays_that_share_a_shard(tmp_path):
    """The same bytes are another index to an array whose grid, or index codecs, are others."""
    arrays = [
        sharded(tmp_path / "rows"),
        sharded(tmp_path / "grid", shards=(4, 12), chunks=(1, 6)),
        sharded(tmp_path / "longer", shards=(16, 6), chunks=(2, 6)),
    ]
    raw = shard_of(range(ROWS), ORDERS[0])
    readers = []
    for array in arrays:
        references = {
            "zarr.json": (array.store.root / "zarr.json").read_text(),
            "c/0/0": [(tmp_path / "shard").as_uri(), 0, len(raw)],
        }
        big = references | {"zarr.json": with_big_index(references["zarr.json"])}
        for each in (references, big):
            opened = zarr.open_array(reference_store(each), mode="r")
            readers.append((opened, SyncReader(opened)))
    (tmp_path / "shard").write_bytes(raw)
    for _ in range(2):
        for array, reader in readers:
            assert outcome(lambda: reader[0]) == outcome(lambda: array[0])  # noqa: B023


def with_big_index(metadata):
    """Return metadata in which the index of shards is big-endian."""
    parsed = json.loads(metadata)
    parsed["codecs"][0]["configuration"]["index_codecs"][0]["configuration"]["endian"] = "big"
    return json.dumps(parsed)


def outcome(read):
    """Return what is read, or the kind of the error."""
    try:
        return read().tolist()
    except Exception as error:  # noqa: BLE001 # compared with zarr's
        return type(error)


class Reads(list):
    """The length of each read of a local file."""

    def __init__(self, monkeypatch):
        super().__init__()
        for name in ("pread", "preadv"):
            monkeypatch.setattr(os, name, self._noting(getattr(os, name)))

    def _noting(self, system):
        def read(descriptor, what, *args):
            result = system(descriptor, what, *args)
            self.append(len(result) if isinstance(result, bytes) else result)
            return result

        return read


@pytest.mark.needs("os.preadv")
@pytest.mark.parametrize("at", AT)
@pytest.mark.parametrize("checksum", [True, False], ids=["checksum", "no checksum"])
def test_what_is_read_is_counted(tmp_path, monkeypatch, at, checksum):
    """The trace counted an index that was cached as if all of it were read."""
    array = sharded(tmp_path / "a", at, checksum=checksum)
    array[:ROWS] = np.arange(ROWS)[:, None]
    reader = SyncReader(array)
    assert reader[0].tolist() == [0] * COLUMNS
    index_bytes = 4 if checksum else 16 * ROWS
    reads = Reads(monkeypatch)
    with numcodecs_bytes.trace() as traced:
        for row in range(ROWS):
            assert reader[row].tolist() == [row] * COLUMNS
    assert reads == [index_bytes, ROW_BYTES] * ROWS
    total = traced.report()["total"]
    assert (total["requests"], total["bytes_fetched"]) == (len(reads), sum(reads))
    assert total["bytes_zarr_alone"] == ROWS * (INDEX_BYTES - 4 + 4 * checksum + ROW_BYTES)
    if checksum:  # an index that has changed is read after its checksum
        change_with_times(tmp_path / "a/c/0/0", shard_of(range(ROWS), ORDERS[0], at))
        reads.clear()
        with numcodecs_bytes.trace() as traced:
            assert reader[0].tolist() == [0] * COLUMNS
        assert reads == [4, INDEX_BYTES, ROW_BYTES]
        assert traced.report()["total"]["bytes_fetched"] == sum(reads)


def many_shards(folder, num=400):
    """Return an array of small shards, and its values."""
    array = create(folder, (num,), (1,), dtype="u1", shards=(2,))
    array[...] = values = np.arange(num) % 255 + 1
    return array, values


def test_one_limit_for_all_readers(tmp_path, set_constants):
    """Each had its own: 2,000 of them took 133 MiB. Small indices count, too."""
    set_constants(MAX_INDEX_BYTES=1 << 18)
    values = many_shards(tmp_path / "a")[1]
    arrays = [zarr.open_array(tmp_path / "a", mode="r") for _ in range(50)]
    tracemalloc.start()
    try:
        readers = [SyncReader(array) for array in arrays]
        for reader in readers:
            reader[0]
        before = tracemalloc.get_traced_memory()[0]
        for reader in readers:
            assert [int(reader[k]) for k in range(0, 400, 4)] == values[::4].tolist()
        assert tracemalloc.get_traced_memory()[0] - before < 3 << 19
    finally:
        tracemalloc.stop()


def test_threads_share_few_indices(tmp_path, set_constants):
    set_constants(MAX_INDEX_BYTES=1 << 16)
    array, values = many_shards(tmp_path / "a", 64)

    def read(seed):
        rng, reader = random.Random(seed), SyncReader(array)  # noqa: S311 # no secret
        numbers = [rng.randrange(64) for _ in range(300)]
        return [int(reader[k]) for k in numbers] == values[numbers].tolist()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(16)))
