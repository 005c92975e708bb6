"""Which TPU slices exist: shapes, sizes, how the cloud counts them, and how chips are spread over hosts.

Sources: the "Configurations" tables of the Google Cloud TPU pages for v2, v3, v4, v5e, v5p, v6e and TPU7x
(docs.cloud.google.com/tpu/docs/v5e and its neighbours); for the sizes of v4, v5p and TPU7x, which are too many for
those pages, the generator in ``src/xpk/core/system_characteristics.py`` of Google's AI-Hypercomputer/xpk.
"""

from __future__ import annotations

import dataclasses
import functools
import math

Bounds = tuple[int, ...]

_CUBE = 4  # v4 and later 3-D tori are wired as cubes of 4x4x4 chips; larger slices are whole cubes


@dataclasses.dataclass(frozen=True)
class Generation:
    """The slices of one TPU generation.

    Attributes:
        name: the name used in targets and by libtpu, ``"v5e"``.
        aliases: other spellings that the cloud or users write before the dash, ``"v5litepod"``.
        host: chips of one host along each axis, in libtpu's default; longer topologies are multiples of it.
        devices_per_chip: JAX devices a chip shows (v4 and v5p join their two TensorCores into one device).
        cores_per_chip: TensorCores of a chip.
        counts_cores: whether the number after the dash counts TensorCores (``v5p-8`` is 4 chips) or chips.
        bounds: the slice shapes of a 2-D generation, or the shapes below one cube of a 3-D one, in chips.
        max_cubes: for a 3-D generation the largest slice, in cubes of 64 chips; 0 for a 2-D one.
        whole_host: shapes, in chips, that one large host serves although they exceed ``host``.
    """

    name: str
    aliases: tuple[str, ...]
    host: Bounds
    devices_per_chip: int
    cores_per_chip: int
    counts_cores: bool
    bounds: tuple[Bounds, ...]
    max_cubes: int = 0
    whole_host: tuple[Bounds, ...] = ()

    @property
    def rank(self) -> int:
        """Axes of the torus: 2 or 3."""
        return len(self.host)

    def cloud_count(self, bounds: Bounds) -> int:
        """The number the cloud writes after the dash for a slice of this shape."""
        return math.prod(bounds) * (self.cores_per_chip if self.counts_cores else 1)

    def exists(self, bounds: Bounds) -> bool:
        """Whether a slice of this shape, in chips, can be had."""
        if bounds in self.bounds:
            return True
        if not self.max_cubes or len(bounds) != self.rank or any(size < _CUBE or size % _CUBE for size in bounds):
            return False
        return math.prod(bounds) // _CUBE**3 <= self.max_cubes

    def host_bounds(self, bounds: Bounds) -> Bounds:
        """Chips of one host along three axes, as libtpu wants them, for a slice of this shape."""
        one_host = bounds in self.whole_host or all(size <= chips for size, chips in zip(bounds, self.host))
        host = bounds if one_host else self.host
        return (*host, 1)[:3]

    @functools.cached_property
    def sizes(self) -> dict[int, Bounds]:
        """Cloud size to the shape it stands for: the most compact one where a size has several."""
        sizes = {self.cloud_count(bounds): bounds for bounds in self.bounds}
        for cubes in range(1, self.max_cubes + 1):
            bounds = tuple(_CUBE * factor for factor in _most_compact(cubes))
            sizes[self.cloud_count(bounds)] = bounds
        return dict(sorted(sizes.items()))


def _most_compact(cubes: int) -> Bounds:
    """The three factors a <= b <= c of ``cubes`` with the smallest c, then the smallest b: the least diameter."""
    shapes = [
        (a, b, cubes // (a * b))
        for a in range(1, cubes + 1)
        if cubes % a == 0
        for b in range(a, cubes // a + 1)
        if (cubes // a) % b == 0 and cubes // (a * b) >= b
    ]
    return min(shapes, key=lambda shape: (shape[2], shape[1]))


def text(bounds: Bounds) -> str:
    """Write a shape the way the cloud does: ``(2, 2, 4)`` is ``"2x2x4"``."""
    return "x".join(map(str, bounds))


_FLAT_SLICES = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_V3_SLICES = ((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32))
_SMALL_SLICES = ((1, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))

GENERATIONS: dict[str, Generation] = {
    generation.name: generation
    for generation in (
        Generation("v2", (), (2, 2), 2, 2, True, ((2, 2), (4, 4), (8, 8), (8, 16), (16, 16))),
        Generation("v3", (), (2, 2), 2, 2, True, _V3_SLICES),
        Generation("v4", (), (2, 2, 1), 1, 2, True, _SMALL_SLICES, 64),
        Generation("v5e", ("v5litepod", "v5lite"), (2, 2), 1, 1, False, _FLAT_SLICES, whole_host=((2, 4),)),
        Generation("v5p", (), (2, 2, 1), 1, 2, True, _SMALL_SLICES, 140),
        Generation("v6e", ("trillium",), (2, 2), 1, 1, False, _FLAT_SLICES, whole_host=((2, 4),)),
        Generation("tpu7x", ("v7x", "ironwood"), (2, 2, 1), 2, 2, True, _SMALL_SLICES, 144),
    )
}
