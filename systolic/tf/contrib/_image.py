"""``tf.contrib.image``: turning, moving and warping images in an input function."""

from __future__ import annotations

from typing import Any

from systolic.tf._tensorflow import tensorflow
from systolic.tf.contrib._table import Table, each

_SCIPY = "use tf.image, or SciPy in the input function"

TABLE = Table(
    served=each("systolic.tf.contrib._image:", "rotate transform translate angles_to_projective_transforms")
    | each("systolic.tf.contrib._image:", "translations_to_projective_transforms"),
    instead={
        "random_hsv_in_yiq": "use tf.image.random_hue and tf.image.random_saturation",
        "adjust_hsv_in_yiq": "use tf.image.adjust_hue and tf.image.adjust_saturation",
        "compose_transforms": "multiply the matrices with tf.matmul",
    },
    private={"python.ops": "", "python.ops.image_ops": ""},
    otherwise=_SCIPY,
)


def transform(
    images: Any, transforms: Any, interpolation: str = "NEAREST", output_shape: Any = None, name: str | None = None
) -> Any:
    """Warp images; what comes from outside of them is 0.

    Args:
        images: [height, width], [height, width, channels] or [batch, height, width, channels].
        transforms: [8] or [batch, 8]: the pixel (x, y) of the output is that of the input at
            ((a0 x + a1 y + a2) / k, (b0 x + b1 y + b2) / k), with k = c0 x + c1 y + 1, for [a0, a1, a2, b0, b1, b2, c0, c1].
        interpolation: ``"NEAREST"`` or ``"BILINEAR"``.
        output_shape: height and width, by default those of the images.

    Returns:
        Images of the same rank and dtype.

    Raises:
        ValueError: images of another rank.
    """
    tf = tensorflow().compat.v1
    with tf.name_scope(name, "transform"):
        images = tf.convert_to_tensor(images)
        batch = _batch(images)
        rows = tf.cast(tf.convert_to_tensor(transforms, tf.float32), tf.float32)
        rows = tf.reshape(rows, [-1, 8]) if len(rows.shape) == 1 else rows
        size = tf.shape(batch)[1:3] if output_shape is None else tf.cast(output_shape, tf.int32)
        warped = tf.raw_ops.ImageProjectiveTransformV2(
            images=batch, transforms=rows, output_shape=size, interpolation=interpolation.upper()
        )
        warped.set_shape(
            [batch.shape[0], *(batch.shape[1:3] if output_shape is None else [None, None]), batch.shape[3]]
        )
        return {2: lambda: warped[0, :, :, 0], 3: lambda: warped[0], 4: lambda: warped}[len(images.shape)]()


def rotate(images: Any, angles: Any, interpolation: str = "NEAREST", name: str | None = None) -> Any:
    """Turn images counterclockwise about their centres by ``angles``, in radians: one, or [batch]. Shapes as of :func:`transform`."""
    tf = tensorflow().compat.v1
    with tf.name_scope(name, "rotate"):
        images = tf.convert_to_tensor(images)
        size = tf.cast(tf.shape(_batch(images)), tf.float32)
        return transform(images, angles_to_projective_transforms(angles, size[1], size[2]), interpolation)


def translate(images: Any, translations: Any, interpolation: str = "NEAREST", name: str | None = None) -> Any:
    """Move images by ``translations``: [2] or [batch, 2], to the right and down. Shapes as of :func:`transform`."""
    tf = tensorflow().compat.v1
    with tf.name_scope(name, "translate"):
        return transform(images, translations_to_projective_transforms(translations), interpolation)


def angles_to_projective_transforms(angles: Any, image_height: Any, image_width: Any, name: str | None = None) -> Any:
    """The [n, 8] transforms that turn about the centre of an image of that size."""
    tf = tensorflow().compat.v1
    with tf.name_scope(name, "angles_to_projective_transforms"):
        angles = tf.reshape(tf.convert_to_tensor(angles, tf.float32), [-1])
        x, y = (tf.cast(image_width, tf.float32) - 1) / 2, (tf.cast(image_height, tf.float32) - 1) / 2
        cosine, sine, none = tf.cos(angles), tf.sin(angles), tf.zeros_like(angles)
        # The centre (x, y) is to stay where it is.
        rows = [cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y, none, none]
        return tf.stack(rows, axis=1)


def translations_to_projective_transforms(translations: Any, name: str | None = None) -> Any:
    """The [n, 8] transforms that move an image to the right and down."""
    tf = tensorflow().compat.v1
    with tf.name_scope(name, "translations_to_projective_transforms"):
        moves = tf.reshape(tf.convert_to_tensor(translations, tf.float32), [-1, 2])
        none = tf.zeros_like(moves[:, 0])
        rows = [none + 1, none, -moves[:, 0], none, none + 1, -moves[:, 1], none, none]
        return tf.stack(rows, axis=1)


def _batch(images: Any) -> Any:
    """The images with all four axes."""
    rank = images.shape.ndims
    if rank not in (2, 3, 4):
        raise ValueError(f"transform(images): saw the shape {images.shape}, wanted 2, 3 or 4 axes; use set_shape")
    return images[None, :, :, None] if rank == 2 else images[None] if rank == 3 else images
