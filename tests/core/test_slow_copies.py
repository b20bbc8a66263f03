"""Which copies are slow on some processors, and where memory begins through which they are fast."""

import itertools

import numpy as np
import pytest

from numcodecs_bytes._core import slow_copies

CPUINFO = "processor\t: 0\nvendor_id\t: {}\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: any\n"


@pytest.mark.parametrize(
    ("vendor", "family", "model", "distances"),
    [
        pytest.param("AuthenticAMD", 25, 1, range(1, 32), id="EPYC 7003, Zen 3"),
        pytest.param("AuthenticAMD", 25, 33, range(1, 32), id="Ryzen 5000, Zen 3"),
        pytest.param("AuthenticAMD", 25, 17, range(1, 16), id="EPYC 9004, Zen 4"),
        pytest.param("AuthenticAMD", 25, 160, range(1, 16), id="EPYC 9754, Zen 4c"),
        pytest.param("AuthenticAMD", 23, 49, range(0), id="Zen 2"),
        pytest.param("AuthenticAMD", 26, 2, range(0), id="Zen 5: nobody has measured it"),
        pytest.param("GenuineIntel", 6, 143, range(0), id="Intel"),
    ],
)
def test_processors_are_known_by_family_and_model(vendor, family, model, distances):
    """What the system says of others, or in another form, changes nothing."""
    cpuinfo = CPUINFO.format(vendor, family, model)
    assert slow_copies.slow_distances_of(cpuinfo) == distances
    assert slow_copies.slow_distances_of("") == range(0)
    assert slow_copies.slow_distances_of("Processor : AArch64 Processor rev 4\n") == range(0)


@pytest.mark.parametrize("distances", [range(1, 32), range(1, 16)], ids=["Zen 3", "Zen 4"])
def test_between_any_two_positions_there_is_a_fast_way(distances, monkeypatch):
    monkeypatch.setattr(slow_copies, "slow_distances", distances)
    positions = [*range(80), *range(990, 1100), *range(2000, 2130), *range(4000, 4096)]
    for source, target in itertools.product(positions, positions):
        begin = slow_copies.begin_between(source, target)
        assert begin % 64 == 0  # NumPy's elements are aligned
        assert 0 <= begin <= slow_copies.MAX_BEGIN
        assert (begin - source) % 512 not in distances  # nor are rows of multiples of 512 bytes
        assert (target - begin) % 512 not in distances


def test_a_page_is_used_where_nothing_is_slow(monkeypatch):
    """Requests of a mount fit it."""
    monkeypatch.setattr(slow_copies, "slow_distances", range(1, 16))
    assert slow_copies.begin_between(0, 16) == 0
    monkeypatch.setattr(slow_copies, "slow_distances", range(0))
    assert slow_copies.begin_between(0, 8) == 0


def test_short_copies_are_never_slow(monkeypatch):
    monkeypatch.setattr(slow_copies, "slow_distances", range(1, 32))
    memory = np.zeros(3 * 4096, np.uint8)
    first = -memory.ctypes.data % 4096
    view = memory[first + 8 : first + 8 + 4096].data
    assert slow_copies.is_slow(0, view, 4096)
    assert not slow_copies.is_slow(0, view, 4095)
    assert not slow_copies.is_slow(view, 0, 4096)
    assert slow_copies.is_slow(view, 16, 4096)
