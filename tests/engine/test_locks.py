"""Files that are written in place: locked, checked and made, whatever others do."""

import asyncio
import contextlib
import errno
import os
import signal
import threading
import time

import numpy as np
import pytest
import zarr
from helpers import (
    OUR_PIPELINES,
    cancelled,
    create,
    module_or_none,
    run_program,
    run_python,
    start_program,
)

fcntl = module_or_none("fcntl")
pytestmark = [pytest.mark.needs("fcntl"), pytest.mark.usefixtures("_in_place")]
IF_POSSIBLE = {"numcodecs_bytes.write_in_place": True}


@pytest.fixture
def array(tmp_path):
    """Return an array of one chunk of 8 x 8 ones."""
    array = create(tmp_path, (8, 8))
    array[...] = 1
    return array


@pytest.fixture
def chunk(tmp_path):
    return tmp_path / "c/0/0"


@contextlib.contextmanager
def locked(path, how):
    """Lock a file, as another process would."""
    with path.open("rb") as file:
        fcntl.flock(file, how)
        yield


def in_thread(array, selection, value):
    """Start to write in a thread."""
    thread = threading.Thread(target=array.__setitem__, args=(selection, value), daemon=True)
    thread.start()
    return thread


WHAT_IT_IS = {
    "mkfifo": "it is not a regular file; set the option to True",
    "mkdir": "a folder has its name; move it away",  # zarr can't write it, either
}


@pytest.mark.parametrize("make", WHAT_IT_IS)
def test_what_is_no_file(array, chunk, make):
    chunk.unlink()
    getattr(os, make)(chunk)
    with pytest.raises(RuntimeError, match=f"c/0/0.* in place: {WHAT_IT_IS[make]}.*require"):
        array[1, 1:] = 5


REFUSED = {
    "open": (os, "open", "made", "opened for writing"),
    "lock": (fcntl, "flock", "locked", "locked"),
    "length": (os, "ftruncate", "given its length", None),
    "link": (os, "link", "given its name by a hard link", None),
}


@pytest.mark.parametrize("exists", [False, True], ids=["new", "exists"])
@pytest.mark.parametrize("refused", REFUSED)
def test_what_the_system_refuses_is_left_to_zarr(array, chunk, monkeypatch, refused, exists):
    """And a file that can't be made leaves nothing."""
    module, name, *why = REFUSED[refused]
    before = chunk.read_bytes()
    if not exists:
        chunk.unlink()

    def refuse(*_):
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(module, name, refuse)
    if why[exists]:
        with pytest.raises(RuntimeError, match=rf"it can't be {why[exists]} \(no\)"):
            array[1, 1:] = 5
    assert [path.read_bytes() for path in chunk.parent.iterdir()] == [before] * exists
    with zarr.config.set(IF_POSSIBLE):
        array[1, 1:] = 5
    assert array[1].tolist() == [exists, *[5] * 7]


IS_KILLED = """
import os, signal, sys
import numpy as np, zarr, numcodecs_bytes.zarr_pipeline

path, pipeline, when = sys.argv[1:]
settings = {"codec_pipeline.path": pipeline, "numcodecs_bytes.write_in_place": "require"}
zarr.config.set(settings)
function = getattr(os, when)

def call_and_be_killed(*args):
    function(*args)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(os, when, call_and_be_killed)
zarr.open_array(path, mode="r+")[1, 1:] = 2
"""


