"""python -m numcodecs_bytes: report on the installation, check or migrate stores.

Modules that import zarr are imported where they are needed, so that Ctrl-C works from the start.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import logging
import os
import sys
import warnings
from collections import Counter
from typing import Any, NoReturn

from numcodecs_bytes import __version__
from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._tools.reporting import ArrayReport, Limits, ProgressBar, explain_error
from numcodecs_bytes._zarr_api.names import plural

_INTERRUPTED = 130  # the exit status of shells after Ctrl-C

# What a command returns: the exit status, and the report as a JSON object and as text.
_Answer = tuple[int, JSONObject, str]


def _report(_options: argparse.Namespace) -> _Answer:
    """Say which parts of this package are on in this environment, which are off and why.

    If a file, a variable or a call sets that, it is named.
    """
    from numcodecs_bytes._tools.installation import lines_of, report

    # The report says what warnings would say, too.
    logging.getLogger("numcodecs_bytes").addHandler(logging.NullHandler())
    document = report()
    return 0 if document["is_in_use"] else 1, document, "\n".join(lines_of(document))


def _progress_bar(unit: str) -> contextlib.AbstractContextManager[ProgressBar | None]:
    """Return a context manager of a progress bar, shown if stderr is a terminal, or of None."""
    try:
        tqdm = importlib.import_module("tqdm")  # optional
    except ImportError:
        return contextlib.nullcontext()
    bar: contextlib.AbstractContextManager[ProgressBar] = tqdm.tqdm(unit=unit, disable=None)
    return bar


def _check(options: argparse.Namespace) -> _Answer:
    """Report for each array in a Zarr hierarchy whether it can be read in part, and its problems.

    These are wrong metadata, chunks that have the wrong length or can't be read, and invalid bools.
    Files that are not chunks are noted. Nothing is written.
    """
    from numcodecs_bytes.check import check

    kinds = ("branch", "tag", "snapshot")
    version = {kind: getattr(options, kind) for kind in kinds if getattr(options, kind)}
    opening = {"storage_options": options.storage_options, "version": version}
    limits = Limits(options.max_chunks, options.max_chunk_bytes)
    reports: list[ArrayReport] = []
    shown: list[JSONObject] = []
    unreadable: list[dict[str, str]] = []
    has_empty = False  # whether a store has no array

    def check_store(location: str) -> None:
        with _progress_bar(" chunks") as bar:
            for report in check(location, limits, bar, **opening):
                reports.append(report)
                if options.only_problems and not report.num_problems:
                    continue
                shown.append({"store": location} | dataclasses.asdict(report))
                if not options.json:
                    with contextlib.nullcontext() if bar is None else bar.external_write_mode():
                        _say(report.format(location if len(options.stores) > 1 else ""))

    for location in options.stores:
        num_before = len(reports)
        error = value_or_error(check_store, location)
        if error is not None:
            unreadable.append({"store": location, "error": explain_error(error)})
            print(f"can't read {location}: {unreadable[-1]['error']}", file=sys.stderr)
        elif len(reports) == num_before:
            has_empty = True
            print(_why_no_array(location), file=sys.stderr)
    numbers = {
        "array": len(reports),
        "chunk": sum(report.num_chunks for report in reports),
        "problem": sum(report.num_problems for report in reports),
    }
    status = 2 if unreadable else int(has_empty or numbers["problem"] > 0)
    document: JSONObject = {f"num_{what}s": number for what, number in numbers.items()}
    document |= {"arrays": shown, "unreadable": unreadable}
    counts = ", ".join(plural(number, what) for what, number in numbers.items())
    return status, document, counts if reports or not unreadable else ""


def _why_no_array(location: str) -> str:
    """Return that a store has no array, and what may help."""
    from numcodecs_bytes._tools.locations import advise_references

    why = f"no Zarr array in {location}: expected zarr.json or .zarray there"
    if "://" not in location:
        return why
    # Servers may not list folders, and files may look like folders.
    if advice := advise_references(location):
        return f"{location}: {advice}"
    return (
        f"{why}; if the server lists no folders, give the URL of an array, or consolidate metadata"
    )


def _migrate(options: argparse.Namespace) -> _Answer:
    """Write zarr.json next to the metadata of every Zarr v2 array and group.

    No chunk is touched. Nodes that can't be migrated are listed and left unchanged, and so are the
    groups above them, unless you exclude those nodes. Nodes with notes are listed, too.
    """
    from numcodecs_bytes.migrate import migrate

    names = ("dry_run", "overwrite", "undo", "exclude", "storage_options")
    given = {name: getattr(options, name) for name in names}
    with _progress_bar(" nodes") as bar:
        nodes = value_or_error(migrate, options.store, bar=bar, **given)
    if isinstance(nodes, Exception):
        why = explain_error(nodes)
        print(f"can't migrate {options.store}: {why}", file=sys.stderr)
        return 2, {"error": why}, ""
    nodes.sort(key=lambda node: node.path.split("/"))  # parents before their children
    wrong = "kept" if options.undo else "refused"
    numbers = {wrong: 0, **Counter(node.status for node in nodes)}
    num_wrong = numbers[wrong]
    document = {f"num_{wrong}": num_wrong, "nodes": [dataclasses.asdict(node) for node in nodes]}
    if not nodes:
        text = f"no Zarr v2 metadata in {options.store}: expected .zarray or .zgroup there"
        return 1, document, text
    counted = "1 array or group" if len(nodes) == 1 else f"{len(nodes)} arrays and groups"
    listed = [node for node in nodes if options.verbose or node.reasons or node.notes]
    sums = ", ".join(f"{number} {status}" for status, number in numbers.items())
    lines = [*map(str, listed), f"{counted}: {sums}"]
    if not (num_wrong or "excluded" in numbers or options.dry_run or options.undo):
        lines.append(
            "zarr warns as long as metadata of both formats exist. Once all your programs read "
            "Zarr v3 (see the notes above, if any), remove the Zarr v2 metadata: "
            'zarr remove-metadata v2 STORE (pip install "zarr[cli]")'
        )
    return 1 if num_wrong else 0, document, "\n".join(lines)


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return int(text)


def _json_object(text: str) -> JSONObject:
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(document := json.loads(text), dict):
            return document
    raise argparse.ArgumentTypeError(f"expected a JSON object, got {text}")


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; the docstrings of the commands are their help."""
    epilog = (
        "Exit status: 0 if there are no problems; 1 if there are any, or nothing is found; 2 if a "
        "store can't be read or written, or an argument is wrong; 130 after Ctrl-C."
    )
    as_json = "print the report as JSON"
    parser = argparse.ArgumentParser(
        prog="numcodecs-bytes", description=_report.__doc__, epilog=epilog
    )
    parser.add_argument("--json", action="store_true", help=as_json)
    parser.add_argument("--version", action="version", version=__version__)
    parser.set_defaults(run=_report)
    commands = parser.add_subparsers(title="commands", metavar="command")
    for name, run, add_options, summary in (
        ("check", _check, _add_check_options, "find problems in the arrays of stores"),
        ("migrate", _migrate, _add_migrate_options, "add Zarr v3 metadata to a Zarr v2 hierarchy"),
    ):
        command = commands.add_parser(name, help=summary, description=run.__doc__, epilog=epilog)
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
    default = Limits.max_chunk_bytes
    text = f"do not decode chunks, or read zip members, of more than N bytes (default: {default})"
    check.add_argument("--max-chunk-bytes", metavar="N", type=_number, default=default, help=text)
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


def _say(text: str, status: int = 2) -> None:
    """Print to stdout; if that fails, exit: with `status` if it was closed on purpose, else 2."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # may lack characters of names
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # as by `head`
            status = 2
            print(f"can't print the report: {error.strerror}", file=sys.stderr)
        sys.exit(status)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        error = value_or_error(importlib.import_module, "zarr")  # which reads the user's settings
        if isinstance(error, Exception):
            why = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"zarr can't be imported: {why}", file=sys.stderr)
            return 2
        # What zarr warns of is in the reports, or irrelevant. Other threads would notice: not from
        # Python, where `check` and `migrate` warn as zarr does.
        with warnings.catch_warnings(action="ignore"):
            status, document, text = options.run(options)
        if options.json:
            text = json.dumps(document, indent=2)
        if text:
            _say(text, status)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    return int(status)


def run() -> NoReturn:
    """Run the command line as a program."""
    status = main()
    if status == _INTERRUPTED:  # an orderly exit would wait for zarr's threads, which go on reading
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        util: Any = importlib.import_module("multiprocessing.util")
        util._exit_function()  # else semaphores are reported as leaked on macOS
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    run()
