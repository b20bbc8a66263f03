"""python -m numcodecs_bytes: report on the installation, check or migrate stores.

Modules that import zarr are imported where they are needed, so that Ctrl-C works from the start.
"""

import argparse
import contextlib
import dataclasses
import difflib
import importlib
import json
import logging
import os
import re
import shlex
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from numcodecs_bytes import __version__
from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._core.sizes import parse_size
from numcodecs_bytes._tools.reporting import ArrayReport, Limits, ProgressBar, printable
from numcodecs_bytes._tools.requirements import unsupported_versions
from numcodecs_bytes._tools.terminal import (
    Finding,
    Status,
    failure,
    print_findings,
    print_to_stderr,
    reason_of,
)
from numcodecs_bytes._zarr_api.names import plural

_COMMANDS = ("check", "migrate")
LONG_SECONDS = 10.0  # a command that takes longer should show its progress

_STATUSES = (
    "Exit status: 0 if there are no problems; 1 if there are any, or nothing is found; 2 if a "
    "store can't be read or written, or an argument is wrong; 3 after a bug of this package; 130 "
    "after Ctrl-C; 141 if the output is closed before a check ends."
)


def _report(_options: argparse.Namespace) -> Iterator[Finding]:
    """Say which parts of this package are on in this environment, which are off and why.

    If a file, a variable or a call sets that, it is named. The exit status is 1 if something that
    is installed or set has no effect, or the version of a package is not supported.
    """
    from numcodecs_bytes._tools.installation import lines_of, report

    # The report says what warnings would say, too.
    logging.getLogger("numcodecs_bytes").addHandler(logging.NullHandler())
    document = report()
    status = Status.FINE if document["is_in_use"] else Status.PROBLEMS
    yield Finding(status, "\n".join(lines_of(document)), document=document)


@contextlib.contextmanager
def _progress_bar(unit: str) -> Iterator[ProgressBar | None]:
    """Yield a progress bar, or None: then say on a terminal, after a long time, how to get one."""
    begun = time.monotonic()
    tqdm = value_or_error(importlib.import_module, "tqdm")  # optional
    if isinstance(tqdm, Exception) or sys.stderr is None:  # it is closed
        yield None
        if sys.stderr and sys.stderr.isatty() and time.monotonic() - begun > LONG_SECONDS:
            print_to_stderr("for a progress bar, install tqdm: pip install tqdm")
        return
    with tqdm.tqdm(unit=unit, disable=None) as bar:
        yield bar


def _check(options: argparse.Namespace) -> Iterator[Finding]:
    """Report for each array in a Zarr hierarchy whether it can be read in part, and its problems.

    These are wrong metadata, chunks that have the wrong length or can't be read, and invalid bools.
    Files that are not chunks are noted. Nothing is written.
    """
    numbers, num_hidden = {"array": 0, "chunk": 0, "problem": 0}, 0
    arrays: list[JSONObject] = []
    unreadable: list[JSONObject] = []
    for location in options.stores:
        is_empty, is_readable, is_group = True, True, False
        for found in _reports_on(location, options):
            is_empty = False
            if isinstance(found, Exception):
                is_readable = False
                unreadable.append({"store": location, "error": reason_of(found)})
                yield failure(f"can't read {location}", found)
                continue
            is_group |= found.kind == "group" and not found.path
            numbers["array"] += found.kind == "array"
            numbers["chunk"] += found.num_chunks
            numbers["problem"] += found.num_problems
            if found.num_problems or not options.only_problems:
                arrays.append({"store": location} | dataclasses.asdict(found))
                text = found.format(location if len(options.stores) > 1 else "")
                yield Finding(Status.PROBLEMS if found.num_problems else Status.FINE, text)
            else:
                num_hidden += len(found.notes)
        if is_empty:
            yield Finding(Status.PROBLEMS, message=_why_no_array(location))
        elif is_readable and not is_group and not options.only_problems:
            yield Finding(text=_explain_no_group(location))
    document: JSONObject = {f"num_{what}s": number for what, number in numbers.items()}
    document |= {"arrays": arrays, "unreadable": unreadable}
    counts = ", ".join(plural(number, what) for what, number in numbers.items())
    if num_hidden:
        counts += f" ({plural(num_hidden, 'note')} not shown)"
    yield Finding(text=counts if numbers["array"] or not unreadable else "", document=document)


def _reports_on(location: str, options: argparse.Namespace) -> Iterator[ArrayReport | Exception]:
    """Yield the report on each array of a store, and the error that ends the check, if any."""
    from numcodecs_bytes.check import check

    limits = Limits(options.max_chunks, options.max_chunk_bytes)
    kinds = ("branch", "tag", "snapshot")
    ref = {kind: getattr(options, kind) for kind in kinds if getattr(options, kind)}
    opening = {"storage_options": options.storage_options, "icechunk_ref": ref}
    with _progress_bar(" chunks") as bar:
        reports = check(location, limits, bar, **opening)
        # An error ends the reports, too. Each is printed before the next one is asked for.
        while (found := value_or_error(lambda: next(reports, None))) is not None:
            with contextlib.nullcontext() if bar is None else bar.external_write_mode():
                yield found


