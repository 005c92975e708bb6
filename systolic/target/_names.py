"""What a target's name means: attached devices, a cloud size or a topology; and the nearest name when it means nothing.

The grammar, where letter case and surrounding blanks do not matter::

    auto | cpu | gpu | tpu              the best attached devices, or all attached devices of one kind
    cpu:8 | gpu:2 | tpu:4               that many of them
    v5e-8 | v5litepod-8 | v4-32         a cloud size: chips, or TensorCores where the cloud counts TensorCores
    v6e-16x2                            two slices of it
    v5e:2x4 | v5p:4x4x4 | v5p:2x2x2*2   a topology in chips, and two slices of it
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from typing import NoReturn

from systolic._errors import TargetError
from systolic.target._topology import GENERATIONS, Bounds, Generation, text

_MOST_DEVICES = 4096  # attached ones: JAX makes as many CPU devices as it is told, until memory is exhausted
ATTACHED = ("auto", "cpu", "gpu", "tpu")

_ATTACHED_NAME = re.compile(r"(auto|cpu|gpu|tpu)(?::(\d{1,6}))?", re.ASCII)
_CLOUD_NAME = re.compile(r"([a-z0-9]+)-(\d{1,9})(?:[x*](\d{1,6}))?", re.ASCII)
_TOPOLOGY_NAME = re.compile(r"([a-z0-9]+):(\d{1,6}(?:x\d{1,6})*)(?:\*(\d{1,6}))?", re.ASCII)

_BY_SPELLING = {
    spelling: generation for generation in GENERATIONS.values() for spelling in (generation.name, *generation.aliases)
}


@dataclasses.dataclass(frozen=True)
class Name:
    """A name that was understood.

    Attributes:
        platform: ``"auto"``, ``"cpu"``, ``"gpu"`` or ``"tpu"``.
        count: attached devices asked for; None means all of them, and always None for a described target.
        generation: the generation of a described target, None for attached devices.
        bounds: chips of one slice along each axis of the torus; empty for attached devices.
        slices: slices of a described target.
    """

    platform: str
    count: int | None = None
    generation: Generation | None = None
    bounds: Bounds = ()
    slices: int = 1

    @property
    def canonical(self) -> str:
        """The one spelling shared by all names that mean this: the cloud size where the shape is that size's own."""
        if self.generation is None:
            return self.platform if self.count is None else f"{self.platform}:{self.count}"
        size = self.generation.cloud_count(self.bounds)
        if self.generation.sizes.get(size) == self.bounds:
            return f"{self.generation.name}-{size}" + (f"x{self.slices}" if self.slices > 1 else "")
        return f"{self.generation.name}:{text(self.bounds)}" + (f"*{self.slices}" if self.slices > 1 else "")


def parse(name: str) -> Name:
    """Understand a target's name.

    Raises:
        TargetError: the name is not a string, is not of the grammar above, or names a slice that does not exist; the
            message lists what exists and the nearest name.
    """
    if not isinstance(name, str):
        raise TargetError(f"target: a name such as 'cpu:8' or 'v5e-8' was wanted, not {name!r} ({type(name).__name__})")
    spelling = name.strip().lower()
    if match := _ATTACHED_NAME.fullmatch(spelling):
        return _attached(name, *match.groups())
    if match := _CLOUD_NAME.fullmatch(spelling):
        family, size, slices = match.groups()
        if generation := _BY_SPELLING.get(family):
            bounds = generation.sizes.get(int(size)) or _no_such_size(name, generation, int(size))
            return Name("tpu", None, generation, bounds, _slices(name, generation, slices))
    if match := _TOPOLOGY_NAME.fullmatch(spelling):
        family, shape, slices = match.groups()
        if generation := _BY_SPELLING.get(family):
            bounds = tuple(int(size) for size in shape.split("x"))
            if not generation.exists(bounds):
                _no_such_topology(name, generation, bounds)
            return Name("tpu", None, generation, bounds, _slices(name, generation, slices))
    _unreadable(name, spelling)


def known_targets(generation: str | None = None) -> tuple[str, ...]:
    """Canonical names of the standard targets: the attached kinds, then every cloud size from the oldest generation on.

    Args:
        generation: only the sizes of this one, ``"v5e"``.

    Raises:
        TargetError: there is no such generation.
    """
    if generation is not None and not (isinstance(generation, str) and generation in GENERATIONS):
        raise TargetError(f"generation={generation!r}: the generations are {', '.join(GENERATIONS)}")
    wanted = GENERATIONS.values() if generation is None else (GENERATIONS[generation],)
    names = tuple(f"{each.name}-{size}" for each in wanted for size in each.sizes)
    return names if generation is not None else ATTACHED + names


