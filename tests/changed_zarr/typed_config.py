"""zarr's config as zarr-python#4101 may make it, in place of `zarr/core/config.py`.

It has the keys of the config that it replaces, and no others: `set` refuses them, and variables of
other names are dropped with a warning. There are no `collect`, `config`, `paths` and `env_prefix`;
`defaults` is a dict, and a new one each time; sections are not dicts, but `codecs` is one.
"""

import copy
import os
import warnings

from zarr.core._untyped_config import BadConfigError, config, parse_indexing_order

__all__ = ["BadConfigError", "Config", "config", "parse_indexing_order"]
_DEFAULTS = config.defaults[0]


class _Section:
    """A section of the config, such as `array`."""

    def __init__(self, values):
        self._values = values

    def __getitem__(self, name):
        return self._values[name]


class _Scope:
    """What `set` returns: used as a context manager, it puts the values back."""

    def __init__(self, config, before):
        self._config, self._before = config, before

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._config.set(self._before)


class Config:
    """Values by the names of their sections and their own, of which only codecs can be added."""

    def __init__(self):
        self.reset()

    @property
    def defaults(self):
        return copy.deepcopy(_DEFAULTS)

    def _parent(self, key):
        """Return the dict that has a key, and the last part of the key."""
        section, _, name = key.partition(".")
        values, name = (self._values[section], name) if name else (self._values, section)
        if not isinstance(values, dict) or (name not in values and section != "codecs"):
            raise KeyError(f"{key!r} is not a valid configuration key")
        return values, name

    def get(self, key, default=_DEFAULTS):
        try:
            values, name = self._parent(key)
            value = values[name]
        except KeyError:
            if default is _DEFAULTS:
                raise
            return default
        return _Section(value) if isinstance(value, dict) and name != "codecs" else value

    def set(self, changes=None, **more):
        changes, before = {**(changes or {}), **more}, {}
        for key, value in changes.items():
            values, name = self._parent(key)
            before[key], values[name] = values.get(name), value
        return _Scope(self, before)

    def reset(self):
        self._values = self.defaults
        for variable, value in os.environ.items():
            key = variable.lower().removeprefix("zarr_").replace("__", ".")
            if variable.startswith("ZARR_"):
                try:
                    self.set({key: value})
                except KeyError:
                    warnings.warn(f"Unrecognized config key {key!r}", UserWarning, stacklevel=2)

    refresh = reset

    def enable_gpu(self):
        return self.set(buffer="zarr.buffer.gpu.Buffer", ndbuffer="zarr.buffer.gpu.NDBuffer")


config = Config()
