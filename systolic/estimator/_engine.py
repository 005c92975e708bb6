"""Programs, target and state of one Estimator: what every loop needs and none should build for itself."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from systolic._errors import InputError, TargetError
from systolic._log import Notices
from systolic.data import ElementSpec
from systolic.estimator._checkpoint import Checkpoints
from systolic.estimator._config import RunConfig
from systolic.estimator._executables import Compiled, Executables
from systolic.estimator._mode import Mode
from systolic.estimator._packing import HeldState, Packing
from systolic.estimator._programs import Programs
from systolic.estimator._saved import Saved
from systolic.estimator._steps import Clock, State, Steps
from systolic.program import Program, ProgramSet
from systolic.target import Target, platforms_explained


class Engine:
    """One model on one target.

    Attributes:
        spec: shapes and dtypes of one training example; known after the first data or checkpoint was seen.
        meta: what is saved beside the state: ``position`` in the training data, ``evaluated`` (step of the last
            evaluation), ``metrics`` (its results), ``hooks``.
        held: the state as it lies, a tree or packed.
        programs: the Programs, each built once.
        training: held while a call trains the state, by one thread at a time: ``trainer``.
        epochs: what the calls for training so far come to, in passes over the data.
        trains: whether this process has trained the state; if not, evaluation follows another process's checkpoints.
    """

    def __init__(self, steps: Steps, config: RunConfig, batch_sizes: dict[Mode, int]) -> None:
        self.steps = steps
        self.config = config
        self.batch_sizes = batch_sizes
        self.notices = Notices()
        self.spec: ElementSpec | None = None
        self.held = HeldState()
        self.meta: dict[str, Any] = {}
        self.epochs = 0
        self.trains = False
        self.training = threading.Lock()
        self.trainer: int | None = None
        self.programs = Programs(steps, config)
        self._shapes: dict[str, State] = {}
        self._executables = Executables(config.eager)
        self._saved = Saved(config)
        self._target: Target | None = None

    @property
    def target(self) -> Target:
        """The attached target that the Programs run on."""
        if self._target is None:
            target = Target(self.config.target)
            if not target.attached:
                raise TargetError(
                    f"RunConfig(target): {target.name} is described, not attached: it can be checked, not run. "
                    f"Use estimator.check(input_fn, target={target.name!r}), and target='tpu' on a machine that has one"
                )
            self._target = target
        return self._target

    @property
    def checkpoints(self) -> Checkpoints | None:
        """The run's checkpoints; ``None`` without a model_dir."""
        return self._saved.checkpoints

    @property
    def compiles(self) -> list[Compiled]:
        """Every compile of this process."""
        return self._executables.compiles

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State | None:
        """The state on the device, or ``None`` before it exists."""
        return self.held.tree

    @state.setter
    def state(self, state: State | None) -> None:
        self.held.tree = state

    def step(self) -> int:
        """Steps done so far."""
        return 0 if self.state is None else int(Clock.unpack(np.asarray(self.state["clock"])).step)

    def rng(self) -> np.ndarray:
        """uint32 key data from the configured seed."""
        with platforms_explained("the random key of the run"):
            return np.asarray(jax.random.key_data(jax.random.key(self.config.seed)))

    def state_shapes(self, spec: ElementSpec) -> State:
        """The state's shapes and dtypes: of the state there is, else by tracing ``init``."""
        if self.state is not None and "opt_state" in self.state:
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self.state)
        key = repr(spec)
        if key not in self._shapes:
            self._shapes[key] = jax.eval_shape(lambda rng: self.steps.init(rng, spec), self.rng())
        return self._shapes[key]

    def place(self, tree: Any) -> Any:
        """Put host arrays on the target, replicated."""
        sharding = NamedSharding(self.target.mesh({"data": -1}), PartitionSpec())
        return jax.device_put(tree, sharding)

    def position(self) -> Any:
        """The data position to train on from: of the state in memory, else of the latest checkpoint."""
        self._drop_part()
        self.peek_checkpoint()
        return self.meta.get("position")

    def peek_checkpoint(self) -> int | None:
        """Read spec and meta of the latest checkpoint where no state is in memory; returns its step."""
        if self.state is not None or (step := self._saved.latest()) is None:
            return None
        assert self.checkpoints is not None
        self.meta = self.checkpoints.meta(step)
        if self.spec is None and self.meta.get("spec"):
            self.spec = ElementSpec.from_json(self.meta["spec"])
        return step

    def known_spec(self) -> ElementSpec | None:
        """The training examples' shapes, from the latest checkpoint where no state is in memory; ``None`` before any."""
        self.peek_checkpoint()
        return self.spec

    def _drop_part(self) -> None:
        """Let go of a state without optimizer state, which was restored for evaluation: training needs the whole."""
        if self.state is not None and "opt_state" not in self.state:
            self.state = None

    def ensure_state(self, spec: ElementSpec | None = None, require: bool = False, part: bool = False) -> State:
        """The state: in memory, else restored, else (unless ``require``) initialised.

        part: what evaluation needs is enough: from a checkpoint, ``opt_state`` is left out, whatever optimizer made it.

        Raises:
            CheckpointError: ``require`` and there is none, or the checkpoint is another model's.
        """
        if not part:
            self._drop_part()
        if self.state is not None:
            return self.state
        step = self.peek_checkpoint()
        if step is None and require:
            raise self._saved.untrained()
        self.spec = self.spec or spec
        if self.spec is None:
            raise InputError("the shapes of the examples are not known yet; train or evaluate once first")
        if step is None:
            self.state = self.executable("init")(self.rng())
        else:
            self.state = self.place(self._saved.restore(step, self.state_shapes(self.spec), part))
        return self.state

    def forget(self) -> None:
        """Be as new: without a state, and without what is known of the data."""
        self.state = self.spec = None
        self.trains = False
        self.programs, self._shapes = Programs(self.steps, self.config), {}

    def follow(self) -> None:
        """Let go of a state that another process has trained on: the next use restores its newer checkpoint."""
        if self.state is not None and self._saved.newer_than(self.step()):
            self.state = None

    def variables(self, spec: ElementSpec | None = None, require: bool = True) -> State:
        """Parameters (their moving average where one is kept) and model state, for evaluation and prediction."""
        if self.trainer not in (None, threading.get_ident()):
            raise InputError(
                "this Estimator is being trained by another thread, which takes its parameters over at every step; wait for "
                "that to end, use train_and_evaluate, or read the run's checkpoints with estimator.with_config()"
            )
        if not self.trains:
            self.follow()
        state = self.ensure_state(spec, require, part=True)
        return {"params": state.get("ema", state["params"]), "model_state": state["model_state"]}

    def save(self) -> None:
        """Save the state and what goes with it; writing goes on in the background."""
        if self.checkpoints is not None and self.state is not None:
            assert self.spec is not None
            self.checkpoints.save(
                self.step(), self.state, {**self.meta, "step": self.step(), "spec": self.spec.to_json()}
            )

    # --- programs ----------------------------------------------------------------------------------------------------

    def program(
        self,
        name: str,
        spec: ElementSpec | None = None,
        batch_size: int | None = None,
        loop: int | None = None,
        packed: bool = False,
    ) -> Program:
        """The Program ``init``, ``train``, ``eval`` or ``predict`` for examples of ``spec`` at a global batch size.

        ``loop``: training steps per dispatch, if not those of the configuration; ``packed``: see :meth:`Programs.train`.
        """
        spec = spec or self.spec
        assert spec is not None, "a program needs the shapes of the examples"
        spec = spec.device  # strings stay on the host: with or without them it is the same program
        if name == "init":
            return self.programs.init(spec, self.rng())
        mode = Mode(name)
        size = batch_size or self.batch_sizes[mode]
        # Data for prediction has no labels, which `init` may need: a model may learn its shapes from a training step.
        state = self.state_shapes(spec if spec.labels is not None or self.spec is None else self.spec)
        if mode is Mode.TRAIN:
            return self.programs.train(spec, state, size, loop or self.config.steps_per_loop, packed)
        return self.programs.apply(mode, spec, state, size)

    def executable(self, name: str, spec: ElementSpec | None = None) -> Any:
        """The compiled Program on the run's target (or, with ``eager``, the bare function)."""
        spec = spec or self.spec
        if name == "train":
            program = self.program(name, spec, loop=self.steps_per_loop(spec), packed=self.packs(spec))  # type: ignore[arg-type]
        else:
            program = self.program(name, spec)
        return self._executables.of(program, self.target)

    def program_set(self, spec: ElementSpec, sizes: dict[Mode, int] | None = None) -> ProgramSet:
        """All Programs of this model for examples of ``spec``: what ``check`` compiles."""
        programs = ProgramSet()
        sizes = sizes or self.batch_sizes
        programs.add(self.program("init", spec))
        for mode in Mode:
            if mode is not Mode.TRAIN or self.steps.optimizer is not None:
                programs.add(self.program(mode.value, spec, sizes[mode]))
        return programs

    def steps_per_loop(self, spec: ElementSpec) -> int:
        """Training steps per dispatch for this model on this target.

        That of the configuration, but for convolutions on the CPU: inside a loop XLA runs them on one thread, many times
        slower than outside. There each step is a dispatch; results differ by rounding only.
        """
        wanted = self.config.steps_per_loop
        if wanted == 1 or self.config.eager or self.target.platform != "cpu":
            return wanted
        if not self.programs.has_convolutions(spec, self.state_shapes(spec), self.batch_sizes[Mode.TRAIN]):
            return wanted
        self.notices.give(
            f"steps_per_loop={wanted}: this model has convolutions, which the CPU runs many times slower in a device "
            "loop; here each step is a dispatch of its own"
        )
        return 1

    def packs(self, spec: ElementSpec) -> bool:
        """Whether training takes the state packed (:class:`Packing`): single steps of a small model on one device."""
        single = self.steps_per_loop(spec) == 1 and not self.config.eager and self.target.num_devices == 1
        return single and Packing(self.state_shapes(spec)).pays
