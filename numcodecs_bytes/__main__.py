"""python -m numcodecs_bytes: report on the installation, check or migrate stores.

What imports zarr is imported where it is needed, so that Ctrl-C is answered from the beginning.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

_INTERRUPTED = 130  # the exit status of shells after Ctrl-C

_ABOUT_REPORT = """\
Report what of this package is in use in this environment, and which files and
variables set it, or prevent it.

exit status:
  0  numcodecs and zarr use the codec "bytes" of numcodecs_bytes
  1  they do not, or a setting is wrong
  2  wrong arguments
"""
_ABOUT_CHECK = """\
Report for each array in a Zarr hierarchy whether parts of its chunks can be
read, and its problems: metadata, chunks that have a wrong length or can't be
read, invalid bools. Files that are not chunks are noted.
Nothing is written. Chunks that are compressed, in shards, or contain bools
are read whole.
"""
_MORE_ON_CHECK = """\
exit status:
  0  no problems
  1  there are problems, or there is no array
  2  a store can't be read, or wrong arguments
  130  interrupted

example:
  %(prog)s s3://bucket/data.zarr --storage-options '{"anon": true}'
"""
_ABOUT_MIGRATE = """\
Write zarr.json next to the metadata of every Zarr v2 array and group, without
touching a chunk. Nodes that can't be migrated are listed and left unchanged,
and so are the groups above them, unless you exclude what can't be migrated.
"""
_MORE_ON_MIGRATE = """\
exit status:
  0  nothing is refused or kept
  1  a node is refused or kept, or there is no Zarr v2 metadata
  2  the store can't be read or written, or wrong arguments
  130  interrupted

example:
  %(prog)s data.zarr --dry-run
"""


def _format(found: dict[str, Any]) -> str:
    from numcodecs_bytes._tools.installation import OURS  # noqa: PLC0415 # see above

    versions = found["versions"]
    with_others = ", ".join(f"{name} {versions[name]}" for name in ("zarr", "numcodecs", "numpy"))
    lines = [f"numcodecs_bytes {versions['numcodecs-bytes']} with {with_others}"]
    if found["why_no_parts"]:
        lines.append(f"uncompressed chunks are read whole: {found['why_no_parts']}")
    else:
        lines.append(
            "uncompressed chunks are read in part: Zarr v3 and v2, shards, references, in files "
            "and in known stores"
        )
    lines.append(f"parts of chunks are written in place: {found['writes_in_place'] or 'no'}")
    how = "found" if found["finds_data_types"] else "import numcodecs_bytes.zarr_data_types first"
    lines.append(f"data types r*, bfloat16, ...: {how}")
    for a in found["answers"]:
        others = "" if not a["class"] or a["class"].startswith("numcodecs_bytes.") else ", not ours"
        is_codec = a["name"] != "codec pipeline"
        others = others if is_codec or a["class"] in OURS else ""
        lines.append(f"{a['host']}, {a['name']}: {a['class'] or a['error']}{others}")
    lines += [
        f"{each['key']} is {each['value']!r}, set by {each['source']}"
        for each in (*found["options"], *found["overrides"])
    ]
    lines += [each["error"] for each in found["options"] if "error" in each]
    lines += [f"unknown option: {key}" for key in found["unknown_options"]]
    if found["other_codec"]:
        lines.append(found["other_codec"])
    return "\n".join(lines)


def _report(options: argparse.Namespace) -> tuple[int, str]:
    """Return the exit status, and which classes are used."""
    from numcodecs_bytes._tools.installation import report  # noqa: PLC0415 # see above

    found = report()
    text = json.dumps(found, indent=2) if options.json else _format(found)
    is_in_use = found["picked_up"] and not any(
        each.get("error") for each in (*found["answers"], *found["options"])
    )
    return 0 if is_in_use else 1, text


def _explain_nothing(location: str) -> str:
    what = f"no Zarr array in {location}: expected zarr.json or .zarray there"
    if "://" in location:
        what += (
            "; if the server lists no folders, give the URL of an array, or consolidate metadata"
        )
    return what


def _progress_bar(unit: str) -> Any:
    """Return a context of a progress bar on stderr, if that is a terminal, or of None."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped] # noqa: PLC0415 # optional
    except ImportError:
        return contextlib.nullcontext()
    return tqdm(unit=unit, disable=None)


