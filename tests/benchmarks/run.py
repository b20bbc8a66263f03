"""How fast arrays are read and written: by zarr alone, with this package, and by others.

    python tests/benchmarks/run.py [--quick] [--out FOLDER] [--only QUESTION]

Writes the tables of docs/performance.md anew, and the picture beside it; with `--only`, the table
of one question.
"""

import argparse
import contextlib
import datetime as dt
import importlib.metadata
import itertools
import logging
import math
import operator
import os
import platform
import re
import sys
import tempfile
import textwrap
import time
import warnings
from pathlib import Path

import contenders
import questions
from questions import Case

PAGE = Path(__file__).parents[2] / "docs/performance.md"
RIVALS = "rivals"
QUESTIONS = {  # and how they are called in the picture
    RIVALS: "Read part of one chunk of 256 MiB",
    "one_large_chunk": "Read part of one chunk of 128 MiB from disk",
    "many_chunks": "Read 1,024 chunks of 128 KiB",
    "whole_reads": "Read all of an array",
    "slow_mount": "Read one chunk from a slow mount (1 ms)",
    "elementwise": "Read a chunk behind FixedScaleOffset",
    "far_stores": "Read from a server that is 30 ms away",
    "whole_chunks": "Write whole chunks",
    "writes_in_place": "Write in place",
}
PACKAGES = (
    *("numcodecs_bytes", "zarr", "numpy", "zarrs", "tensorstore", "fsspec", "obstore"),
    *("zarrista", "h5py", "netCDF4", "rasterio"),
)
FAMILY = ("cpu family", "model")  # of /proc/cpuinfo
GREEN, GREY = "#1a9e77", "#808890"  # can be read on light and on dark pages
# Colour and name in the picture, and how far below the middle of the bar a dot is.
SHOWN = {
    "ours": (GREEN, "this package", 0),
    "zarr fused": ("#d9730d", "zarr's fused pipeline", -6),
    "zarrs": ("#8a7fd1", "zarrs", 0),
    "TensorStore": ("#d1589b", "TensorStore", 6),
}
LEFT, TOP = 170, 65  # of the bars


def table(cases: list[Case]) -> str:
    """Return the milliseconds of each contender, and how many times as fast as zarr ours is."""
    others = [who for who in cases[0].seconds if "zarr " not in who and who != "ours"]
    rows = [["selection", "of", *others, "ours", "gain"]]
    rows.append(["---"] * 2 + ["---:"] * (len(others) + 2))
    for selection, of, seconds, _ in cases:
        zarr, again, ours = (seconds[who] for who in ("zarr", "zarr again", "ours"))
        gain = digits(zarr / ours, 2)
        if ours - max(zarr, again) > abs(zarr - again):
            gain = f"**{gain}**"
        rows.append([selection, of, *milliseconds(seconds, *others, "ours"), gain])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def side_by_side(cases: list[Case]) -> str:
    """Return a table of each layout, with a row for each contender."""
    tables = []
    for of, group in itertools.groupby(cases, operator.attrgetter("of")):
        some = list(group)
        rows = [[of, *(case.selection for case in some)], ["---", *["---:"] * len(some)]]
        names = [who for who in some[0].seconds if who not in ("ours", "SyncReader", "zarr again")]
        columns = [milliseconds(case.seconds, *names, "ours", "SyncReader") for case in some]
        rows += zip((*names, "**ours**", "SyncReader"), *columns, strict=True)
        tables.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(tables)


def milliseconds(seconds: contenders.Seconds, *names: str) -> list[str]:
    """Return the times of contenders; that of zarr is marked if it is noisy."""
    times = [digits(1e3 * seconds[who]) if who in seconds else "" for who in names]
    noise = " (!)" if contenders.is_noisy(seconds) else ""
    return [
        f"{time}{noise}" if who == "zarr" else time for who, time in zip(names, times, strict=True)
    ]


def is_noisy(case: Case) -> bool:
    return contenders.is_noisy(case.seconds)


def digits(number: float, num: int = 3) -> str:
    """Return a number with so many digits, as in 0.123 and 1230."""
    return f"{float(f'{number:.{num}g}'):g}"


def picture(answers: dict[str, list[Case]]) -> str:
    """Return an SVG of how many times as fast as zarr alone each contender is."""
    y, lines = TOP, []
    for question, cases in answers.items():
        y += 30
        lines.append(text(5, y, QUESTIONS[question], more='font-weight="bold"'))
        pictured = (case for case in cases if case.is_pictured)
        for case in itertools.filterfalse(is_noisy, pictured):
            y += 24
            lines += row(question, case, y)
    lines = [*legend(), *axis(y + 20), *lines]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + 660}" height="{y + 50}"'
    return "\n".join([f'{head} font-family="sans-serif" font-size="12">', *lines, "</svg>\n"])


