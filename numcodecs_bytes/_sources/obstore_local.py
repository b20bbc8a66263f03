"""Which files obstore's LocalStore reads."""

import re
import uuid
from typing import Any

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._sources.store_states import state_of
from numcodecs_bytes._zarr_api.names import name_of_class


def folder_of(objects: Any) -> str | None:
    """Return the folder that an obstore LocalStore reads, without "/" at the end.

    Returns None for other stores, and if the folder is not certain. The `prefix` of a store is only
    the path that it was given, whose links it resolved when it was made. Only its errors name the
    folder itself, which never changes.
    """
    if name_of_class(objects) != "obstore.store.LocalStore":
        return None
    state = state_of(objects)
    if state.folder is None:
        name = f"no-object-{uuid.uuid4().hex}"
        pattern = f"Object at location ((?:/.*)?)/{name} not found: "
        found = re.match(pattern, str(value_or_error(objects.head, name)), re.DOTALL)
        if found and "\ufffd" not in found[1]:  # which stands for bytes that are no text
            state.folder = found[1]
    return state.folder


def is_file_name(path: str) -> bool:
    """Whether an obstore LocalStore reads a path just as the system does.

    It refuses names that end with "#1", reads "C|" as "C:" at the root, and in version 0.8 "x:y" as
    "x:/y"; it leaves out empty segments at either end. Paths that are not printable count as
    different, to be safe.
    """
    has_usual_characters = path.isprintable() and not any(char in path for char in "#|:\\")
    return has_usual_characters and {"", ".", ".."}.isdisjoint(path.split("/"))
