"""Chunks that lie together in one object: references to a file, near and far, and zip members."""

import itertools
import json
import os
import threading
import zipfile

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import OUR_PIPELINES, ZARRS_PIPELINE, set_costs
from servers import DeadServer, Server

import numcodecs_bytes
from numcodecs_bytes._parts import stores

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")
ALONE = {"codec_pipeline.path": ZARRS_PIPELINE, "codecs.bytes": "zarr.codecs.bytes.BytesCodec"}
SHAPE, CHUNK = (45, 40), (6, 8)  # chunks at the edges are as long as others
GRID = (8, 5)
HEAD = 100
SELECTIONS = [
    np.s_[:],
    np.s_[7, 3],
    np.s_[:, 5],
    np.s_[3:30, 7:25],
    np.s_[::7, ::9],
    (np.array([44, 0, 3, 3, 17]), slice(None)),
    (slice(2, 40), np.array([39, 1, 8])),
    (np.array([[1], [40], [22]]), np.array([[3, 39]])),
]


def content(dtype, rng):
    return rng.integers(0, 100, (GRID[0] * CHUNK[0], GRID[1] * CHUNK[1])).astype(dtype)


def metadata(data, zarr_format, order="C"):
    """Return the references of an array's metadata, and where its chunks begin."""
    common = {"shape": SHAPE, "fill_value": 7}
    if zarr_format == 2:
        more = {"zarr_format": 2, "chunks": CHUNK, "dtype": data.dtype.str, "order": order}
        return {".zarray": json.dumps(common | more | {"filters": None, "compressor": None})}
    grid = {"name": "regular", "configuration": {"chunk_shape": CHUNK}}
    endian = "big" if data.dtype.byteorder == ">" else "little"
    more = {
        "zarr_format": 3,
        "node_type": "array",
        "data_type": data.dtype.newbyteorder("=").name,
        "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes", "configuration": {"endian": endian}}],
    }
    return {"zarr.json": json.dumps(common | more)}


def write(path, data, order="C", positions=None, gap=0):
    """Write chunks one after the other in some order; return where each of them is."""
    where, places = {}, list(np.ndindex(GRID))
    with path.open("wb") as file:
        file.write(b"\xff" * HEAD)
        for k in positions if positions is not None else range(len(places)):
            i, j = places[k]
            part = data[i * CHUNK[0] : (i + 1) * CHUNK[0], j * CHUNK[1] : (j + 1) * CHUNK[1]]
            where[i, j] = file.tell(), part.nbytes
            file.write(part.tobytes(order) + b"\xff" * gap)
    return where


def references(url, where, of_array, zarr_format):
    name = "{}.{}" if zarr_format == 2 else "c/{}/{}"
    return of_array | {name.format(*at): [url, *found] for at, found in where.items()}


def open_references(refs, protocol):
    files = fsspec.filesystem(
        "reference",
        fo=refs,
        remote_protocol=protocol,
        remote_options={"asynchronous": True, "skip_instance_cache": True},
        asynchronous=True,
        skip_instance_cache=True,
    )
    return zarr.storage.FsspecStore(files, read_only=True)


def selected(array, selection):
    if isinstance(selection, tuple) and all(isinstance(s, np.ndarray) for s in selection):
        return array.vindex[selection]
    if isinstance(selection, tuple) and any(isinstance(s, np.ndarray) for s in selection):
        return array.oindex[selection]
    return array[selection]


@pytest.fixture(params=OUR_PIPELINES, ids=lambda path: path.rsplit(".", 1)[-1])
def ours(request):
    with zarr.config.set({"codec_pipeline.path": request.param}):
        yield


