"""Icechunk repositories: whether a store is one, and how to open it."""

import contextlib

from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype

from numcodecs_bytes._core.configuration import JSONObject


async def is_repository(store: Store) -> bool:
    """Whether a store has the file `repo` of Icechunk 2, or the branch `main` of Icechunk 1."""
    prototype = default_buffer_prototype()
    with contextlib.suppress(Exception):  # it is raised again when the store is read
        file = await store.get("repo", prototype, RangeByteRequest(0, 3))
        if file is not None and file.to_bytes().startswith(b"ICE"):
            return True
        return await store.get("refs/branch.main/ref.json", prototype) is not None
    return False


def open_repository(location: str, options: JSONObject, version: dict[str, str]) -> Store:
    """Open a version of a repository at a path or URL, with fsspec's options for it."""
    import icechunk  # optional, but installed if this is called

    protocol, _, rest = location.rstrip("/").rpartition("://")
    bucket, _, prefix = rest.partition("/")
    options = options | options.get("client_kwargs", {})
    options.pop("client_kwargs", None)
    if protocol.startswith("g"):  # gcsfs calls everything a token
        given = options.pop("token", None)
        options |= {"anon": True} if given == "anon" else {"application_credentials": given}
    # Icechunk's names of the options of fsspec's file systems (s3fs, adlfs).
    names = {
        "anon": "anonymous",
        "key": "access_key_id",
        "secret": "secret_access_key",
        "token": "session_token",
        "region_name": "region",
        "account_name": "account",
        "account_key": "access_key",
    }
    options = {names.get(name, name): value for name, value in options.items()}
    if endpoint := options.get("endpoint_url"):  # often a server without buckets in host names
        options = {"force_path_style": True, "allow_http": endpoint.startswith("http:"), **options}
    storage_kind, address = "local_filesystem_storage", {"path": rest}
    if protocol.startswith(("s3", "g")):
        storage_kind = "s3_storage" if protocol.startswith("s3") else "gcs_storage"
        address = {"bucket": bucket, "prefix": prefix}
    elif protocol.startswith("a"):
        storage_kind, address = "azure_storage", {"container": bucket, "prefix": prefix}
    elif protocol.startswith("http"):
        storage_kind, address = "http_storage", {"base_url": location}  # since Icechunk 2
    storage = getattr(icechunk, storage_kind)(**address, **options)
    arguments = {"snapshot": "snapshot_id"}
    chosen: JSONObject = {arguments.get(kind, kind): name for kind, name in version.items()}
    config = icechunk.Repository.fetch_config(storage)
    # Chunks in other files are read with the credentials of this environment, if any.
    others = dict.fromkeys((config and config.virtual_chunk_containers) or ())
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=others)
    session = repository.readonly_session(**chosen)
    store: Store = session.store
    return store
