"""Which stores are read in part, and that all of them give the values of zarr alone."""

import errno
import functools
import importlib
import os
import pickle
import random
import shutil
import zipfile
from base64 import b64encode

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import create, has, random_selections, ranges_from, reference_store, select
from zarr.codecs import BytesCodec, ShardingCodec

import numcodecs_bytes

SHAPE = (64, 1100)
DATA = np.random.default_rng(0).random(SHAPE)
NUM_BYTES = DATA.nbytes
ASYNC = {"asynchronous": True, "skip_instance_cache": True}


@pytest.fixture
def folder(tmp_path):
    """Return a folder with an array in it: one chunk, big-endian."""
    create(tmp_path / "array", SHAPE)[:] = DATA
    return tmp_path / "array"


def import_optional(name):
    return pytest.importorskip(name, reason=f"{name} is not installed")


@pytest.fixture
def http(folder):
    """Return the address of a web server that has the folder."""
    servers = import_optional("servers")
    files = {f"array/{path.relative_to(folder)}": path.read_bytes() for path in files_in(folder)}
    with servers.Server(files).running() as server:
        yield f"{server.url('properly', 'token')}/array"


@pytest.fixture
def s3(folder, s3_server, s3_client, monkeypatch):
    """Return the address of a server whose bucket `data` holds the folder."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for path in files_in(folder):
        s3_client.upload_file(str(path), "data", f"array/{path.relative_to(folder)}")
    return s3_server


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


# Before fsspec 2026.9, archives raise KeyError where zarr 3.1.6 looks for metadata of Zarr v2.
open_v3 = functools.partial(zarr.open_array, zarr_format=3)


def of_fsspec(url, **options):
    import_optional("fsspec")
    return zarr.storage.FsspecStore.from_url(url, storage_options=options, read_only=True)


def of_obstore(kind, *args, **kwargs):
    make = getattr(import_optional("obstore.store"), kind)
    make = make.from_url if args and "://" in str(args[0]) else make
    return zarr.storage.ObjectStore(make(*args, **kwargs), read_only=True)


def references(folder, protocol, target, start=0, **options):
    """Return a store of references: the chunk begins somewhere in a file."""
    place = [target, start, (folder / "c/0/0").stat().st_size]
    return store_of_references(folder, {"c/0/0": place}, protocol, **options)


def store_of_references(folder, chunks, protocol="file", **options):
    parts = {"zarr.json": (folder / "zarr.json").read_text()} | chunks
    return reference_store(parts, protocol, **options)


def references_to_file(folder):
    (folder / "file").write_bytes(b"header" + (folder / "c/0/0").read_bytes() + bytes(1000))
    return references(folder, "file", (folder / "file").as_uri(), 6)


def zipped(folder):
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in files_in(folder):
            member = zipfile.ZipInfo(file.relative_to(folder).as_posix())
            member.extra = b"\xca\xfe\4\0more"  # other programs write such fields
            archive.writestr(member, file.read_bytes())
    return path


def wrapped(files, folder):
    """Return a store on a synchronous file system."""
    wrapper = importlib.import_module("fsspec.implementations.asyn_wrapper")
    files = wrapper.AsyncFileSystemWrapper(files, asynchronous=True)
    return zarr.storage.FsspecStore(files, read_only=True, path=str(folder))


def cached(folder):
    fsspec, where = import_optional("fsspec"), str(folder.parent / "cache")
    how = {"cache_storage": where, "skip_instance_cache": True}
    return wrapped(fsspec.filesystem("blockcache", fs=fsspec.filesystem("file"), **how), folder)


def in_memory(folder):
    store = of_obstore("MemoryStore").store
    for path in files_in(folder):
        store.put(path.relative_to(folder).as_posix(), path.read_bytes())
    return zarr.storage.ObjectStore(store, read_only=True)


def of_obstore_by_fsspec(folder):
    """Return a store on a class that obstore makes for a protocol of fsspec."""
    upstream, fsspec = import_optional("obstore.fsspec"), import_optional("fsspec")
    before = fsspec.get_filesystem_class("file")
    upstream.register("file", asynchronous=True)
    try:
        kind = fsspec.get_filesystem_class("file")
    finally:
        fsspec.register_implementation("file", before, clobber=True)
    return zarr.storage.FsspecStore(kind(asynchronous=True), read_only=True, path=str(folder))


def icechunk_store(folder):
    icechunk = import_optional("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    for path in files_in(folder):
        raw = zarr.core.buffer.cpu.Buffer.from_bytes(path.read_bytes())
        zarr.core.sync.sync(session.store.set(path.relative_to(folder).as_posix(), raw))
    session.commit("all")
    return repository.readonly_session("main").store


def manifest_store(folder):
    """Return VirtualiZarr's store of the folder's chunk, in an array at its root."""
    manifests = import_optional("virtualizarr.manifests")
    from obspec_utils.registry import ObjectStoreRegistry  # comes with it

    chunk = folder / "c/0/0"
    chunk.with_name("file").write_bytes(b"header" + chunk.read_bytes() + bytes(1000))
    place = {"path": chunk.with_name("file").as_uri(), "offset": 6, "length": chunk.stat().st_size}
    array = manifests.ManifestArray(
        metadata=zarr.open_array(folder, mode="r").metadata,
        chunkmanifest=manifests.ChunkManifest({"0.0": place}),
    )
    store = manifests.ManifestStore(
        manifests.ManifestGroup(arrays={"array": array}),
        registry=ObjectStoreRegistry({"file://": of_obstore("LocalStore").store}),
    )
    return zarr.storage.StorePath(store, "array")


class Subclass(zarr.storage.LocalStore):
    """A person's store."""

    _supports_sync_io = False