def _check(options: argparse.Namespace) -> tuple[int, str]:
    """Print a report for each array in some stores; return the exit status, and a summary."""
    from numcodecs_bytes._tools.check_report import Limits, count  # noqa: PLC0415 # see above
    from numcodecs_bytes._tools.hierarchy import describe_error  # noqa: PLC0415
    from numcodecs_bytes.check import check  # noqa: PLC0415

    given = {name: getattr(options, name) for name in ("max_chunks", "max_chunk_bytes")}
    limits = Limits(**{name: number for name, number in given.items() if number})
    names = ("branch", "tag", "snapshot")
    chosen = {name: getattr(options, name) for name in names if getattr(options, name)}
    where = {"storage_options": options.storage_options, "version": chosen}
    reports: list[tuple[str, Any]] = []
    unreadable: list[dict[str, str]] = []
    has_none = False
    for location in options.stores:
        num_before = len(reports)
        try:
            with _progress_bar(" chunks") as bar:
                for found in check(location, limits, bar, **where):
                    reports.append((location, found))
                    if not options.json and (found.num_problems or not options.only_problems):
                        with contextlib.nullcontext() if bar is None else bar.external_write_mode():
                            name = location if len(options.stores) > 1 else ""
                            print(found.format(name), flush=True)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 # stores and networks raise anything
            why = describe_error(error)
            print(f"can't read {location}: {why}", file=sys.stderr)
            unreadable.append({"store": location, "error": why})
            continue
        if len(reports) == num_before:
            print(_explain_nothing(location), file=sys.stderr)
            has_none = True
    if unreadable and not reports and not options.json:
        return 2, ""
    shown = [r for r in reports if r[1].num_problems or not options.only_problems]
    num_chunks = sum(found.num_chunks for _, found in reports)
    num_problems = sum(found.num_problems for _, found in reports)
    status = 2 if unreadable else int(has_none or num_problems > 0)
    if options.json:
        arrays = [{"store": location} | dataclasses.asdict(found) for location, found in shown]
        counts = {"num_arrays": len(reports), "num_chunks": num_chunks}
        document = {"num_problems": num_problems, **counts, "arrays": arrays}
        return status, json.dumps(document | {"unreadable": unreadable}, indent=2)
    counted = (len(reports), "array"), (num_chunks, "chunk"), (num_problems, "problem")
    return status, ", ".join(count(*each) for each in counted)


def _migrate(options: argparse.Namespace) -> tuple[int, str]:
    """Migrate a hierarchy; return the exit status, and the report."""
    from numcodecs_bytes._tools.hierarchy import describe_error  # noqa: PLC0415 # see above
    from numcodecs_bytes.migrate import migrate  # noqa: PLC0415

    location = options.store
    names = ("dry_run", "overwrite", "undo", "exclude", "storage_options")
    try:
        with _progress_bar(" nodes") as bar:
            nodes = migrate(location, bar=bar, **{name: getattr(options, name) for name in names})
    except Exception as error:  # noqa: BLE001 # stores and networks raise anything
        why = describe_error(error)
        print(f"can't migrate {location}: {why}", file=sys.stderr)
        return 2, json.dumps({"error": why}, indent=2) if options.json else ""
    wrong = "kept" if options.undo else "refused"
    num_wrong, num_excluded = (
        sum(found.status == status for found in nodes) for status in (wrong, "excluded")
    )
    status = 1 if num_wrong or not nodes else 0
    if options.json:
        found_nodes = [dataclasses.asdict(found) for found in nodes]
        return status, json.dumps({f"num_{wrong}": num_wrong, "nodes": found_nodes}, indent=2)
    if not nodes:
        return status, f"no Zarr v2 metadata in {location}: expected .zarray or .zgroup there"
    lines = [str(found) for found in nodes]
    counted = "1 array or group" if len(nodes) == 1 else f"{len(nodes)} arrays and groups"
    excluded = f", {num_excluded} excluded" if num_excluded else ""
    lines.append(f"{counted}, {num_wrong} {wrong}{excluded}")
    is_archive = Path(location).is_file()  # from which zarr removes nothing
    if not (num_wrong or num_excluded or is_archive or options.dry_run or options.undo):
        also = ", also what the notes name" if any(found.notes for found in nodes) else ""
        lines.append(
            "zarr warns as long as the metadata of both formats exist. Once all your programs "
            f"read Zarr v3{also}, remove the Zarr v2 metadata: zarr remove-metadata v2 STORE "
            '(pip install "zarr[cli]")'
        )
    return status, "\n".join(lines)


