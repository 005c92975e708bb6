"""A ResNet from nothing to a loaded export: check, train with periodic evaluation, evaluate, predict, export, load.

    python examples/resnet/main.py                              # scanned digits, no download
    python examples/resnet/main.py --data PHOTOS --size 64      # a folder with one subfolder a class

The functions that make an Estimator also serve the command line::

    systolic check examples/resnet/main.py:resnet50 --target v5e-8,v6e-4
    systolic train examples/resnet/main.py:digits --max-steps 300 --eval-every 50
"""

from __future__ import annotations

import argparse
import functools
import logging
import pathlib
import sys
import time
from typing import Any

import data
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from resnet import ResNet

import systolic as sl
from systolic.check import CheckOptions
from systolic.cli import CompileProgress


def model_fn(model: Any, features: Any, labels: Any, mode: sl.Mode, params: Any, key: jax.Array) -> sl.EstimatorSpec:
    """Loss and metrics, one value per image.

    features: ``image`` ``[batch, h, w, channels]`` of 0 to 255. params: ``shift``, by how many pixels a training image is
    moved at most. key: of this step.
    """
    images = features["image"].astype(jnp.float32) / 127.5 - 1.0
    if mode is sl.Mode.TRAIN and params["shift"]:
        images = shifted(images, params["shift"], key)
    logits = model(images)
    predictions = {"class": logits.argmax(-1), "probability": nnx.softmax(logits)}
    if mode is sl.Mode.PREDICT:
        return sl.EstimatorSpec(predictions=predictions)
    loss = optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels)
    return sl.EstimatorSpec(loss=loss, predictions=predictions, metrics={"accuracy": predictions["class"] == labels})


def shifted(images: jax.Array, most: int, key: jax.Array) -> jax.Array:
    """Each image moved by up to ``most`` pixels along both axes, its edge repeated: ``[batch, h, w, channels]``."""
    padded = jnp.pad(images, ((0, 0), (most, most), (most, most), (0, 0)), mode="edge")
    corners = jax.random.randint(key, (images.shape[0], 2), 0, 2 * most + 1)

    def crop(image: jax.Array, corner: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (corner[0], corner[1], 0), images.shape[1:])

    return jax.vmap(crop)(padded, corners)


