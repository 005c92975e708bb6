"""HLO shapes with their TPU layout: sizes on the device, tile padding, memory space."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

BITS = {
    "pred": 8, "token": 0, "opaque": 0,
    "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
    "s32": 32, "u32": 32, "s64": 64, "u64": 64,
    "f4e2m1fn": 4, "f8e3m4": 8, "f8e4m3": 8, "f8e4m3fn": 8, "f8e4m3b11fnuz": 8, "f8e4m3fnuz": 8, "f8e5m2": 8,
    "f8e5m2fnuz": 8, "f8e8m0fnu": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip

HBM, VMEM, HOST = 0, 1, 5  # the S(n) of a layout; the others are small on-chip memories

_ARRAY = re.compile(r"(\w+)\[([^\]]*)\](?:\{([^}]*)\})?")


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """One array of one device.

    Attributes:
        dtype: HLO name, such as ``"bf16"``.
        dims: logical sizes.
        order: dimensions from the fastest varying to the slowest; empty where the text gives no layout.
        tiles: tiles, outermost first: ``((8, 128), (2, 1))``.
        space: memory space: 0 is HBM, 1 is VMEM, 5 is the host.
    """

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...]
    space: int

    @property
    def elements(self) -> int:
        """How many values it holds."""
        return math.prod(self.dims)

    @property
    def unpadded_bytes(self) -> int:
        """Bytes of its values alone."""
        return math.ceil(self.elements * BITS.get(self.dtype, 32) / 8)

    @property
    def padded_bytes(self) -> int:
        """Bytes that it occupies: each tile dimension is rounded up to the tile.

        Source: OpenXLA, "Tiled layout": a tile of rank n covers the n fastest varying dimensions, and a following tile
        subdivides the one before it.
        """
        sizes = [self.dims[d] for d in reversed(self.order)] if self.order else list(self.dims)
        for tile in self.tiles:
            sizes = [1] * (len(tile) - len(sizes)) + sizes
            cut = len(sizes) - len(tile)
            sizes = sizes[:cut] + [math.ceil(size / t) for size, t in zip(sizes[cut:], tile, strict=True)] + list(tile)
        return math.ceil(math.prod(sizes) * BITS.get(self.dtype, 32) / 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


Shape = Array | tuple  # a tuple of Shapes


@functools.lru_cache(maxsize=65536)
def parse_shape(text: str) -> Shape:
    """The shape in HLO text: an :class:`Array`, or a tuple of shapes.

    Example:
        >>> array = parse_shape("f32[1000,64]{1,0:T(8,128)}")
        >>> array.unpadded_bytes, array.padded_bytes
        (256000, 512000)
    """
    shape, end = _parse(text, 0)
    if end != len(text.rstrip()):
        raise ValueError(f"not an HLO shape: {text[:200]!r}")
    return shape


def leaves(shape: Shape) -> Iterator[Array]:
    """The arrays of a shape, in order."""
    if isinstance(shape, Array):
        yield shape
    else:
        for part in shape:
            yield from leaves(part)


def leaf_count(shape: Shape) -> int:
    """How many arrays a shape has."""
    return 1 if isinstance(shape, Array) else sum(map(leaf_count, shape))


def _parse(text: str, at: int) -> tuple[Shape, int]:
    if text[at] == "(":
        parts = []
        at += 1
        while True:
            while text.startswith((" ", ",", "/*"), at):
                at = text.index("*/", at) + 2 if text.startswith("/*", at) else at + 1
            if text[at] == ")":
                return tuple(parts), at + 1
            part, at = _parse(text, at)
            parts.append(part)
    match = _ARRAY.match(text, at)
    if match is None:
        if text.startswith(("token", "opaque"), at):  # written without brackets by some versions
            return Array("token", (), (), (), HBM), at + len(re.match(r"\w+", text[at:]).group())
        raise ValueError(f"not an HLO shape: {text[at : at + 200]!r}")
    dtype, dims, layout = match.groups()
    sizes = tuple(int(size.strip().lstrip("<=")) for size in dims.split(",") if size.strip())
    order: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    space = HBM
    if layout:
        minor, _, rest = layout.partition(":")
        order = tuple(int(d) for d in minor.split(",") if d)
        if rest.startswith("T"):
            tiles = tuple(_tile(tile) for tile in re.match(r"T((?:\([\d,*]+\))+)", rest).group(1)[1:-1].split(")("))
        if found := re.search(r"S\((\d+)\)", rest):
            space = int(found.group(1))
    return Array(dtype, sizes, order, tiles, space), match.end()


def _tile(text: str) -> tuple[int, ...]:
    return tuple(1 if size == "*" else int(size) for size in text.split(","))