def row(question: str, case: Case, y: int) -> list[str]:
    """Return a line of the picture: a bar for this package, and a dot for each other contender."""
    selection, of, seconds, _ = case
    zarr, ours = seconds["zarr"], seconds["ours"]
    start, end = sorted((x_of(1), x_of(zarr / ours)))
    lines = [bar(start, y, end - start)]
    for who, (colour, _, below) in SHOWN.items():
        if who in seconds and who != "ours":
            lines.append(dot(x_of(zarr / seconds[who]), y + below, colour))
    name = f"{selection} of a {of.split()[0]}" if "writes" in question else selection
    name = of if question == "whole_chunks" else name
    milliseconds = f"{digits(1e3 * ours)} ms instead of {digits(1e3 * zarr)} ms"
    return [
        *lines,
        text(LEFT - 8, y, name, more='text-anchor="end"'),
        text(LEFT + 420, y, f"{digits(zarr / ours, 2)} x", GREEN, 'font-weight="bold"'),
        text(LEFT + 475, y, milliseconds),
    ]


def legend() -> list[str]:
    x, lines = 10, []
    for who, (colour, name, _) in SHOWN.items():
        lines.append(bar(x, 15, 16) if who == "ours" else dot(x + 12, 15, colour))
        lines.append(text(x + 22, 15, name, colour))
        x += 50 + 7 * len(name)
    return lines


def axis(bottom: int) -> list[str]:
    middle = 'text-anchor="middle"'
    lines = [text(x_of(10), 42, "times as fast as zarr alone (logarithmic scale)", more=middle)]
    for tick in (0.1, 1, 10, 100, 1000):
        style = f'stroke="{GREY}" ' + ('stroke-width="2"' if tick == 1 else 'opacity="0.4"')
        lines.append(f'<path d="M{x_of(tick):.1f} {TOP + 10}V{bottom - 5}" {style}/>')
        lines += [text(x_of(tick), y, f"{tick:g} x", more=middle) for y in (TOP, bottom + 8)]
    return lines


def x_of(ratio: float) -> float:
    """Return where a ratio is on the axis."""
    return LEFT + 95 * math.log10(min(max(ratio, 0.05), 1000) / 0.05)


def text(x: float, y: float, words: str, colour: str = GREY, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y + 4}" fill="{colour}" {more}>{words}</text>'


def dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y}" r="3" fill="{colour}" stroke="white"/>'


def bar(x: float, y: float, width: float) -> str:
    return f'<rect x="{x:.1f}" y="{y - 8}" width="{width:.1f}" height="16" fill="{GREEN}"/>'


def machine(seconds: float, what: str) -> str:
    """Return what was measured, and on what."""
    about, versions = Path("/proc/cpuinfo"), [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    text = about.read_text("utf-8") if about.exists() else ""
    cpu = [re.search(f"^{key}\\s*: (.*)", text, re.MULTILINE) for key in ("model name", *FAMILY)]
    name, *family = [found[1] if found else "" for found in cpu]
    family = [f"{key} {value}" for key, value in zip(FAMILY, family, strict=True) if value]
    return textwrap.fill(
        f"Measured on {dt.datetime.now(dt.UTC):%Y-%m-%d} in {seconds:.0f} s{what}, on "
        f"{', '.join([name or platform.machine(), *family])}, {os.cpu_count()} cores with a load "
        f"of {contenders.load():.1f} at the end, {platform.system()} {platform.release()}, with "
        f"{', '.join(versions)}. {contenders.rates_of_copies()}",
        width=100,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small arrays: does it work?")
    parser.add_argument("--out", type=Path, default=PAGE.parent, help="folder of what is written")
    parser.add_argument("--only", choices=[*QUESTIONS, RIVALS], help="measure a single question")
    arguments = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # fsspec leaves connections open
    warnings.simplefilter("ignore", RuntimeWarning)  # zarrs says how it connects
    answers: dict[str, list[Case]] = {}
    start = time.perf_counter()
    for question in [arguments.only] if arguments.only else QUESTIONS:
        answers[question] = []
        with tempfile.TemporaryDirectory() as folder:
            for case in getattr(questions, question)(Path(folder), quick=arguments.quick):
                answers[question].append(case)
                took = time.perf_counter() - start
                print(f"{took:4.0f} s", question, *case[:2], sep="  ", file=sys.stderr)
    parts = {question: table(cases) for question, cases in answers.items() if cases}
    what = " by --quick, with much smaller arrays" if arguments.quick else ""
    on_what = machine(time.perf_counter() - start, what)
    print(on_what, file=sys.stderr)
    if RIVALS in answers:
        parts[RIVALS] = f"{side_by_side(answers[RIVALS])}\n\n{on_what}"
    if not arguments.only:
        parts["machine"] = on_what
    page = PAGE.read_text("utf-8")
    for name, part in parts.items():
        before, start_of, rest = page.partition(f"<!-- {name} -->\n")
        if start_of:  # some are in the picture only
            page = f"{before}{start_of}\n{part}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "performance.md").write_text(page, "utf-8")
    if not arguments.only:
        (arguments.out / "performance.svg").write_text(picture(answers), "utf-8")


if __name__ == "__main__":
    main()
