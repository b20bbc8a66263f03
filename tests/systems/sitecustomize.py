"""Takes away what Windows or macOS lack, in this interpreter and in those that it starts.

The variable SIMULATED_SYSTEM says which, "windows" or "macos"; Python imports this module by itself
if its folder is in PYTHONPATH (see `run.py`). The standard library and other packages lose the same
functions: it is loaded first, and they are written for systems without them.

It can't show what only the systems themselves do: separators, drive letters and case of paths, text
mode, code pages, the signals and the permissions of Windows, file systems, timing, and wheels. Nor
does it hide ``/proc`` (`helpers.has` does), or see that another process has a file open.
"""

import contextlib
import errno
import functools
import multiprocessing.context
import os
import signal
import stat
import sys

with contextlib.suppress(ImportError):
    import psutil  # noqa: F401 # it needs `resource`: it was built for this system

# macOS refuses 2 GiB or more at once. No test reads that much, so this refuses far less.
_TOO_MANY_BYTES = 1 << 24
_LACKS = {
    "windows": [
        *("O_NONBLOCK", "fchmod", "fork", "forkpty", "killpg", "mkfifo", "pread", "preadv"),
        *("pwrite", "pwritev", "register_at_fork"),
    ],
    "macos": [],
}


def _be(system: str) -> None:
    advice = [name for name in dir(os) if name.startswith(("posix_fadvise", "POSIX_FADV_", "RWF_"))]
    for name in [*_LACKS[system], *advice]:
        delattr(os, name)
    if system == "windows":
        sys.modules["fcntl"] = None  # type: ignore[assignment] # importing it raises ImportError
        for name in ("remove", "rename", "replace", "unlink"):
            setattr(os, name, _unless_open(getattr(os, name)))
        del signal.alarm
        for method in ("fork", "forkserver"):
            del multiprocessing.context._concrete_contexts[method]
        multiprocessing.get_all_start_methods = lambda: ["spawn"]
    else:
        for name, num_of in (("pread", int), ("preadv", _total), ("pwrite", len)):
            setattr(os, name, _limited(getattr(os, name), num_of))
    spawn = multiprocessing.context._concrete_contexts["spawn"]
    multiprocessing.context._default_context._default_context = spawn


def _unless_open(function):
    """Raise PermissionError if this process has one of the files open, as Windows does."""

    @functools.wraps(function)
    def call(*paths, **kwargs):
        for path in paths:
            if _is_open(path):
                raise PermissionError(errno.EACCES, "another program uses the file", path)
        return function(*paths, **kwargs)

    return call


def _is_open(path) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and any(
        os.path.samestat(status, opened) for opened in _opened()
    )


def _opened():
    """Yield the status of each file that this process has open, or has mapped."""
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            yield os.fstat(int(descriptor))
        except OSError:  # it was closed meanwhile
            continue


def _limited(function, num_of):
    """Refuse too many bytes at once."""

    @functools.wraps(function)
    def call(descriptor, what, *args):
        if num_of(what) >= _TOO_MANY_BYTES:
            raise OSError(errno.EINVAL, "Invalid argument")
        return function(descriptor, what, *args)

    return call


def _total(buffers) -> int:
    return sum(memoryview(buffer).nbytes for buffer in buffers)


if "SIMULATED_SYSTEM" in os.environ:
    _be(os.environ["SIMULATED_SYSTEM"])
