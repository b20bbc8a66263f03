"""A stand-in for CuPy, where there is no GPU: what zarr and this package use of it.

Its arrays have the limits of CuPy's: NumPy gets at none of them, they have native dtypes only, and
NumPy's arrays can't be assigned to them. Copies from the host are made when their stream is waited
for, so that memory that is used again too early shows. The kernels are compiled for the CPU.
"""

import ctypes
import functools
import hashlib
import math
import mmap
import operator
import shutil
import subprocess
import tempfile
import threading
import types
import weakref
from pathlib import Path

import numpy as np

__version__ = "stand-in"
_of_thread, _lock = threading.local(), threading.Lock()


def _on_device(array):
    """Return a copy of a NumPy array, in its order, in memory that NumPy has not allocated."""
    memory = mmap.mmap(-1, max(array.nbytes, 1))
    copy = np.ndarray(array.shape, array.dtype, memory, order="F" if array.flags.fnc else "C")
    copy[...] = array
    return copy


def _check_dtype(dtype):
    dtype = np.dtype(dtype)
    if not dtype.isnative or dtype.kind not in "biufc":
        raise ValueError(f"Unsupported dtype {dtype}")
    return dtype


def _unwrap(value):
    if isinstance(value, ndarray):
        return value.current
    if isinstance(value, tuple | list):
        return type(value)(map(_unwrap, value))
    return value


def _wrap(value):
    if isinstance(value, np.ndarray | np.generic):
        return ndarray(_on_device(np.asarray(value)))
    return type(value)(map(_wrap, value)) if isinstance(value, tuple | list) else value


class Device:
    """A GPU, which is the current one of a thread in its context."""

    def __init__(self, number):
        self.id = number

    def __enter__(self):
        self._before, _of_thread.device = _current_device(), self.id

    def __exit__(self, *_):
        _of_thread.device = self._before


def _current_device():
    return getattr(_of_thread, "device", 0)


class Stream:
    """What a thread has asked a GPU to do, and what is not done yet."""

    def __init__(self):
        self._pending = []

    def add(self, copy):
        """Copy later."""
        self._pending.append(copy)

    def synchronize(self):
        """Do it."""
        while self._pending:
            self._pending.pop(0)()


def get_current_stream():
    """Return the stream of this thread."""
    if not hasattr(_of_thread, "stream"):
        _of_thread.stream = Stream()
    return _of_thread.stream


class ndarray:  # noqa: N801 # its name in CuPy
    """An array on a GPU."""

    __hash__ = None
    __array_priority__ = 100

    def __init__(self, array, device=None):
        self._array = array
        self.device = Device(_current_device() if device is None else device)

    @property
    def current(self):
        """The array on the CPU, after all that this thread has asked for."""
        get_current_stream().synchronize()
        return self._array

    dtype, shape, ndim, size, nbytes, itemsize, strides, flags = (
        property(operator.attrgetter(f"_array.{name}"))
        for name in ("dtype", "shape", "ndim", "size", "nbytes", "itemsize", "strides", "flags")
    )

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self._array.__array_interface__["data"][0])

    @property
    def __cuda_array_interface__(self):
        return {}

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_function__(self, function, _, args, kwargs):
        return _wrap(function(*_unwrap(args), **kwargs))

    def __len__(self):
        return len(self._array)

    def _view(self, array):
        return ndarray(array, self.device.id)

    def __getitem__(self, selection):
        selected = self.current[_unwrap(selection)]
        is_view = isinstance(selected, np.ndarray) and selected.base is not None
        return self._view(selected if is_view else _on_device(np.asarray(selected)))

    def __setitem__(self, selection, value):
        if isinstance(value, np.ndarray) and value.ndim:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        if isinstance(value, ndarray) and value.device.id != self.device.id:
            raise ValueError("Array device must be same as the current device")
        self.current[_unwrap(selection)] = _unwrap(value)

    def __ne__(self, other):
        return self._view(_on_device(self.current != _unwrap(other)))

    def __eq__(self, other):
        return self._view(_on_device(self.current == _unwrap(other)))

    def view(self, dtype):
        if np.dtype(dtype).kind != "V":  # as zarr 3.1.6 compares chunks with fill values
            _check_dtype(dtype)
        return self._view(self._array.view(dtype))

    def reshape(self, *shape, order="C"):
        return self._view(self.current.reshape(*shape, order=order))

    def transpose(self, axes=None):
        return self._view(self._array.transpose(axes))

    def copy(self):
        return self._view(_on_device(np.ascontiguousarray(self.current).reshape(self.shape)))

    def astype(self, dtype, order="K", copy=True):  # noqa: FBT002 # as in CuPy
        return self._view(_on_device(self.current.astype(_check_dtype(dtype), order, copy=copy)))

    def ravel(self, order="C"):
        return self.reshape(-1, order=order)

    def tobytes(self, order="C"):
        return self.current.tobytes(order)

    def fill(self, value):
        self.current[...] = value

    def get(self, out=None):
        if out is None:
            return self.current.copy()
        if type(out) is not np.ndarray or (out.shape, out.dtype) != (self.shape, self.dtype):
            raise TypeError("expected a NumPy array of the same shape and dtype")
        out[...] = self.current
        return out

    def set(self, array, stream=None):
        if type(array) is not np.ndarray or array.dtype != self.dtype:
            raise TypeError("Only numpy.ndarray of the same dtype can be set")
        if array.shape != self.shape:
            raise ValueError("Shape mismatch")
        if not self.flags.c_contiguous:
            raise RuntimeError("Cannot set to non-contiguous array")
        array = np.ascontiguousarray(array).reshape(array.shape)
        copy = functools.partial(np.copyto, self._array, array)
        (stream or get_current_stream()).add(copy)
        if stream is None:
            get_current_stream().synchronize()