class TestOfAServer:
    @pytest.mark.parametrize("positions", [None, "at random"])
    @pytest.mark.parametrize("gap", [0, 40])
    @pytest.mark.parametrize(
        ("zarr_format", "order", "dtype"), [(2, "C", ">f4"), (2, "F", "<i8"), (3, "C", ">f8")]
    )
    @pytest.mark.usefixtures("ours")
    def test_values_and_requests(self, tmp_path, zarr_format, order, dtype, gap, positions):  # noqa: PLR0917
        rng = np.random.default_rng(3)
        data = content(dtype, rng)
        order_of = rng.permutation(GRID[0] * GRID[1]) if positions else None
        where = write(tmp_path / "file.nc", data, order, order_of, gap)
        with Server(tmp_path).running() as server:
            refs = references(
                f"{server.address}/file.nc",
                where,
                metadata(data, zarr_format, order),
                zarr_format,
            )
            array = zarr.open_array(open_references(refs, "http"), mode="r")
            for selection in SELECTIONS:
                server.requests.clear()
                expected = selected(zarr.array(data[: SHAPE[0], : SHAPE[1]]), selection)
                assert np.array_equal(selected(array, selection), expected)
                assert len(server.requests) == 1

    @pytest.mark.parametrize("num_in_flight", [1, 3])
    @pytest.mark.usefixtures("ours")
    def test_at_most_so_many_at_once_as_zarr_says(self, tmp_path, monkeypatch, num_in_flight):
        set_costs(monkeypatch, stores.Remote, part_bytes=2000)
        data = content(">f8", np.random.default_rng(3))
        where = write(tmp_path / "file.nc", data)
        server, lock, counts = Server(tmp_path), threading.Lock(), {"now": 0, "most": 0}
        answer = server.partial

        def counted(*of):
            with lock:
                counts["now"] += 1
                counts["most"] = max(counts.values())
            threading.Event().wait(0.01)
            with lock:
                counts["now"] -= 1
            return answer(*of)

        server.answer = counted
        with server.running(), zarr.config.set({"async.concurrency": num_in_flight}):
            refs = references(f"{server.address}/file.nc", where, metadata(data, 3), 3)
            array = zarr.open_array(open_references(refs, "http"), mode="r")
            assert np.array_equal(array[:], data[: SHAPE[0], : SHAPE[1]])
        assert 1 <= counts["most"] <= num_in_flight
        assert 2 < len(server.requests) < len(where)

    @pytest.mark.usefixtures("ours")
    def test_what_lies_between_is_not_fetched(self, tmp_path):
        """As in files of several variables: zarr alone fetches nothing of the others."""
        data = content(">f8", np.random.default_rng(3))
        where = write(tmp_path / "file.nc", data, gap=60_000)
        with Server(tmp_path).running() as server:
            refs = references(f"{server.address}/file.nc", where, metadata(data, 3), 3)
            array = zarr.open_array(open_references(refs, "http"), mode="r")
            assert np.array_equal(array[:], data[: SHAPE[0], : SHAPE[1]])
            assert server.num_bytes <= sum(length for _, length in where.values())
            server.requests.clear()
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 70_000}):
                assert np.array_equal(array[:], data[: SHAPE[0], : SHAPE[1]])
            assert len(server.requests) == 1

    @pytest.mark.usefixtures("ours")
    def test_what_is_odd_is_read_chunk_by_chunk(self, tmp_path):
        """Missing, inline and overlapping chunks, whole files, several files, another length."""
        data = content(">f8", np.random.default_rng(3))
        where = write(tmp_path / "file.nc", data)
        (tmp_path / "other.nc").write_bytes((tmp_path / "file.nc").read_bytes())
        (tmp_path / "alone").write_bytes(np.ones(CHUNK, ">f8").tobytes())
        with Server(tmp_path).running() as server:
            refs = references(f"{server.address}/file.nc", where, metadata(data, 3), 3)
            del refs["c/0/0"]
            refs["c/0/1"] = b"\0" * (where[0, 1][1])
            refs["c/1/1"] = [f"{server.address}/alone"]
            for j in range(5):
                refs[f"c/3/{j}"] = [f"{server.address}/other.nc", *where[3, j]]
            for overlapping in (False, True):
                if overlapping:
                    refs["c/2/2"] = refs["c/2/3"]
                with zarr.config.set(ALONE):
                    alone = zarr.open_array(open_references(refs, "http"), mode="r")
                array = zarr.open_array(open_references(refs, "http"), mode="r")
                assert np.array_equal(array[:], alone[:])
                assert array[0, 0] == 7
            refs["c/4/4"] = [f"{server.address}/file.nc", where[7, 4][0] + 8, where[7, 4][1]]
            with zarr.config.set(ALONE):
                alone = zarr.open_array(open_references(refs, "http"), mode="r")
            array = zarr.open_array(open_references(refs, "http"), mode="r")
            for each in (alone, array):
                with pytest.raises(ValueError, match="reshape|holds|expected"):
                    each[:]

    @pytest.mark.parametrize("status", [403, 500])
    @pytest.mark.usefixtures("ours")
    def test_a_server_that_answers_with_errors(self, tmp_path, status):
        """The error is that of zarr alone, which asks for ranges, too."""
        data = content(">f8", np.random.default_rng(3))
        where = write(tmp_path / "file.nc", data)
        server = Server(tmp_path, lambda *_: (status, {}, b""))
        with server.running():
            refs = references(f"{server.address}/file.nc", where, metadata(data, 3), 3)
            errors = []
            for settings in (ALONE, {}):
                with zarr.config.set(settings):
                    array = zarr.open_array(open_references(refs, "http"), mode="r")
                with pytest.raises(Exception, match=".") as caught:
                    array[:]
                errors.append(type(caught.value))
        assert errors[0] is errors[1]

    @pytest.mark.usefixtures("ours")
    def test_a_dead_server_is_not_asked_again(self, tmp_path):
        data = content(">f8", np.random.default_rng(3))
        where = write(tmp_path / "file.nc", data)
        with DeadServer() as dead:
            refs = references(f"{dead.address}/file.nc", where, metadata(data, 3), 3)
            array = zarr.open_array(open_references(refs, "http"), mode="r")
            with pytest.raises(Exception, match=".") as caught:
                array[:]
        assert any("while reading chunk" in note for note in caught.value.__notes__)
        assert dead.num <= 2  # aiohttp tries a lost connection again

    @pytest.mark.usefixtures("ours")
    def test_requests_that_fail_now_and_then(self, tmp_path):
        data = content(">f8", np.random.default_rng(3))
        where = write(tmp_path / "file.nc", data)
        server, count = Server(tmp_path), itertools.count()
        answer = server.partial

        def sometimes(path, first, end, body):
            if next(count) == 0:  # the first answer is too short
                return 206, {}, body[first : end - 1]
            return answer(path, first, end, body)

        server.answer = sometimes
        with server.running():
            refs = references(f"{server.address}/file.nc", where, metadata(data, 3), 3)
            array = zarr.open_array(open_references(refs, "http"), mode="r")
            assert np.array_equal(array[:], data[: SHAPE[0], : SHAPE[1]])

    @pytest.mark.usefixtures("ours")
    def test_trace(self, tmp_path):
        data = content(">f8", np.random.default_rng(3))
        where = write(tmp_path / "file.nc", data)
        with Server(tmp_path).running() as server:
            refs = references(f"{server.address}/file.nc", where, metadata(data, 3), 3)
            array = zarr.open_array(open_references(refs, "http"), mode="r")
            with numcodecs_bytes.trace() as traced:
                array[:]
        total = traced.report()["total"]
        num_bytes = SHAPE[0] * SHAPE[1] * 8
        assert total["chunks"] == len(where)
        assert (total["requests"], total["bytes_selected"]) == (1, num_bytes)
        assert num_bytes <= total["bytes_fetched"] <= sum(length for _, length in where.values())


