"""python -m numcodecs_bytes: check the installation, check a store, or migrate it to Zarr v3."""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from numcodecs_bytes._tools.installation import OURS, report


def _format(found: dict[str, Any]) -> str:
    versions = found["versions"]
    hosts = " and ".join(f"{host} {versions[host]}" for host in ("numcodecs", "zarr"))
    if found["picked_up"]:
        lines = [f'"bytes" is picked up: {hosts} use numcodecs_bytes {versions["numcodecs-bytes"]}']
    else:
        missing = " and ".join(
            f"{a['host']} {versions[a['host']]}"
            for a in found["answers"]
            if a["name"] == "bytes" and a["class"] not in OURS
        )
        lines = [f'"bytes" is not picked up by {missing}']
    lines += [
        f"  {a['host']}, {a['name']}: {a['class'] or a['error']}"
        + (f" from {a['file']}" if a["file"] else "")
        for a in found["answers"]
    ]
    how = "found" if found["finds_data_types"] else "import numcodecs_bytes.zarr_data_types first"
    lines += [f"  zarr, data types r*, bfloat16, ...: {how}"]
    if found["writes_in_place"]:
        lines += [f"  parts of chunks are written in place: {found['writes_in_place']}"]
    lines += [f"  {o['key']} is {o['value']!r} by {o['source']}" for o in found["overrides"]]
    return "\n".join(lines)


def _check(locations: list[str], limits: Any, *, as_json: bool) -> int:
    """Print a report for each array in some stores; return the exit status."""
    from numcodecs_bytes.check import Limits, check  # noqa: PLC0415 # only needed here

    tqdm: Any = None
    with contextlib.suppress(ImportError):
        from tqdm import tqdm  # type: ignore[no-redef,import-untyped] # noqa: PLC0415 # optional
    reports: list[dict[str, Any]] = []
    has_none = is_unreadable = False
    for location in locations:
        num_before = len(reports)
        try:
            with tqdm(unit=" chunks", disable=None) if tqdm else contextlib.nullcontext() as bar:
                for found in check(location, Limits(**limits), bar):
                    reports.append({"store": location} | dataclasses.asdict(found))
                    if not as_json:
                        with tqdm.external_write_mode() if tqdm else contextlib.nullcontext():
                            name = location if len(locations) > 1 else ""
                            print(_format_array(found, name), flush=True)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 # stores and networks raise anything
            print(f"can't read {location}: {type(error).__name__}: {error}", file=sys.stderr)
            is_unreadable = True
            continue
        if len(reports) == num_before:
            print(
                f"no Zarr array in {location}: expected zarr.json or .zarray there", file=sys.stderr
            )
            has_none = True
    if is_unreadable and not reports:
        return 2
    num_problems = sum(found["num_problems"] for found in reports)
    if as_json:
        print(json.dumps({"num_problems": num_problems, "arrays": reports}, indent=2))
    else:
        num_chunks = sum(found["num_chunks"] for found in reports)
        counts = (len(reports), "array"), (num_chunks, "chunk"), (num_problems, "problem")
        print(", ".join(f"{number} {what}{'' if number == 1 else 's'}" for number, what in counts))
    return 2 if is_unreadable else int(has_none or num_problems > 0)


def _migrate(location: str, options: dict[str, bool], *, as_json: bool) -> tuple[str, int]:
    """Migrate a hierarchy; return the report, and the exit status."""
    from numcodecs_bytes.migrate import migrate  # noqa: PLC0415 # only needed here

    try:
        nodes = migrate(location, **options)
    except Exception as error:  # noqa: BLE001 # stores and networks raise anything
        print(f"can't migrate {location}: {type(error).__name__}: {error}", file=sys.stderr)
        return "", 2
    wrong = "kept" if options["undo"] else "refused"
    num_wrong = sum(found.status == wrong for found in nodes)
    status = 1 if num_wrong or not nodes else 0
    if as_json:
        found_nodes = [dataclasses.asdict(found) for found in nodes]
        return json.dumps({f"num_{wrong}": num_wrong, "nodes": found_nodes}, indent=2), status
    if not nodes:
        return f"no Zarr v2 metadata in {location}: expected .zarray or .zgroup there", status
    lines = []
    for found in nodes:
        lines.append(f"{'/' + found.path:32} {found.kind:6} {found.status}")
        lines += [f"  {reason}" for reason in found.reasons]
        lines += [f"  note    {note}" for note in found.notes]
    lines = [_printable(line) for line in lines]
    counted = "1 array or group" if len(nodes) == 1 else f"{len(nodes)} arrays and groups"
    lines.append(f"{counted}, {num_wrong} {wrong}")
    is_archive = Path(location).is_file()  # from which zarr removes nothing
    if not (num_wrong or is_archive or options["dry_run"] or options["undo"]):
        also = ", also what the notes name" if any(found.notes for found in nodes) else ""
        lines.append(
            "zarr warns as long as the metadata of both formats exist. Once all your programs "
            f"read Zarr v3{also}, remove the Zarr v2 metadata: zarr remove-metadata v2 STORE "
            '(pip install "zarr[cli]")'
        )
    return "\n".join(lines), status


