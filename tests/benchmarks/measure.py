"""How everything here is measured, and written down.

Contenders take turns, so that what else the machine does meets all of them alike; a cell's
number is the median of its rounds.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# A turn of less repeats what it times: clock and loop take some 0.1 us.
TURN_SECONDS = 0.0002
# What takes less runs once untimed in each turn, for the caches that the contender before left are
# no property of it.
SHORT_SECONDS = 0.005
LONG_SECONDS = 1
WIDE_SPREAD = 0.1

Contenders = dict[str, Callable[[], Any]]
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Settings:
    quick: bool
    folder: Path  # for arrays
    out: Path  # for results


def measure(
    contenders: Contenders,
    seconds: float,
    least: int = 5,
    most: int = 101,
    before: Callable[[], Any] | None = None,
) -> Times:
    """Return the seconds that each contender took in each round, without what is done `before`.

    At least `least` rounds, then more within `seconds`; twice `seconds` where rounds differ
    by more than 10 %. A first run does not count, unless each takes a second.
    """
    first = {name: _time(run, before=before) for name, run in contenders.items()}
    for name, run in contenders.items():
        if first[name] < SHORT_SECONDS:
            first[name] = _time(run, before=before)
    repeats = dict.fromkeys(first, 1)
    if before is None:
        repeats = {name: max(1, math.ceil(TURN_SECONDS / took)) for name, took in first.items()}
    are_long = min(first.values()) > LONG_SECONDS
    times: Times = {name: [took] if are_long else [] for name, took in first.items()}
    names, order = list(contenders), random.Random(0)  # noqa: S311 # no secret
    start = time.perf_counter()
    for num_rounds in range(int(are_long), most):
        elapsed = time.perf_counter() - start
        if num_rounds >= least and elapsed > seconds:
            wide = max(spread(of_one) for of_one in times.values()) > WIDE_SPREAD
            if not wide or elapsed > 2 * seconds:
                break
        for name in names:
            run = contenders[name]
            if not times[name] or times[name][-1] < SHORT_SECONDS:
                _time(run, before=before)
            times[name].append(_time(run, repeats[name], before))
        # Else one would always come after the same other, in the memory that that one left.
        order.shuffle(names)
    return times


def _time(
    run: Callable[[], Any], repeats: int = 1, before: Callable[[], Any] | None = None
) -> float:
    if before is not None:
        before()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def medians(times: Times) -> dict[str, float]:
    return {name: statistics.median(of_one) for name, of_one in times.items()}


def spread(values: list[float]) -> float:
    """Return the distance of the quartiles, as a share of the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle


def is_slower(times: Times, who: str, than: str) -> bool:
    """Whether `who` took longer in more rounds than chance gives once in 700 times (3 sigma)."""
    pairs = list(zip(times[who], times[than], strict=True))
    return sum(a > b for a, b in pairs) > len(pairs) / 2 + 1.5 * math.sqrt(len(pairs))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cases(name: str, all_of_them: Iterable[Any]) -> Iterable[Any]:
    """Return the cases to go through, with a progress bar."""
    return tqdm(list(all_of_them), desc=f"{name:>16}", smoothing=0.1)


def as_time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    unit, factor = next(
        (u, f) for u, f in (("s", 1), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9)) if seconds * f >= 1
    )
    return f"{seconds * factor:.3g} {unit}"


def as_ratio(other: float | None, ours: float | None) -> str:
    """Return how many times as long the other takes as ours."""
    if other is None or ours is None:
        return "-"
    return f"{other / ours:.{2 if other < 10 * ours else 0}f}"


def as_size(num_bytes: int) -> str:
    unit, size = next(
        (u, s) for u, s in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)) if num_bytes >= s
    )
    return f"{num_bytes // size} {unit}"
