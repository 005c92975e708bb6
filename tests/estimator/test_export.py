"""An exported model runs without the code that made it, predicts the same, and is whole or not there."""

from __future__ import annotations

import concurrent.futures
import json
import os
import platform
import subprocess
import sys
import textwrap
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import config, linear, make_data, network, regression, weights

import systolic as sl
from systolic.estimator import _export

DATA = make_data(64, 7)


@pytest.fixture(scope="module")
def trained():
    estimator = network(rate=0.3, norm=True, ema=0.9, predict_batch_size=8, eval_batch_size=16)
    estimator.train(lambda: DATA, steps=10)
    return estimator


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    return trained.export(tmp_path_factory.mktemp("exports") / "model", batch_sizes=[1, 4, 16])


def predicted(estimator, features):
    return np.array([row["y"] for row in estimator.predict(lambda: features)])


# --- the same results -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 4, 5, 16, 17, 37])
def test_any_number_of_rows_is_predicted_as_before_the_export(trained, exported, n):
    features = make_data(n, seed=n)[0]
    loaded = sl.load(exported)
    np.testing.assert_allclose(loaded.predict(features)["y"], predicted(trained, features), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 16, 37])
def test_an_evaluation_equals_that_before_the_export(trained, exported, n):
    some = make_data(n, seed=n)
    got, wanted = sl.load(exported).evaluate(lambda: some), trained.evaluate(lambda: some)
    assert got == pytest.approx(wanted, rel=1e-5)
    assert set(got) == {"loss", "absolute_error"}


def test_the_folder_tells_what_it_holds(trained, exported):
    assert sorted(os.listdir(exported)) == [
        "eval_b16.stablehlo",
        "predict_b1.stablehlo",
        "predict_b16.stablehlo",
        "predict_b4.stablehlo",
        "systolic.json",
        "weights.safetensors",
    ]
    loaded = sl.load(exported)
    assert loaded.batch_sizes == [1, 4, 16]
    assert loaded.step == 10
    assert loaded.spec.features["x"].shape == (3,)
    assert "step 10" in repr(loaded)
    description = json.loads((exported / "systolic.json").read_text())
    assert description["parameters"] == sum(x.size for x in weights(trained).values())
    assert description["platforms"] == ["cpu", "tpu"]
    assert description["versions"]["jax"] == jax.__version__
    assert set(description["sha256"]) == set(os.listdir(exported)) - {"systolic.json"}


def test_the_moving_average_is_what_is_exported(trained, exported):
    from safetensors.numpy import load_file

    stored = load_file(exported / "weights.safetensors")
    for name, value in weights(trained, "ema").items():
        np.testing.assert_array_equal(stored[f"params/{name}"], value)


def test_the_default_batch_size_is_that_of_prediction(trained, tmp_path):
    assert sl.load(trained.export(tmp_path / "one")).batch_sizes == [8]


def test_it_is_loaded_and_run_without_the_users_code_or_its_model_library(trained, exported, tmp_path):
    script = """
        import sys, numpy as np
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("flax", "orbax", "small_models"):
                    raise ImportError(f"{name} is not here")
        sys.meta_path.insert(0, Refuse())
        import systolic as sl
        model = sl.load(sys.argv[1])
        data = np.load(sys.argv[2])
        np.savez(sys.argv[3], y=model.predict({"x": data["x"]})["y"], loss=model.evaluate(({"x": data["x"]}, data["y"]))["loss"])
    """
    some = make_data(11)
    np.savez(tmp_path / "in.npz", x=some[0]["x"], y=some[1])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(exported), "in.npz", "out.npz"],
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    out = np.load(tmp_path / "out.npz")
    np.testing.assert_allclose(out["y"], predicted(trained, some[0]), rtol=1e-5, atol=1e-6)
    assert float(out["loss"]) == pytest.approx(trained.evaluate(lambda: some)["loss"], rel=1e-5)


def test_it_is_exported_from_the_checkpoint_alone(tmp_path):
    linear(tmp_path / "run").train(lambda: DATA, steps=3)
    loaded = sl.load(linear(tmp_path / "run").export(tmp_path / "export"))
    some = make_data(5)
    np.testing.assert_allclose(
        loaded.predict(some[0])["y"], predicted(linear(tmp_path / "run"), some[0]), rtol=1e-5, atol=1e-6
    )


def test_strings_and_wide_types_are_treated_as_in_training(exported, trained):
    features = make_data(5)[0]
    wide = {"x": features["x"].astype("float64")}
    np.testing.assert_allclose(sl.load(exported).predict(wide)["y"], predicted(trained, features), rtol=1e-5, atol=1e-6)


