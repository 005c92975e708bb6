"""Images for the example: scikit-learn's scanned digits, or a folder with one subfolder a class.

Both come as uint8 ``[height, width, channels]`` with an int32 label; a quarter of the bytes of float32 on the way to
the device, where they are scaled as part of the step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

import systolic as sl

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"})
HELD_OUT = 360  # of the 1,797 digits


@dataclasses.dataclass(frozen=True)
class Images:
    """A data set and its held-out part.

    Attributes:
        train: input function of the training images, a new order each epoch.
        held_out: input function of the held-out images, in a fixed order.
        classes: names of the classes; a label is an index into them.
        size: height and width in pixels.
        channels: 1 or 3.
        train_count: number of training images.
        held_out_image: one held-out image by its number.
        held_out_labels: int32 ``[n]``, to compare predictions with.
    """

    train: Callable[..., Any]
    held_out: Callable[..., Any]
    classes: tuple[str, ...]
    size: int
    channels: int
    train_count: int
    held_out_image: Callable[[int], np.ndarray]
    held_out_labels: np.ndarray


def digits(seed: int = 0) -> Images:
    """The 1,797 digits of 8x8 pixels that come with scikit-learn; 360 of them, always the same, are held out."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.round(bunch.images[..., None] * (255 / 16)).astype(np.uint8)
    labels = bunch.target.astype(np.int32)
    order = np.random.default_rng(1797).permutation(len(labels))
    out, kept = order[:HELD_OUT], order[HELD_OUT:]
    return Images(
        train=lambda: sl.data.arrays({"image": images[kept]}, labels[kept], shuffle=seed),
        held_out=lambda: sl.data.arrays({"image": images[out]}, labels[out]),
        classes=tuple(map(str, bunch.target_names)),
        size=8,
        channels=1,
        train_count=len(kept),
        held_out_image=lambda index: images[out[index]],
        held_out_labels=labels[out],
    )


def folder(path: str | pathlib.Path, size: int, *, held_out: float = 0.2, seed: int = 0) -> Images:
    """A folder of images, ``path/CLASS/*.jpg`` and so on; decoded and resized to ``size`` as they are needed.

    The split depends on the names of the files alone: it is the same from run to run, and a new image moves few others.

    Args:
        path: the folder; each subfolder is a class.
        size: height and width to which the middle square of each image is resized.
        held_out: share of each class that is held out, between 0 and 1.
        seed: of the training order.

    Raises:
        sl.InputError: there is no such folder, no two classes in it, or a class has fewer than two images.
    """
    root = pathlib.Path(path).expanduser()
    if not root.is_dir():
        raise sl.InputError(f"--data: {root} is not a folder; wanted one with a subfolder of images for each class")
    if not 0 < held_out < 1:
        raise sl.InputError(f"--held-out: saw {held_out}, wanted a share between 0 and 1, such as 0.2")
    classes = sorted(child.name for child in root.iterdir() if child.is_dir() and not child.name.startswith("."))
    if len(classes) < 2:
        raise sl.InputError(
            f"--data: {root} has {len(classes)} subfolders; wanted one for each of at least two classes"
        )
    train: list[tuple[pathlib.Path, int]] = []
    out: list[tuple[pathlib.Path, int]] = []
    for label, name in enumerate(classes):
        files = [f for f in (root / name).rglob("*") if f.suffix.lower() in EXTENSIONS]
        if len(files) < 2:
            raise sl.InputError(
                f"--data: {root / name} has {len(files)} images; wanted at least two, one to train on and one to hold out "
                f"(files ending in {', '.join(sorted(EXTENSIONS))})"
            )
        files.sort(key=lambda file: hashlib.sha256(file.relative_to(root).as_posix().encode()).digest())
        count = min(len(files) - 1, max(1, round(held_out * len(files))))
        out += [(file, label) for file in files[:count]]
        train += [(file, label) for file in files[count:]]

    def train_fn(epoch: int) -> ImageFiles:
        order = np.random.default_rng((seed, epoch)).permutation(len(train))
        return ImageFiles([train[i] for i in order], size)

    return Images(
        train=train_fn,
        held_out=lambda: ImageFiles(out, size),
        classes=tuple(classes),
        size=size,
        channels=3,
        train_count=len(train),
        held_out_image=lambda index: decode(out[index][0], size),
        held_out_labels=np.array([label for _, label in out], np.int32),
    )


class ImageFiles:
    """Examples by number, each decoded when asked for; a resumed run goes on at its image without decoding those before."""

    def __init__(self, files: list[tuple[pathlib.Path, int]], size: int) -> None:
        self._files, self._size = files, size

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], np.int32]:
        file, label = self._files[index]
        return {"image": decode(file, self._size)}, np.int32(label)


def decode(file: pathlib.Path, size: int) -> np.ndarray:
    """The middle square of an image file at ``size`` pixels: uint8 ``[size, size, 3]``.

    Raises:
        sl.InputError: the file is not an image that Pillow can read.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as image:
            image.draft("RGB", (size, size))  # a JPEG is decoded at the smallest scale that is large enough
            return np.asarray(ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR))
    except OSError as error:
        raise sl.InputError(f"--data: {file} cannot be read as an image ({error}); remove or repair it") from error
