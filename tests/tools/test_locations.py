"""What the commands open: URLs with options of fsspec, Icechunk repositories and their versions."""

import json

import pytest
import zarr
from helpers import write_array, write_v2

from numcodecs_bytes.__main__ import main
from numcodecs_bytes.check import check

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the stores' packages
PLAIN = [{"name": "bytes"}]
REPOSITORY = zarr.storage.MemoryStore(
    {"repo": zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(b"ICE")}
)


@pytest.fixture
def s3(s3_server, s3_client, monkeypatch):
    """Return a client of an S3 server with the bucket `data`, and fsspec's options for it."""
    pytest.importorskip("s3fs", reason="the extra stores is not installed")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    where = {"endpoint_url": s3_server, "region_name": "us-east-1"}
    return s3_client, {"key": "key", "secret": "secret", "client_kwargs": where}


def upload(client, folder, name):
    for path in folder.rglob("*"):
        if path.is_file():
            key = f"{name}/{path.relative_to(folder).as_posix()}"
            client.upload_file(str(path), "data", key)


def write_versions(folder):
    """Write a repository: array `v` in the tag `first`, `v` and `w` in `main`; return the first."""
    icechunk = pytest.importorskip("icechunk", reason="the extra icechunk is not installed")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))
    snapshots = []
    for name in ("v", "w"):
        session = repository.writable_session("main")
        array = zarr.create_array(session.store, name=name, shape=4, dtype="i2", compressors=None)
        array[:] = 1
        snapshots.append(session.commit(name))
    repository.create_tag("first", snapshots[0])
    return snapshots[0]


def paths_in(*arguments, **options):
    return [report.path for report in check(*arguments, **options)]


class TestStorageOptions:
    def test_check_and_migrate(self, tmp_path, s3, capsys):
        """They reach the server, whose keys are nowhere else."""
        client, options = s3
        upload(client, write_v2(tmp_path, b"1234", "|u1"), "old")
        more = ["s3://data/old", "--storage-options", json.dumps(options)]
        assert main(["migrate", *more]) == 0
        assert "1 array or group: 0 refused, 1 migrated" in capsys.readouterr().out
        client.put_object(Bucket="data", Key="old/0", Body=b"123")
        assert main(["check", *more]) == 1
        assert "holds 3 bytes, expected 4" in capsys.readouterr().out

    def test_data_that_may_be_public(self, s3, monkeypatch):
        """The answer did not say how to read them."""
        _, options = s3
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        without_keys = {"client_kwargs": options["client_kwargs"]}
        with pytest.raises(PermissionError, match="if the data are public, add --storage-options"):
            paths_in("s3://data/none", storage_options=without_keys)

    def test_a_zip_file_at_a_url(self, tmp_path, s3):
        """They are for the server, not for the zip file."""
        client, options = s3
        with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
            zarr.create_array(store, shape=4, dtype="i2")
        client.upload_file(str(tmp_path / "a.zip"), "data", "a.zip")
        assert paths_in("s3://data/a.zip", storage_options=options) == [""]

    def test_references(self, tmp_path, s3):
        """They are for what the references refer to, and for the file if that is at a URL."""
        client, options = s3
        client.put_object(Bucket="data", Key="file", Body=b"123")
        path = write_array(tmp_path / "a", None, "int8", PLAIN)
        refs = {"a/zarr.json": (path / "zarr.json").read_text(), "a/c/0": ["s3://data/file"]}
        (tmp_path / "a.json").write_text(json.dumps({"version": 1, "refs": refs}))
        client.upload_file(str(tmp_path / "a.json"), "data", "a.json")
        both = {"remote_options": options, "target_options": options}
        for url, given in ((tmp_path / "a.json", options), ("s3://data/a.json", both)):
            (report,) = check(url, storage_options=given)
            why = "holds 3 bytes, expected 4: the reference means all of its file, because it"
            (problem,) = report.problems
            assert problem.startswith(f"chunk a/c/0 (s3://data/file) {why}")

    def test_the_protocol_of_files_that_references_name(self, tmp_path):
        """By a path and by a URL: it was taken for an option of the file, and had no effect."""
        pytest.importorskip("fsspec", reason="the extra stores is not installed")
        metadata = {}
        zarr.create_array(metadata, name="a", shape=8, chunks=4, dtype="i1", compressors=None)
        (tmp_path / "file").write_bytes(bytes(8))
        refs = {"a/zarr.json": metadata["a/zarr.json"].to_bytes().decode()}
        refs["a/c/0"] = [str(tmp_path / "file"), 0, 4]
        refs["a/c/1"] = [(tmp_path / "file").as_uri(), 4, 4]
        (tmp_path / "a.json").write_text(json.dumps({"version": 1, "refs": refs}))
        (report,) = check(tmp_path / "a.json", storage_options={"remote_protocol": "file"})
        assert not report.problems

    def test_not_for_local_files_or_open_stores(self, tmp_path):
        """There is nothing to pass them to, so they are an error, not ignored."""
        with pytest.raises(ValueError, match="not for local files"):
            list(check(tmp_path, storage_options={"anon": True}))
        with pytest.raises(ValueError, match="not for open stores"):
            list(check(zarr.storage.MemoryStore(), icechunk_ref={"tag": "a"}))

    def test_a_dry_run_refuses_the_references_that_migrate_refuses(self, tmp_path, capsys):
        """It reported them as to be migrated."""
        (tmp_path / "a.json").write_text('{"refs": {".zgroup": "{\\"zarr_format\\": 2}"}}')
        for options in ([], ["--dry-run"]):
            assert main(["migrate", str(tmp_path / "a.json"), *options]) == 2
            assert "kerchunk references are read-only" in capsys.readouterr().err

    @pytest.mark.parametrize("text", ["{", "[1]", "anon"])
    def test_anything_but_a_json_object_is_a_wrong_argument(self, text, capsys):
        for command in ("check", "migrate"):
            with pytest.raises(SystemExit, match="2"):
                main([command, "s3://a", "--storage-options", text])
            assert f"expected a JSON object, got {text}" in capsys.readouterr().err


