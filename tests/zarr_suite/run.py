"""zarr-python's own test suite, with and without numcodecs_bytes.

    python tests/zarr_suite/run.py [--zarr VERSION] [--quick] [--forced] [--work DIR]

Our codec and pipeline replace zarr's in every program of an environment, so zarr's own tests must
not notice. Any CPython since 3.11.4 runs this, without other packages. It downloads the sdist of
zarr (by default the newest that this Python gets), installs it with its extras and test
dependencies into a virtual environment of its own, and runs its tests there two or three times:

without  zarr alone
with     numcodecs_bytes installed from this repository, picked up through its entry points
forced   as with, and every BytesCodec that zarr or its tests name is ours (`force_ours.py`)

It compares the outcomes test by test, and exits with 0 only if the tests in `EXCEPTIONS` pass
without us and fail with us, and all others end the same. An exception is a test of something that
we change on purpose, with the reason; one that passes again or is gone has to leave the table.

``--quick`` leaves out most of what does not touch the codec; ``--work`` keeps logs and JUnit files.
On two cores installing takes a minute, and each mode one minute quick or 12 whole for zarr 3.4.2,
half a minute or 6 for 3.1.6. Two whole runs of 3.1.6 at a time disturb each other: its tests of S3
use a fixed port.
"""

import argparse
import contextlib
import dataclasses
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

HERE = Path(__file__).resolve().parent
TIMEOUT_SECONDS = 3600

# Runs `uv`, which fetches what the scripts ask for: another zarr, and not us.
LEFT_OUT = ("test_examples.py",)
# Slow, or about stores, groups and arguments: test_from_array has 1,800 combinations of them.
LEFT_OUT_OF_QUICK = (
    "benchmarks",
    "test_api",
    "test_api.py",
    "test_array.py::test_from_array",
    "test_array.py::test_update_attrs",
    "test_buffer.py",
    "test_codecs/test_sharding.py::test_nested_sharding",
    "test_experimental",
    "test_group.py",
    "test_properties.py",
    "test_resize.py",
    "test_store",
    "test_unified_chunk_grid.py",
)

Outcomes = dict[str, list[tuple[str, str]]]  # test: what became of it, and the message


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """A test that, in all its cases, passes without us and fails with us."""

    test: str
    reason: str
    modes: tuple[str, ...] = ("with", "forced")
    before: tuple[int, ...] = (sys.maxsize,)  # the first version of zarr that it is not in


REPR = "expects BytesCodec(endian=<Endian.little: 'little'>); our repr is that of zarr 3.3"
EXCEPTIONS = (
    Difference(
        "tests.test_config::test_config_defaults_set",
        "lists zarr's defaults, where `codecs.bytes`, `codecs.endian` and `codec_pipeline.path` "
        "now name our classes",
    ),
    Difference(
        "tests.test_config::test_config_codec_pipeline_class",
        "expects zarr's own codec pipeline by default",
        before=(3, 2),
    ),
    Difference("tests.test_info::test_array_info", REPR, ("forced",), (3, 3)),
    Difference("tests.test_info::test_array_info_complete", REPR, ("forced",), (3, 3)),
)


def pip(python: Path, *arguments: str) -> None:
    """Run pip, which shows its errors only."""
    subprocess.run([python, "-m", "pip", "-qq", *arguments], check=True)


def install(work: Path, requirement: str) -> tuple[Path, Path]:
    """Install zarr and what its tests need; return the Python and the folder of the sdist."""
    venv.create(work / "venv", clear=True, with_pip=True, upgrade_deps=True)
    python = work / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    shutil.rmtree(work / "sdist", ignore_errors=True)
    pip(python, "download", "--no-deps", "--no-binary=zarr", f"-d{work / 'sdist'}", requirement)
    (archive,) = (work / "sdist").glob("zarr-*.tar.gz")
    shutil.unpack_archive(archive, archive.parent, filter="data")
    sdist = archive.with_name(archive.name.removesuffix(".tar.gz"))
    pyproject = sdist / "pyproject.toml"
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = ",".join(project["optional-dependencies"].keys() - {"gpu"})
    # The group remote-tests includes the group test.
    pip(python, "install", f"{sdist}[{extras}]", f"--group={pyproject}:remote-tests")
    # This conftest makes tests of all data types in zarr's registry, which loads those of other
    # packages in the middle of the loop: a RuntimeError. Every mode is to have the same tests.
    conftest = sdist / "tests" / "test_dtype" / "conftest.py"
    text = conftest.read_text(encoding="utf-8")
    registered = "data_type_registry.contents.values()"
    own = f"[cls for cls in {registered} if cls.__module__.startswith('zarr.')]"
    conftest.write_text(text.replace(f"in {registered}:", f"in {own}:"), encoding="utf-8")
    return python, sdist


