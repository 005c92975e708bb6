"""The ResNet example: its network, its data, its story."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import systolic as sl

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "resnet"


@pytest.fixture(scope="module")
def example():
    """The example's modules, which import each other by their bare names."""
    sys.path.insert(0, str(FOLDER))
    try:
        import data
        import resnet

        yield data, resnet
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("data", "resnet"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("depth", "parameters"),
    [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032)],  # as torchvision's models of the same name
)
def test_the_networks_are_the_published_ones(example, depth, parameters):
    _, resnet = example
    model = nnx.eval_shape(lambda: resnet.ResNet(depth, 1000, rngs=nnx.Rngs(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))) == parameters


@pytest.mark.parametrize(("size", "small", "last"), [(224, False, 7), (64, True, 8), (8, True, 1)])
def test_the_stem_suits_the_size_of_the_images(example, size, small, last):
    _, resnet = example

    def features(images):
        model = resnet.ResNet(18, 10, width=8, small_images=small, rngs=nnx.Rngs(0))
        model.head = lambda x: x
        seen = []
        model.blocks[-1].norm2, inner = (lambda y: seen.append(y.shape) or inner(y)), model.blocks[-1].norm2
        model(images)
        return jnp.zeros(seen[0])

    shape = jax.eval_shape(features, jax.ShapeDtypeStruct((2, size, size, 3), jnp.float32)).shape
    assert shape == (2, last, last, 64)


def test_a_fresh_block_is_the_identity_on_what_is_positive(example):
    _, resnet = example
    block = resnet.BasicBlock(4, 4, 1, rngs=nnx.Rngs(0))
    x = np.abs(np.random.default_rng(0).normal(size=(2, 8, 8, 4))).astype("float32")
    np.testing.assert_allclose(block(x), x, atol=1e-6)


def test_held_out_digits_are_fixed_and_apart_from_the_others(example):
    data, _ = example
    images = data.digits()
    kept = {row.tobytes() + bytes([label]) for row, label in zip(*_rows(images.train()))}
    out = {row.tobytes() + bytes([label]) for row, label in zip(*_rows(images.held_out()))}
    assert (images.train_count, len(images.held_out_labels)) == (1437, 360)
    assert len(kept & out) <= 1  # two scans may look the same
    assert np.array_equal(images.held_out_image(5), _rows(images.held_out())[0][5])


def _rows(source):
    features, labels = source.tree
    return features["image"], labels


@pytest.fixture
def photos(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(5):
            pixels = rng.integers(0, 100, (20 + i, 30, 3)) + 150 * label
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / name / f"{i}.png")
    return tmp_path


def test_a_folder_of_images_is_split_by_class_and_resized(example, photos):
    data, _ = example
    images = data.folder(photos, 16)
    assert images.classes == ("cat", "dog")
    assert (images.train_count, images.held_out_labels.tolist()) == (8, [0, 1])
    batch = next(iter(sl.data.Batches(images.train, 8, tail="pad", epochs=1)))
    assert batch.features["image"].shape == (8, 16, 16, 3)
    assert batch.features["image"].dtype == np.uint8
    bright = batch.features["image"].reshape(8, -1).mean(1) > 125
    assert np.array_equal(bright, batch.labels == 1)
    assert not np.array_equal(_labels(images.train(0)), _labels(images.train(1)))
    assert np.array_equal(images.held_out_image(0), data.decode(*_first(images.held_out())))


def _labels(files):
    return [files[i][0]["image"].sum() for i in range(len(files))]


def _first(files):
    return files._files[0][0], files._size


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: f / "nowhere", "is not a folder"),
        (lambda f: f / "cat", "has 0 subfolders"),
        (lambda f: [(f / "cat" / f"{i}.png").unlink() for i in range(4)] and f, "has 1 images; wanted at least two"),
    ],
)
def test_a_bad_folder_is_explained(example, photos, spoil, message):
    data, _ = example
    with pytest.raises(sl.InputError, match=message):
        data.folder(spoil(photos), 16)


def test_a_file_that_is_no_image_is_named(example, photos):
    data, _ = example
    for i in range(5):
        (photos / "dog" / f"{i}.png").write_bytes(b"not an image")
    images = data.folder(photos, 16)
    with pytest.raises(sl.InputError, match=r"dog/\d.png cannot be read as an image"):
        list(sl.data.Batches(images.train, 8, tail="pad", epochs=1))


@pytest.mark.slow
def test_the_whole_story_in_small(tmp_path):
    done = _run(tmp_path, "--check-target", "", "--steps", "150", "--expect-accuracy", "0.9")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "summary.html").is_file()
    assert sl.load(tmp_path / "run" / "export").step == 150
    again = _run(tmp_path, "--check-target", "", "--steps", "150")
    assert "going on from step 150" in again.stdout


@pytest.mark.slow
def test_a_folder_of_images_can_be_trained_on(tmp_path, photos):
    options = ["--data", str(photos), "--size", "16", "--steps", "4", "--eval-every", "2", "--batch-size", "4"]
    done = _run(tmp_path, "--check-target", "", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = _run(tmp_path, "--data", str(photos / "none"))
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: --data: ")


@pytest.mark.slow
def test_resnet50_is_checked_from_the_command_line(tmp_path):
    pytest.importorskip("libtpu")
    command = [sys.executable, "-m", "systolic", "check", f"{FOLDER / 'main.py'}:resnet50", "--target", "v5e-8"]
    options = ["--programs", "train", "--depth", "schedule", "--json", "-", "--arg", "batch_size=64"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert '"verdict": "fits"' in done.stdout


def _run(folder, *options):
    command = [sys.executable, str(FOLDER / "main.py"), "--model-dir", str(folder / "run"), *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, env=os.environ)
