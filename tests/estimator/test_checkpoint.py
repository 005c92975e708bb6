"""Checkpoints exist whole or not at all, and a run that was disturbed ends with the bits of one that was not."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import pathlib
import platform
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import WIDTH, close, config, linear, make_data, network, regression, same_bits, weights

import systolic as sl
from systolic import data
from systolic.estimator import _checkpoint
from systolic.estimator._checkpoint import Checkpoints
from systolic.estimator._checkpoint_errors import explained
from systolic.estimator._folder import locked

DATA = make_data(40)
HERE = pathlib.Path(__file__).parent
CHECKPOINTS = "checkpoints"


def shuffled():
    return data.arrays(*make_data(100, 3), shuffle=11)


def everything(estimator):
    leaves = jax.tree_util.tree_leaves_with_path(estimator.state)
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}


@contextlib.contextmanager
def mounted(folder, *options):
    """A file system of its own at ``folder``; skips where the machine does not let us mount one."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# --- what is stored -----------------------------------------------------------------------------------------------------------


def test_every_dtype_and_empty_arrays_come_back_as_they_were(tmp_path):
    state = {
        "params": {"kernel": jnp.arange(6, dtype="float32").reshape(2, 3), "half": jnp.ones(3, "bfloat16") / 3},
        "opt_state": ({"count": jnp.int32(7)}, jnp.zeros((0, 4)), jnp.array([True, False])),
        "rng": jax.random.key_data(jax.random.key(3)),
    }
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(12, state, {"position": {"row": 3}, "metrics": {"loss": 0.25}})
    checkpoints.wait()
    back, meta = checkpoints.restore(state)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(back), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
        assert np.asarray(old).tobytes() == np.asarray(new).tobytes()
    assert meta == {"position": {"row": 3}, "metrics": {"loss": 0.25}}
    checkpoints.close()


def test_a_save_holds_the_state_of_its_moment_though_the_buffers_are_used_again(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    state = {"x": jnp.zeros(100_000)}
    add = jax.jit(lambda s: {"x": s["x"] + 1}, donate_argnums=0)
    for step in range(1, 4):
        state = add(state)
        checkpoints.save(step, state, {})
    checkpoints.wait()
    for step in range(1, 4):
        assert (checkpoints.restore({"x": jax.ShapeDtypeStruct((100_000,), "float32")}, step)[0]["x"] == step).all()
    checkpoints.close()


def test_the_latest_are_kept_and_the_bundle_holds_position_metrics_and_step(tmp_path):
    estimator = network(tmp_path, run={"checkpoint_every": 4, "keep": 2, "steps_per_loop": 3})
    estimator.train_and_evaluate(shuffled, lambda: DATA, max_steps=18, eval_every=6)
    checkpoints = Checkpoints(tmp_path / CHECKPOINTS)
    assert checkpoints.steps() == [16, 18]
    meta = checkpoints.meta(18)
    assert meta["step"] == meta["evaluated"] == 18
    assert meta["metrics"] == estimator.evaluate(lambda: DATA)
    assert meta["position"]["epoch"] == 1  # 18 batches of 8 out of 100 examples: 144
    assert checkpoints.meta(16)["evaluated"] == 12
    with pytest.raises(sl.CheckpointError, match=r"no checkpoint of step 17 in .*; there are 16, 18"):
        checkpoints.meta(17)
    checkpoints.close()


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_typed_random_keys_come_back_as_keys_of_their_kind(tmp_path, kind):
    state = {"one": jax.random.key(5, impl=kind), "many": jax.random.split(jax.random.key(6, impl=kind), (2, 3))}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state, {})
    checkpoints.wait()
    back, _ = checkpoints.restore(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state))
    for name, key in state.items():
        assert (back[name].dtype, back[name].shape) == (key.dtype, key.shape)
        assert (jax.random.key_data(back[name]) == jax.random.key_data(key)).all()
    assert jax.random.uniform(back["one"]) == jax.random.uniform(state["one"])
    other = jax.random.key(5, impl={"rbg": "unsafe_rbg"}.get(kind, "rbg"))
    with pytest.raises(sl.CheckpointError, match=r"one: saved uint32\[\d\] of a key<\w+>, wanted uint32\[\d\] of a"):
        checkpoints.restore(state | {"one": other})
    checkpoints.close()


