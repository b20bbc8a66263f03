"""The plots: grey on nothing, so that they can be read on light and on dark pages."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

GREY = "#808890"
COLOURS = {
    "ours": "#1a9e77",
    **dict.fromkeys(["BytesPipeline", "FusedBytesPipeline"], "#1f6f9e"),
    "zarr": "#d9730d",
    "zarrs": "#8a7fd1",
    "tensorstore": "#d1589b",
}
mpl.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "numcodecs_bytes",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "lines.markersize": 4,
        "legend.frameon": False,
        "savefig.transparent": True,
        **dict.fromkeys(
            ["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], GREY
        ),
    }
)


def colour_of(who: str) -> str:
    return COLOURS.get(who.split(",", maxsplit=1)[0], GREY)


def save(figure: plt.Figure, path: Path) -> None:
    for axes in figure.axes:
        axes.minorticks_off()
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_major_formatter("{x:g}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def strips(path: Path, groups: Mapping[str, Sequence[float]], label: str) -> None:
    """Plot a row of ticks for each group, coloured as whoever is faster."""
    figure, axes = plt.subplots(figsize=(7, 0.35 * len(groups) + 0.6))
    for who in ("ours", "zarr"):
        # One path for all ticks, a hundredth of the bytes of a marker each.
        x, y = [], []
        for row, values in enumerate(groups.values()):
            for value in values:
                if (value >= 1) == (who == "ours"):
                    x += [value, value, math.nan]
                    y += [row - 0.3, row + 0.3, math.nan]
        axes.plot(x, y, color=COLOURS[who], linewidth=1)
    axes.axvline(1, color=GREY)
    axes.set(xscale="log", xlabel=label, yticks=range(len(groups)), yticklabels=groups)
    axes.invert_yaxis()
    save(figure, path)


def bars(
    path: Path, panels: Mapping[str, Mapping[str, Mapping[str, float]]], *, log: bool = False
) -> None:
    """Plot the contenders of each group as bars; a panel's name is what they measure."""
    groups = next(iter(panels.values()))
    names = list(dict.fromkeys(name for found in groups.values() for name in found))
    size = (3.5 + 3.5 * len(panels), 0.13 * len(names) * len(groups) + 0.8)
    figure, all_axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, sharey=True)
    height = 0.8 / len(names)
    for axes, (label, measured) in zip(all_axes[0], panels.items(), strict=True):
        for i, name in enumerate(names):
            found = {
                row: of_one[name] for row, of_one in enumerate(measured.values()) if name in of_one
            }
            drawn = axes.barh(
                [row + i * height - 0.4 for row in found],
                list(found.values()),
                height * 0.9,
                align="edge",
                label=name,
                facecolor=colour_of(name),
                edgecolor="white",
                linewidth=0,
                hatch="////" if "fused" in name else None,
            )
            axes.bar_label(drawn, fmt="{:.3g}", fontsize=6, padding=2)
        axes.set(xlabel=label, yticks=range(len(groups)), yticklabels=groups)
        if log:
            least = min(value for of_one in measured.values() for value in of_one.values())
            axes.set(xscale="log", xlim=(10 ** math.floor(math.log10(least)), None))
    all_axes[0][0].invert_yaxis()
    all_axes[0][0].legend(ncols=len(names), loc="lower left", bbox_to_anchor=(0, 1), fontsize=8)
    save(figure, path)


def lines(path: Path, panels: Mapping[str, Mapping[str, Mapping[float, float]]]) -> None:
    """Plot y over x of each contender, on logarithmic axes; a panel's name is "y over x"."""
    figure, all_axes = plt.subplots(1, len(panels), figsize=(3.8 * len(panels), 3), squeeze=False)
    for axes, (title, found) in zip(all_axes[0], panels.items(), strict=True):
        for name, points in found.items():
            style = "--" if "fused" in name or "native" in name else "-"
            axes.plot(
                *zip(*points.items(), strict=True),
                style,
                marker="o",
                color=colour_of(name),
                label=name,
            )
        y, x = title.split(" over ")
        axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
        axes.legend(fontsize=8)
    figure.tight_layout()
    save(figure, path)
