"""The picture of the README, from the tables of RESULTS.md.

python tests/benchmarks/what_it_does.py
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import plots
from matplotlib.lines import Line2D

HERE = Path(__file__).parent
ZARR, FUSED, ZARRS, OURS = "zarr alone", "zarr alone, fused", "zarrs", "numcodecs_bytes"
COLOURS = {ZARR: "#d9730d", FUSED: "#d9730d", ZARRS: "#8a7fd1", OURS: "#1a9e77"}
SIZES = {ZARR: 7, FUSED: 9, ZARRS: 5.5, OURS: 7}
READS = {
    "row": "a row",
    "64x64 box": "a box of 64 x 64",
    "1000 points": "1000 points",
    "column": "a column",
    "every 16th row": "every 16th row",
}
MANY = {"one element per chunk": "one of each chunk", "whole": "all of it"} | {
    name: READS.get(name, f"a {name}") for name in ("1000 points", "crop", "column")
}
WRITES = {"64 x 64": "a box of 64 x 64"} | {
    name: READS[name] for name in ("row", "1000 points", "column")
}
COLUMNS = {ZARR: "zarr", ZARRS: "zarrs", OURS: "ours"}
OTHER_COLUMNS = {
    ZARR: "zarr, default",
    FUSED: "zarr, fused",
    ZARRS: "zarrs",
    OURS: "BytesPipeline",
}

Panel = dict[str, dict[str, float]]  # row, contender -> ms


def rows_of(results: str, title: str) -> Iterable[dict[str, str]]:
    """Yield the rows of the first table of a section."""
    lines = results.partition(f"\n## {title}")[2].splitlines()
    lines = lines[next(i for i, line in enumerate(lines) if line.startswith("|")) :]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    for row in rows:
        if len(row) != len(head):
            return
        yield dict(zip(head, row, strict=True))


def panels_of(results: str) -> dict[str, Panel]:
    """Return what is plotted, in ms: the big-endian arrays of each table."""
    one: Panel = {}
    for row in rows_of(results, "Partial reads of a single chunk"):
        if row["selection"] in READS and (row["chunk"], row["endian"]) == ("128 MiB", "big"):
            found = one.setdefault(READS[row["selection"]], {})
            if row["pipeline"] == "fused":
                found[FUSED] = float(row["zarr"])
            else:
                found |= {who: float(row[name]) for who, name in COLUMNS.items()}
    many = {
        MANY[row["selection"]]: with_our_pipeline(row)
        for row in rows_of(results, "Many chunks in LocalStore")
        if row["selection"] in MANY and (row["chunks"], row["endian"]) == ("2048 x 4 KiB", "big")
    }
    titles = {
        "Parts of a chunk of 128 MiB, written in place": WRITES,
        "Parts of a shard of 128 MiB with inner chunks of 4 MiB": {"row": "a row of a shard"},
    }
    writes = {
        names[row["written"]]: with_our_pipeline(row)
        for title, names in titles.items()
        for row in rows_of(results, title)
        if row["written"] in names and row["endian"] == "big"
    }
    return {
        "Read part of one chunk of 128 MiB": one,
        "Read 2048 chunks of 4 KiB, with our pipeline": many,
        "Write part of a chunk, or shard, of 128 MiB in place": writes,
    }


def with_our_pipeline(row: dict[str, str]) -> dict[str, float]:
    return {who: float(row[name]) for who, name in OTHER_COLUMNS.items()}


def dots(axes: Any, panel: Panel) -> None:
    """Plot each row's contenders on a logarithmic axis, and the ratio to zarr's faster pipeline."""
    for row, found in enumerate(panel.values()):
        axes.plot(sorted(found.values()), [row] * len(found), color=plots.GREY, lw=1, alpha=0.4)
        for who in (FUSED, ZARR, ZARRS, OURS):
            mark(axes, who, found[who], row)
        ratio = min(found[ZARR], found[FUSED]) / found[OURS]
        axes.annotate(
            f"{float(f'{ratio:.2g}'):g} x",  # the times have two digits
            (1.02, row),
            xycoords=("axes fraction", "data"),
            va="center",
            color=COLOURS[OURS],
            fontweight="bold",
        )
    axes.annotate(
        "vs. zarr alone",
        (1.02, 1),
        (0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        color=COLOURS[OURS],
        fontsize=8,
    )
    axes.set(xscale="log", xlabel="ms, log scale")
    axes.set(yticks=range(len(panel)), yticklabels=panel, ylim=(len(panel) - 0.5, -0.5))


def mark(axes: Any, who: str, x: Any, y: Any) -> Line2D:
    fill = "none" if who == FUSED else COLOURS[who]
    (marks,) = axes.plot(x, y, "o", ms=SIZES[who], mfc=fill, mec=COLOURS[who], mew=1.2, label=who)
    return marks


def plot(results: Path, path: Path) -> None:
    text = results.read_text("utf-8")
    figure, grid = plots.plt.subplots(2, 2, figsize=(9.2, 5.3), height_ratios=(5, 4))
    *of_times, of_rows = grid.flat
    for axes, (title, panel) in zip(of_times, panels_of(text).items(), strict=True):
        dots(axes, panel)
        axes.set_title(title, loc="left", pad=18, fontsize=10, color=plots.GREY)
    match = re.search(r"zarr alone: (\d+) of (\d+) rows are lost", text)
    lost, num_rows = map(int, match.groups()) if match else (0, 0)
    for row, (who, num_lost) in enumerate({ZARR: lost, OURS: 0}.items()):
        mark(of_rows, who, num_lost, row)
        of_rows.annotate(f"{num_lost}", (num_lost, row), (0, 9), textcoords="offset points")
    of_rows.set(xlim=(-2, num_rows), ylim=(1.5, -0.8), yticks=(0, 1), xlabel="rows lost")
    of_rows.set_yticklabels(["zarr alone", "in place"])
    of_rows.set_title(
        f"8 processes write {num_rows} rows of one chunk",
        loc="left",
        pad=18,
        fontsize=10,
        color=plots.GREY,
    )
    marks = [mark(of_rows, who, [], []) for who in (OURS, ZARR, FUSED, ZARRS)]
    figure.legend(handles=marks, ncols=4, loc="upper center")
    for axes in grid.flat:
        axes.grid(axis="y", visible=False)
        axes.tick_params(length=0)
    figure.text(
        0.5,
        0.01,
        '"2 x" is twice as fast as zarr alone, in the faster of its two pipelines',
        ha="center",
        color=COLOURS[OURS],
        fontsize=8,
    )
    figure.tight_layout(rect=(0, 0.03, 1, 0.94), w_pad=2.5)
    plots.save(figure, path)


if __name__ == "__main__":
    plot(HERE / "RESULTS.md", HERE / "plots/what-it-does.svg")