class TestNewFiles:
    def test_a_first_name_that_can_not_be_removed_leaves_no_lock(self, array, chunk, monkeypatch):
        """The next write removes it."""
        chunk.unlink()

        def refuse(*_):
            raise OSError(errno.EIO, "no")

        monkeypatch.setattr(os, "unlink", refuse)
        with pytest.raises(OSError, match="no"):
            array[1, 1:] = 5
        monkeypatch.undo()
        thread = in_thread(array, np.s_[2, 1:], 6)
        thread.join(20)
        assert not thread.is_alive()
        assert array[1:3, 0].tolist() == [0, 0]
        assert array[1:3, 1].tolist() == [5, 6]
        assert [path.name for path in chunk.parent.iterdir()] == ["0"]

    def test_a_first_name_that_another_writer_takes_for_that_of_a_killed_one(
        self, array, chunk, monkeypatch
    ):
        """The file is made once more: the write raised FileNotFoundError."""
        link = os.link

        def remove_and_link(name, path):
            monkeypatch.setattr(os, "link", link)
            os.unlink(name)  # noqa: PTH108
            link(name, path)

        monkeypatch.setattr(os, "link", remove_and_link)
        chunk.unlink()
        array[1, 1:] = 5
        assert array[1].tolist() == [0, *[5] * 7]
        assert [path.name for path in chunk.parent.iterdir()] == ["0"]

    def test_a_folder_that_is_deleted_just_then(self, array, chunk, monkeypatch):
        """It is made once more: the write raised an error that says nothing."""
        open_file, folder = os.open, chunk.parent

        def delete_and_open(path, flags, *mode):
            if flags & os.O_CREAT and str(path).startswith(str(chunk)):
                monkeypatch.setattr(os, "open", open_file)
                folder.rmdir()
            return open_file(path, flags, *mode)

        chunk.unlink()
        monkeypatch.setattr(os, "open", delete_and_open)
        array[1, 1:] = 5
        assert os.open is open_file
        assert array[1].tolist() == [0, *[5] * 7]

    def test_the_first_of_many_wins(self, array, chunk, monkeypatch):
        """Threads that all find it missing, and all make a file for it."""
        barrier, truncate = threading.Barrier(4), os.ftruncate
        monkeypatch.setattr(os, "ftruncate", lambda *args: (barrier.wait(20), truncate(*args)))
        chunk.unlink()
        threads = [in_thread(array, np.s_[2 * k, 1:], k + 2) for k in range(4)]
        for thread in threads:
            thread.join()
        assert array[::2, 1:].tolist() == [[k + 2] * 7 for k in range(4)]
        assert not array[1::2].any()
        assert [path.name for path in chunk.parent.iterdir()] == ["0"]
        mode_of_others = (chunk.parents[2] / "zarr.json").stat().st_mode
        assert chunk.stat().st_mode == mode_of_others

    @pytest.mark.parametrize("when", ["rename", "link"])
    def test_a_writer_that_is_killed_while_a_file_has_two_names(self, tmp_path, chunk, when):
        """The next one removes the temporary name, and writes in place."""
        array = create(tmp_path, (8, 8))
        arguments = "-W", "ignore", "-c", IS_KILLED, tmp_path, OUR_PIPELINES[0], when
        assert run_program(*arguments, status=None).returncode == -signal.SIGKILL
        assert len(list(chunk.parent.iterdir())) == (2 if when == "link" else 1)
        array[2, 1:] = 6
        expected = [2] * 7 if when == "link" else [0] * 7
        assert array[1:3, 1:].tolist() == [expected, [6] * 7]
        assert (when == "rename") == any(chunk.parent.glob("*.partial"))

    @pytest.mark.parametrize("is_linked", [False, True], ids=["", "hard-linked"])
    def test_the_temporary_name_left_by_a_killed_writer_is_removed(self, array, chunk, is_linked):
        """That of a copy made of hard links is not, nor are other files."""
        link = chunk.with_name("link")
        link.hardlink_to(chunk)
        number = link.stat().st_ino
        link.rename(chunk.with_name(f"0.{number}.in-place.partial"))
        others = ["0.abc.partial", f"00.{number}.in-place.partial"]  # zarr's, and of another chunk
        for name in others:
            chunk.with_name(name).write_bytes(b"of another file")
        if is_linked:
            chunk.with_name("copy").hardlink_to(chunk)
        refused = pytest.raises(RuntimeError, match=r"it has another name \(a hard link\)")
        with refused if is_linked else contextlib.nullcontext():
            array[1, 1:] = 5
        assert array[...].sum() == (64 if is_linked else 57 + 35)
        expected = sorted(["0", *others, *(["copy"] if is_linked else [])])
        assert sorted(path.name for path in chunk.parent.iterdir()) == expected


