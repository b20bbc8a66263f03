"""zarr-python's own test suite, with and without numcodecs_bytes.

    python tests/zarr_suite/run.py [--zarr VERSION] [--quick]

Our codec and pipeline replace zarr's in every program of an environment, so zarr's own tests must
not notice. Any CPython since 3.11.4 runs this. It downloads the sdist of zarr, installs it into a
virtual environment of its own, and runs its tests there: alone, and with numcodecs_bytes installed
from this repository. It exits with 0 only if the tests in `EXCEPTIONS`, of what we change on
purpose, pass without us and fail with us, and all others end the same.

A whole run takes up to 12 minutes on two cores, a quick one a minute: it leaves out most of what
does not touch the codec. Two whole runs of 3.1.6 at a time disturb each other: its tests of S3 use
a fixed port.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
OWN_BUG = "numcodecs_bytes has a bug"  # what is logged if zarr does what we should have done

# Runs `uv`, which fetches what the scripts ask for: another zarr, and not us.
LEFT_OUT = ("test_examples.py",)
# Slow, or about stores, groups and arguments: test_from_array has 1,800 combinations of them.
LEFT_OUT_OF_QUICK = (
    *("benchmarks", "test_api", "test_api.py", "test_buffer.py", "test_experimental"),
    *("test_group.py", "test_properties.py", "test_resize.py", "test_store"),
    *("test_array.py::test_from_array", "test_array.py::test_update_attrs"),
    *("test_codecs/test_sharding.py::test_nested_sharding", "test_unified_chunk_grid.py"),
)
# The test, the first version of zarr that it passes in, and what it expects before.
EXCEPTIONS = {
    "tests.test_config::test_config_defaults_set": (
        (sys.maxsize,),
        "zarr's classes as `codecs.bytes`, `codecs.endian` and `codec_pipeline.path`",
    ),
    "tests.test_config::test_config_codec_pipeline_class": ((3, 2), "zarr's codec pipeline"),
}


def pip(python, *arguments):
    """Run pip, which shows its errors only."""
    subprocess.run([python, "-m", "pip", "-qq", *arguments], check=True)


def install(work, requirement):
    """Install zarr and what its tests need; return the Python and the folder of the sdist."""
    venv.create(work / "venv", with_pip=True, upgrade_deps=True)
    python = work / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
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
    # packages in the middle of the loop: a RuntimeError. Both runs are to have the same tests.
    conftest = sdist / "tests" / "test_dtype" / "conftest.py"
    text = conftest.read_text(encoding="utf-8")
    registered = "data_type_registry.contents.values()"
    own = f"[cls for cls in {registered} if cls.__module__.startswith('zarr.')]"
    conftest.write_text(text.replace(f"in {registered}:", f"in {own}:"), encoding="utf-8")
    return python, sdist


def run_tests(python, sdist, mode, *, quick):
    """Run zarr's tests with or without us; return what became of each, and its messages."""
    work = sdist.parents[1]
    hidden = ("PYTEST_", "PYTHON", "ZARR_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    # Every time the same examples of hypothesis, and the same names of tests.
    environment |= {"HYPOTHESIS_PROFILE": "ci", "PYTHONHASHSEED": "0"}

    show = "import zarr.registry; print(zarr.registry.get_codec_class('bytes').__module__)"
    module = subprocess.check_output([python, "-c", show], env=environment, text=True).strip()
    if (module == "zarr.codecs.bytes") != (mode == "without"):
        sys.exit(f"{mode}: zarr takes the bytes codec of {module}")
    results, log = work / f"{mode}.xml", work / f"{mode}.log"
    # xdist's workers disagree on names of tests that hold addresses; accept's import warns since
    # Python 3.12, which pytest 9.2 takes for an error.
    options = ["-q", "-pno:cacheprovider", "-pno:xdist", "-pno:accept"]
    options += [f"--basetemp={work / 'tmp'}", f"--junitxml={results}"]
    options += [f"--log-file={work / 'logged'}", "--log-file-level=ERROR"]
    for name in LEFT_OUT + LEFT_OUT_OF_QUICK * quick:
        options.append(f"--{'deselect' if '::' in name else 'ignore'}=tests/{name}")
    command = [python, "-m", "pytest", "tests", *options]
    with log.open("wb") as file:
        settings = {"cwd": sdist, "env": environment, "stdout": file, "stderr": file}
        status = subprocess.run(command, timeout=3600, check=False, **settings).returncode
    if status not in (0, 1) or not results.exists():  # 1: tests failed, or a test timed out
        sys.exit(f"{mode}: pytest ended with {status}\n{log.read_text(errors='replace')[-3000:]}")
    outcomes = {}
    for case in ET.parse(results).iter("testcase"):  # noqa: S314 # pytest's own file
        # Tests whose names differ by an address, and what fails in teardown, get several outcomes.
        name = re.sub("0x[0-9a-f]+", "0x", f"{case.get('classname')}::{case.get('name')}")
        found = [child for child in case if child.tag in ("failure", "error", "skipped")]
        outcomes.setdefault(name, []).extend(
            (child.get("type", child.tag).removeprefix("pytest."), child.get("message", ""))
            for child in found or [ET.Element("passed")]
        )
    if OWN_BUG in (logged := (work / "logged").read_text(errors="replace")):
        sys.exit(f"{mode}: {logged[logged.index(OWN_BUG) :][:3000]}")
    counts = Counter(outcome for found in outcomes.values() for outcome, _ in found)
    print(f"{mode}: {', '.join(f'{n} {outcome}' for outcome, n in counts.most_common())}")
    return outcomes


def compare(version, without, ours):
    """Print the differences; return how many there should not be."""
    changes = {}
    for name in without | ours:
        before, after = without.get(name, []), ours.get(name, [])
        change = tuple(" ".join(sorted(what for what, _ in found)) for found in (before, after))
        if change[0] != change[1]:
            messages = [message for _, message in before + after if message]
            changes[name] = change, " / ".join(messages)[:500]
    num_wrong = 0
    for test, (fixed_in, expects) in EXCEPTIONS.items():
        if tuple(map(int, re.findall(r"\d+", version))) >= fixed_in:
            continue
        cases = [name for name in without if name.split("[")[0] == test]
        failing = [c for c in cases if changes.get(c, [()])[0] == ("passed", "failure")]
        for name in failing:
            del changes[name]
        is_stale = not cases or cases != failing
        num_wrong += is_stale
        print(f"{'STALE' if is_stale else 'known'}  {test} expects {expects}")
    for name, (change, message) in changes.items():
        print(f"UNEXPECTED  {name}: {' -> '.join(change)} {message}")
    return num_wrong + len(changes)


def main():
    """Install, run and compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--zarr", metavar="VERSION", help="default: the newest for this Python")
    parser.add_argument("--quick", action="store_true", help="leave out what is slow")
    arguments = parser.parse_args()
    requirement = f"zarr=={arguments.zarr}" if arguments.zarr else "zarr"
    with tempfile.TemporaryDirectory() as folder:
        python, sdist = install(Path(folder).resolve(), requirement)
        version = sdist.name.removeprefix("zarr-")
        print(f"zarr {version} on CPython {platform.python_version()}", flush=True)
        without = run_tests(python, sdist, "without", quick=arguments.quick)
        pip(python, "install", str(ROOT), f"zarr=={version}")
        ours = run_tests(python, sdist, "with", quick=arguments.quick)
    num_wrong = compare(version, without, ours)
    print(f"{num_wrong} differences that should not be" if num_wrong else "no other differences")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
