"""A sample of the tests on a simulated Windows and a simulated macOS: see `sitecustomize.py`.

    python tests/systems/run.py [windows] [macos]

Tests that need what a system lacks are skipped, at most a sixth of the engine's tests (of all of
them, as some are left out of the sample).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# macOS lacks what reads local files; Windows also names of files, forks, signals and more.
TESTS = {"macos": ["engine", "test_readme_and_examples.py"]}
TESTS["windows"] = [
    *(*TESTS["macos"], "tools/test_locations.py", "test_plugin.py", "test_zarr.py"),
    "test_zarr_pipeline.py",
]
MOST = 1 / 6


def pytest(system, *arguments, **environment):
    """Run pytest in a simulated system; return its exit status, and what it printed."""
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = os.environ | environment | {"SIMULATED_SYSTEM": system, "PYTHONPATH": paths}
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        lines = list(process.stdout)
    return process.returncode, "".join(lines)


def share_skipped(system):
    """Return how many of the engine's tests need what a system lacks, and how many there are."""
    _, printed = pytest(
        *(system, "-n0", "--collect-only", "-m", "skip", "tests/engine"),
        NUMCODECS_BYTES_TESTS="all",
    )
    num, total = re.search(r"^(\d+|no)/?(\d*) tests collected", printed, re.MULTILINE).groups()
    return (int(num), int(total)) if total else (0, 1)


def is_good(system):
    """Run the tests in a simulated system; return whether they pass, and how many are skipped."""
    status, printed = pytest(system, *(f"tests/{name}" for name in TESTS[system]))
    sys.stdout.write(printed)
    skipped = re.findall(r"^SKIPPED \[(\d+)\] (\S+): this system has no", printed, re.MULTILINE)
    num, total = share_skipped(system)
    return status == 0 and num <= MOST * total, (
        f"{system}: pytest's exit status is {status}; {sum(int(num) for num, _ in skipped)} tests "
        f"were skipped that need what it lacks; of the engine's {total} tests, these are {num}, or "
        f"{num / total:.1%}, of at most {MOST:.1%}"
    )


if __name__ == "__main__":
    results = [is_good(system) for system in sys.argv[1:] or ("windows", "macos")]
    print(*(said for _, said in results), sep="\n")
    sys.exit(not all(good for good, _ in results))