def _attached(name: str, platform: str, count: str | None) -> Name:
    if count is None:
        return Name(platform)
    if platform == "auto":
        raise TargetError(f"target={name!r}: 'auto' takes all devices of the best kind; write cpu:{count} or the like")
    if not 1 <= int(count) <= _MOST_DEVICES:
        raise TargetError(f"target={name!r}: 1 to {_MOST_DEVICES} devices were wanted, as in '{platform}:1'")
    return Name(platform, int(count))


def _slices(name: str, generation: Generation, slices: str | None) -> int:
    if slices is not None and int(slices) < 1:
        raise TargetError(f"target={name!r}: at least 1 slice is wanted, as in '{generation.name}-16x2' for two")
    return 1 if slices is None else int(slices)


def _no_such_size(name: str, generation: Generation, size: int) -> NoReturn:
    unit = "TensorCores" if generation.counts_cores else "chips"
    nearest = min(generation.sizes, key=lambda known: (abs(known - size), -known))
    raise TargetError(
        f"target={name!r}: no {generation.name} slice has {size} {unit}. There are {_sizes(generation)}. "
        f"Nearest: '{generation.name}-{nearest}' ({text(generation.sizes[nearest])} chips)."
    )


def _no_such_topology(name: str, generation: Generation, bounds: Bounds) -> NoReturn:
    shape = (*bounds, *(1,) * generation.rank)[: generation.rank]
    candidates = (*generation.bounds, *generation.sizes.values())
    chips = math.prod(bounds)

    def distance(known: Bounds) -> tuple[int, int, int]:
        turned = sum(abs(a - b) for a, b in zip(sorted(known), sorted(shape)))
        return turned, abs(math.prod(known) - chips), sum(abs(a - b) for a, b in zip(known, shape))

    nearest = min(candidates, key=distance)
    rank = "" if len(bounds) == generation.rank else f" {generation.name} topologies have {generation.rank} axes."
    raise TargetError(
        f"target={name!r}: no {generation.name} slice is shaped {text(bounds)}.{rank} There are "
        f"{_shapes(generation)}. Nearest: '{generation.name}:{text(nearest)}'."
    )


def _unreadable(name: str, spelling: str) -> NoReturn:
    family = re.split(r"[-:]", spelling, maxsplit=1)[0]
    if generation := _BY_SPELLING.get(family):
        raise TargetError(
            f"target={name!r}: the size is missing or unreadable. There are {_sizes(generation)}, or topologies "
            f"{_shapes(generation)}. Nearest: '{generation.name}-8' ({text(generation.sizes[8])} chips)."
        )
    seen = name if len(name) <= 60 else name[:57] + "..."
    shapes = (f"{each.name}:{text(bounds)}" for each in GENERATIONS.values() for bounds in each.bounds)
    known = (*known_targets(), *shapes)
    close = difflib.get_close_matches(spelling[:60], known, n=1, cutoff=0.5)
    nearest = f" Nearest: '{close[0]}'." if close else ""
    raise TargetError(
        f"target={seen!r}: no such target. There are attached ones (auto, cpu, gpu, tpu, or a number of devices as in "
        f"cpu:8) and described TPUs of {', '.join(GENERATIONS)} (a size as in v5e-8, a topology as in v5p:4x4x4, "
        f"several slices as in v6e-16x2).{nearest}"
    )


def _sizes(generation: Generation) -> str:
    listed = [f"{generation.name}-{generation.cloud_count(bounds)}" for bounds in generation.bounds]
    if not generation.max_cubes:
        return ", ".join(listed)
    cube = generation.cloud_count((4, 4, 4))
    listed.append(f"multiples of {cube} up to {generation.name}-{cube * generation.max_cubes}")
    return ", ".join(listed)


def _shapes(generation: Generation) -> str:
    listed = ", ".join(text(bounds) for bounds in generation.bounds)
    if not generation.max_cubes:
        return listed
    return f"{listed}, and multiples of 4 along each axis up to {generation.max_cubes} cubes of 4x4x4"