class Opened:
    """Counts how often files are opened."""

    def __init__(self, monkeypatch):
        self.names, self.closed = [], 0
        own_open, own_dup, own_close = os.open, os.dup, os.close
        monkeypatch.setattr(
            os, "open", lambda path, *how: self.names.append(path) or own_open(path, *how)
        )
        monkeypatch.setattr(os, "dup", lambda fd: self.names.append(fd) or own_dup(fd))
        monkeypatch.setattr(os, "close", self._close_with(own_close))

    def _close_with(self, own_close):
        def close(descriptor):
            self.closed += 1
            own_close(descriptor)

        return close


class TestOfALocalFile:
    @pytest.mark.usefixtures("ours")
    def test_references_open_it_once(self, tmp_path, monkeypatch):
        data = content(">f8", np.random.default_rng(3))
        where = write(tmp_path / "file.nc", data)
        refs = references(f"file://{tmp_path}/file.nc", where, metadata(data, 3), 3)
        array = zarr.open_array(open_references(refs, "file"), mode="r")
        for selection in SELECTIONS:
            expected = selected(zarr.array(data[: SHAPE[0], : SHAPE[1]]), selection)
            assert np.array_equal(selected(array, selection), expected)
        with monkeypatch.context() as patching:
            opened = Opened(patching)
            found = array[:]
        assert np.array_equal(found, data[: SHAPE[0], : SHAPE[1]])
        assert [name for name in opened.names if str(name).endswith("file.nc")] == opened.names
        assert len(opened.names) == opened.closed == 1

    @pytest.mark.usefixtures("ours")
    def test_threads_share_no_position(self, tmp_path, monkeypatch):
        """Where a system can't read at a position, each chunk has its own descriptor."""
        data = content(">f8", np.random.default_rng(3))
        where = write(tmp_path / "file.nc", data)
        refs = references(f"file://{tmp_path}/file.nc", where, metadata(data, 3), 3)
        array = zarr.open_array(open_references(refs, "file"), mode="r")
        with monkeypatch.context() as patching:
            for name in ("pread", "preadv"):
                patching.delattr(os, name, raising=False)
            opened = Opened(patching)
            found = array[:]
        assert np.array_equal(found, data[: SHAPE[0], : SHAPE[1]])
        assert len(opened.names) == opened.closed == len(where)

    @pytest.mark.usefixtures("ours")
    def test_beyond_its_end(self, tmp_path):
        data = content(">f8", np.random.default_rng(3))
        where = write(tmp_path / "file.nc", data)
        refs = references(f"file://{tmp_path}/file.nc", where, metadata(data, 3), 3)
        refs["c/4/4"] = [f"file://{tmp_path}/file.nc", where[7, 4][0] + 8, where[7, 4][1]]
        array = zarr.open_array(open_references(refs, "file"), mode="r")
        with pytest.raises(ValueError, match="holds 376 bytes, expected 384"):
            array[:]

    @pytest.mark.usefixtures("ours")
    def test_members_of_a_zip_archive(self, tmp_path, monkeypatch):
        path = tmp_path / "a.zip"
        data = np.arange(64.0 * 64).reshape(64, 64)
        with zarr.storage.ZipStore(path, mode="w", compression=zipfile.ZIP_STORED) as store:
            settings = {"chunks": (8, 8), "dtype": "f8", "compressors": None}
            zarr.create_array(store, shape=data.shape, **settings)[:56] = data[:56]
        with zarr.storage.ZipStore(path, mode="r") as store:
            array = zarr.open_array(store, mode="r")
            array[0, 0]
            with monkeypatch.context() as patching:
                opened = Opened(patching)
                found = array[:]
        assert np.array_equal(found[:56], data[:56])
        assert not found[56:].any()
        assert len(opened.names) == opened.closed == 1