class TestIcechunk:
    def test_in_an_object_store(self, tmp_path, s3, capsys):
        """It is recognised there, but Icechunk's options have other names than fsspec's."""
        client, options = s3
        write_versions(tmp_path)
        upload(client, tmp_path, "repo")
        assert main(["check", "s3://data/a/repo", "--storage-options", json.dumps(options)]) == 1
        assert main(["check", "s3://data/repo/", "--storage-options", json.dumps(options)]) == 2
        error = capsys.readouterr().err
        assert "this is an Icechunk repository at a URL: open it with icechunk, and pass " in error

    @pytest.mark.parametrize("location", ["{}", "file://{}"])
    def test_in_a_folder(self, tmp_path, location):
        pytest.importorskip("fsspec")
        snapshot = write_versions(tmp_path)
        (report, _) = check(location.format(tmp_path))
        assert (report.path, report.num_chunks, report.partial_reads) == ("v", 1, "yes")
        assert (report.problems, report.notes) == ([], [])
        for ref in ({"tag": "first"}, {"snapshot": snapshot}):
            assert paths_in(location.format(tmp_path), icechunk_ref=ref) == ["v"]
        for kind, right in (("tag", "first"), ("branch", "main")):
            with pytest.raises(ValueError, match=rf"; expected one of \['{right}'\]$"):
                paths_in(location.format(tmp_path), icechunk_ref={kind: "nope"})
        with pytest.raises(ValueError, match="Protocol not known: nope: correct the URL, or inst"):
            paths_in("nope://a")

    def test_names_alone_do_not_make_a_repository(self, tmp_path, s3):
        """Arrays may be called like the files of a repository."""
        client, options = s3
        for name in ("repo", "snapshots", "refs"):
            write_array(tmp_path / name, bytes(4), "int8", PLAIN)
        upload(client, tmp_path, "names")
        assert paths_in("s3://data/names", storage_options=options) == ["refs", "repo", "snapshots"]
        assert paths_in(tmp_path) == ["refs", "repo", "snapshots"]

    def test_wrong_versions(self, tmp_path, capsys):
        write_array(tmp_path, None, "int8", PLAIN)
        with pytest.raises(ValueError, match="not an Icechunk repository, so it has no tag"):
            paths_in(tmp_path, icechunk_ref={"tag": "first"})
        with pytest.raises(SystemExit, match="2"):
            main(["check", "a", "--tag", "b", "--branch", "c"])
        assert "not allowed with argument" in capsys.readouterr().err


def test_a_group_in_a_zip_file_at_a_url(tmp_path):
    """zarr 3.1.6 lists folders in it as part of themselves, without end."""
    pytest.importorskip("fsspec")
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        group = zarr.create_group(store).create_group("g")
        group.create_array("a", shape=2, dtype="i4", compressors=None)
    found = list(check(f"zip://::file://{tmp_path}/a.zip"))
    if [report.path for report in found] != ["g/a"]:
        assert "the store lists a folder as part of itself" in str(found)