def test_a_model_trained_without_labels_has_no_evaluation(tmp_path):
    def model_fn(model, features, mode):
        y = model(features["x"])
        return sl.EstimatorSpec(loss=y**2, predictions={"y": y})

    estimator = linear(model_fn=model_fn)
    estimator.train(lambda: DATA[0], steps=1)
    loaded = sl.load(estimator.export(tmp_path / "export"))
    assert loaded.predict(DATA[0])["y"].shape == (64,)
    with pytest.raises(sl.InputError, match=r"has no evaluation program: it was trained without labels"):
        loaded.evaluate(lambda: DATA[0])


def test_a_scalar_loss_is_refused_on_a_padded_batch_as_before_the_export(tmp_path):
    def model_fn(model, features, labels, mode):
        if mode is sl.Mode.PREDICT:
            return regression(model, features, labels, mode)
        return sl.EstimatorSpec(loss=((model(features["x"]) - labels) ** 2).mean())

    estimator = linear(model_fn=model_fn)
    estimator.train(lambda: DATA, steps=1)
    loaded = sl.load(estimator.export(tmp_path / "export"))
    full = make_data(16)
    assert loaded.evaluate(lambda: full)["loss"] == pytest.approx(estimator.evaluate(lambda: full)["loss"], rel=1e-5)
    with pytest.raises(sl.InputError, match=r"scalar loss, and the last batch holds 3 of 8 rows"):
        loaded.evaluate(lambda: make_data(11))


# --- damage -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(exported, tmp_path):
    subprocess.run(["cp", "-r", str(exported), str(tmp_path / "copy")], check=True)
    return tmp_path / "copy"


@pytest.mark.parametrize("name", [".", "absent", "x" * 300], ids=["something else", "nothing", "a name too long"])
def test_a_folder_that_is_no_export_is_refused(tmp_path, name):
    with pytest.raises(sl.CheckpointError, match=r"is not an export \(no systolic.json\); name a folder that"):
        sl.load(tmp_path / name)


