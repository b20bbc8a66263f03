"""One chunk through the codec alone: every data type, byte order and memory layout."""

import functools
import itertools
import statistics
import sys
from typing import Any

import ml_dtypes
import numpy as np
import plots
import zarr.codecs
from measure import (
    KIB,
    MIB,
    Contenders,
    Settings,
    Times,
    as_ratio,
    as_size,
    as_time,
    cases,
    is_slower,
    measure,
    medians,
    table,
)
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import default_buffer_prototype
from zarr.dtype import parse_dtype

import numcodecs_bytes.zarr

NATIVE = sys.byteorder
SWAPPED = "big" if NATIVE == "little" else "little"
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DATA_TYPES = {
    "u1": np.dtype("u1"),
    "bool": np.dtype("?"),
    "i2": np.dtype("i2"),
    "f4": np.dtype("f4"),
    "f8": np.dtype("f8"),
    "c8": np.dtype("c8"),
    "c16": np.dtype("c16"),
    "M8[s]": np.dtype("M8[s]"),
    "U4": np.dtype("U4"),
    "struct (f4, f4)": np.dtype([("x", "f4"), ("y", "f4")]),
    "struct (i2, f8)": np.dtype([("x", "i2"), ("y", "f8")]),
    "bfloat16": BFLOAT16,
}
INTO_OUT = "decode into out"
OPERATIONS = (
    *(f"encode {layout}" for layout in ("C", "F", "every 2nd", "transposed 3-d")),
    "decode",
    INTO_OUT,
)
SIZES = (KIB, 64 * KIB, MIB, 64 * MIB)
PEERS = ("zarr", "NumPy", "memcpy")


def orders_of(data_type: str) -> tuple[str, ...]:
    return (NATIVE,) if data_type in ("u1", "bool") else (NATIVE, SWAPPED)


@functools.cache
def random_bytes(num_bytes: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8)


def spec_of(shape: tuple[int, ...], dtype: np.dtype) -> ArraySpec:
    data_type = parse_dtype(dtype, zarr_format=3)
    return ArraySpec(
        shape=shape,
        dtype=data_type,
        fill_value=data_type.default_scalar(),
        config=ArrayConfig.from_dict({}),
        prototype=default_buffer_prototype(),
    )


