"""Fixtures: what is asked of the system for local files, writes in place, and constants."""

import collections
import errno
import gc
import os
import random
import threading

import pytest
import zarr
from helpers import (
    OWN_BUG,
    OWN_BUGS,
    CountingStore,
    before_calls,
    case_of,
    functions_of_package,
    has,
    module_or_none,
    ranges_from,
)

import numcodecs_bytes


class Calls:
    """The calls of the system for local files, and what happens at them.

    zarr opens files without ``os.open``.

    Attributes
    ----------
    opened : list of str
        The paths that were opened.
    threads : list of str
        The name of the thread that opened each.
    reads : list of (int, int)
        The position and the number of bytes of each read.
    num_closed : int
        How many files were closed.
    at_open, at_read : callable
        Called after a file was opened, with its path, or before a read.
    is_cold : bool
        Whether reads that must not wait are refused.
    """

    def __init__(self, monkeypatch):
        self.opened, self.threads, self.reads, self.num_closed = [], [], [], 0
        self.at_open, self.at_read, self.is_cold = lambda _path: None, lambda: None, False
        self._descriptors, self._lock = set(), threading.Lock()
        reads = ["pread", "preadv"] if hasattr(os, "pread") else ["read"]
        names = ["open", "close", *(name for name in reads if hasattr(os, name))]
        self._system = {name: getattr(os, name) for name in names}
        for name in names:
            monkeypatch.setattr(os, name, getattr(self, f"_{name}"))

    def _open(self, path, *args, **kwargs):
        descriptor = self._system["open"](path, *args, **kwargs)
        self.opened.append(str(path))
        self.threads.append(threading.current_thread().name)
        self._descriptors.add(descriptor)
        self.at_open(str(path))
        return descriptor

    def _close(self, descriptor):
        if descriptor in self._descriptors:
            self._descriptors.remove(descriptor)  # before another thread gets the same one
            with self._lock:
                self.num_closed += 1
        self._system["close"](descriptor)

    def _pread(self, descriptor, num_bytes, position):
        self.at_read()
        raw = self._system["pread"](descriptor, num_bytes, position)
        self.reads.append((position, len(raw)))
        return raw

    def _preadv(self, descriptor, buffers, position, *flags):
        if flags and self.is_cold:
            raise BlockingIOError(errno.EAGAIN, "it is cold")
        self.at_read()
        num_bytes = self._system["preadv"](descriptor, buffers, position, *flags)
        self.reads.append((position, num_bytes))
        return num_bytes

    def _read(self, descriptor, num_bytes):
        self.at_read()
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        raw = self._system["read"](descriptor, num_bytes)
        self.reads.append((position, len(raw)))
        return raw

    @property
    def num_bytes(self):
        return sum(num_bytes for _, num_bytes in self.reads)


@pytest.fixture
def calls(monkeypatch):
    """Return the calls of the system for local files."""
    return Calls(monkeypatch)


@pytest.fixture
def _files_are_fast(each_byte_takes, set_constants):
    """No file is slow, however busy the machine is: no byte is read to learn that."""
    each_byte_takes(0.0)
    set_constants(CERTAIN_WAIT_SECONDS=60, SLOW_SECONDS=60)


@pytest.fixture(autouse=True)
def _stores_are_far(set_constants):
    """Request what is requested of a far store, however soon a store of the tests answers."""
    set_constants(NEAR_SECONDS=0.0)


@pytest.fixture
def _in_place(our_pipeline):  # noqa: ARG001 # which is set
    """Write in place or raise, in each of this package's pipelines.

    Where files have no locks, zarr writes, and a test of values alone is one all the same.
    """
    mode = "require" if has("fcntl") else True
    with zarr.config.set({"numcodecs_bytes.write_in_place": mode}):
        yield


class Written(list):
    """Each write and each read by `os`: which, the lock that is held, position, and bytes."""

    def __init__(self, monkeypatch):
        super().__init__()
        fcntl = module_or_none("fcntl")
        self.lock = None
        pwrite, pread, preadv, flock = os.pwrite, os.pread, os.preadv, fcntl.flock

        def lock(descriptor, how):
            flock(descriptor, how)
            names = {fcntl.LOCK_SH: "shared", fcntl.LOCK_EX: "exclusive"}
            self.lock = names.get(how & ~fcntl.LOCK_NB)

        def write(descriptor, view, position):
            self.append(("write", self.lock, position, bytes(view)))
            return pwrite(descriptor, view, position)

        def read(descriptor, views, position, *flags):
            self.append(("read", self.lock, position, sum(map(len, views))))
            return preadv(descriptor, views, position, *flags)

        def look(descriptor, num_bytes, position):
            self.append(("read", self.lock, position, num_bytes))
            return pread(descriptor, num_bytes, position)

        monkeypatch.setattr(os, "pread", look)
        monkeypatch.setattr(fcntl, "flock", lock)
        monkeypatch.setattr(os, "pwrite", write)
        monkeypatch.setattr(os, "preadv", read)


@pytest.fixture
def written(monkeypatch):
    """Return what is written to local files, and read of them, from now on."""
    return Written(monkeypatch)


MISTAKE = "a mistake of ours"


@pytest.fixture
def find_faults(caplog):
    """Return a function that has the functions of this package raise errors, one after the other.

    Each does at its first call, at its last one, or between them.
    """

    def find(begin, judge):
        """Return what is not as it should be, and in which functions.

        `begin` returns what is called, and `judge` says what is wrong, given its result or error.
        """

        def run(functions, find_error):
            use = begin()
            functions = functions or functions_of_package()
            with ranges_from(CountingStore), numcodecs_bytes.trace():
                try:
                    with before_calls(functions, find_error):
                        return use(), None
                except Exception as error:
                    if MISTAKE not in str(error):
                        raise
                    return None, error

        called, rng, found = collections.Counter(), random.Random(0), []  # noqa: S311 # no secret
        for _ in range(2):  # the first one may import more functions
            called.clear()
            assert not judge(*run(None, lambda function: called.update([function])))
        assert len(called) > 50
        for function, num in called.items():
            kind = type("OwnBug", (rng.choice(OWN_BUGS),), {"__module__": "numcodecs_bytes"})
            errors = [None] * rng.choice([0, num - 1, rng.randrange(num)]) + [kind(MISTAKE)]
            caplog.clear()
            with case_of(function.__qualname__, errors):
                result, error = run([function], lambda _: errors.pop(0) if errors else None)  # noqa: B023
                what = judge(result, error)
            may_be_silent = error or errors or issubclass(kind, ValueError)  # data may raise it
            if not (what or may_be_silent or OWN_BUG in str(caplog.messages)):
                what = "nothing is logged"
            if what:
                found.append(f"{what}: {function.__module__}.{function.__qualname__}")
        del result, error
        caplog.clear()
        gc.collect()  # else another test is warned of a coroutine that was never awaited
        return found

    return find