def _explain_no_group(location: str) -> str:
    """Return what follows if a local folder is no Zarr node, but holds some; else ""."""
    from numcodecs_bytes._tools.locations import is_folder_without_metadata

    if not is_folder_without_metadata(location):
        return ""
    what = f"{location} is no Zarr group, because it has no zarr.json or .zgroup"
    others = [*map(str, Path(location).glob("*.*"))]
    stores = [name for name in others if name.endswith((".json", ".parq", ".parquet", ".zip"))]
    unread = f"; what may be other stores, such as {stores[0]}, was not read" if stores else ""
    return f"{what}: open its arrays by their paths; if it was one, restore that{unread}"


def _why_no_array(location: str) -> str:
    """Return that a store has no array, and what may help."""
    from numcodecs_bytes._tools.locations import is_node

    why = f"no Zarr array in {location}: expected zarr.json or .zarray there"
    if "://" not in location and is_node(Path(location)):
        return f"no Zarr array in {location}: it is a group without arrays"
    if "://" not in location:
        above = next(filter(is_node, Path(location).absolute().parents), None)
        return why if above is None else f"{why}; the Zarr array or group above it is {above}"
    unlisted = "if the server lists no folders, give that of an array, or consolidate metadata"
    return f"{why}; correct the URL or, {unlisted}"


def _migrate(options: argparse.Namespace) -> Iterator[Finding]:
    """Write zarr.json next to the metadata of every Zarr v2 array and group.

    No chunk is touched. Nodes that can't be migrated are listed and left unchanged, and so are the
    groups above them, unless you exclude those nodes. Nodes with notes are listed, too.
    """
    from numcodecs_bytes.migrate import migrate

    names = ("dry_run", "overwrite", "undo", "exclude", "storage_options")
    given = {name: getattr(options, name) for name in names}
    with _progress_bar(" nodes") as bar:
        nodes = value_or_error(migrate, options.store, progress=bar, **given)
    if isinstance(nodes, Exception):
        yield failure(f"can't migrate {options.store}", nodes, {"error": reason_of(nodes)})
        return
    nodes.sort(key=lambda node: node.path.split("/"))  # parents before their children
    wrong = "kept" if options.undo else "refused"
    numbers = {wrong: 0, **Counter(node.status for node in nodes)}
    document = {f"num_{wrong}": numbers[wrong], "nodes": list(map(dataclasses.asdict, nodes))}
    if not nodes:
        text = f"no Zarr v2 metadata in {options.store}: expected .zarray or .zgroup there"
        already = "if zarr opens it, it is Zarr v3 already"
        yield Finding(Status.PROBLEMS, f"{text}; {already}", document=document)
        return
    listed = [node for node in nodes if options.verbose or node.reasons or node.notes]
    counted = "1 array or group" if len(nodes) == 1 else f"{len(nodes)} arrays and groups"
    sums = ", ".join(f"{number} {status}" for status, number in numbers.items())
    lines = [*map(str, listed), f"{counted}: {sums}"]
    if why := _explain_no_group(options.store):
        lines.append(why)
    is_complete = not numbers.get("refused") and "excluded" not in numbers
    if is_complete and not (options.dry_run or options.undo):
        lines.append(
            "zarr warns as long as metadata of both formats exist. Once all your programs read "
            "Zarr v3 (see the notes above, if any), remove the Zarr v2 metadata: "
            'zarr remove-metadata v2 STORE (pip install "zarr[cli]")'
        )
    status = Status.PROBLEMS if numbers[wrong] else Status.FINE
    yield Finding(status, "\n".join(lines), document=document)


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)


def _size(text: str) -> int:
    num_bytes = parse_size(text)
    if not num_bytes:
        raise argparse.ArgumentTypeError(f"expected a size such as '100 MB', got {text!r}")
    return num_bytes