def make_estimator(
    *,
    depth: int,
    classes: int,
    channels: int = 3,
    width: int = 64,
    small_images: bool = False,
    shift: int = 0,
    batch_size: int,
    eval_batch_size: int | None = None,
    learning_rate: float = 0.1,
    steps: int = 1000,
    precision: str = "float32",
    config: sl.RunConfig | None = None,
) -> sl.Estimator:
    """An Estimator of a ResNet: Nesterov momentum, the learning rate warmed up for 5 % of ``steps``, then a cosine."""
    model = functools.partial(ResNet, depth, classes, channels=channels, width=width, small_images=small_images)
    rate = optax.warmup_cosine_decay_schedule(0.0, learning_rate, max(1, steps // 20), max(2, steps))
    optimizer = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(rate, momentum=0.9, nesterov=True))
    return sl.Estimator(
        model=lambda rngs: model(rngs=rngs),
        model_fn=model_fn,
        optimizer=optimizer,
        train_batch_size=batch_size,
        eval_batch_size=eval_batch_size,
        params={"shift": shift},
        precision=precision,
        config=config,
    )


# --- for the command line: Estimators, and the data that goes with them ----------------------------------------------


def digits(model_dir: str = "runs/digits", target: str = "auto", batch_size: int = 128) -> sl.Estimator:
    """A ResNet-18 of a quarter of the width for the digits."""
    config = sl.RunConfig(model_dir=model_dir, target=target, log_every=20)
    return make_estimator(
        depth=18, classes=10, channels=1, width=16, small_images=True, batch_size=batch_size, steps=300, config=config
    )


def resnet50(batch_size: int = 1024, size: int = 224) -> sl.Estimator:
    """ResNet-50 as trained on ImageNet, in bfloat16; its data are placeholders, so it is for checking."""
    return make_estimator(depth=50, classes=1000, batch_size=batch_size, learning_rate=0.4, precision="bfloat16")


def resnet50_train_input_fn(size: int = 224) -> Any:
    """One blank image of ImageNet's size: a check needs shapes and dtypes, not data."""
    return {"image": np.zeros((1, size, size, 3), np.uint8)}, np.zeros(1, np.int32)


def train_input_fn() -> Any:
    """The digits to train on."""
    return data.digits().train()


def eval_input_fn() -> Any:
    """The digits held out."""
    return data.digits().held_out()


# --- the whole story -------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run the example; returns the exit status."""
    options = _parse(arguments)
    from rich.console import Console

    logging.basicConfig(format="note: %(message)s")
    console = Console(highlight=False)
    began = time.monotonic()
    images = data.digits(options.seed) if options.data is None else data.folder(options.data, options.size)
    run_dir = pathlib.Path(options.model_dir)
    rows: list[tuple[str, str]] = []
    pages: list[pathlib.Path] = []

    if options.check_target:
        _title(
            console, f"Check ResNet-50, 224×224, batch {options.check_batch}, for {options.check_target}, without a TPU"
        )
        page, row = _check(console, options, run_dir)
        pages.append(page)
        rows.append(row)

    _title(
        console,
        f"Train ResNet-{options.depth} on {images.train_count:,} images, evaluate every {options.eval_every} steps",
    )
    config = sl.RunConfig(
        model_dir=run_dir,
        target=options.target,
        seed=options.seed,
        log_every=20,
        checkpoint_every=options.eval_every,
    )
    estimator = make_estimator(
        depth=options.depth,
        classes=len(images.classes),
        channels=images.channels,
        width=options.width,
        small_images=images.size <= 64,
        shift=images.size // 8,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        steps=options.steps,
        precision=options.precision,
        config=config,
    )
    before = estimator.step
    if before:
        console.print(f"going on from step {before} in {run_dir}; remove the folder to begin anew")
    started = time.monotonic()
    estimator.train_and_evaluate(images.train, images.held_out, max_steps=options.steps, eval_every=options.eval_every)
    rows.append(("trained", f"{estimator.step - before} steps in {time.monotonic() - started:.0f} s"))
    pages.append(run_dir / "summary.html")

    _title(console, f"Evaluate on {len(images.held_out_labels)} images that it has not seen")
    metrics = estimator.evaluate(images.held_out)
    console.print("  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    rows.append(("held-out accuracy", f"{metrics['accuracy']:.2%} (loss {metrics['loss']:.4f})"))

    _title(console, "Predict")
    predicted = list(estimator.predict(images.held_out))
    _show_predictions(console, images, predicted)

    _title(console, "Export, load, compare")
    exported = estimator.export(run_dir / "export")
    loaded = sl.load(exported)
    difference = _compare(loaded, images, predicted)
    again = loaded.evaluate(images.held_out)
    console.print(f"{loaded}: accuracy {again['accuracy']:.4f}; largest difference of a probability {difference:.1e}")
    rows.append(("export", f"{exported} (probabilities within {difference:.1e} of the Estimator's)"))

    _summary(console, rows, pages, time.monotonic() - began)
    if difference > 1e-4:
        console.print("the loaded model does not agree with the Estimator", style="red")
        return 1
    if options.expect_accuracy is not None and metrics["accuracy"] < options.expect_accuracy:
        console.print(f"held-out accuracy is below {options.expect_accuracy:.2%}", style="red")
        return 1
    return 0


def _check(console: Any, options: argparse.Namespace, run_dir: pathlib.Path) -> tuple[pathlib.Path, tuple[str, str]]:
    started = time.monotonic()
    with CompileProgress(sys.stdout) as progress:
        report = resnet50(batch_size=options.check_batch).check(
            resnet50_train_input_fn,
            target=options.check_target.split(","),
            programs=("train", "eval", "predict"),
            options=CheckOptions(on_progress=progress, jobs=2),
        )
    console.print(report)
    run_dir.mkdir(parents=True, exist_ok=True)
    page = report.write_html(run_dir / "check.html")
    verdict = "fits" if report.ok else "does not fit or compile"
    return page, ("checked", f"ResNet-50 {verdict} on {options.check_target} ({time.monotonic() - started:.0f} s)")


def _show_predictions(console: Any, images: data.Images, predicted: list[Any]) -> None:
    """The first rows, and some of the wrong ones."""
    from rich.table import Table

    guesses = np.array([int(row["class"]) for row in predicted])
    wrong = np.flatnonzero(guesses != images.held_out_labels)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("image", "predicted", "probability", "label"):
        table.add_column(column, justify="right")
    for index in [*range(min(4, len(predicted))), *(i for i in wrong[:4] if i >= 4)]:
        guess, label = guesses[index], images.held_out_labels[index]
        probability = f"{predicted[index]['probability'][guess]:.3f}"
        style = None if guess == label else "red"
        table.add_row(str(index), images.classes[guess], probability, images.classes[label], style=style)
    console.print(table)
    console.print(f"{len(predicted)} rows, {len(wrong)} wrong")


def _compare(loaded: Any, images: data.Images, predicted: list[Any]) -> float:
    """Largest difference between a probability of the loaded model and of the Estimator, over at most 500 images."""
    count = min(500, len(predicted))
    features = {"image": np.stack([images.held_out_image(index) for index in range(count)])}
    ours = np.stack([row["probability"] for row in predicted[:count]])
    return float(np.abs(ours - loaded.predict(features)["probability"]).max())


def _title(console: Any, text: str) -> None:
    console.print()
    console.rule(f"[bold]{text}", align="left")


def _summary(console: Any, rows: list[tuple[str, str]], pages: list[pathlib.Path], seconds: float) -> None:
    from rich.table import Table

    _title(console, f"Summary ({seconds:.0f} s)")
    table = Table.grid(padding=(0, 2))
    for name, value in (*rows, *(("page", str(page)) for page in pages)):
        table.add_row(f"[bold]{name}", value, end_section=True)
    console.print(table)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A ResNet from nothing to a loaded export.")
    parser.add_argument(
        "--data", metavar="FOLDER", help="images, one subfolder a class (default: scikit-learn's digits)"
    )
    parser.add_argument(
        "--size", type=int, default=64, help="pixels to which images of a folder are resized (%(default)s)"
    )
    parser.add_argument("--depth", type=int, default=18, choices=(18, 34, 50), help="layers (%(default)s)")
    parser.add_argument(
        "--width", type=int, default=16, help="features of the first stage; published: 64 (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=300, help="training steps in all (%(default)s)")
    parser.add_argument("--eval-every", type=int, default=50, metavar="STEPS", help="(%(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, help="over all devices (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="at its peak (%(default)s)")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"), help="(%(default)s)")
    parser.add_argument("--target", default="auto", help="where it runs: cpu, cpu:8, gpu, tpu (%(default)s)")
    parser.add_argument("--model-dir", default="runs/resnet", help="folder of the run (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument(
        "--check-target", default="v5e-8", help="what ResNet-50 is checked for; '' for none (%(default)s)"
    )
    parser.add_argument("--check-batch", type=int, default=1024, help="its global batch size (%(default)s)")
    parser.add_argument("--expect-accuracy", type=float, metavar="SHARE", help="fail below this held-out accuracy")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except sl.SystolicError as error:
        sys.exit(f"error: {error}")