def empty(shape, dtype=float, order="C"):
    """Return a new array, of which every byte is 0xAB."""
    memory = mmap.mmap(-1, max(math.prod(np.atleast_1d(shape)) * np.dtype(dtype).itemsize, 1))
    array = np.ndarray(shape, _check_dtype(dtype), memory, order=order)
    np.frombuffer(memory, np.uint8)[...] = 0xAB
    return ndarray(array)


def asarray(array, dtype=None):
    """Return an array on the current GPU."""
    if isinstance(array, ndarray):
        return array if dtype is None else array.astype(dtype)
    return ndarray(_on_device(np.asarray(array, dtype)))


def frombuffer(buffer, dtype):
    """Return the contents of a buffer."""
    return asarray(np.frombuffer(buffer, dtype))


def asnumpy(array, out=None):
    """Return an array in host memory."""
    return array.get(out) if isinstance(array, ndarray) else np.asarray(array)


def concatenate(arrays):
    """Return arrays end to end."""
    return ndarray(_on_device(np.concatenate([each.current for each in arrays])))


array = asanyarray = ascontiguousarray = asarray


class PageLocked:
    """How much page-locked memory there is, and was at most, in bytes."""

    def __init__(self, limit=float("inf")):
        self.num_bytes = self.most = 0
        self.limit = limit
        self._lock = threading.Lock()

    def allocate(self, size):
        with self._lock:
            if self.num_bytes + size > self.limit:
                raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
            self.num_bytes += size
            self.most = max(self.most, self.num_bytes)

    def free(self, size):
        with self._lock:
            self.num_bytes -= size


class PinnedMemory:
    """Page-locked host memory."""

    counted = PageLocked()

    def __init__(self, size):
        self.counted.allocate(size)
        self.memory = mmap.mmap(-1, size)
        weakref.finalize(self, self.counted.free, size)


def PinnedMemoryPointer(memory, offset):  # noqa: N802 # a class in CuPy
    """Return something with the buffer interface that keeps page-locked memory alive."""
    pointer = (ctypes.c_char * (len(memory.memory) - offset)).from_buffer(memory.memory, offset)
    pointer.memory = memory
    return pointer


class CUDARuntimeError(RuntimeError):
    """An error of the GPU, or of its driver."""


@functools.cache
def _folder():
    return tempfile.TemporaryDirectory()


class ElementwiseKernel:
    """A kernel of words of 8 bytes, compiled for the CPU."""

    def __init__(self, in_params, out_params, operation, name):
        assert (in_params, out_params) == ("uint64 x", "uint64 y")
        self._size = int(name.rpartition("_")[2])
        if not shutil.which("gcc"):  # then NumPy swaps
            self._function = None
            return
        with _lock:
            folder = _folder().name
        path = Path(folder, f"{hashlib.sha256(operation.encode()).hexdigest()}.so")
        code = f"""
            typedef unsigned int uint;
            static uint __byte_perm(uint x, uint y, uint selector) {{
              unsigned long long both = (unsigned long long)y << 32 | x;
              uint found = 0;
              for (int i = 0; i < 4; i++)
                found |= (uint)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
              return found;
            }}
            void {name}(const unsigned long long *from, unsigned long long *to, long num) {{
              for (long i = 0; i < num; i++) {{
                unsigned long long x = from[i], y;
                {operation};
                to[i] = y;
              }}
            }}
        """
        command = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", path]
        with _lock:
            subprocess.run(command, input=code, text=True, check=True)
        self._function = getattr(ctypes.CDLL(str(path)), name)

    def __call__(self, x):
        if x.device.id != _current_device():
            raise ValueError("Peer access is unavailable between these devices.")
        words = x.current
        assert words.dtype == np.uint64
        assert words.flags.c_contiguous
        assert words.ctypes.data % 8 == 0
        if self._function is None:
            return asarray(words.view(f"u{self._size}").byteswap().view(np.uint64))
        result = empty(x.shape, np.uint64)
        from_, to = words.ctypes.data, result.current.ctypes.data
        self._function(ctypes.c_void_p(from_), ctypes.c_void_p(to), ctypes.c_long(words.size))
        return result


cuda = types.SimpleNamespace(
    Device=Device,
    PinnedMemory=PinnedMemory,
    PinnedMemoryPointer=PinnedMemoryPointer,
    get_current_stream=get_current_stream,
    is_available=lambda: True,
    runtime=types.SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        deviceSynchronize=lambda: get_current_stream().synchronize(),
    ),
)