def _json_object(text: str) -> JSONObject:
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(document := json.loads(text), dict):
            return document
    raise argparse.ArgumentTypeError(f"expected a JSON object, got {text}")


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; the docstrings of the commands are their help."""
    as_json = "print the report as JSON"
    parser = argparse.ArgumentParser(
        prog="numcodecs-bytes", description=_report.__doc__, epilog=_STATUSES
    )
    parser.add_argument("--json", action="store_true", help=as_json)
    parser.add_argument("-V", "--version", action="version", version=__version__)
    parser.set_defaults(run=_report)
    commands = parser.add_subparsers(title="commands", metavar="command")
    for name, run, add_options, summary in (
        ("check", _check, _add_check_options, "find problems in the arrays of stores"),
        ("migrate", _migrate, _add_migrate_options, "add Zarr v3 metadata to a Zarr v2 hierarchy"),
    ):
        command = commands.add_parser(name, help=summary, description=run.__doc__, epilog=_STATUSES)
        command.set_defaults(run=run)
        add_options(command)
        text = "fsspec's settings for a URL or references, such as '{\"anon\": true}'"
        command.add_argument("--storage-options", metavar="JSON", type=_json_object, help=text)
        command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=as_json)
    return parser


def _add_check_options(check: argparse.ArgumentParser) -> None:
    kinds = "folder, zip file, kerchunk references (.json, .parq), or URL of one of these"
    text = f"{kinds}; folder of an Icechunk repository"
    check.add_argument("stores", metavar="store", nargs="+", help=text)
    text = "print only arrays that have problems"
    check.add_argument("--only-problems", action="store_true", help=text)
    text = "check at most N chunks of each array"
    check.add_argument("--max-chunks", metavar="N", type=_number, help=text)
    default = f"{Limits.max_chunk_bytes // 10**6} MB"
    text = "do not decode chunks, or read zip members, of more than SIZE, such as '1 GiB' "
    text += f"(default: {default})"
    check.add_argument("--max-chunk-bytes", metavar="SIZE", type=_size, default=default, help=text)
    versions = check.add_mutually_exclusive_group()
    of = "of an Icechunk repository"
    versions.add_argument("--branch", metavar="NAME", help=f"branch {of} (default: main)")
    versions.add_argument("--tag", metavar="NAME", help=f"tag {of}")
    versions.add_argument("--snapshot", metavar="ID", help=f"snapshot {of}")


def _add_migrate_options(migrate: argparse.ArgumentParser) -> None:
    migrate.add_argument("store", help="folder, or URL that fsspec can write to")
    migrate.add_argument("--dry-run", action="store_true", help="write nothing")
    text = "list all arrays and groups, not only those that are refused, kept, excluded or noted"
    migrate.add_argument("--verbose", action="store_true", help=text)
    text = "replace a zarr.json that differs, unless it holds something that Zarr v2 lacks"
    migrate.add_argument("--overwrite", action="store_true", help=text)
    text = "remove the zarr.json files instead, if they are what this command writes"
    migrate.add_argument("--undo", action="store_true", help=text)
    text = "leave an array or group, and everything below it, in Zarr v2; can be repeated"
    migrate.add_argument("--exclude", metavar="PATH", action="append", default=[], help=text)


def _advise_command(arguments: list[str]) -> str:
    """Return what was probably meant if the first argument is no command, or ""."""
    first, *others = arguments or ["-"]
    option = f"--{first.removeprefix('--')}"
    if option.partition("=")[0] in ("--undo", "--dry-run", "--overwrite", "--exclude"):
        line = shlex.join(["migrate", option, *others])
        return f"{option} is an option of migrate: did you mean `numcodecs-bytes {line}`?"
    if first in _COMMANDS or first.startswith("-"):
        return ""
    meant = difflib.get_close_matches(first, _COMMANDS, n=1) if first.isalpha() else []
    line = shlex.join([*meant, *others])
    if not meant:
        is_path = re.search(r"[/\\.:]", first) or os.path.exists(first)  # noqa: PTH110 # any text
        line = shlex.join(["check", *arguments]) if is_path else "--help"
    return f"{first!r} is no command: did you mean `numcodecs-bytes {line}`?"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    if advice := _advise_command([each for each in arguments if each != "--json"]):
        parser.error(printable(advice))
    options = parser.parse_args(arguments)
    try:
        # It reads the user's settings; zarr 2 has no such module.
        imported = value_or_error(importlib.import_module, "zarr.dtype")
        if isinstance(imported, Exception):
            why = " ".join(f"{type(imported).__name__}: {imported}".split())
            sentences = [f"zarr can't be imported: {why}", *unsupported_versions()]
            print_to_stderr("\n".join(sentences))
            return Status.FAILED
        # What zarr warns of is in the reports, or irrelevant. Other threads would notice: not from
        # Python, where `check` and `migrate` warn as zarr does.
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.closing(options.run(options)) as findings,
        ):
            status = value_or_error(print_findings, findings, as_json=options.json)
        if isinstance(status, Exception):
            return print_findings([failure("the command failed", status)], as_json=options.json)
    except KeyboardInterrupt:
        print_to_stderr("interrupted")
        return Status.INTERRUPTED
    return int(status)


def run() -> NoReturn:
    """Run the command line as a program."""
    status = main()
    if status == Status.INTERRUPTED:  # an orderly exit would wait for zarr's threads, which read on
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        util: Any = importlib.import_module("multiprocessing.util")
        util._exit_function()  # on macOS, semaphores would be reported as leaked
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    run()