@pytest.mark.parametrize(
    ("module", "name"), [(os, "lstat"), (os, "open"), (fcntl, "flock"), (os, "fstat")]
)
@pytest.mark.parametrize("is_linked", [False, True], ids=["", "hard-linked"])
@pytest.mark.parametrize("is_deleted", [False, True], ids=["replaced", "deleted"])
def test_a_file_that_is_replaced_at_that_moment(  # noqa: PLR0917
    array, chunk, monkeypatch, module, name, is_linked, is_deleted
):
    """What is written goes to the one that has the name then; the old one may have had two."""
    new, copy, function = chunk.with_name("new"), chunk.with_name("copy"), getattr(module, name)
    new.write_bytes(np.full(64, 2, ">f8").tobytes())
    if is_linked:
        copy.hardlink_to(chunk)

    def replace(*args, **kwargs):
        result = function(*args, **kwargs)
        if new.exists():
            new.replace(chunk)
            if is_deleted:
                chunk.unlink()
        return result

    monkeypatch.setattr(module, name, replace)
    array[2, 1:] = 3
    assert array[2].tolist() == [0 if is_deleted else 2] + [3] * 7
    assert array[...].sum() == (0 if is_deleted else 2 * 57) + 3 * 7
    assert not is_linked or (np.fromfile(copy, ">f8") == 1).all()


def test_a_chunk_that_keeps_being_replaced(tmp_path, array, chunk, monkeypatch, set_constants):
    flock = fcntl.flock

    def replace(descriptor, how):
        flock(descriptor, how)
        (tmp_path / "new").write_bytes(bytes(512))
        (tmp_path / "new").replace(chunk)

    monkeypatch.setattr(fcntl, "flock", replace)
    set_constants(MAX_TRIES=20)
    with pytest.raises(RuntimeError, match="it keeps being replaced"):
        array[2, 1:] = 3


def test_a_lock_that_a_forked_process_holds_is_given_back(array, monkeypatch):
    copies, flock = [], fcntl.flock

    def fork(descriptor, how):
        copies.append(os.dup(descriptor))  # as fork does
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", fork)
    array[:, ::2] = 2  # with an exclusive lock
    monkeypatch.undo()
    in_thread(array, np.s_[1, 1:], 5).join(30)
    for copy in copies:
        os.close(copy)
    assert array[1].tolist() == [2] + [5] * 7


# A thread writes, and stops while it holds a lock. Another one forks a child then, or just after
# the file was opened; or the thread itself forks one, which goes on with the write.
HOLDS_A_LOCK = """
import os, sys, threading
import numpy as np, zarr, numcodecs_bytes.zarr_pipeline

path, pipeline, when, selection = sys.argv[1:]
settings = {"codec_pipeline.path": pipeline, "numcodecs_bytes.write_in_place": "require"}
zarr.config.set(settings)
array, is_locked = zarr.open_array(path, mode="r+"), threading.Event()
open_file, pwrite, close = os.open, os.pwrite, os.close

def fork():
    if not os.fork():
        os.write(1, b"forked\\n")
        sys.stdin.read()
        os._exit(0)

def open_and_fork(path, flags, *mode):
    descriptor = open_file(path, flags, *mode)
    if when == "opened" and flags & os.O_RDWR:
        os.open = open_file
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
    return descriptor

def close_and_say_so(descriptor):
    close(descriptor)
    os.write(1, b"closed\\n")

def stop(*args):
    os.pwrite = pwrite
    if when == "goes on" and not os.fork():
        os.close = close_and_say_so
        return pwrite(*args)
    is_locked.set()
    threading.Event().wait()

os.open, os.pwrite = open_and_fork, stop
threading.Thread(target=array.__setitem__, args=(eval(selection), 2)).start()
is_locked.wait()
if when == "locked":
    fork()
if when != "goes on":
    os.write(1, b"locked\\n")
threading.Event().wait()
"""


def process_with_lock(path, when, selection="np.s_[1, 1:]"):
    """Start a process that writes in place, has a child, and stops while it holds a lock."""
    code = "-c", HOLDS_A_LOCK, path, OUR_PIPELINES[0], when, selection
    program = start_program("-W", "ignore", *code)
    expected = ["closed\n"] if when == "goes on" else ["forked\n", "locked\n"]
    assert sorted(program.stdout.readline() for _ in expected) == expected
    return contextlib.closing(program)  # then its child ends, too


def is_locked_by_others(path):
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


GROWING = {"chunks": (8, 4), "shards": (8, 8), "fill_value": 1}


