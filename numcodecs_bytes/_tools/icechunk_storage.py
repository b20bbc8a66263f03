"""Icechunk repositories: whether a store is one, and how to open it."""

import contextlib
from typing import Any

from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype


async def is_repository(store: Store) -> bool:
    """Whether a store has the file `repo` of Icechunk 2, or the branch `main` of Icechunk 1."""
    prototype = default_buffer_prototype()
    with contextlib.suppress(Exception):  # it is raised again when the store is read
        file = await store.get("repo", prototype, RangeByteRequest(0, 3))
        if file is not None and file.to_bytes().startswith(b"ICE"):
            return True
        return await store.get("refs/branch.main/ref.json", prototype) is not None
    return False


# The call that opens a repository at a URL, by how its protocol begins.
_IN_A_BUCKET = "bucket={bucket!r}, prefix={prefix!r}, from_env=True"
_CALLS = {
    "s3": f"icechunk.s3_storage({_IN_A_BUCKET})",
    "g": f"icechunk.gcs_storage({_IN_A_BUCKET})",
    "a": f"icechunk.azure_storage(account=..., {_IN_A_BUCKET.replace('bucket=', 'container=')})",
    "http": "icechunk.http_storage({url!r})",  # since Icechunk 2
    "": "...",
}
_LINES = """this is an Icechunk repository at a URL, which you can check from Python:
  import icechunk
  from numcodecs_bytes.check import check
  repository = icechunk.Repository.open({})
  print(*check(repository.readonly_session("main").store), sep="\\n")"""


def lines_that_check(url: str) -> str:
    """Return the lines of Python that check a repository that is not in a folder."""
    protocol, _, rest = url.rstrip("/").partition("://")
    bucket, _, prefix = rest.partition("/")
    call = next(call for start, call in _CALLS.items() if protocol.startswith(start))
    return _LINES.format(call.format(bucket=bucket, prefix=prefix, url=url))


def open_repository(folder: str, version: dict[str, str]) -> Store:
    """Open a version of a repository in a folder."""
    import icechunk  # optional, but installed if this is called

    storage = icechunk.local_filesystem_storage(folder)
    config = icechunk.Repository.fetch_config(storage)
    # Chunks in other files are read with the credentials of this environment, if any.
    others = dict.fromkeys((config and config.virtual_chunk_containers) or ())
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=others)
    arguments = {"snapshot": "snapshot_id"}
    chosen: Any = {arguments.get(kind, kind): name for kind, name in version.items()}
    store: Store = repository.readonly_session(**chosen).store
    return store
