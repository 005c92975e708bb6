"""A Program compiled for devices that are attached."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from systolic._errors import TargetError
from systolic.program._jax_cache import enable, listen
from systolic.program._out_of_memory import out_of_memory
from systolic.program._signature import Signature
from systolic.target import Target

if TYPE_CHECKING:
    from systolic.program._program import Program


@dataclasses.dataclass(frozen=True)
class MemoryStats:
    """Bytes per device of one compiled program, as the compiler counts them (tile padding included).

    ``peak`` is the most that is live at once, ``None`` where the backend does not say.
    """

    argument: int
    output: int
    alias: int
    temp: int
    code: int
    peak: int | None

    @classmethod
    def of(cls, stats: Any) -> MemoryStats:
        """From the object that ``jax.stages.Compiled.memory_analysis()`` returns."""
        return cls(
            argument=stats.argument_size_in_bytes,
            output=stats.output_size_in_bytes,
            alias=stats.alias_size_in_bytes,
            temp=stats.temp_size_in_bytes,
            code=stats.generated_code_size_in_bytes,
            peak=getattr(stats, "peak_memory_in_bytes", None),
        )

    @property
    def total(self) -> int:
        """Arguments, outputs that do not reuse a donated argument, temporaries and code, in bytes."""
        return self.argument + self.output - self.alias + self.temp + self.code


class Executable:
    """A compiled Program on an attached Target: call it, or look into it.

    Calling it costs little more than JAX's own compiled call: the signature is checked by the runtime, and only a call
    that does not match is looked at here, where it counts against the Program's compile budget. Values that come from the
    host in 64 bits are looked at, arrays on a device are not.

    Attributes:
        cache: ``"hit"``, ``"miss"`` or ``"off"``: what JAX's persistent cache said.
        seconds: wall time of trace, lowering and compile, in seconds.
        direct: the runtime's own callable, without a look at values and without the recompile guard: for loops that know
            what they give it.
    """

    def __init__(self, program: Program, target: Target, signature: Signature, lowered: Any, started: float) -> None:
        self.program = program
        self.target = target
        self.signature = signature
        self._lowered = lowered
        self._admit = program.door.admit
        enabled = enable()
        with listen() as events:
            self._compiled = lowered.compile()
        self.direct = (
            _one_at_a_time(self._compiled) if target.platform == "cpu" and target.num_devices > 1 else self._compiled
        )
        self.cache = events.outcome(enabled)
        self.seconds = time.monotonic() - started

    def __call__(self, *args: Any) -> Any:
        """Run on the target's devices; ``args`` as in the signature. Donated arguments must not be used again.

        Raises:
            InputError: a value does not fit the type that JAX gives it (an int64 beyond int32).
            RecompileError: the arguments have another signature and the Program's compile budget is spent.
            TargetError: arrays were put on other devices, or laid out otherwise, than the program was compiled for.
        """
        self._admit(args)
        return self.call(args)

    def call(self, args: Sequence[Any]) -> Any:
        """Run arguments whose values were looked at before."""
        try:
            return self.direct(*args)
        except TypeError:
            return self.program.variant(self, args).call(args)
        except ValueError as error:
            if misplaced := self._misplaced(args):
                raise TargetError(
                    f"program {self.program.name!r}: {', '.join(misplaced)} lie on other devices than {self.target.name}, "
                    "or are laid out otherwise than its in_specs say; put them there with jax.device_put(x, "
                    "executable.input_shardings), or pass NumPy arrays"
                ) from error
            raise
        except jax.errors.JaxRuntimeError as error:
            if told := out_of_memory(error, f"program {self.program.name!r} on {self.target.name}"):
                raise told from error
            raise

    def _misplaced(self, args: Sequence[Any]) -> list[str]:
        """Paths of the arrays that are bound to a sharding that is not the program's."""
        wanted = jax.tree.leaves(self.input_shardings, is_leaf=lambda s: s is None)
        return [
            leaf.path
            for leaf, x, sharding in zip(self.signature.leaves, jax.tree.leaves(args), wanted, strict=True)
            if isinstance(x, jax.Array) and sharding is not None and not x.sharding.is_equivalent_to(sharding, x.ndim)
        ]

    @property
    def memory(self) -> MemoryStats:
        """Bytes per device, from the compiler."""
        return MemoryStats.of(self._compiled.memory_analysis())

    @property
    def cost(self) -> dict[str, float]:
        """XLA's own cost analysis (``flops``, ``bytes accessed``, ...); it counts the body of a loop once."""
        analysis = self._compiled.cost_analysis() or {}
        return dict(analysis[0] if isinstance(analysis, list) else analysis)

    @property
    def input_shardings(self) -> Any:
        """Shardings of the arguments, one per leaf, as a tuple of pytrees."""
        return self._compiled.input_shardings[0]

    def lower_text(self) -> str:
        """The program as StableHLO text."""
        return self._lowered.as_text()

    def compiled_text(self) -> str:
        """The optimised HLO text of the backend."""
        return self._compiled.as_text()

    def serialize(self) -> bytes:
        """The compiled binary; it loads only on the same kind of device with the same versions."""
        from systolic.program._serialize import serialize

        return serialize(self._compiled)

    def __repr__(self) -> str:
        return f"Executable({self.program.name!r} on {self.target.name}, {self.seconds:.2f} s, cache {self.cache})"


def _one_at_a_time(compiled: Callable) -> Callable:
    """``compiled``, waited for: CPU devices share one pool of threads, and collectives of several runs in flight can
    starve each other there until XLA aborts the process."""

    def call(*args: Any) -> Any:
        return jax.block_until_ready(compiled(*args))

    return call