@pytest.mark.needs("os.fork")
class TestForks:
    @pytest.mark.parametrize("when", ["opened", "locked"])
    @pytest.mark.parametrize(
        ("settings", "selection"),
        [({}, "np.s_[1, 1:]"), ({}, "np.s_[:, ::2]"), (GROWING, "np.s_[1, 5:]")],
        ids=["shared", "exclusive", "growing shard"],
    )
    def test_a_lock_ends_with_the_process_that_took_it(
        self, tmp_path, chunk, when, settings, selection
    ):
        """Others waited for its children, too, which had inherited the open file."""
        array = create(tmp_path, (8, 8), **settings)
        array[:, :4] = 3
        with process_with_lock(tmp_path, when, selection) as program:
            assert is_locked_by_others(chunk)  # the child has closed it, but not unlocked it
            program.kill()
            program.wait()
            assert not is_locked_by_others(chunk)
            array[1, 5:] = 6
            assert array[1, 5:].tolist() == [6] * 3

    def test_a_child_that_goes_on_with_a_write_unlocks_nothing(self, tmp_path, array, chunk):
        """A finaliser may fork at any line: the parent was still writing."""
        with process_with_lock(tmp_path, "goes on"):
            assert is_locked_by_others(chunk)
        assert array[1].tolist() == [1, *[2] * 7]

    @pytest.mark.parametrize("hook", ["before", "after_in_parent", "after_in_child"])
    def test_a_hook_of_the_program_may_write(self, tmp_path, hook):
        """It waited for the fork to end, which waited for the hook."""
        create(tmp_path, (8, 8))
        run_python("-c", WRITES_IN_HOOK, tmp_path, hook)
        row = zarr.open_array(tmp_path, mode="r")[1].tolist()
        assert row == [0, *[5] * 7]

    def test_an_error_at_the_end_of_a_fork_blocks_no_writes(self, tmp_path):
        """What a signal handler raised in a hook of ours did."""
        create(tmp_path, (8, 8))
        run_python("-W", "ignore", "-c", FORKS_WITH_TIME_OUTS, tmp_path)
        assert zarr.open_array(tmp_path, mode="r")[1].tolist() == [0, *[5] * 7]

    def test_nothing_is_kept_of_a_fork_that_has_ended(self, tmp_path):
        """Each one was recorded, and never forgotten."""
        create(tmp_path, (8, 8))
        sizes = run_python("-c", FORKS_OFTEN, tmp_path).stdout.splitlines()
        assert sizes[0] == sizes[1]

    def test_a_fork_that_began_later_and_goes_on(self):
        """When the first of two forks ended, the second was forgotten: its child kept a lock."""
        run_python("-W", "ignore", "-c", TWO_FORKS)

    def test_a_child_imports_nothing_to_write(self, tmp_path):
        """A lock of that import, which a thread held at the fork, was never free in the child."""
        create(tmp_path, (8, 8))
        program = """
import sys, zarr
array = zarr.open_array(sys.argv[1], mode="r+")
before = set(sys.modules)
array[:] = 1
print(*[name for name in set(sys.modules) - before if name.startswith("numcodecs_bytes")])
"""
        assert run_python("-c", program, tmp_path).stdout.split() == []


WRITES_IN_HOOK = """
import os, sys, zarr

zarr.config.set({"numcodecs_bytes.write_in_place": "require"})
array = zarr.open_array(sys.argv[1], mode="r+")
os.register_at_fork(**{sys.argv[2]: lambda: array.__setitem__((1, slice(1, 8)), 5)})
array[2, 3:] = 2  # from now on, this package has hooks, too
child = os.fork()
if not child:
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0
"""

TWO_FORKS = """
import concurrent.futures.thread, logging, os, threading  # their hooks hold locks: they run last

second_forks, first_has_ended = threading.Event(), threading.Event()

def fork():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)

def before_fork():  # runs after the hooks of this package, since it was registered before them
    if threading.current_thread() is threading.main_thread():
        second.start()
        second_forks.wait()
    else:
        second_forks.set()
        first_has_ended.wait()

second = threading.Thread(target=fork, daemon=True)
os.register_at_fork(before=before_fork)
import numcodecs_bytes._write.locks as locks

fork()
assert locks._does_another_fork()
first_has_ended.set()
second.join()
assert not locks._does_another_fork()
"""

