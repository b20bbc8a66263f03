"""URLs and fsspec's options -> Icechunk's storage."""

from typing import Any

PROTOCOLS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "http", "https")

# Icechunk's names of what fsspec's file systems (s3fs, gcsfs, adlfs) call otherwise.
_S3 = {
    "anon": "anonymous",
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "region_name": "region",
}
_GCS = {"token": "application_credentials"}
_AZURE = {"account_name": "account", "account_key": "access_key", "anon": "anonymous"}


def storage_at(location: str, options: dict[str, Any]) -> Any:
    """Return Icechunk's storage at a path or a URL with one of `PROTOCOLS`.

    The options are fsspec's for the URL, or Icechunk's own; without credentials, it takes those in
    the environment. Raises ValueError if Icechunk does not know an option.
    """
    import icechunk  # noqa: PLC0415 # optional, but installed if this is called

    protocol, _, rest = location.rpartition("://")
    bucket, _, prefix = rest.partition("/")
    kind: Any
    place: dict[str, Any] = {"bucket": bucket, "prefix": prefix.rstrip("/") or None}
    if not protocol:
        kind, place = icechunk.local_filesystem_storage, {"path": location}
    elif protocol.startswith("http"):
        kind, place = getattr(icechunk, "http_storage", None), {"base_url": location}
        if kind is None:
            raise ValueError("only Icechunk 2 and newer read repositories on web servers")
    elif protocol.startswith("s3"):
        kind, options = icechunk.s3_storage, _of_s3(options)
    elif protocol.startswith("g"):
        kind, options = icechunk.gcs_storage, _renamed(options, _GCS)
        if options.get("application_credentials") == "anon":
            options = {"anonymous": True}
    else:
        kind, options = icechunk.azure_storage, _renamed(options, _AZURE)
        place = {"container": bucket, "prefix": prefix.rstrip("/")}
    try:
        return kind(**place, **options)
    except TypeError as error:
        message = str(error).partition("() ")[2] or error
        raise ValueError(f"Icechunk can't use these storage options: {message}") from error


def _of_s3(options: dict[str, Any]) -> dict[str, Any]:
    options = options | options.get("client_kwargs", {})
    options.pop("client_kwargs", None)
    endpoint = options.get("endpoint_url")
    if endpoint:  # a server without a bucket in its name, often
        options = {"force_path_style": True, "allow_http": endpoint.startswith("http:"), **options}
    return _renamed(options, _S3)


def _renamed(options: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in options.items()}