class Wrapper(zarr.storage.WrapperStore):
    """A person's wrapper."""

    _supports_sync_io = False


HTTP = {"client_options": {"allow_http": True}}
S3 = {"prefix": "array", "virtual_hosted_style_request": False, **HTTP}
# Takes the folder, and what returns the address of a server.
TELLS_NO_LENGTH = {"fsspec, s3", "fsspec, obstore"}  # when asked for a range
IN_PART = {
    "LocalStore": lambda folder, _: zarr.storage.LocalStore(folder, read_only=True),
    "ZipStore": lambda folder, _: zarr.storage.ZipStore(zipped(folder), mode="r"),
    "obstore, local": lambda folder, _: of_obstore("LocalStore", str(folder)),
    "obstore, http": lambda _, get: of_obstore("HTTPStore", get("http"), **HTTP),
    "obstore, s3": lambda _, get: of_obstore("S3Store", "data", endpoint=get("s3"), **S3),
    "fsspec, local": lambda folder, _: of_fsspec(folder.as_uri()),
    "fsspec, http": lambda _, get: of_fsspec(get("http"), **ASYNC),
    "fsspec, s3": lambda _, get: of_fsspec("s3://data/array", endpoint_url=get("s3"), **ASYNC),
    "fsspec, obstore": lambda folder, _: of_obstore_by_fsspec(folder),
    "fsspec, references to files": lambda folder, _: references_to_file(folder),
    "fsspec, references to http": lambda folder, get: references(
        folder, "http", f"{get('http')}/c/0/0"
    ),
    "fsspec, references to whole files": lambda folder, _: store_of_references(
        folder, {"c/0/0": [(folder / "c/0/0").as_uri()]}
    ),
    "fsspec, references to all of http": lambda folder, get: store_of_references(
        folder, {"c/0/0": [f"{get('http')}/c/0/0"]}, "http"
    ),
    "fsspec, references to s3": lambda folder, get: references(
        folder, "s3", "s3://data/array/c/0/0", endpoint_url=get("s3")
    ),
    "Icechunk": lambda folder, _: icechunk_store(folder),
    "VirtualiZarr": lambda folder, _: manifest_store(folder),
}
WHOLE = {
    "obstore, memory": lambda folder, _: in_memory(folder),
    "fsspec, zip": lambda folder, _: of_fsspec(f"zip://::{zipped(folder).as_uri()}"),
    "fsspec, a cache": lambda folder, _: cached(folder),
    "WrapperStore": lambda folder, _: zarr.storage.WrapperStore(zarr.storage.LocalStore(folder)),
    "LoggingStore": lambda folder, _: zarr.storage.LoggingStore(zarr.storage.LocalStore(folder)),
    "a subclass": lambda folder, _: Subclass(folder, read_only=True),
}
BY_STORE = pytest.mark.parametrize("name", IN_PART | WHOLE)


@pytest.fixture
def open_store(folder, request):
    """Return what opens a store of these on the folder."""
    return lambda name: (IN_PART | WHOLE)[name](folder, request.getfixturevalue)