@pytest.mark.parametrize("name", ["weights.safetensors", "predict_b4.stablehlo"])
def test_a_damaged_or_missing_file_is_named(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(
        sl.CheckpointError, match=rf"{name} does not match its checksum; copy it again, or export again"
    ):
        sl.load(copy)
    (copy / name).unlink()
    with pytest.raises(sl.CheckpointError, match=rf"{name} is missing; copy the whole folder, or export again"):
        sl.load(copy)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"format": 1}', '{"format": "x", "sha256": {}}', '{"format": 1, "sha256": {}}', "\x00\xff"],
)
def test_a_damaged_description_is_named(copy, content):
    (copy / "systolic.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(sl.CheckpointError, match=r"systolic.json is damaged .*export the model again"):
        sl.load(copy)


def edit(copy, **changes):
    file = copy / "systolic.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_newer_format_is_refused(copy):
    edit(copy, format=99)
    with pytest.raises(sl.CheckpointError, match=r"has format 99, this version reads up to 1; update systolic"):
        sl.load(copy)


def test_another_platform_is_refused(trained, tmp_path):
    folder = trained.export(tmp_path / "for_tpu", platforms=("tpu",))
    with pytest.raises(sl.InputError, match=r"was exported for tpu, not for cpu; export it again with platforms="):
        sl.load(folder, target="cpu")


# --- writing it ---------------------------------------------------------------------------------------------------------------------


def test_a_new_export_replaces_an_old_one(tmp_path):
    estimator = linear()
    estimator.train(lambda: DATA, steps=1)
    folder = estimator.export(tmp_path / "model", batch_sizes=[2, 4])
    estimator.train(lambda: DATA, steps=1)
    estimator.export(tmp_path / "model", batch_sizes=[3])
    loaded = sl.load(folder)
    assert (loaded.step, loaded.batch_sizes) == (2, [3])
    assert os.listdir(tmp_path) == ["model"]


def test_an_export_that_fails_leaves_the_old_one_and_no_litter(tmp_path):
    estimator = linear()
    estimator.train(lambda: DATA, steps=1)
    estimator.export(tmp_path / "model")

    def callback(model, features, labels, mode):
        y = model(features["x"])
        if mode is sl.Mode.PREDICT:
            y = jax.pure_callback(np.asarray, jax.ShapeDtypeStruct((8,), "float32"), y)
            return sl.EstimatorSpec(predictions={"y": y})
        return sl.EstimatorSpec(loss=y)

    other = linear(model_fn=callback)
    other.train(lambda: DATA, steps=1)
    with pytest.raises(sl.CompileError, match=r"export: the predict program cannot be exported for cpu, tpu"):
        other.export(tmp_path / "model")
    assert os.listdir(tmp_path) == ["model"]
    assert sl.load(tmp_path / "model").step == 1


def test_what_a_killed_writer_left_is_removed_and_others_are_left_alone(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    here, tail = platform.node(), "abcd_123"
    mine, other, living, away, user = (
        tmp_path / name
        for name in (
            f".model.{here}.{dead.pid}.{tail}",
            f".other.{here}.{dead.pid}.{tail}",
            f".model.{here}.{os.getpid()}.{tail}",
            f".model.elsewhere.{dead.pid}.{tail}",
            ".model.backup",
        )
    )
    for folder in (mine, other, living, away, user):
        folder.mkdir()
    estimator = linear()
    estimator.train(lambda: DATA, steps=1)
    estimator.export(tmp_path / "model")
    assert not mine.exists()
    assert all(folder.exists() for folder in (other, living, away, user))


def test_an_old_export_that_a_killed_writer_had_put_aside_comes_back(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    estimator = linear()
    estimator.train(lambda: DATA, steps=1)
    estimator.export(tmp_path / "model")
    os.rename(tmp_path / "model", tmp_path / f".model.{platform.node()}.{dead.pid}.abcdefgh.old")
    _export._sweep(tmp_path / "model")
    assert sl.load(tmp_path / "model").step == 1
    assert os.listdir(tmp_path) == ["model"]


def test_a_users_metric_is_not_taken_for_one_of_ours_of_the_same_name(tmp_path):
    class Sum(sl.metrics.Metric):
        """Ten times the sum of squares: not what systolic's own would give."""

        def __init__(self, values):
            self.values = values

        def sums(self, mask):
            kept = self.values if mask is None else jax.numpy.where(mask, self.values, 0)
            return {"sum": (kept**2).sum(), "weight": jax.numpy.float32(1)}

        @staticmethod
        def finalize(totals):
            return 10.0 * float(totals["sum"])

    def model_fn(model, features, labels, mode):
        spec = regression(model, features, labels, mode)
        if mode is not sl.Mode.EVAL:
            return spec
        return sl.EstimatorSpec(loss=spec.loss, metrics={"mine": Sum(labels), "mean": sl.metrics.Mean(labels)})

    estimator = linear(model_fn=model_fn)
    estimator.train(lambda: DATA, steps=1)
    wanted = 10 * (DATA[1].astype("float64") ** 2).sum()
    assert estimator.evaluate(lambda: DATA)["mine"] == pytest.approx(wanted, rel=1e-5)
    loaded = sl.load(estimator.export(tmp_path / "model"))
    assert loaded.description["metrics"] == {"loss": "Mean", "mine": None, "mean": "Mean"}
    with pytest.raises(sl.InputError, match=r"metric 'mine' is of a class of its author's own.*use predict"):
        loaded.evaluate(lambda: DATA)


def test_a_reader_finds_the_old_export_or_the_new_one(tmp_path):
    estimator = linear()
    estimator.train(lambda: DATA, steps=1)
    folder = estimator.export(tmp_path / "model")
    if not _export._exchange(*(tmp_path / name for name in ("model", "model"))):
        pytest.skip("this file system cannot swap two folders in one step")
    faults, over = [], threading.Event()

    def read():
        while not over.is_set():
            if not (folder / "systolic.json").exists():
                faults.append("gone")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(5):
            estimator.export(folder)
    finally:
        over.set()
        reader.join()
    assert not faults
    assert os.listdir(tmp_path) == ["model"]


def test_the_old_export_comes_back_where_the_new_one_cannot_be_put_in_place(tmp_path, monkeypatch):
    estimator = linear()
    estimator.train(lambda: DATA, steps=1)
    folder = estimator.export(tmp_path / "model")
    estimator.train(lambda: DATA, steps=1)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_export, "_exchange", lambda *_: False)  # a system without it
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(sl.InputError, match=r"export\(directory\): .*No space left"):
            estimator.export(folder)
    assert sl.load(folder).step == 1
    assert os.listdir(tmp_path) == ["model"]
    estimator.export(folder)
    assert sl.load(folder).step == 2
    assert os.listdir(tmp_path) == ["model"]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    estimator = linear()
    estimator.train(lambda: DATA, steps=1)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(sl.InputError, match=r"export\(directory\): .* holds something that is not an export"):
        estimator.export(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    with pytest.raises(sl.InputError, match=r"export\(directory\): .*thesis.tex is a file"):
        estimator.export(tmp_path / "thesis.tex")


def test_an_untrained_model_is_not_exported(tmp_path):
    with pytest.raises(sl.CheckpointError, match="has not been trained"):
        linear(optimizer=optax.sgd(0.1)).export(tmp_path / "a")


def test_bad_features_are_named(exported):
    loaded = sl.load(exported)
    with pytest.raises(sl.InputError, match=r"feature 'x'.*shape \(2, 5\) seen, \(rows, 3\) expected"):
        loaded.predict({"x": np.zeros((2, 5), "float32")})
    with pytest.raises(sl.InputError, match=r"missing: 'x'"):
        loaded.predict({"z": np.zeros((2, 3), "float32")})
    with pytest.raises(sl.InputError, match=r"predict\(features\): saw leading dimensions"):
        loaded.predict({"x": np.zeros((0, 3), "float32")})


def test_the_best_model_is_kept_as_an_export_and_a_resumed_run_knows_it(tmp_path):
    losses = iter([3.0, 1.0, 2.0, 0.5])

    def scores(model, features, labels, mode):
        if mode is sl.Mode.PREDICT:
            return regression(model, features, labels, mode)
        return sl.EstimatorSpec(loss=(model(features["x"]) - labels) ** 2, metrics={"score": features["score"]})

    def make():
        best = sl.BestExport("score", tmp_path / "best")
        return linear(tmp_path / "run", model_fn=scores, hooks=[best]), best

    def evaluation():
        x, y = make_data(8)
        return {**x, "score": np.full(8, next(losses), "float32")}, y

    training = ({**DATA[0], "score": np.zeros(64, "float32")}, DATA[1])
    estimator, best = make()
    estimator.train_and_evaluate(lambda: training, lambda: iter([evaluation()]), max_steps=4, eval_every=2)
    assert best.step == sl.load(tmp_path / "best").step == 4  # scores 3, 1
    for max_steps, wanted in ((6, 4), (8, 8)):  # 2 is no better; 0.5 is
        estimator, best = make()
        estimator.train_and_evaluate(lambda: training, lambda: iter([evaluation()]), max_steps=max_steps, eval_every=2)
        assert best.step == sl.load(tmp_path / "best").step == wanted


def test_a_loaded_model_serves_several_threads(tmp_path):
    estimator = linear()
    estimator.train(lambda: make_data(32), steps=4)
    loaded = sl.load(estimator.export(tmp_path / "model", batch_sizes=[1, 4], platforms=["cpu"]))
    x = make_data(6, 9)[0]["x"]
    p = weights(estimator)
    expected = x.astype("float64") @ p["w"] + p["b"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # all ask before anything is compiled
        answers = list(pool.map(lambda n: loaded.predict({"x": x[:n]})["y"], [1, 2, 3, 4, 5, 6] * 8))
    for n, answer in zip([1, 2, 3, 4, 5, 6] * 8, answers, strict=True):
        np.testing.assert_allclose(answer, expected[:n], rtol=1e-5)
    assert len(loaded._compiled) == 2


def test_a_scalar_parameter_stays_a_scalar(tmp_path):
    model = (
        lambda key: {"w": jnp.ones(3), "t": jnp.float32(2.0)},
        lambda p, x: x @ p["w"] * p["t"] + 1000 * p["t"].ndim,
    )
    estimator = sl.Estimator(model, regression, optax.sgd(0.0), train_batch_size=8, config=config())
    features, labels = make_data(8)
    estimator.train((features, labels), steps=1)
    loaded = sl.load(estimator.export(tmp_path / "export"))
    np.testing.assert_allclose(loaded.predict(features)["y"], 2 * features["x"].sum(1), rtol=1e-5)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (None, "saw nothing; wanted arrays"),
        ({"x": lambda: 1}, "saw a value that is no array; wanted arrays"),
        ({"x": [[1.0, 2.0, 3.0], [4.0]]}, "inhomogeneous.*; wanted arrays"),
        ({"x": np.float32(1)}, "leading dimensions"),
    ],
)
def test_features_that_are_no_arrays_are_told(exported, features, message):
    with pytest.raises(sl.InputError, match=message):
        sl.load(exported).predict(features)


def test_lists_of_numbers_are_features(tmp_path):
    estimator = linear(batch=8)
    features, labels = make_data(8)
    estimator.train((features, labels), steps=1)
    loaded = sl.load(estimator.export(tmp_path / "export"))
    as_lists = loaded.predict({"x": features["x"].tolist()})
    np.testing.assert_array_equal(as_lists["y"], loaded.predict(features)["y"])