def laid_out(layout: str, dtype: np.dtype, num_bytes: int) -> np.ndarray:
    """Return an array of about `num_bytes`, not more."""
    size = num_bytes // dtype.itemsize
    a = 1 << size.bit_length() // (3 if layout == "transposed 3-d" else 2)
    shape = (a, a, size // a**2) if layout == "transposed 3-d" else (a, size // a)
    step = 2 if layout == "every 2nd" else 1
    memory = random_bytes(2 * num_bytes)[: step * np.prod(shape) * dtype.itemsize]
    elements = (memory & 1 if dtype == "?" else memory).view(dtype)
    if layout in ("C", "every 2nd"):
        return elements.reshape(*shape[:-1], -1)[..., ::step]
    return elements.reshape(shape[::-1]).transpose()


def contenders_of(operation: str, data_type: str, endian: str, num_bytes: int) -> Contenders:
    """Return what does the same with a chunk; without zarr where that gets it wrong."""
    dtype = DATA_TYPES[data_type]
    layout = operation.removeprefix("encode ") if operation.startswith("encode") else "C"
    array = laid_out(layout, dtype, num_bytes)
    # NumPy does not swap bfloat16.
    dtype_in_numpy = np.dtype("u2") if dtype == BFLOAT16 else dtype
    stored = dtype_in_numpy.newbyteorder(endian)
    source = array.view(dtype_in_numpy)
    raw = np.ascontiguousarray(source, stored).reshape(-1).view("u1")
    warm = np.zeros_like(raw)
    spec = spec_of(array.shape, dtype)
    memcpy = functools.partial(np.copyto, warm, raw)
    codecs = {
        who: codec(endian=endian).evolve_from_array_spec(spec)
        for who, codec in (
            ("ours", numcodecs_bytes.zarr.BytesCodec),
            ("zarr", zarr.codecs.BytesCodec),
        )
    }
    contenders: Contenders
    if operation == INTO_OUT:
        out = warm.view(dtype)
        codec = numcodecs_bytes.Bytes(endian, dtype)
        contenders = {
            "ours": lambda: codec.decode(raw, out=out),
            "NumPy": lambda: np.copyto(warm.view(dtype_in_numpy), raw.view(stored)),
            "memcpy": functools.partial(np.copyto, np.zeros_like(raw), raw),
        }
        codec.decode(raw, out=out)
        assert (warm == np.ascontiguousarray(array).reshape(-1).view("u1")).all()
        return contenders
    if operation == "decode":
        buffer = spec.prototype.buffer.from_array_like(raw)
        contenders = {
            who: functools.partial(codec._decode_sync, buffer, spec)
            for who, codec in codecs.items()
        }
        contenders["NumPy"] = lambda: (
            raw.view(stored).astype(dtype_in_numpy, copy=False).view(dtype).reshape(array.shape)
        )
        expected = array.reshape(-1).view("u1")
    else:
        chunk = spec.prototype.nd_buffer.from_ndarray_like(array)
        contenders = {
            who: functools.partial(codec._encode_sync, chunk, spec) for who, codec in codecs.items()
        }
        contenders["NumPy"] = lambda: np.ascontiguousarray(source, stored).reshape(-1).view("u1")
        expected = raw
    for who in codecs:
        found = contenders[who]().as_numpy_array().reshape(-1).view("u1")
        if not np.array_equal(found, expected):
            assert who == "zarr", (operation, data_type, endian)
            del contenders[who]
    return contenders | {"memcpy": memcpy}


def section(settings: Settings) -> str:
    sizes = (KIB, MIB) if settings.quick else SIZES
    keys = [
        (operation, data_type, endian, size)
        for operation, data_type in itertools.product(OPERATIONS, DATA_TYPES)
        for endian, size in itertools.product(orders_of(data_type), sizes)
    ]
    found: dict[Any, Times] = {}
    for key in cases("one chunk", keys):
        seconds = 0.005 if settings.quick else 0.5 if key[-1] > MIB else 0.1
        found[key] = measure(contenders_of(*key), seconds, least=3)
    suspects = [
        key
        for key, times in found.items()
        if "zarr" in times and medians(times)["zarr"] < medians(times)["ours"]
    ]
    short = []
    for key in cases("falls short?", suspects):
        both = {who: run for who, run in contenders_of(*key).items() if who in ("ours", "zarr")}
        again = measure(both, 0.02, 9) if settings.quick else measure(both, 0.2, least=15, most=301)
        # These rounds are the better ones, whichever way they go.
        found[key] |= again
        if is_slower(again, "ours", "zarr"):
            short.append((key, medians(again)))
    by_more = [(key, m) for key, m in short if m["ours"] - m["zarr"] > A_CALL_SECONDS]
    ratios = {key: _ratios(medians(times)) for key, times in found.items()}
    plots.strips(
        settings.out / "plots/one-chunk.svg",
        {
            f"{operation}, {'swapped' if endian == SWAPPED else 'native'}": [
                r["zarr"]
                for k, r in ratios.items()
                if (k[0], k[2]) == (operation, endian) and "zarr" in r
            ]
            for operation in OPERATIONS[:-1]
            for endian in (NATIVE, SWAPPED)
        },
        "zarr's own codec / ours for each data type and size (right of 1: ours is faster)",
    )
    return "\n".join(
        [
            "## One chunk\n",
            INTRODUCTION,
            "![one chunk](plots/one-chunk.svg)\n",
            table(
                ["operation", "bytes", *(f"{peer} / ours" for peer in PEERS)],
                _summary(ratios),
            ),
            "### Cells that fall short\n",
            WHY_SHORT.format(
                num_short=len(short),
                num_by_a_call=len(short) - len(by_more),
                num_cells=len(found),
                microseconds=A_CALL_SECONDS * 1e6,
            ),
            table(
                ["operation", "data type", "endian", "size", "ours", "zarr", "zarr / ours"],
                [
                    (
                        *key[:3],
                        as_size(key[3]),
                        as_time(m["ours"]),
                        as_time(m["zarr"]),
                        f"{m['zarr'] / m['ours']:.3f}",
                    )
                    for key, m in sorted(by_more, key=lambda s: s[1]["zarr"] / s[1]["ours"])
                ],
            ),
            *_details(found, sizes),
        ]
    )


INTRODUCTION = """\
zarr: its own codec. NumPy: its shortest way without needless copies. memcpy: the same number of
bytes copied into memory that is in use already. Ratios are times: 2 means that ours takes half as
long. Native C-contiguous chunks are handed on without a copy, by all but memcpy: there the ratio to
memcpy grows with the size, and that to zarr is what a call costs. "decode into out" is numcodecs'
`Bytes.decode(out=)` into memory in use; zarr has no such call.
"""


A_CALL_SECONDS = 3e-6
WHY_SHORT = """\
Slower than zarr's own codec beyond noise: {num_short} of {num_cells} cells. {num_by_a_call} of
them by less than {microseconds:.0f} µs, which a call takes that checks data type, shape and length
and looks up what is stored (on zarr 3.1.6 less than zarr's own): nearly all cells of 1 KiB and
64 KiB, and of native chunks that nothing has to be done with. Writing a chunk takes zarr 35 µs at
least. The others are listed: bool is looked through for bytes that are no bools, which zarr's own
codec passes on; what else is here moves by the same loops of NumPy as zarr's own.
"""


def _ratios(found: dict[str, float]) -> dict[str, float]:
    return {peer: found[peer] / found["ours"] for peer in PEERS if peer in found}


def _summary(ratios: dict[Any, dict[str, float]]) -> Any:
    for operation, endian in itertools.product(OPERATIONS, (NATIVE, SWAPPED)):
        cells = [r for k, r in ratios.items() if (k[0], k[2]) == (operation, endian)]
        columns = [sorted(r[peer] for r in cells if peer in r) for peer in PEERS]
        yield (
            operation,
            "swapped" if endian == SWAPPED else "native",
            *(
                f"{statistics.median(c):.2f} ({c[0]:.2f} to {c[-1]:.{2 if c[-1] < 100 else 0}f})"
                if c
                else "-"
                for c in columns
            ),
        )


def _details(found: dict[Any, Times], sizes: tuple[int, ...]) -> Any:
    for operation in OPERATIONS:
        yield f"### {operation}\n\nOurs, then zarr / ours, NumPy / ours, memcpy / ours.\n"
        rows = []
        for data_type in DATA_TYPES:
            for endian in orders_of(data_type):
                row = [data_type, "swapped" if endian == SWAPPED else "native"]
                for size in sizes:
                    m = medians(found[operation, data_type, endian, size])
                    others = [as_ratio(m.get(peer), m["ours"]) for peer in PEERS]
                    row.append(f"{as_time(m['ours'])}: {', '.join(others)}")
                rows.append(row)
        yield table(["data type", "bytes", *map(as_size, sizes)], rows)