def _number(text: str) -> int:
    """Return a positive number."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return int(text)


def _json_object(text: str) -> dict[str, Any]:
    """Return a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text}: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text}")
    return found


def _parser() -> argparse.ArgumentParser:
    is_module = Path(sys.argv[0]).parts[-2:] == ("numcodecs_bytes", "__main__.py")
    layout: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(
        prog="python -m numcodecs_bytes" if is_module else "numcodecs-bytes",
        description=_ABOUT_REPORT,
        epilog="example:\n  %(prog)s check data.zarr",
        **layout,
    )
    as_json: Any = {"action": "store_true", "help": "print the report as JSON"}
    parser.add_argument("--json", **as_json)
    parser.add_argument("--version", action="version", version=version("numcodecs-bytes"))
    parser.set_defaults(run=_report)
    commands = parser.add_subparsers()

    def add(name: str, run: Any, summary: str, about: str, more: str = "") -> Any:
        command = commands.add_parser(name, help=summary, description=about, epilog=more, **layout)
        command.set_defaults(run=run)
        return command

    summary = "find problems in the arrays of a store"
    check = add("check", _check, summary, _ABOUT_CHECK, _MORE_ON_CHECK)
    check.add_argument(
        "stores",
        nargs="+",
        metavar="store",
        help="folder, zip file, kerchunk references (.json, .parq), Icechunk repository, or URL "
        "of one of these",
    )
    check.add_argument(
        "--only-problems", action="store_true", help="print only arrays that have problems"
    )
    check.add_argument(
        "--max-chunks", type=_number, metavar="N", help="check at most N chunks of each array"
    )
    check.add_argument(
        "--max-chunk-bytes",
        type=_number,
        metavar="N",
        help="do not decode chunks of more than N bytes (default: 100000000)",
    )
    versions = check.add_mutually_exclusive_group()
    versions.add_argument(
        "--branch", metavar="NAME", help="branch of an Icechunk repository (default: main)"
    )
    versions.add_argument("--tag", metavar="NAME", help="tag of an Icechunk repository")
    versions.add_argument("--snapshot", metavar="ID", help="snapshot of an Icechunk repository")
    summary = "add Zarr v3 metadata to a Zarr v2 hierarchy"
    migrate = add("migrate", _migrate, summary, _ABOUT_MIGRATE, _MORE_ON_MIGRATE)
    migrate.add_argument("store", help="folder, zip file, or URL that fsspec supports")
    migrate.add_argument("--dry-run", action="store_true", help="write nothing")
    ways = migrate.add_mutually_exclusive_group()
    ways.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a zarr.json with different contents, unless it has more than Zarr v2",
    )
    ways.add_argument(
        "--undo",
        action="store_true",
        help="remove the zarr.json files instead, if they are what this command writes",
    )
    migrate.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATH",
        help="leave an array or group, and all below it, in Zarr v2; can be repeated",
    )
    for command in (check, migrate):
        command.add_argument(
            "--storage-options",
            type=_json_object,
            metavar="JSON",
            help="fsspec's settings for a URL or references, such as '{\"anon\": true}'",
        )
    for command in (check, migrate):
        command.add_argument("--json", **as_json | {"default": argparse.SUPPRESS})
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(arguments)
    status = 2
    try:
        status, text = options.run(options)
        if text:
            print(text)
        sys.stdout.flush()
    except BrokenPipeError:  # stdout was closed, as by `head`: only the report ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = _INTERRUPTED
    return status


def run() -> NoReturn:
    """Run the command line as a program."""
    status = main()
    if status == _INTERRUPTED:  # zarr's threads go on reading: an orderly exit waits for them
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    run()
