"""ResNet-18, -34 and -50 in Flax NNX.

He et al., "Deep Residual Learning for Image Recognition", 2015, in the form known as v1.5: a bottleneck strides in its
3x3 convolution, not in the first 1x1 (Goyal et al., "Accurate, Large Minibatch SGD", 2017, from which also the last
scale of each block starts at zero: every block begins as the identity).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx

STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
"""Blocks in each of the four stages, by depth."""

_Conv = functools.partial(
    nnx.Conv, use_bias=False, kernel_init=nnx.initializers.variance_scaling(2.0, "fan_out", "truncated_normal")
)
_Norm = functools.partial(nnx.BatchNorm, momentum=0.9, epsilon=1e-5)


class BasicBlock(nnx.Module):
    """Two 3x3 convolutions: ``[batch, h, w, inputs]`` to ``[batch, h / stride, w / stride, width]``."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, *, rngs: nnx.Rngs):
        self.conv1 = _Conv(inputs, width, (3, 3), strides=stride, padding=1, rngs=rngs)
        self.norm1 = _Norm(width, rngs=rngs)
        self.conv2 = _Conv(width, width, (3, 3), padding=1, rngs=rngs)
        self.norm2 = _Norm(width, scale_init=nnx.initializers.zeros, rngs=rngs)
        self.shortcut = _shortcut(inputs, width, stride, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class Bottleneck(nnx.Module):
    """1x1, 3x3 and 1x1 convolutions: ``[batch, h, w, inputs]`` to ``[batch, h / stride, w / stride, 4 width]``."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, *, rngs: nnx.Rngs):
        outputs = width * self.expansion
        self.conv1 = _Conv(inputs, width, (1, 1), rngs=rngs)
        self.norm1 = _Norm(width, rngs=rngs)
        self.conv2 = _Conv(width, width, (3, 3), strides=stride, padding=1, rngs=rngs)
        self.norm2 = _Norm(width, rngs=rngs)
        self.conv3 = _Conv(width, outputs, (1, 1), rngs=rngs)
        self.norm3 = _Norm(outputs, scale_init=nnx.initializers.zeros, rngs=rngs)
        self.shortcut = _shortcut(inputs, outputs, stride, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norm1(self.conv1(x)))
        y = nnx.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nnx.Module):
    """Images ``[batch, height, width, channels]`` to logits ``[batch, classes]``, in the dtype of the parameters.

    Args:
        depth: 18, 34 or 50.
        classes: number of classes.
        channels: of the images.
        width: features of the first stage; 64 is the published network, less is smaller and faster.
        small_images: for images of 8 to 64 pixels, a 3x3 stem that keeps their size in the place of the 7x7 stem and
            the pool, which divide it by four.
    """

    def __init__(
        self,
        depth: int,
        classes: int,
        *,
        channels: int = 3,
        width: int = 64,
        small_images: bool = False,
        rngs: nnx.Rngs,
    ):
        if depth not in STAGES:
            raise ValueError(f"ResNet(depth): saw {depth}, wanted one of {', '.join(map(str, STAGES))}")
        block = Bottleneck if depth >= 50 else BasicBlock
        if small_images:
            self.stem = _Conv(channels, width, (3, 3), padding=1, rngs=rngs)
        else:
            self.stem = _Conv(channels, width, (7, 7), strides=2, padding=3, rngs=rngs)
        self.stem_norm = _Norm(width, rngs=rngs)
        self.pools = not small_images
        blocks, inputs = [], width
        for stage, count in enumerate(STAGES[depth]):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(inputs, width << stage, stride, rngs=rngs))
                inputs = (width << stage) * block.expansion
        self.blocks = nnx.List(blocks)
        self.head = nnx.Linear(inputs, classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = images.astype(self.stem.kernel.get_value().dtype)
        x = nnx.relu(self.stem_norm(self.stem(x)))
        if self.pools:
            x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(x, axis=(1, 2)))


class _Shortcut(nnx.Module):
    """A 1x1 convolution that brings a block's input to the shape of its output."""

    def __init__(self, inputs: int, outputs: int, stride: int, rngs: nnx.Rngs):
        self.conv = _Conv(inputs, outputs, (1, 1), strides=stride, rngs=rngs)
        self.norm = _Norm(outputs, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


def _shortcut(inputs: int, outputs: int, stride: int, rngs: nnx.Rngs) -> _Shortcut | None:
    return None if inputs == outputs and stride == 1 else _Shortcut(inputs, outputs, stride, rngs)
