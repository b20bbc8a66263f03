"""A file system where each request takes a while, as over a network: FUSE, in its own process."""

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path


class CantMountError(Exception):
    """Only root may mount file systems, on a machine that allows it."""


class SlowMount:
    """A folder, mounted on another one, where each request takes a while."""

    def __init__(self, folder):
        self.below, self.folder = folder / "below", folder / "mounted"
        self._log = folder / "requests"
        self._log.touch()

    def forget(self):
        """Drop all files from the page cache, and count requests from now on."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.truncate(self._log, 0)

    @property
    def num_reads(self):
        """How many reads its server has answered."""
        return self._log.read_text("ascii").count("r")

    @property
    def num_requests(self):
        """How many requests its server has answered."""
        return self._log.read_text("ascii").count(".")

    @property
    def num_waits(self):
        """How many times requests were waited for, one or more at a time."""
        num_open = num_waits = 0
        for event in self._log.read_text("ascii"):
            num_waits += event != "." and not num_open
            num_open += -1 if event == "." else 1
        return num_waits


@contextlib.contextmanager
def slow_mount(folder, *, reads=0, writes=0, opens=0):
    """Mount a folder; its server answers after so many milliseconds."""
    if not (hasattr(os, "posix_fadvise") and Path("/dev/fuse").exists() and os.geteuid() == 0):
        raise CantMountError("only root may mount file systems, on a machine that allows it")
    missing = [program for program in ("bindfs", "gcc") if not shutil.which(program)]
    if missing:
        raise CantMountError(f"{missing[0]} is not installed")
    library, mount = folder / "slow_mount.so", SlowMount(folder)
    source = Path(__file__).with_name("slow_mount.c")
    build = ["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run(build, check=True)
    mount.below.mkdir()
    mount.folder.mkdir()
    delays = {"DELAY_READS": f"{reads}", "DELAY_WRITES": f"{writes}", "DELAY_OPENS": f"{opens}"}
    environment = os.environ | delays | {"LD_PRELOAD": str(library), "REQUEST_LOG": str(mount._log)}
    command = ["bindfs", "-f", "--multithreaded", "-o", "big_writes", mount.below, mount.folder]
    with subprocess.Popen(command, env=environment) as server:
        try:
            while not mount.folder.is_mount():
                if server.poll() is not None:
                    raise CantMountError("FUSE file systems cannot be mounted here")
                time.sleep(0.01)
            yield mount
        finally:
            unmount = ["umount", "-l", mount.folder]
            subprocess.run(unmount, check=False)
            server.kill()
