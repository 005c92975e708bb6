"""Arguments are taken in one way everywhere, or refused by name before any work is done."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from small_models import linear, make_data

import systolic as sl

DATA = make_data(32, 1)


@pytest.fixture(scope="module")
def trained():
    estimator = linear()
    estimator.train(lambda: DATA, steps=2)
    return estimator


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("steps_per_loop", 0, "whole number of at least 1"),
        ("log_every", 2.0, "whole number of at least 1"),
        ("keep", "3", "whole number of at least 1"),
        ("prefetch", True, "whole number of at least 1"),
        ("checkpoint_every", -5, "whole number of at least 1"),
        ("seed", -1, "whole number from 0 to 4294967295"),
        ("seed", 2**32, "whole number from 0 to 4294967295"),
        ("seed", 1.5, "whole number from 0"),
        ("seed", None, "whole number from 0"),
        ("stall_seconds", 0, "positive number of seconds"),
        ("stall_seconds", float("nan"), "positive number of seconds"),
        ("stall_seconds", "300", "positive number of seconds"),
        ("tail", "keep", "'carry', 'drop', 'pad'"),
        ("tail", ["carry"], "'carry', 'drop', 'pad'"),
        ("on_nonfinite", None, "'stop', 'ignore'"),
        ("progress", "no", "True or False"),
        ("eager", 1, "True or False"),
        ("use_tpu", "yes", "True or False"),
        ("target", None, "'auto'"),
        ("target", "", "'auto'"),
        ("model_dir", "", "path of a folder"),
        ("model_dir", 7, "path of a folder"),
        ("model_dir", b"run", "path of a folder"),
        ("model_dir", "gs://bucket/run", "gs addresses are not supported"),
        ("model_dir", "s3://bucket/run", "s3 addresses are not supported"),
        ("model_dir", "a\0b", "null character"),
    ],
)
def test_a_run_config_names_the_field_and_what_is_wanted(name, value, wanted):
    with pytest.raises(sl.InputError, match=wanted) as refused:
        sl.RunConfig(**{name: value})
    assert str(refused.value).startswith(f"RunConfig({name}): saw {value!r}")


def test_numbers_of_numpy_are_numbers(trained):
    config = sl.RunConfig(steps_per_loop=np.int64(4), seed=np.uint32(2**32 - 1), keep=np.int8(2))
    assert (config.steps_per_loop, config.seed, config.keep) == (4, 2**32 - 1, 2)
    estimator = linear(batch=np.int64(8))
    estimator.train(lambda: DATA, steps=np.int64(3))
    assert estimator.step == 3
    assert estimator.evaluate(lambda: DATA, steps=np.int32(1))["loss"] > 0


def test_the_home_folder_is_the_users(monkeypatch, tmp_path, trained):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sl.RunConfig(model_dir="~/run").model_dir == tmp_path / "run"
    assert trained.export("~/export") == tmp_path / "export"
    assert sl.load("~/export").step == 2
    assert sl.BestExport("loss", "~/best").directory == tmp_path / "best"


@pytest.mark.parametrize("value", [None, "", 3, "gs://bucket/export"])
def test_every_folder_is_checked_alike(trained, value):
    for argument, use in {
        "export(directory)": trained.export,
        "load(directory)": sl.load,
        "BestExport(directory)": lambda v: sl.BestExport("loss", v),
    }.items():
        with pytest.raises(sl.InputError) as refused:
            use(value)
        assert str(refused.value).startswith(f"{argument}: saw {value!r}")
    assert not pathlib.Path("gs:").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"platforms": []}, r"export\(platforms\): saw \[\], wanted a list with at least one entry"),
        ({"platforms": "cpu"}, r"export\(platforms\): saw 'cpu', wanted a list"),
        ({"platforms": ["cpu", "gpu"]}, r"export\(platforms\): saw 'gpu', wanted one of 'cpu', 'tpu', 'cuda', 'rocm'"),
        ({"platforms": [None]}, r"export\(platforms\): saw None"),
        ({"batch_sizes": []}, r"export\(batch_sizes\): saw \[\], wanted a list"),
        ({"batch_sizes": 8}, r"export\(batch_sizes\): saw 8, wanted a list"),
        ({"batch_sizes": [8, 0]}, r"export\(batch_sizes\): saw 0, wanted a whole number"),
        ({"batch_sizes": [True]}, r"export\(batch_sizes\): saw True"),
        ({"batch_sizes": ["8"]}, r"export\(batch_sizes\): saw '8'"),
    ],
)
def test_export_refuses_what_it_cannot_use(trained, tmp_path, options, message):
    with pytest.raises(sl.InputError, match=message):
        trained.export(tmp_path / "export", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "3"])
def test_steps_of_an_evaluation_are_a_whole_number(trained, steps):
    with pytest.raises(sl.InputError, match=r"evaluate\(steps\): saw .*, wanted a whole number of at least 1"):
        trained.evaluate(lambda: DATA, steps=steps)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("/proc/export", "No such file or directory|Permission denied|Operation not permitted"),
        ("/dev/null/export", "is a file where a folder is wanted"),
        ("x" * 300, "choose a shorter name"),
    ],
)
def test_an_export_that_cannot_be_written_says_why(trained, tmp_path, place, reason):
    with pytest.raises(sl.InputError, match=rf"export\(directory\): cannot write to .*({reason})"):
        trained.export(tmp_path / place)  # an absolute place stands for itself
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_while_the_weights_are_written_is_called_full(trained, tmp_path, monkeypatch):
    import safetensors.numpy

    def full(*args):  # as the library tells it
        raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    with pytest.raises(sl.InputError, match=r"export\(directory\): cannot write to .* the disk is full"):
        trained.export(tmp_path / "export")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["absent", "/dev/null", "x" * 300])
def test_a_folder_that_holds_no_run_says_that_nothing_was_trained(tmp_path, place):
    estimator = linear(tmp_path / place)
    for use in (lambda: estimator.evaluate(DATA), lambda: list(estimator.predict(DATA[0]))):
        with pytest.raises(sl.CheckpointError, match=r"has not been trained.*there is no checkpoint in"):
            use()


# --- the same model with other arguments ---------------------------------------------------------------------------------


def test_an_estimator_over_the_same_model_begins_with_the_checkpoint_of_its_folder(tmp_path):
    trainer = linear(tmp_path)
    trainer.train(lambda: DATA, steps=4)
    other = trainer.with_config(target="cpu:2", eval_batch_size=4, optimizer=None)
    assert (other.config.target, other.config.model_dir, other.step) == ("cpu:2", tmp_path, 4)
    assert {mode.value: size for mode, size in other.batch_sizes.items()} == {"train": 8, "eval": 4, "predict": 4}
    assert other.evaluate(lambda: DATA)["loss"] == pytest.approx(trainer.evaluate(lambda: DATA)["loss"], rel=1e-6)
    assert trainer.config.target == "cpu:1"
    assert trainer.with_config(model_dir=tmp_path / "new").step == 0


def test_a_batch_size_that_was_left_to_its_default_follows():
    assert set(linear().with_config(train_batch_size=16).batch_sizes.values()) == {16}


def test_a_changed_configuration_and_a_change_of_it_go_together():
    other = linear().with_config(config=sl.RunConfig(seed=1, keep=7), seed=2)
    assert (other.config.seed, other.config.keep) == (2, 7)


def test_target_and_use_tpu_are_one_switch():
    config = sl.RunConfig(use_tpu=False)
    assert config.replace(target="cpu:2").target == "cpu:2"
    assert sl.RunConfig(target="cpu:2").replace(use_tpu=True).target == "tpu"
    assert config.replace(seed=3).target == "cpu"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch_size": 8},
            r"with_config\(batch_size\): there is no such argument; .*train_batch_size.*steps_per_loop",
        ),
        ({"eval_batch_size": 0}, r"Estimator\(eval_batch_size\): saw 0"),
        ({"keep": 0}, r"RunConfig\(keep\): saw 0"),
    ],
)
def test_a_change_that_cannot_be_made(changes, message):
    with pytest.raises(sl.InputError, match=message):
        linear().with_config(**changes)


def test_a_copy_begins_with_its_hooks_as_they_were_given():
    class Counting(sl.Hook):
        def __init__(self):
            self.seen = 0

        def after_steps(self, run, step, metrics):
            self.seen += 1

        def state(self):
            return {"seen": self.seen}

        def restore(self, state):
            self.seen = state["seen"]

    hook = Counting()
    estimator = linear(hooks=(each for each in [hook]), run={"log_every": 1})
    estimator.train(lambda: make_data(40), steps=3)
    other = estimator.with_config(seed=7)
    (copied,) = other.hooks
    assert (hook.seen, copied.seen) == (3, 0)
    other.train(lambda: make_data(40), steps=2)
    assert (hook.seen, copied.seen) == (3, 2)


def test_a_hook_that_cannot_be_copied_is_told():
    class Open(sl.Hook):
        def __init__(self):
            self.file = open(__file__)  # noqa: SIM115

    hook = Open()
    with pytest.raises(sl.InputError, match=r"with_config: the hook Open cannot be copied .* give hooks=\[\.\.\.\]"):
        linear(hooks=[hook]).with_config(seed=1)
    assert linear(hooks=[hook]).with_config(seed=1, hooks=[]).hooks == ()
    hook.file.close()