def test_an_optimizer_that_keeps_a_random_key_goes_on_as_if_it_had_not_stopped(tmp_path):
    optimizer = lambda: optax.chain(optax.add_noise(0.1, 0.55, 3), optax.sgd(0.1))  # noqa: E731
    whole = linear(optimizer=optimizer())
    whole.train(shuffled, steps=12)
    linear(tmp_path, optimizer=optimizer()).train(shuffled, max_steps=5)
    again = linear(tmp_path, optimizer=optimizer())
    again.train(shuffled, max_steps=12)
    assert same_bits(weights(again), weights(whole))
    quiet = linear(optimizer=optax.sgd(0.1))
    quiet.train(shuffled, steps=12)
    assert not same_bits(weights(quiet), weights(whole))


# --- going on, bit for bit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_per_loop", [1, 5])
@pytest.mark.parametrize("stop_at", [3, 20])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(tmp_path, steps_per_loop, stop_at):
    options = {"rate": 0.3, "norm": True, "ema": 0.9, "run": {"steps_per_loop": steps_per_loop}}
    whole = network(None, **options)
    whole.train(shuffled, steps=32)
    network(tmp_path, **options).train(shuffled, max_steps=stop_at)
    again = network(tmp_path, **options)
    assert again.step == stop_at
    again.train(shuffled, max_steps=32)
    assert same_bits(everything(again), everything(whole))


def test_a_run_on_eight_devices_goes_on_on_one(tmp_path):
    network(tmp_path, optimizer=optax.sgd(0.05), run={"target": "cpu:8"}).train(shuffled, steps=10)
    again = network(tmp_path, optimizer=optax.sgd(0.05), run={"target": "cpu:1"})
    again.train(shuffled, steps=10)
    whole = network(None, optimizer=optax.sgd(0.05), run={"target": "cpu:1"})
    whole.train(shuffled, steps=20)
    close(weights(again), weights(whole), rtol=1e-4, atol=1e-6)


def test_a_stream_goes_on_where_it_was(tmp_path):
    def stream():
        features, labels = make_data(100, 3)
        for i in range(100):
            yield {"x": features["x"][i]}, labels[i]

    buffered = lambda: data.shuffle(stream(), buffer=16, seed=4)  # noqa: E731
    whole = linear()
    whole.train(buffered, steps=30)
    for stop in (7, 19, 30):
        linear(tmp_path).train(buffered, max_steps=stop)
    last = linear(tmp_path)
    assert last.step == 30
    last.predict(lambda: DATA[0])
    next(last.predict(lambda: DATA[0]))
    assert same_bits(weights(last), weights(whole))


class Record(sl.Hook):
    def __init__(self):
        self.calls = []

    def begin(self, run):
        self.calls.append("begin")

    def after_steps(self, run, step, metrics):
        self.calls.append(f"steps {step}")

    def after_evaluate(self, run, step, metrics):
        self.calls.append(f"evaluate {step}")

    def after_save(self, run, step):
        self.calls.append(f"save {step}")

    def end(self, run, step):
        self.calls.append(f"end {step}")


def test_hooks_are_called_in_order(tmp_path):
    hook = Record()
    estimator = linear(tmp_path, hooks=[hook], run={"steps_per_loop": 2, "checkpoint_every": 4, "log_every": 2})
    estimator.train_and_evaluate(lambda: DATA, lambda: DATA, max_steps=6, eval_every=4)
    assert hook.calls == [
        *("begin", "steps 2", "steps 4", "evaluate 4", "save 4", "steps 6", "evaluate 6", "save 6", "end 6"),
    ]


