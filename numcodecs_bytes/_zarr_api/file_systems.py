"""File systems of fsspec: which are local, and what their references point to."""

from typing import Any


def unwrapped(file_system: Any) -> Any:
    """Return a file system without the wrapper of fsspec that makes it asynchronous, if any."""
    is_wrapper = type(file_system).__module__ == "fsspec.implementations.asyn_wrapper"
    return file_system.sync_fs if is_wrapper else file_system


def is_local(file_system: object) -> bool:
    """Whether a file system is fsspec's own of local files."""
    kind = type(file_system)
    return (kind.__module__, kind.__name__) == ("fsspec.implementations.local", "LocalFileSystem")


def references_of(store: Any) -> Any:
    """Return the references that a store of fsspec reads, by the paths of chunks, or None."""
    return getattr(getattr(store, "fs", None), "references", None)


def is_web_server(store: Any) -> bool:
    """Whether a store of fsspec is a web server."""
    return "http" in getattr(getattr(store, "fs", None), "protocol", ())


def reference_to(store: Any, key: str) -> Any:
    """Return the reference to a chunk of a store that has references, or None."""
    return references_of(store).get(f"{store.path}/{key}".strip("/"))


def missing_parquet_file(store: Any, path: str, num_chunks: int) -> str:
    """Return the first file of references to an array's chunks that is missing, or ""; of 1,000.

    Its chunks are read as the fill value. Writers make no file of references if all are missing.
    """
    references = references_of(store)
    if references is None or isinstance(references, dict):
        return ""
    field = f"{store.path}/{path}".strip("/")
    numbers = range(min(-(-num_chunks // references.record_size), 1000))
    files = (references.url.format(field=field, record=number) for number in numbers)
    return next((file for file in files if not references.fs.exists(file)), "")


def is_inlined(reference: object) -> bool:
    """Whether a reference is the chunk itself."""
    return isinstance(reference, str | bytes)


def target_of(reference: Any, file_system: Any) -> tuple[str, tuple[int, int] | None]:
    """Return the URL of a reference, and the offset and length of a part of that, if it has them.

    A reference of an unknown form may raise anything.
    """
    if not isinstance(reference, list | tuple) or len(reference) not in (1, 3):
        raise ValueError(f"expected [url] or [url, offset, length], got {reference!r}")
    url, *part = reference
    target = file_system.target if url is None else url
    if not part:
        return target, None
    offset, num_bytes = map(int, part)
    if offset < 0 or num_bytes < 0:
        raise ValueError(
            f"its offset or length is negative: {reference!r}: make the references again"
        )
    return target, (offset, num_bytes)


def target_of_chunk(store: Any, key: str) -> tuple[str, tuple[int, int] | None]:
    """Return `target_of` the reference to a chunk; raise anything if the store has none."""
    return target_of(reference_to(store, key), store.fs)
