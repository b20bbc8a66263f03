"""zarr as a later version may be: copies of it that are changed by text substitution.

    python tests/changed_zarr/run.py

Each copy reads and writes the arrays of `program.py` alone, and then with this package, which must
be installed:

- as the next minor version, which was not tested: the same values and errors as alone
- as that, with the option to use this package all the same: no error but zarr's own, and no wrong
  value, unless nothing could notice it
- as the present version: likewise

One more copy has a config of another kind, `typed_config.py`: the same values there, also with our
pipelines and our codec by name, and a report from the command.

To show that the copies try something, most of them must fail without all that. A minute on two
cores.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import zarr

PROGRAM = Path(__file__).with_name("program.py")
VERSION = "\nimport os\n__version__ = os.environ.get('CHANGED_ZARR_VERSION', __version__)\n"
NEXT = {"CHANGED_ZARR_VERSION": "3.99.0"}
OPTION = {"ZARR_NUMCODECS_BYTES__UNTESTED_ZARR": "true"}
# What is changed, in which files, and into what.
CHANGES = {
    "an attribute of pipelines": ("**/*.py", r"\barray_bytes_codec\b", "array_to_bytes_codec"),
    "a parameter": ("**/*.py", r"\bdrop_axes\b", "dropped_axes"),
    "a function": ("**/*.py", r"\bfill_value_or_default\b", "fill_value_of"),
    "whether a store is open": ("**/*.py", r"\b_is_open\b", "_was_opened"),
    "a method of shards": ("**/*.py", r"\b_shard_index_size\b", "_index_bytes"),
    "the index of shards": ("**/*.py", r"\boffsets_and_lengths\b", "entries"),
    "a field of specifications": ("**/*.py", r"\bprototype\b", "buffer_prototype"),
    "a method of data types": ("**/*.py", r"\bto_native_dtype\b", "as_numpy"),
    "how requests are made": ("**/*.py", r"\bconcurrent_map\b", "map_concurrently"),
    "where files are": ("storage/_local.py", r"self\.root / key\b", "self.root / (key + '.data')"),
    "what order means": (
        "codecs/_v2.py",
        r"order=chunk_spec\.order\b",
        "order={'C': 'F', 'F': 'C'}[chunk_spec.order]",
    ),
}
LEAST_FAILURES = 7
# What our own reads can't notice: only the ceiling helps.
SILENT = ("where files are", "what order means")


def copy_zarr(work):
    """Return the path of a copy of zarr, whose version a variable may change."""
    copy = work / "zarr"
    shutil.copytree(Path(zarr.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "__init__.py").open("a", encoding="utf-8") as file:
        file.write(VERSION)
    return copy


def change_zarr(copy, pattern, old, new):
    """Replace what matches a regular expression in the files of a copy."""
    num = 0
    for path in copy.glob(pattern):
        text, num_here = re.subn(old, new, path.read_text(encoding="utf-8"))
        num += num_here
        path.write_text(text, encoding="utf-8")
    if not num:
        raise ValueError(f"this zarr has no {old}")


def run_python(folder, *arguments, **variables):
    """Run Python, which imports the copy of zarr in a folder, and return its output."""
    paths = [str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
    command = [sys.executable, "-W", "ignore", *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def results_of(folder, mode, **variables):
    """Return what a program printed that imports the copy of zarr in a folder."""
    done = run_python(folder, PROGRAM, mode, folder / "arrays", **variables)
    return json.loads(done.stdout) if not done.returncode else {"program": done.stderr[-300:]}


def differences(results, expected, *, values):
    """Return what differs: errors, and values, too, if asked for."""
    differing = [what for what, result in results.items() if result != expected.get(what)]
    is_digest = re.compile("[0-9a-f]{16}").fullmatch
    return [f"{w}: {results[w]}" for w in differing if values or not is_digest(results[w])]


def try_change(change):
    """Return the lines that say what is wrong with a change, and whether it needs this package."""
    what, substitution = change
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        change_zarr(copy_zarr(folder), *substitution)
        expected = results_of(folder, "alone")
        runs = {
            "next": (results_of(folder, "ours", **NEXT), True),
            "option": (results_of(folder, "ours", **NEXT, **OPTION), what not in SILENT),
            "present": (results_of(folder, "ours"), what not in SILENT),
        }
        unguarded = results_of(folder, "unguarded", **NEXT, **OPTION)
    if "program" in expected:
        return [f"{what}: zarr alone fails: {expected['program']}"], False
    wrong = []
    for name, (results, values) in runs.items():
        lines = differences(results, expected, values=values)[:3]
        wrong += [f"{what} ({name}): {line}" for line in lines]
    return wrong, bool(differences(unguarded, expected, values=True))


def try_typed_config():
    """Return the lines that say what is wrong with a config of another kind."""
    ours = "numcodecs_bytes.zarr_pipeline.{}BytesPipeline".format
    choices = [{}, {"ZARR_CODECS__BYTES": "numcodecs_bytes.zarr_codec.BytesCodec"}]
    choices += [{"ZARR_CODEC_PIPELINE__PATH": ours(kind)} for kind in ("Batched", "Fused")]
    wrong = []
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        core = copy_zarr(folder) / "core"
        (core / "config.py").rename(core / "_untyped_config.py")
        shutil.copy(PROGRAM.with_name("typed_config.py"), core / "config.py")
        expected = results_of(folder, "alone")
        if "program" in expected:
            return [f"a typed config: zarr alone fails: {expected['program']}"]
        for version, choice in itertools.product(({}, NEXT), choices):
            variables = version | choice
            lines = differences(results_of(folder, "ours", **variables), expected, values=True)
            report = run_python(folder, "-m", "numcodecs_bytes", **variables)
            if report.returncode != 1 or "partial reads: off" not in report.stdout:
                lines.append(f"the command prints {report.stdout + report.stderr[-300:]}")
            wrong += [f"a typed config ({variables}): {line}" for line in lines[:3]]
    return wrong


def main():
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        of_typed_config = pool.submit(try_typed_config)
        done = list(pool.map(try_change, CHANGES.items()))
    wrong = [line for lines, _ in done for line in lines] + of_typed_config.result()
    num_failing = sum(fails for _, fails in done)
    print(*wrong, sep="\n")
    print(f"{len(CHANGES)} changes, {num_failing} of which fail if nothing is done about it")
    return 1 if wrong or num_failing < LEAST_FAILURES else 0


if __name__ == "__main__":
    sys.exit(main())