FORKS_OFTEN = """
import os, sys, zarr
from collections.abc import Sized
import numcodecs_bytes._write.locks as locks

zarr.config.set({"numcodecs_bytes.write_in_place": "require"})
array = zarr.open_array(sys.argv[1], mode="r+")
for number in range(2):
    array[1, 1:] = number
    print([len(kept) for kept in vars(locks).values() if isinstance(kept, Sized)])
    for _ in range(3):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
"""

FORKS_WITH_TIME_OUTS = """
import os, signal, sys, threading, zarr

def expired(*_):
    raise TimeoutError

zarr.config.set({"numcodecs_bytes.write_in_place": "require"})
array = zarr.open_array(sys.argv[1], mode="r+")
array[1, 1:] = 5
signal.signal(signal.SIGALRM, expired)
for number in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + number % 40 / 1e4)
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeoutError:
        pass
writer = threading.Thread(target=array.__setitem__, args=((1, slice(1, 8)), 5), daemon=True)
writer.start()
writer.join(30)
assert not writer.is_alive()
"""


class TestWaiting:
    def test_a_write_that_waits_for_a_lock_while_it_is_cancelled_is_not_done_later(
        self, array, chunk
    ):
        async def write_for_a_while():
            await asyncio.wait_for(array.async_array.setitem(np.s_[1:], 5), 0.1)

        with locked(chunk, fcntl.LOCK_EX), pytest.raises(TimeoutError):
            asyncio.run(write_for_a_while())
        time.sleep(0.2)
        assert array[...].sum() == 64

    @pytest.mark.parametrize("answers", [True, False], ids=["the disk answers", "it hangs"])
    def test_a_write_that_is_cancelled_ends_after_the_present_block(
        self, array, chunk, monkeypatch, set_constants, answers
    ):
        """Its caller may change the values, which must not be written once the disk answers."""
        set_constants(CANCEL_GRACE_SECONDS=60 if answers else 0.01)
        values, pwrite = np.full((8, 2), 5.0, ">f8"), os.pwrite
        is_writing, has_answer = threading.Event(), threading.Event()

        def hang(*args):
            num_bytes = pwrite(*args)
            is_writing.set()
            assert has_answer.wait(60)
            return num_bytes

        monkeypatch.setattr(os, "pwrite", hang)

        writing = array.async_array.setitem(np.s_[:, 3:5], values)
        asyncio.run(cancelled(writing, is_writing, has_answer, answers=answers))
        values[...] = 9
        has_answer.set()
        with locked(chunk, fcntl.LOCK_EX):
            assert array[:, 3].tolist() == [5, *[1] * 7]

    def test_others_need_not_wait_for_a_locked_chunk(self, tmp_path, caplog, set_constants):
        """More writes than there are threads wait for one chunk, and say so; others, reads too."""
        set_constants(LONG_SECONDS=0.05)
        array = create(tmp_path, (8, 8), (8, 4))
        array[...] = 1
        with locked(tmp_path / "c/0/0", fcntl.LOCK_EX):
            threads = [in_thread(array, np.s_[k % 8, 1:4], 5) for k in range(40)]
            threads.append(in_thread(array, np.s_[:, :3:2], 6))  # needs an exclusive lock
            array[:, 5] = 2
            assert array[...].sum() == 64 + 8
            deadline = time.monotonic() + 20
            while len(caplog.messages) < len(threads) and time.monotonic() < deadline:
                time.sleep(0.01)
        for thread in threads:
            thread.join()
        assert (array[:, 0] == 6).all()
        assert (array[:, [1, 3]] == 5).all()
        assert len(caplog.messages) == len(threads)  # once each
        assert "waiting for a lock on chunk 'c/0/0' of LocalStore" in caplog.messages[0]

    def test_hulls_are_written_run_by_run_if_others_never_stop(self, tmp_path, written):
        """A writer of every second element begins beside writers of rows, who share their lock."""
        array = create(tmp_path, (64, 64))
        array[...] = 1
        written.clear()
        with locked(tmp_path / "c/0/0", fcntl.LOCK_SH):
            array[:, ::2] = 2
            assert array[...].sum() == 64 * (32 + 64)
        assert {lock for kind, lock, *_ in written if kind == "write"} == {"shared"}