# --- being told to stop, and being killed ---------------------------------------------------------------------------------------


class At(sl.Hook):
    """Sends this process a signal at a moment."""

    def __init__(self, moment, step, number=signal.SIGTERM):
        self.moment, self.step, self.number = moment, step, number

    def strike(self, moment, step):
        if (moment, step) == (self.moment, self.step):
            os.kill(os.getpid(), self.number)
            time.sleep(0.05)  # the handler runs on this thread

    def after_steps(self, run, step, metrics):
        self.strike("steps", step)

    def after_save(self, run, step):
        self.strike("save", step)


@pytest.mark.parametrize("moment", [("steps", 10), ("save", 7)])
def test_a_signal_ends_the_run_in_good_order_and_it_goes_on_from_there(tmp_path, moment):
    options = {"rate": 0.3, "run": {"steps_per_loop": 5, "checkpoint_every": 7, "log_every": 1}}
    whole = network(None, **options)
    whole.train(shuffled, steps=20)
    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stopped:
        network(tmp_path, hooks=[At(*moment)], **options).train(shuffled, max_steps=20)
    assert stopped.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is former
    again = network(tmp_path, **options)
    assert 7 <= again.step < 20
    again.train(shuffled, max_steps=20)
    assert same_bits(everything(again), everything(whole))