def run_tests(python: Path, sdist: Path, mode: str, *, quick: bool) -> Outcomes:
    """Run zarr's tests in a mode and return what became of them."""
    work = sdist.parents[1]
    hidden = ("PYTEST_", "PYTHON", "ZARR_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    # Every time the same examples of hypothesis, and the same names of tests.
    environment |= {"HYPOTHESIS_PROFILE": "ci", "PYTHONHASHSEED": "0", "PYTHONPATH": str(HERE)}

    show = "import zarr.registry; print(zarr.registry.get_codec_class('bytes').__module__)"
    module = subprocess.check_output([python, "-c", show], env=environment, text=True).strip()
    if (module == "zarr.codecs.bytes") != (mode == "without"):
        sys.exit(f"{mode}: zarr takes the bytes codec of {module}")

    results, log = work / f"{mode}.xml", work / f"{mode}.log"
    results.unlink(missing_ok=True)
    # xdist's workers disagree on names of tests that hold addresses; accept's import warns since
    # Python 3.12, which pytest 9.2 takes for an error.
    options = ["-q", "-pno:cacheprovider", "-pno:xdist", "-pno:accept"]
    options += [f"--basetemp={work / 'tmp'}", f"--junitxml={results}"]
    options += ["-pforce_ours"] * (mode == "forced")
    for name in LEFT_OUT + LEFT_OUT_OF_QUICK * quick:
        options.append(f"--{'deselect' if '::' in name else 'ignore'}=tests/{name}")
    with log.open("wb") as file:
        status = subprocess.run(
            [python, "-m", "pytest", "tests", *options],
            cwd=sdist,
            env=environment,
            stdout=file,
            stderr=file,
            timeout=TIMEOUT_SECONDS,
            check=False,
        ).returncode
    if status not in (0, 1) or not results.exists():  # 1: tests failed, or a test timed out
        sys.exit(f"{mode}: pytest ended with {status}\n{log.read_text(errors='replace')[-3000:]}")
    return read_outcomes(results)


def read_outcomes(results: Path) -> Outcomes:
    """Return the outcomes in a JUnit file."""
    outcomes: Outcomes = {}
    for case in ET.parse(results).iter("testcase"):  # noqa: S314 # pytest's own file
        # Tests whose names differ by an address, and what fails in teardown, get several outcomes.
        name = re.sub("0x[0-9a-f]+", "0x", f"{case.get('classname')}::{case.get('name')}")
        found = [child for child in case if child.tag in ("failure", "error", "skipped")]
        outcomes.setdefault(name, []).extend(
            (child.get("type", child.tag).removeprefix("pytest."), child.get("message", ""))
            for child in found
        )
        if not found:
            outcomes[name].append(("passed", ""))
    return outcomes


def compare(version: str, mode: str, without: Outcomes, other: Outcomes) -> int:
    """Print the differences; return how many there should not be."""
    numbers = tuple(map(int, re.findall(r"\d+", version)))
    changes = {}
    for name in without | other:
        before, after = without.get(name, []), other.get(name, [])
        change = tuple(" ".join(sorted(what for what, _ in found)) for found in (before, after))
        if change[0] != change[1]:
            messages = [message for _, message in before + after if message]
            changes[name] = change, " / ".join(messages)[:500]
    num_wrong = 0
    for exception in EXCEPTIONS:
        if mode not in exception.modes or numbers >= exception.before:
            continue
        cases = [name for name in without if name.split("[")[0] == exception.test]
        failing = [c for c in cases if c in changes and changes[c][0] == ("passed", "failure")]
        for name in failing:
            del changes[name]
        is_stale = not cases or cases != failing
        num_wrong += is_stale
        kind = "STALE" if is_stale else "expected"
        count = f"{len(failing)} of {len(cases)}"
        print(f"{kind:10}  {exception.test}, {count} cases: {exception.reason}")
    for name, (change, message) in changes.items():
        print(f"UNEXPECTED  {name}: {' -> '.join(change)} {message}")
    return num_wrong + len(changes)


def main() -> int:
    """Install, run and compare; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--zarr", metavar="VERSION", help="default: the newest for this Python")
    parser.add_argument("--quick", action="store_true", help="leave out what is slow")
    parser.add_argument("--forced", action="store_true", help="run once more, with ours forced")
    parser.add_argument("--work", type=Path, metavar="DIR", help="default: a temporary folder")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        work = arguments.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work = work.resolve()
        requirement = f"zarr=={arguments.zarr}" if arguments.zarr else "zarr"
        python, sdist = install(work, requirement)
        version = sdist.name.removeprefix("zarr-")
        print(f"zarr {version} on CPython {platform.python_version()}", flush=True)
        without: Outcomes = {}
        num_wrong = 0
        for mode in ("without", "with", "forced")[: 3 if arguments.forced else 2]:
            if mode == "with":
                pip(python, "install", str(HERE.parents[1]), f"zarr=={version}")
            start = time.monotonic()
            outcomes = run_tests(python, sdist, mode, quick=arguments.quick)
            counts = Counter(outcome for found in outcomes.values() for outcome, _ in found)
            summary = ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common())
            print(f"{mode:8} {summary} in {time.monotonic() - start:.0f} s", flush=True)
            without = without or outcomes
            num_wrong += 0 if mode == "without" else compare(version, mode, without, outcomes)
    print(f"{num_wrong} differences that should not be" if num_wrong else "no other differences")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
