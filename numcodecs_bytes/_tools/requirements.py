"""Which versions of other packages are installed although this package does not support them."""

from importlib.metadata import requires, version

from numcodecs_bytes._core.catch import value_or_error


def unsupported_versions() -> list[str]:
    """Return a sentence for each package that is older than this one needs, or is excluded."""
    found = value_or_error(_find_unsupported)  # the metadata of packages may be damaged, or missing
    return found if isinstance(found, list) else []


def _find_unsupported() -> list[str]:
    from packaging.requirements import Requirement  # zarr 3 needs it, zarr 2 does not

    needed = map(Requirement, requires("numcodecs-bytes") or ())
    return [
        f"{each.name} {version(each.name)} is installed, but numcodecs-bytes needs "
        f"{each.name} {each.specifier}: pip install --upgrade '{each}'"
        for each in needed
        if each.marker is None and not each.specifier.contains(version(each.name), prereleases=True)
    ]
