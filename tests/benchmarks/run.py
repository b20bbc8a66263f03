"""How fast arrays are read and written: by zarr alone, with this package, and by others.

    python tests/benchmarks/run.py [--quick] [--out FOLDER]

Writes the tables of docs/performance.md anew, and the picture beside it.
"""

import argparse
import contextlib
import datetime as dt
import importlib.metadata
import itertools
import logging
import math
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
QUESTIONS = {  # and how they are called in the picture
    "one_large_chunk": "Read part of one chunk of 128 MiB",
    "many_chunks": "Read 1,024 chunks of 128 KiB",
    "slow_mount": "Read one chunk of 64 MiB from a mount that is 1 ms away",
    "elementwise": "Read part of a chunk behind FixedScaleOffset",
    "far_stores": "Read from a server that is 30 ms away",
    "whole_chunks": "Write whole chunks",
    "writes_in_place": "Write in place",
}
PACKAGES = ("numcodecs_bytes", "zarr", "numpy", "zarrs", "tensorstore", "fsspec", "obstore")
GREEN, GREY = "#1a9e77", "#808890"  # can be read on light and on dark pages
# Colour and name in the picture.
SHOWN = {
    "ours": (GREEN, "this package"),
    "zarr fused": ("#d9730d", "zarr's fused pipeline"),
    "zarrs": ("#8a7fd1", "zarrs"),
    "TensorStore": ("#d1589b", "TensorStore"),
}


def table(cases: list[Case]) -> str:
    """Return the milliseconds of each contender, and the ratios."""
    others = [who for who in cases[0].seconds if who not in ("zarr", "zarr again", "ours")]
    rows = [["selection", "of", "zarr", "noise", *others, "ours", "gain"]]
    rows.append(["---"] * 2 + ["---:"] * (len(others) + 4))
    for selection, of, seconds, _ in cases:
        zarr, again, ours = (seconds[who] for who in ("zarr", "zarr again", "ours"))
        times = [digits(1e3 * seconds[who]) if who in seconds else "" for who in (*others, "ours")]
        gain = digits(zarr / ours, 2)
        if ours - max(zarr, again) > abs(zarr - again):
            gain = f"**{gain}**"
        noise = f"{zarr / again:.2f}{' (!)' if contenders.is_noisy(seconds) else ''}"
        rows.append([selection, of, digits(1e3 * zarr), noise, *times, gain])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def is_noisy(case: Case) -> bool:
    return contenders.is_noisy(case.seconds)


def digits(number: float, num: int = 3) -> str:
    """Return a number with so many digits, as in 0.123 and 1230."""
    return f"{float(f'{number:.{num}g}'):g}"


def picture(answers: dict[str, list[Case]]) -> str:
    """Return an SVG of how many times as fast as zarr alone each contender is."""
    left, y, lines = 170, 15, []

    def x_of(ratio: float) -> float:
        return left + 100 * (1 + math.log10(min(max(ratio, 0.1), 1000)))

    def text(x: float, words: str, colour: str = GREY, more: str = "") -> None:
        lines.append(f'<text x="{x:.0f}" y="{y + 4}" fill="{colour}" {more}>{words}</text>')

    def dot(x: float, colour: str) -> None:
        lines.append(f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="{colour}" stroke="white"/>')

    for i, (colour, name) in enumerate(SHOWN.values()):
        dot(15 + 145 * i, colour)
        text(23 + 145 * i, name, colour)
    text(left + 420, "times as fast as zarr alone")
    for question, cases in answers.items():
        y += 30
        text(5, QUESTIONS[question], more='font-weight="bold"')
        pictured = (case for case in cases if case.is_pictured)
        for selection, of, seconds, _ in itertools.filterfalse(is_noisy, pictured):
            y += 20
            zarr, ours = seconds["zarr"], seconds["ours"]
            start, end = sorted((x_of(1), x_of(zarr / ours)))
            bar = f'x="{start:.1f}" y="{y - 6}" width="{end - start:.1f}" height="12"'
            lines.append(f'<rect {bar} fill="{GREEN}"/>')
            for who, (colour, _) in SHOWN.items():
                if who in seconds and who != "ours":
                    dot(x_of(zarr / seconds[who]), colour)
            name = f"{selection} of a {of.split()[0]}" if "writes" in question else selection
            name = of.rpartition(",")[0] if question == "whole_chunks" else name
            text(left - 8, name, more='text-anchor="end"')
            text(left + 420, f"{digits(zarr / ours, 2)} x", GREEN, 'font-weight="bold"')
            text(left + 475, f"{digits(1e3 * ours)} ms instead of {digits(1e3 * zarr)} ms")
    y += 30
    for tick in (1, 10, 100, 1000):
        lines.append(f'<path d="M{x_of(tick)} 30V{y - 10}" stroke="{GREY}" opacity="0.4"/>')
        text(x_of(tick), f"{tick:g}", more='text-anchor="middle"')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + 660}" height="{y + 15}"'
    return "\n".join([f'{head} font-family="sans-serif" font-size="12">', *lines, "</svg>\n"])


def machine(seconds: float, what: str) -> str:
    """Return what was measured, and on what."""
    about, versions = Path("/proc/cpuinfo"), [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    cpu = re.search("model name.*: (.*)", about.read_text("utf-8") if about.exists() else "")
    return textwrap.fill(
        f"Measured on {dt.datetime.now(dt.UTC):%Y-%m-%d} in {seconds:.0f} s{what}, on "
        f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores, {platform.system()} "
        f"{platform.release()}, with {', '.join(versions)}.",
        width=100,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small arrays: does it work?")
    parser.add_argument("--out", type=Path, default=PAGE.parent, help="folder of what is written")
    arguments = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # fsspec leaves connections open
    warnings.simplefilter("ignore", RuntimeWarning)  # zarrs says how it connects
    answers: dict[str, list[Case]] = {}
    start = time.perf_counter()
    for question in QUESTIONS:
        answers[question] = []
        with tempfile.TemporaryDirectory() as folder:
            for case in getattr(questions, question)(Path(folder), quick=arguments.quick):
                answers[question].append(case)
                took = time.perf_counter() - start
                print(f"{took:4.0f} s", question, *case[:2], sep="  ", file=sys.stderr)
    parts = {question: table(cases) for question, cases in answers.items() if cases}
    what = " by --quick, with much smaller arrays" if arguments.quick else ""
    parts["machine"] = machine(time.perf_counter() - start, what)
    page = PAGE.read_text("utf-8")
    for name, part in parts.items():
        before, start_of, rest = page.partition(f"<!-- {name} -->\n")
        page = f"{before}{start_of}\n{part}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "performance.md").write_text(page, "utf-8")
    (arguments.out / "performance.svg").write_text(picture(answers), "utf-8")


if __name__ == "__main__":
    main()