def is_read_in_part(array):
    with numcodecs_bytes.trace() as traced:
        assert np.array_equal(array[7], DATA[7])
    return traced.report()["total"]["bytes_fetched"] == DATA[7].nbytes


@BY_STORE
def test_every_store_gives_the_same_values(open_store, name):
    """Whatever is selected; in part or not."""
    array = open_v3(open_store(name), mode="r")
    rng = random.Random(name)  # noqa: S311
    for way, selection, expected in random_selections(rng, SHAPE, 2):
        assert np.array_equal(select(array, way, selection), expected(DATA))
    needs_pread = name == "ZipStore"
    assert is_read_in_part(array) == (name in IN_PART and (not needs_pread or has("os.pread")))


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("name", IN_PART)
def test_a_shard_is_read_in_part(open_store, folder, name, location):
    """Its index, and what is selected, wherever it begins in its object."""
    if name == "ZipStore" and not has("os.pread"):
        pytest.skip("zarr reads it")
    if (name, location) == ("fsspec, obstore", "end"):
        pytest.skip("it has no requests for the end of a file, with zarr alone either")
    codec = ShardingCodec(chunk_shape=(8, 1100), codecs=[BytesCodec()], index_location=location)
    settings = {"chunks": SHAPE, "serializer": codec, "compressors": None}
    zarr.create_array(folder, data=DATA, overwrite=True, **settings)
    array = open_v3(open_store(name), mode="r")
    with numcodecs_bytes.trace() as traced:
        assert np.array_equal(array[7], DATA[7])
    total = traced.report()["total"]
    assert (total["requests"], total["bytes_fetched"]) == (2, 8 * 16 + 4 + DATA[7].nbytes)
    assert np.array_equal(array[3:60:9, ::7], DATA[3:60:9, ::7])


@BY_STORE
@pytest.mark.parametrize("length", [100, 400_000, NUM_BYTES + 8])
def test_a_chunk_of_the_wrong_length(open_store, folder, name, length):
    """Is an error, as with zarr alone, wherever a store tells the length or it is too short."""
    if name in ("Icechunk", "VirtualiZarr"):
        pytest.skip("it holds a copy")
    chunk = folder / "c/0/0"
    chunk.write_bytes(chunk.read_bytes().ljust(length)[:length])
    array = open_v3(open_store(name), mode="r")
    for selection in (np.s_[:], np.s_[63]):
        is_short = length < NUM_BYTES
        if is_short or selection == np.s_[:] or name not in TELLS_NO_LENGTH:
            with pytest.raises(ValueError, match=f"holds {length} bytes, expected {NUM_BYTES}"):
                array[selection]


