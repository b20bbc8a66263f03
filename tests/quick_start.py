"""Interpreters that start quickly: forked from one that has loaded what zarr imports.

A program that opens an array takes 0.45 s, of which zarr and this package take 0.1 s. It imports
those two itself, with its own environment and options, as in any fresh interpreter. But functions
registered with `atexit` are not called. Each of these interpreters imports this module first.
"""

import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

HAS_FORKS = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
CONTEXT = multiprocessing.get_context("forkserver" if HAS_FORKS else "spawn")
CONTEXT.set_forkserver_preload(
    [
        *("asyncio", "concurrent.futures.thread", "donfig", "google_crc32c", "msgspec"),
        *("numcodecs", "numpy.random", "numpy.typing", "packaging.version", "yaml", "zipfile"),
    ]
)


class Program:
    """A program that runs: as much of `subprocess.Popen` as tests need.

    `arguments` follow ``python``: options -W, then "-c", "-m" or a file, and arguments. `files` are
    its standard input, output and error; what is None is a pipe. `environment` has all variables.
    """

    def __init__(self, *arguments, files=(None, None, None), folder=None, environment):
        pipes = [None if file else os.pipe() for file in files]
        ends = [
            Connection(pipe[number > 0] if pipe else os.dup(file.fileno()))
            for number, (file, pipe) in enumerate(zip(files, pipes, strict=True))
        ]
        self._streams = self.stdin, self.stdout, self.stderr = [
            pipe and open(pipe[number == 0], "rw"[number == 0], encoding="utf-8")  # noqa: PTH123, SIM115
            for number, pipe in enumerate(pipes)
        ]
        self._process = CONTEXT.Process(
            target=_run, args=(list(map(str, arguments)), ends, folder and str(folder), environment)
        )
        self._process.start()
        for end in ends:
            end.close()

    def wait(self, timeout=None):
        """Return the exit status."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a program", timeout)
        return self._process.exitcode

    def kill(self):
        self._process.kill()

    def close(self):
        """Kill it if it runs, and close the pipes to it."""
        self.kill()
        self.wait()
        for stream in filter(None, self._streams):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._process.close()


def run(*arguments, folder=None, environment):
    """Run a program; return what it printed, and its exit status."""
    with (
        open(os.devnull) as nothing,  # noqa: PTH123
        contextlib.closing(
            Program(*arguments, files=(nothing, None, None), folder=folder, environment=environment)
        ) as program,
        ThreadPoolExecutor(1) as thread,
    ):
        errors = thread.submit(program.stderr.read)
        printed = program.stdout.read()
        return subprocess.CompletedProcess(arguments, program.wait(), printed, errors.result())


def _run(arguments, ends, folder, environment):
    """Be the program."""
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 # multiprocessing has closed it
    os.environ.clear()
    os.environ.update(environment)
    if folder:
        os.chdir(folder)
    while arguments[0] == "-W":
        sys.warnoptions.append(arguments[1])
        warnings.simplefilter(arguments[1])
        del arguments[:2]
    if arguments[0] == "-c":
        sys.argv[:] = ["-c", *arguments[2:]]
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(module))  # noqa: S102
    elif arguments[0] == "-m":
        sys.argv[:] = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = arguments
        runpy.run_path(arguments[0], run_name="__main__")