def test_an_interrupt_from_the_keyboard_saves_first(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        linear(tmp_path, hooks=[At("steps", 3, signal.SIGINT)], run={"log_every": 1}).train(lambda: DATA, steps=1000)
    assert 3 <= linear(tmp_path).step < 1000


@pytest.mark.parametrize("eval_every", [4, 5])
def test_an_evaluation_that_was_stopped_is_made_up_for(tmp_path, eval_every):
    # Step 8 is the last; with 5 it is evaluated because it is the last, not because it is due.
    def striking():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
        yield DATA

    undisturbed = linear()
    wanted = undisturbed.train_and_evaluate(lambda: DATA, lambda: DATA, max_steps=8, eval_every=eval_every)
    linear(tmp_path).train(lambda: DATA, max_steps=7)
    with pytest.raises(SystemExit):
        linear(tmp_path).train_and_evaluate(
            lambda: DATA, lambda: data.batches(striking()), max_steps=8, eval_every=eval_every
        )
    hook = Record()
    again = linear(tmp_path, hooks=[hook])
    assert again.step == 8
    assert again.train_and_evaluate(lambda: DATA, lambda: DATA, max_steps=8, eval_every=eval_every) == wanted
    assert hook.calls == ["begin", "evaluate 8", "end 8"]


def start(folder, result, options):
    return subprocess.Popen(
        [sys.executable, str(HERE / "checkpoint_run.py"), str(folder), str(result), json.dumps(options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def undisturbed(tmp_path, options):
    process = start(tmp_path / "undisturbed", tmp_path / "undisturbed.npz", options)
    _, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    return dict(np.load(tmp_path / "undisturbed.npz"))


def strike(process, moment, number):
    """Read what the run prints until ``moment`` (a line's beginning, or seconds from now), then send the signal."""
    if isinstance(moment, float):
        time.sleep(moment)
    else:
        for line in process.stdout:
            if line.startswith(moment):
                break
    process.send_signal(number)
    process.communicate(timeout=120)


def disturbed(tmp_path, options, moments, number):
    """The final state of a run that was struck at each of ``moments`` in turn and started again each time."""
    folder, result = tmp_path / "disturbed", tmp_path / "disturbed.npz"
    struck = 0
    for moment in moments:
        process = start(folder, result, options)
        strike(process, moment, number)
        struck += process.returncode != 0
    process = start(folder, result, options)
    _, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    partial = [p.name for p in (folder / CHECKPOINTS).iterdir() if "tmp" in p.name]
    assert not partial
    return dict(np.load(result)), struck


@pytest.mark.timeout(120)
def test_a_killed_process_ends_with_the_same_bits(tmp_path):
    options = {"steps_per_loop": 5, "steps": 30}
    got, struck = disturbed(tmp_path, options, ["saving 14"], signal.SIGKILL)
    assert struck == 1
    assert same_bits(got, undisturbed(tmp_path, options))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("steps_per_loop", [1, 5])
def test_killed_at_any_moment_the_bits_are_the_same(tmp_path, steps_per_loop, number):
    # A wide layer, so that saving takes long enough to be struck in its midst.
    options = {"steps_per_loop": steps_per_loop, "steps": 60, "width": 20_000}
    expected = undisturbed(tmp_path, options)
    importing = random.Random(steps_per_loop).uniform(0.1, 0.8)
    compiling, evaluating = ("tracing train", "tracing eval")
    moments = [
        importing,
        compiling,
        "begin",
        "saving",
        evaluating,
        "evaluating",
        "steps",
        "saving",
        "saving",
        compiling,
    ]
    got, struck = disturbed(tmp_path, options, moments, number)
    assert struck >= 8
    assert same_bits(got, expected)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_after_random_delays_the_bits_are_the_same(tmp_path):
    options = {"steps_per_loop": 5, "steps": 1000, "width": 20_000, "checkpoint_every": 3}
    expected = undisturbed(tmp_path, options)
    delays = random.Random(5)
    moments = [delays.uniform(1.5, 5.0) for _ in range(8)]
    got, struck = disturbed(tmp_path, options, moments, signal.SIGKILL)
    assert struck >= 3
    assert same_bits(got, expected)


def test_early_stopping_decides_alike_after_a_restart(tmp_path):
    # The loss of a model that does not learn never gets better: it stops at the third evaluation.
    def make(folder, *hooks):
        return linear(folder, optimizer=optax.sgd(0.0), hooks=[sl.EarlyStopping("loss", patience=2), *hooks])

    def run(estimator):
        estimator.train_and_evaluate(lambda: DATA, lambda: DATA, max_steps=100, eval_every=3)

    whole = make(None)
    run(whole)
    assert whole.step == 9
    make(tmp_path).train_and_evaluate(lambda: DATA, lambda: DATA, max_steps=6, eval_every=3)
    again = make(tmp_path)
    run(again)
    assert again.step == 9
    stopped = make(tmp_path)
    run(stopped)  # stopped before: it does not train on
    assert stopped.step == 9


# --- other models, damage, full disks ----------------------------------------------------------------------------------------------


def test_another_model_is_refused_with_the_leaves_that_differ(tmp_path):
    network(tmp_path, width=8, norm=True).train(lambda: DATA, steps=1)
    other = network(tmp_path, width=9)
    with pytest.raises(sl.CheckpointError) as error:
        other.train(lambda: DATA, steps=1)
    text = str(error.value)
    assert "checkpoint 1 belongs to another model or optimizer" in text
    assert "params/first/kernel: saved float32[3, 8], wanted float32[3, 9]" in text
    assert "model_state/norm/mean: saved float32[8], not in this model" in text
    assert "another model_dir" in text


def test_another_optimizer_is_refused_with_the_leaves_that_differ(tmp_path):
    linear(tmp_path, optimizer=optax.sgd(0.1, momentum=0.9)).train(lambda: DATA, steps=1)
    with pytest.raises(sl.CheckpointError) as error:
        linear(tmp_path, optimizer=optax.adam(0.1), ema=0.9).train(lambda: DATA, steps=1)
    text = str(error.value)
    assert "opt_state/0/mu/w: wanted float32[3], not in the checkpoint" in text
    assert "opt_state/0/trace/w: saved float32[3], not in this model" in text
    assert "ema/w: wanted float32[3], not in the checkpoint" in text


def damage(folder, how):
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert files
    for file in files:
        if how == "emptied":
            file.write_bytes(b"")
        elif how == "overwritten":
            file.write_bytes(os.urandom(max(1, file.stat().st_size)))
        elif how == "removed" and "state" in file.parts:
            file.unlink()


@pytest.mark.parametrize("how", ["emptied", "overwritten", "removed"])
def test_a_corrupt_checkpoint_says_what_to_delete_and_then_the_run_goes_on(tmp_path, how):
    linear(tmp_path, run={"checkpoint_every": 2, "keep": 2}).train(lambda: DATA, steps=4)
    latest = tmp_path / CHECKPOINTS / "4"
    damage(latest, how)
    with pytest.raises(sl.CheckpointError) as error:
        linear(tmp_path).train(lambda: DATA, max_steps=6)
    assert f"checkpoint 4 in {tmp_path / CHECKPOINTS} cannot be read" in str(error.value)
    assert f"delete {latest} to go on from step 2" in str(error.value)
    subprocess.run(["rm", "-r", str(latest)], check=True)
    again = linear(tmp_path)
    again.train(lambda: DATA, max_steps=6)
    whole = linear()
    whole.train(lambda: DATA, steps=6)
    assert same_bits(weights(again), weights(whole))


def test_a_corrupt_checkpoint_is_told_of_once(tmp_path):
    linear(tmp_path).train(lambda: DATA, steps=2)
    (tmp_path / CHECKPOINTS / "2" / "state" / "manifest.ocdbt").write_bytes(b"")
    script = f"""
        from small_models import linear, make_data
        import systolic as sl, time
        try:
            linear({str(tmp_path)!r}).evaluate(make_data(8))
        except sl.CheckpointError as error:
            print(error)
        time.sleep(0.2)  # reads that were under way come back
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("checkpoint 2 in ")


def test_a_part_is_restored_without_the_rest(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"params": {"w": np.arange(3.0)}, "opt_state": {"m": np.ones(1000)}}, {})
    checkpoints.wait()
    like = {"params": {"w": jax.ShapeDtypeStruct((3,), "float64")}}
    state, _ = checkpoints.restore(like, only=("params",))
    np.testing.assert_array_equal(state["params"]["w"], [0.0, 1.0, 2.0])
    assert state.keys() == {"params"}
    checkpoints.close()


@pytest.mark.parametrize("foreseen", [True, False])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax leaves coroutines behind
def test_a_full_disk_is_a_clear_error_and_earlier_checkpoints_stay_whole(tmp_path, caplog, monkeypatch, foreseen):
    if not foreseen:  # another process takes the space between the look at it and the write
        monkeypatch.setattr(_checkpoint, "_OVERHEAD", -(1 << 30))
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=4m", "tmpfs") as folder:
        options = {"width": 50, "run": {"checkpoint_every": 2, "keep": 1}}
        network(folder, **options).train(lambda: DATA, steps=2)
        free = os.statvfs(folder)
        (folder / "filler").write_bytes(bytes(max(0, free.f_bavail * free.f_bsize - 8192)))
        with pytest.raises(sl.CheckpointError) as error:
            network(folder, **options).train(lambda: DATA, steps=20)
        assert "the disk is full: free some space and start again; what was saved before is whole" in str(error.value)
        assert str(folder) in str(error.value)
        assert ("are needed and 8.00 KiB are free" if foreseen else "no space left on device") in str(error.value)
        assert not [r for r in caplog.records if "orbax" in r.pathname]  # one root cause, told once
        gc.collect()
        (folder / "filler").unlink()
        again = network(folder, **options)
        assert again.step >= 2
        again.train(lambda: DATA, max_steps=8)
        whole = network(None, width=50)
        whole.train(lambda: DATA, steps=8)
        assert same_bits(weights(again), weights(whole))


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_compiled(tmp_path):
    (tmp_path / "file").write_text("")
    estimator = linear(tmp_path / "file" / "run")
    with pytest.raises(
        sl.InputError, match=r"RunConfig\(model_dir\): cannot write to .*file/run .*choose a folder you"
    ):
        estimator.train(lambda: DATA, steps=1)
    assert estimator._engine.compiles == []


def test_a_read_only_folder_can_be_evaluated_and_not_trained_in(tmp_path):
    folder = tmp_path / "run"
    trained = linear(folder)
    trained.train(lambda: DATA, steps=3)
    trained._engine.checkpoints.close()
    with mounted(tmp_path / "view", "--bind", str(folder)) as view:
        done = subprocess.run(["mount", "-o", "remount,ro,bind", str(view)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a read-only mount is not permitted here: {done.stderr}")
        with pytest.raises(sl.InputError, match=r"cannot write to .*view \(Read-only file system\); choose a folder"):
            linear(view).train(lambda: DATA, steps=1)
        assert linear(view).evaluate(lambda: DATA) == trained.evaluate(lambda: DATA)


def test_reading_makes_no_folder(tmp_path):
    estimator = linear(tmp_path / "mistyped")
    assert estimator.step == 0
    with pytest.raises(sl.CheckpointError, match=r"no checkpoint in .*mistyped"):
        estimator.evaluate(lambda: DATA)
    assert not any(tmp_path.iterdir())


# --- two processes, one folder --------------------------------------------------------------------------------------------------


def test_a_second_run_in_the_folder_is_refused_and_names_the_first(tmp_path):
    entered, leave = threading.Event(), threading.Event()

    class Wait(sl.Hook):
        def begin(self, run):
            entered.set()
            leave.wait(60)

    first = linear(tmp_path, hooks=[Wait()])
    thread = threading.Thread(target=first.train, args=(lambda: DATA,), kwargs={"steps": 3})
    thread.start()
    assert entered.wait(60)
    try:
        with pytest.raises(sl.CheckpointError) as error:
            linear(tmp_path).train(lambda: DATA, steps=1)
        assert f"{tmp_path} is in use: process {os.getpid()} trains in it" in str(error.value)
        assert "choose another model_dir" in str(error.value)
    finally:
        leave.set()
        thread.join()
    after = linear(tmp_path)
    after.train(lambda: DATA, steps=1)
    assert after.step == 4


def test_a_forked_worker_does_not_hold_the_folder_of_its_dead_parent(tmp_path):
    code = f"""
import os, pathlib, time
from systolic.estimator._folder import locked
with locked(pathlib.Path({str(tmp_path)!r})):
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(0.5)
    os._exit(1)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60)
    child = int(done.stdout)
    try:
        os.kill(child, 0)  # the worker lives
        with locked(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lock_is_for_one_also_within_a_process_and_free_afterwards(tmp_path):
    with (
        locked(tmp_path),
        pytest.raises(sl.CheckpointError, match=f"process {os.getpid()} trains in it"),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


def test_a_lock_whose_owner_is_gone_says_so(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    with open(tmp_path / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for machine, said in (
            (platform.node(), rf"process {dead.pid}, which trained in it, is gone, and a process that it started"),
            ("elsewhere", rf"process {dead.pid} on elsewhere trains in it"),
        ):
            file.seek(0)
            file.truncate()
            file.write(f"{dead.pid} {machine}\n")
            file.flush()
            with pytest.raises(sl.CheckpointError, match=said), locked(tmp_path):
                pass


def test_an_evaluation_beside_a_training_run_leaves_its_unfinished_save_alone(tmp_path):
    linear(tmp_path).train(lambda: DATA, steps=1)
    partial = tmp_path / CHECKPOINTS / "2.orbax-checkpoint-tmp-17"
    partial.mkdir()
    (partial / "begun").write_text("")
    linear(tmp_path).evaluate(lambda: DATA)
    assert (partial / "begun").exists()
    linear(tmp_path).train(lambda: DATA, steps=1)  # whoever trains holds the folder, and cleans it
    assert not partial.exists()


def test_an_evaluation_follows_what_another_process_has_trained_since(tmp_path):
    trainer, evaluator = linear(model_dir=tmp_path), linear(model_dir=tmp_path)
    trainer.train(DATA, steps=5)
    first = evaluator.evaluate(DATA)
    trainer.train(DATA, steps=5)
    assert evaluator.evaluate(DATA) != first
    assert evaluator.step == 10
    assert same_bits(weights(trainer), weights(evaluator))


def test_an_evaluator_that_was_there_first_finds_the_first_checkpoint(tmp_path):
    evaluator = linear(model_dir=tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(sl.CheckpointError, match="has not been trained"):
        evaluator.evaluate(DATA)
    assert evaluator.step == 0
    trainer = linear(model_dir=tmp_path)
    trainer.train(DATA, steps=5)
    assert evaluator.step == 5
    assert evaluator.evaluate(DATA) == trainer.evaluate(DATA)


def test_the_moving_average_of_a_single_array_is_found_in_a_checkpoint(tmp_path):
    def bare(**options):
        model = (lambda key: jnp.zeros(WIDTH), lambda params, x: x @ params)
        return sl.Estimator(model, regression, optax.sgd(0.1), train_batch_size=8, config=config(tmp_path), **options)

    trainer = bare(ema=0.9)
    trainer.train(DATA, steps=5)
    assert bare().evaluate(DATA) == trainer.evaluate(DATA)


def test_what_the_caller_was_about_is_not_told_as_the_cause_of_a_checkpoint_error():
    try:
        raise PermissionError(13, "earlier")
    except PermissionError:
        with pytest.raises(sl.CheckpointError) as caught, explained("checkpoint 3 cannot be read", "delete it"):
            raise KeyError("leaf")  # noqa: B904
    assert str(caught.value) == "checkpoint 3 cannot be read: KeyError 'leaf'; delete it"


def test_training_can_go_on_with_other_data_from_its_first_example(tmp_path):
    shorter = make_data(8, seed=5)
    estimator = linear(model_dir=tmp_path)
    estimator.train(DATA, steps=4)  # beyond the end of the shorter data
    before = weights(estimator)
    estimator.train(shorter, steps=2, restart_data=True)

    other = linear()
    other.train(shorter, steps=1)
    other.state["params"] = jax.tree.map(jnp.array, before_tree(before, other.state["params"]))
    other.train(shorter, steps=2, restart_data=True)
    close(weights(estimator), weights(other))


def before_tree(flat, like):
    return jax.tree.unflatten(jax.tree.structure(like), list(flat.values()))


def test_a_flipped_bit_is_found_by_its_checksum_or_changes_nothing(tmp_path):
    def wide():
        model = (lambda key: {"w": jnp.zeros(WIDTH), "z": jax.random.normal(key, (100, 100))}, apply_with_z)
        return sl.Estimator(model, regression, optax.adam(0.1), train_batch_size=8, config=config(tmp_path))

    def apply_with_z(params, x):
        return x @ params["w"] + params["z"].mean()

    wide().train(lambda: DATA, steps=2)
    sound = wide().evaluate(DATA)
    told = []
    for file in sorted((tmp_path / CHECKPOINTS / "2").rglob("*")):
        content = file.read_bytes() if file.is_file() else b""
        for place in {len(content) * part // 7 for part in range(7)} if content else ():
            file.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
            try:
                assert wide().evaluate(DATA) == sound
            except sl.CheckpointError as error:
                told.append(str(error))
            file.write_bytes(content)
    assert all(f"delete {tmp_path / CHECKPOINTS / '2'} to start anew" in text for text in told)
    assert sum("is damaged: the checksum of" in text for text in told) > 3  # in the numbers themselves


def test_a_changed_data_position_is_found_by_its_checksum(tmp_path):
    linear(tmp_path).train(lambda: DATA, steps=2)
    (file,) = (f for f in (tmp_path / CHECKPOINTS / "2" / "meta").iterdir() if b'"position"' in f.read_bytes())
    file.write_bytes(file.read_bytes().replace(b'"row": 16', b'"row": 18'))
    with pytest.raises(sl.CheckpointError, match="is damaged: the checksum of meta"):
        linear(tmp_path).train(lambda: DATA, max_steps=3)