@pytest.mark.usefixtures("our_pipeline")
def test_references_of_zarr_v2_beyond_the_end_of_a_file(folder):
    """zarr's error was NumPy's, "cannot reshape array": references state any length."""
    zarr.create_array(folder / "v2", data=DATA, chunks=(4, 1100), compressors=None, zarr_format=2)
    (folder / "file").write_bytes(DATA.tobytes()[: NUM_BYTES // 2 + 1000])
    length = NUM_BYTES // 16
    parts = {f"{k}.0": [(folder / "file").as_uri(), length * k, length] for k in range(16)}
    parts[".zarray"] = (folder / "v2/.zarray").read_text()
    array = zarr.open_array(reference_store(parts), mode="r")
    assert np.array_equal(array[:32], DATA[:32])
    for selection, held in ((32, 1000), (63, 0), (np.s_[:], "[01]+"), (np.s_[20:, 5], "[01]+")):
        with pytest.raises(ValueError, match=f"holds {held} bytes, expected {length}"):
            array[selection]


def test_references_of_three_digits(folder, monkeypatch):
    """They are the bytes of a chunk, and no name of a file, offset and length."""
    create(folder / "b", 3, dtype="u1", endian=None)
    (folder / "1").write_bytes(b"xyzabc")
    monkeypatch.chdir(folder)
    parts = {"zarr.json": (folder / "b/zarr.json").read_text(), "c/0": "133"}
    array = zarr.open_array(reference_store(parts), mode="r")
    assert array[:2].tobytes() == b"13"
    assert array[:].tobytes() == b"133"


SHARD = ShardingCodec(chunk_shape=(8, 1100), codecs=[BytesCodec()])


class TestWhyWhole:
    """What `trace` says of chunks, and of shards, that zarr reads."""

    @pytest.fixture(params=["chunk", "shard"])
    def stored(self, folder, request):
        """Return the folder of an array of one chunk, or one shard."""
        if request.param == "shard":
            settings = {"chunks": SHAPE, "serializer": SHARD, "compressors": None}
            zarr.create_array(folder, data=DATA, overwrite=True, **settings)
        return folder

    def assert_whole(self, store, why, expected=DATA, num_requests=1):
        """Nothing is said to be missing but what is."""
        array = open_v3(store, mode="r")
        with numcodecs_bytes.trace() as traced:
            assert np.array_equal(array[7], expected[7])
        report = traced.report()
        total = report["total"]
        reasons = total["why_whole"] | report["not_seen"]
        if not expected.any():
            assert (reasons, total["chunks_missing"]) == ({}, 1)
        else:
            assert list(reasons) == [why]
        num_bytes = num_requests * DATA.nbytes
        if not report["not_seen"]:  # what zarr fetches of a shard is not known
            fetched = total["requests"], total["bytes_fetched"], total["bytes_zarr_alone"]
            assert fetched == (num_requests, num_bytes, num_bytes)

    def test_in_memory(self, stored):
        """It was "most of a shard is selected"."""
        parts = {path.relative_to(stored).as_posix(): path for path in files_in(stored)}
        store = zarr.storage.MemoryStore()
        for name, path in parts.items():
            raw = zarr.core.buffer.cpu.Buffer.from_bytes(path.read_bytes())
            zarr.core.sync.sync(store.set(name, raw))
        self.assert_whole(store, "it is in memory", num_requests=0)

    @pytest.mark.parametrize("inline", [lambda raw: raw, lambda raw: b"base64:" + b64encode(raw)])
    def test_inlined_in_references(self, stored, inline):
        raw = (stored / "c/0/0").read_bytes()
        store = store_of_references(stored, {"c/0/0": inline(raw)})
        self.assert_whole(store, "it is inlined in its reference", num_requests=0)

    def test_missing_behind_references(self, stored):
        """It was counted as a request; on zarr 3.1.6, as if it were there."""
        store = store_of_references(stored, {})
        self.assert_whole(store, "", np.zeros(SHAPE), num_requests=0)

    def test_a_whole_file_on_a_server_that_tells_no_length(self, stored, s3, s3_client):
        """It may begin with a header: zarr raises an error then."""
        s3_client.upload_file(str(stored / "c/0/0"), "data", "file")
        store = store_of_references(stored, {"c/0/0": ["s3://data/file"]}, "s3", endpoint_url=s3)
        why = "its reference has no offset and length; with both, it is read in part"
        self.assert_whole(store, why)

    def test_tifffile_s_store(self, folder):
        """Nobody is asked to name it: it raises for each range."""

        class Tiff(Subclass):
            __module__ = "tifffile.zarr"

        Tiff.__qualname__ = "ZarrTiffStore"
        why = "has no byte ranges; virtual-tiff opens TIFF files with them"
        self.assert_whole(Tiff(folder, read_only=True), f"tifffile.zarr.ZarrTiffStore {why}")


class TestReferencesToWholeFiles:
    """Without an offset and a length, as one writes them first for a binary file."""

    @pytest.fixture(params=["a file", "properly", "an unknown total"])
    def target(self, folder, request):
        """Return the protocol and the address of a chunk, which begins with a header."""
        chunk = folder / "c/0/0"
        raw = b"header" + chunk.read_bytes()
        chunk.write_bytes(raw)
        if request.param == "a file":
            yield "file", chunk.as_uri()
            return
        with import_optional("servers").Server({"c/0/0": raw}).running() as server:
            yield "http", f"{server.url(request.param, 'whole')}/c/0/0"

    def test_a_header_is_an_error(self, folder, target):
        """As by zarr: the chunk must be the whole file."""
        protocol, url = target
        array = open_v3(store_of_references(folder, {"c/0/0": [url]}, protocol), mode="r")
        message = rf"holds {NUM_BYTES + 6} bytes, expected {NUM_BYTES}"
        with pytest.raises(ValueError, match=message) as raised:
            array[7]
        # Old versions of fsspec do not tell the length: then, a note names the chunk.
        said = [str(raised.value), *getattr(raised.value, "__notes__", ())]
        assert f"chunk 'c/0/0' ({url})" in "\n".join(said)

    def test_a_file_that_is_missing_is_an_error(self, folder, target):
        """Not the fill value, though the server has answered before."""
        protocol, url = target
        place = [url, 6, NUM_BYTES]
        create(folder, (2 * SHAPE[0], SHAPE[1]), SHAPE, overwrite=True)
        parts = {"c/0/0": place, "c/1/0": [f"{url}-not"]}
        array = open_v3(store_of_references(folder, parts, protocol), mode="r")
        if protocol == "http":
            assert np.array_equal(array[7], DATA[7])
        with pytest.raises(Exception, match="failed to fetch target"):
            array[SHAPE[0]]


class TestAllowedExceptions:
    """Those that FsspecStore takes for a missing object, by file systems that answer ranges."""

    def open(self, folder, error, allowed):
        """Return an array of two chunks, one of which is missing."""
        kind = import_optional("fsspec.asyn").AsyncFileSystem
        create(folder / "b", (2, 1 << 20), (1, 1 << 20), dtype="u1", endian=None)[0] = 7

        class Files(kind):
            async def _cat_file(self, path, start=None, end=None):
                if path.endswith("c/1/0"):
                    raise error
                return (folder / path).read_bytes()[start:end]

        store = zarr.storage.FsspecStore(
            Files(asynchronous=True), path="b", read_only=True, allowed_exceptions=allowed
        )
        return open_v3(store, mode="r"), ranges_from(Files)

    @pytest.mark.parametrize(
        ("error", "allowed"),
        [
            (PermissionError("403"), (FileNotFoundError, PermissionError)),
            (KeyError("c/1/0"), (FileNotFoundError, KeyError)),
            (RuntimeError("no such key"), Exception),
        ],
        ids=repr,
    )
    def test_those_of_the_store(self, folder, caplog, error, allowed):
        """The store was given up: all of its chunks were read whole."""
        array, named = self.open(folder, error, allowed)
        with named:
            for _ in range(2):
                assert array[:, 5].tolist() == [7, 0]
            with numcodecs_bytes.trace() as traced:
                assert array[0, :5].tolist() == [7] * 5
        assert traced.report()["total"]["bytes_fetched"] == 5
        assert not caplog.messages

    @pytest.mark.parametrize("error", [IsADirectoryError("c/1/0"), FileNotFoundError("c/1/0")])
    def test_others(self, folder, error):
        """The chunk was read as missing."""
        array, named = self.open(folder, error, KeyError)
        with named:
            for selection in (np.s_[1, 5], np.s_[:, 5], np.s_[...]):
                with pytest.raises(type(error)):
                    array[selection]


def test_a_name_that_obstore_encodes(tmp_path):
    """Whatever its LocalStore makes of it: such a name is a file, or is requested."""
    upstream = import_optional("obstore.store").LocalStore(str(tmp_path))
    store = zarr.storage.ObjectStore(upstream)
    for name in ("a b", "a#b", "a%b", "ä"):
        create(zarr.storage.StorePath(store, name), SHAPE)[:] = DATA
        assert is_read_in_part(zarr.open_array(store, path=name, mode="r"))


class TestNamed:
    """`numcodecs_bytes.stores_with_ranges`; the kinds of its value: test_options.py."""

    def test_a_wrapper(self, folder):
        array = zarr.open_array(Wrapper(zarr.storage.LocalStore(folder)), mode="r")
        assert not is_read_in_part(array)
        with ranges_from(Wrapper):
            assert is_read_in_part(array)

    def test_where_a_class_is_defined_or_may_be_imported_from(self, folder):
        kind = zarr.storage.LoggingStore
        array = zarr.open_array(kind(zarr.storage.LocalStore(folder)), mode="r")
        for name in ("zarr.storage.LoggingStore", f"{kind.__module__}.LoggingStore"):
            with ranges_from(name):
                assert is_read_in_part(array)

    def test_a_file_system(self, folder):
        import_optional("fsspec")
        local = importlib.import_module("fsspec.implementations.local")

        class Files(local.LocalFileSystem):
            pass

        array = zarr.open_array(wrapped(Files(), folder), mode="r")
        assert not is_read_in_part(array)
        with ranges_from(Files):
            assert is_read_in_part(array)

    @pytest.mark.parametrize(
        "name",
        ["zarr.storage.LogingStore", "zarr.strage.LoggingStore", "zarr.storage", "LoggingStore"],
    )
    def test_a_name_that_is_misspelt(self, folder, name):
        """While a module that is not installed is no error."""
        message = rf"must be a list of classes such as 'package.module.Store', got .*'{name}'.* \("
        array = zarr.open_array(Subclass(folder, read_only=True), mode="r")
        with ranges_from("not_here.stores.Store"), numcodecs_bytes.trace() as traced:
            assert not is_read_in_part(array)
        assert "which can't import not_here.stores.Store" in str(traced)
        with ranges_from("not_here.Store", name), pytest.raises(ValueError, match=message):
            array[7]

    def test_a_name_that_can_be_imported_later(self, folder, tmp_path, monkeypatch):
        """Its class was remembered as not installed, for good."""

        def is_imported():
            array = zarr.open_array(Subclass(folder, read_only=True), mode="r")
            return is_read_in_part(array)

        with ranges_from(f"{tmp_path.name}.Store"):
            assert not is_imported()
            module = tmp_path / f"{tmp_path.name}.py"
            module.write_text(f"from {__name__} import Subclass as Store", "utf-8")
            monkeypatch.syspath_prepend(tmp_path)
            assert is_imported()


def test_a_store_that_is_not_known_is_named(folder):
    """A subclass of a class that is named, too."""

    class Another(Subclass):
        pass

    array = zarr.open_array(Another(folder, read_only=True), mode="r")
    with ranges_from(Subclass), numcodecs_bytes.trace() as traced:
        assert np.array_equal(array[7], DATA[7])
        assert np.array_equal(array[8], DATA[8])
    (why,) = traced.report()["total"]["why_whole"]
    says = (
        "is not known to have reliable byte ranges; if it has, and fetches only the range, name it"
    )
    assert f"Another {says} in " in why


def test_a_closed_store_whose_folder_is_gone(folder):
    """Its chunks were read as the fill value; zarr's `get` opens it, and raises."""
    store = zarr.storage.LocalStore(folder, read_only=True)
    array = zarr.open_array(store, mode="r")
    store.close()
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        array[:]


class TestStoresThatChange:
    """What was read once was looked for where the store had been: the fill value, or old data."""

    @pytest.fixture
    def folders(self, tmp_path):
        for number in (1, 2):
            create(tmp_path / f"v{number}", (200, 200))[:] = number
        return [str(tmp_path / f"v{number}") for number in (1, 2)]

    @pytest.mark.parametrize("kind", ["local", "obstore", "fsspec"])
    def test_to_another_folder(self, folders, kind):
        if kind == "local":
            store, other = map(zarr.storage.LocalStore, folders)
            name = "root"
        elif kind == "obstore":
            store, other = (of_obstore("LocalStore", folder) for folder in folders)
            name = "store"
        else:
            import_optional("fsspec")
            files = importlib.import_module("fsspec.implementations.local").LocalFileSystem()
            store, other = (wrapped(files, folder) for folder in folders)
            name = "path"
        array = zarr.open_array(store, mode="r")
        reader = numcodecs_bytes.SyncReader(array)
        assert (array[3, 3], reader[3, 3]) == (1, 1)
        setattr(array.store, name, getattr(other, name))
        assert (array[3, 3], reader[3, 3]) == (2, 2)

    def test_moved(self, folders, tmp_path):
        array = zarr.open_array(folders[0])
        reader = numcodecs_bytes.SyncReader(array)
        assert (array[3, 3], reader[3, 3]) == (1, 1)
        zarr.core.sync.sync(array.store.move(tmp_path / "moved"))
        assert (array[3, 3], reader[3, 3]) == (1, 1)
        array[3, 3] = 7
        assert (array[3, 3], reader[3, 3]) == (7, 7)

    def test_closed_and_opened_again(self, folders):
        """zarr read all chunks from then on."""
        array = zarr.open_array(folders[0], mode="r")
        array.store.close()
        assert array[3, 3] == 1  # zarr opens the store
        assert self.bytes_fetched(array) == 8

    def bytes_fetched(self, array):
        with numcodecs_bytes.trace() as traced:
            assert array[3, 3] == 1
        return traced.report()["total"]["bytes_fetched"]

    def test_the_list_of_named_classes_is_changed_in_place(self, folders):
        array = zarr.open_array(Subclass(folders[0], read_only=True), mode="r")
        with zarr.config.set({"numcodecs_bytes.stores_with_ranges": []}):
            assert self.bytes_fetched(array) == 200 * 200 * 8
            zarr.config.get("numcodecs_bytes.stores_with_ranges").append(Subclass)
            assert self.bytes_fetched(array) == 8


def test_a_link_that_is_pointed_elsewhere(tmp_path):
    """obstore's LocalStore looks at it once; the other folder was read."""
    for number in (1, 2):
        create(tmp_path / f"v{number}", (200, 200))[:] = number
    link = tmp_path / "latest"
    link.symlink_to("v1")
    array = zarr.open_array(of_obstore("LocalStore", str(link)), mode="r")
    link.unlink()
    link.symlink_to("v2")
    assert array[3, 3] == 1


def test_a_zip_file_that_is_closed_meanwhile(folder):
    """zarr opens it again."""
    store = zarr.storage.ZipStore(zipped(folder), mode="r")
    array = zarr.open_array(store, mode="r")
    store.close()
    assert np.array_equal(array[7], DATA[7])
    store.close()
    store.path.unlink()
    with pytest.raises(FileNotFoundError):  # as with zarr alone
        array[7]


@pytest.mark.needs("os.pread")
def test_a_zip_file_that_is_closed_while_it_is_read(folder, monkeypatch):
    """Its descriptor is then that of another file, an older archive: values would be wrong."""
    other = folder.parent / "other"
    create(other, SHAPE)[:] = -DATA
    store, older = zarr.storage.ZipStore(zipped(folder), mode="r"), zipped(other)
    array = zarr.open_array(store, mode="r")
    duplicate, opened = os.dup, []

    def close_and_duplicate(descriptor):
        monkeypatch.undo()
        store.close()
        opened.append(os.open(older, os.O_RDONLY))
        assert opened == [descriptor]
        return duplicate(descriptor)

    monkeypatch.setattr(os, "dup", close_and_duplicate)
    got = array[7]
    os.close(opened[0])
    assert np.array_equal(got, DATA[7])
    store.close()


@pytest.mark.needs("os.pread")
def test_an_array_in_a_zip_file_that_was_pickled(folder):
    """zarr 3.4 opens the archive of the copy when it is first used: its first chunk was read whole.

    So was one of each worker of Dask.
    """
    array = zarr.open_array(zarr.storage.ZipStore(zipped(folder), mode="r"), mode="r")
    copy = pickle.loads(pickle.dumps(array))  # noqa: S301 # made here
    with numcodecs_bytes.trace() as traced:
        assert np.array_equal(copy[7], DATA[7])
    total = traced.report()["total"]
    assert (total["why_whole"], total["bytes_fetched"]) == ({}, DATA[7].nbytes)
    array.store.close()
    copy.store.close()


@pytest.mark.needs("os.pread")
def test_an_archive_that_zarr_does_not_open_again(folder, monkeypatch):
    """Because it could not be closed: the error is zarr's, if zarr 3.4 raises one."""
    store = zarr.storage.ZipStore(zipped(folder), mode="r")
    array = zarr.open_array(store, mode="r")
    close = zipfile.ZipFile.close

    def fail(self):
        close(self)
        raise OSError(errno.EIO, "an error of the mount")

    monkeypatch.setattr(zipfile.ZipFile, "close", fail)
    with pytest.raises(OSError, match="an error of the mount"):
        store.close()
    monkeypatch.undo()
    if hasattr(store, "_close_failed"):
        with pytest.raises(RuntimeError, match="will not reopen it"):
            array[7]
    else:
        assert np.array_equal(array[7], DATA[7])


def test_a_zip_file_that_can_not_be_closed(folder, monkeypatch):
    """On a mount that reports at the end what went wrong; all had been read by then."""
    array = zarr.open_array(zarr.storage.ZipStore(zipped(folder), mode="r"), mode="r")
    close = os.close

    def fail(descriptor):
        close(descriptor)
        raise OSError(errno.EIO, "an error of the mount")

    monkeypatch.setattr(os, "close", fail)
    got = array[7]
    monkeypatch.undo()
    assert np.array_equal(got, DATA[7])


@pytest.mark.needs("os.pread")
def test_a_zip_file_that_is_truncated_meanwhile(folder, monkeypatch):
    """The error was one of `struct`."""
    path = zipped(folder)
    array = zarr.open_array(zarr.storage.ZipStore(path, mode="r"), mode="r")
    duplicate = os.dup

    def truncate(descriptor):
        os.truncate(path, 10)
        return duplicate(descriptor)

    monkeypatch.setattr(os, "dup", truncate)
    with pytest.raises(EOFError):  # as with zarr alone
        array[7]