def _number(text: str) -> int:
    """Return a positive number."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return int(text)


def _printable(line: str) -> str:
    """Return a line with unprintable characters escaped, because names may contain anything."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def _format_array(found: Any, location: str) -> str:
    """Return a line that describes an array, and a line for each of its problems and notes."""
    name = f"{location}/{found.path}"
    line = f"{name:32} {found.data_type:16} partial reads: {found.partial_reads}"
    listed = [f"  PROBLEM {problem}" for problem in found.problems]
    if found.num_problems > len(found.problems):
        listed.append(f"  PROBLEM ... and {found.num_problems - len(found.problems)} more")
    lines = [line, *listed, *(f"  note    {note}" for note in found.notes)]
    return "\n".join(map(_printable, lines))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m numcodecs_bytes",
        description='Report which classes numcodecs and zarr use for the codec "bytes". Exit '
        "status 1 if they are not those of numcodecs_bytes.",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--version", action="version", version=version("numcodecs-bytes"))
    commands = parser.add_subparsers(dest="command")
    check = commands.add_parser(
        "check",
        help="find problems in the arrays of a store",
        description="Report for each array in a Zarr hierarchy whether parts of its chunks can be "
        "read, and its problems: metadata, chunks of a wrong length, invalid bools. Nothing is "
        "written. Chunks that are compressed, in shards, or contain bools are read whole. Exit "
        "status 1 if there are problems or no arrays, 2 if a store can't be read.",
    )
    check.add_argument(
        "stores",
        nargs="+",
        metavar="store",
        help="folder, zip file, kerchunk references (.json, .parq), URL of one of these that "
        "fsspec supports, or folder of an Icechunk repository",
    )
    check.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as above")
    check.add_argument(
        "--max-chunks", type=_number, metavar="N", help="check at most N chunks of each array"
    )
    check.add_argument(
        "--max-chunk-bytes",
        type=_number,
        metavar="N",
        help="do not decode chunks of more than N bytes (default: 100000000)",
    )
    migrate = commands.add_parser(
        "migrate",
        help="add Zarr v3 metadata to a Zarr v2 hierarchy",
        description="Write zarr.json next to the metadata of every Zarr v2 array and group, "
        "without touching a chunk. Nodes that can't be migrated are listed and left unchanged, and "
        "so are the groups above them. Exit status 1 if a node is refused or kept, or nothing is "
        "found, 2 if the store can't be read or written.",
    )
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
    migrate.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as above")
    options = parser.parse_args(arguments)
    status = 2
    try:
        if options.command == "check":
            names = ("max_chunks", "max_chunk_bytes")
            limits = {name: getattr(options, name) for name in names if getattr(options, name)}
            status = _check(options.stores, limits, as_json=options.json)
        elif options.command == "migrate":
            changes = {name: getattr(options, name) for name in ("dry_run", "overwrite", "undo")}
            text, status = _migrate(options.store, changes, as_json=options.json)
            if text:
                print(text)
        else:
            found = report()
            status = 0 if found["picked_up"] else 1
            print(json.dumps(found, indent=2) if options.json else _format(found))
        sys.stdout.flush()
    except BrokenPipeError:  # stdout was closed, as by `head`: only the report ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


if __name__ == "__main__":
    sys.exit(main())
