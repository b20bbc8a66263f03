"""Everything that is claimed to be fast, against every peer: writes RESULTS.md and its plots.

    python tests/benchmarks/run.py [--quick] [--only SECTION] [--out FOLDER]

Everything in one process, the contenders in turn, medians. Takes 15 minutes, about 3 GB in the
folder for temporary files and 6 GB of memory; --quick less than one minute and 200 MB. What is
quick or not everything goes to a temporary folder unless --out names one. Needs the extra
`ml-dtypes` and the dependency groups `benchmarks` and `peers`.
"""

import argparse
import os
import platform
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import cost
import far
import in_place
import many
import partial_read
import raw
import shards
import what_it_does
import whole
import zarr.registry
from measure import GIB, Settings

import numcodecs_bytes
import numcodecs_bytes.zarr_data_types  # for zarr before 3.4.1

SECTIONS = {
    "raw": raw.section,
    "whole": whole.section,
    "partial": partial_read.section,
    "many": many.section,
    "far": far.section,
    "shards": shards.section,
    "in_place": in_place.section,
    "cost": cost.section,
}
PACKAGES = ("zarr", "numcodecs", "numpy", "ml_dtypes", "zarrs", "tensorstore")


def describe_machine() -> str:
    cpu, memory = platform.machine(), 0
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu += ", " + next((x.split(":")[1].strip() for x in lines if "model name" in x), "")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        f"{cpu}, {os.cpu_count()} cores, {memory / GIB:.0f} GiB of memory, {platform.system()} "
        f"{platform.release()}, files in {tempfile.gettempdir()}; Python "
        f"{platform.python_version()}, numcodecs_bytes {numcodecs_bytes.__version__}, "
        + ", ".join(f"{p} {version(p)}" for p in PACKAGES)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer rounds")
    parser.add_argument("--only", choices=SECTIONS, help="run one section")
    parser.add_argument("--out", type=Path, help="folder for RESULTS.md and plots")
    options = parser.parse_args()
    out = options.out or Path(__file__).parent
    if not options.out and (options.quick or options.only):
        out = Path(tempfile.mkdtemp(prefix="numcodecs_bytes-"))
    warnings.simplefilter("ignore")
    zarr.registry.get_codec_class("bytes")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(options.quick, Path(folder), out)
        found = [
            section(settings) for name, section in SECTIONS.items() if options.only in (None, name)
        ]
    minutes = (time.perf_counter() - start) / 60
    introduction = (
        f"# Results\n\n{describe_machine()}.\n\nMade by `python tests/benchmarks/run.py"
        f"{' --quick' * options.quick}` in {minutes:.0f} minutes: all contenders in one process, "
        "taking turns; medians.\n"
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / "RESULTS.md").write_text("\n".join([introduction, *found]))
    if not options.quick and not options.only:
        what_it_does.plot(out / "RESULTS.md", out / "plots/what-it-does.svg")
    print(f"{out / 'RESULTS.md'} and {out / 'plots'}, after {minutes:.1f} minutes")


if __name__ == "__main__":
    main()
