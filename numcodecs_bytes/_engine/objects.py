"""Which files obstore's object stores read."""

import re
import uuid
from typing import Any

from numcodecs_bytes._engine.strikes import state_of


def folder_of(objects: Any) -> str | None:
    """Return the folder that an obstore LocalStore reads, without "/" at the end.

    Returns None if that is not certain. Its `prefix` is only what it was given: it followed links
    from there when it was made. Only its errors tell the folder, which never changes.
    """
    state = state_of(objects)
    if state.folder is None:
        name = f"no-object-{uuid.uuid4().hex}"
        try:
            objects.head(name)
        except Exception as error:  # noqa: BLE001 # whatever it is, its text decides
            text = f"Object at location ((?:/.*)?)/{name} not found: "
            found = re.match(text, str(error), re.DOTALL)
            if found and "\ufffd" not in found[1]:  # which stands for bytes that are no text
                state.folder = found[1]
    return state.folder


def is_file_name(path: str) -> bool:
    """Whether an obstore LocalStore reads a path just as the system does.

    It refuses names that end with "#1", reads "C|" as "C:" at the root, and leaves out empty
    segments at either end; those that are not printable are not worth the doubt.
    """
    is_plain = path.isprintable() and not any(char in path for char in "#|\\")
    return is_plain and not {"", ".", ".."}.intersection(path.split("/"))
