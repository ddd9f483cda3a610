"""Fits a `Scorer` to samples: Adam on mean squared error, by hand in numpy. Pure.

The loss is that of the action taken only: of each request one replica's TTFT is known. Lodestar's constants; what
differs is said at `Fit`. A round over 10,000 samples is 800 steps of about 60 million floating-point operations each.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.serving.learned.features import DEVICE_SLOTS, NEW_TOKENS, NUMBERS, PREFILL_TOKENS, WIDTH
from headway.serving.learned.samples import Samples
from headway.serving.learned.scorer import HIDDEN, LEAST_S, Scorer, to_target

_Array = NDArray[Any]
"""float32; float64 where a gradient is checked."""


_LEAST_TOKENS, _LEAST_SAMPLES = 256, 20
"""Work and samples from which on a device's speed can be told: below, other things than arithmetic take the time."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model is fitted.

    Attributes:
        epochs, batch: passes over the samples, and samples per step (20 and 256: Lodestar).
        rate: Adam's learning rate of the first epoch, after which it is multiplied by `decay` (Lodestar: 3e-4).
        decay: (0.95: Lodestar).
        weight_decay: added to the gradient as this times the weights (1e-5: Lodestar).
        clip: longest gradient, Euclidean (1: Lodestar).
        dropout: share of hidden units left out in training.
        limit_s: longer TTFTs count as this long. Lodestar drops those above 15 s, and so never learns what a bad choice
            costs.
    """

    epochs: int = 20
    batch: int = 256
    rate: float = 1e-3
    decay: float = 0.9
    weight_decay: float = 1e-5
    clip: float = 1.0
    dropout: float = 0.0
    limit_s: float = 60.0


@dataclass(slots=True)
class Network:
    """Weights that are being fitted, and room for one step. All weights lie in one vector, so that Adam is few passes.

    Attributes:
        flat: all weights and biases.
        weights, biases: views of it, as in `Scorer`.
        gradient: as `flat`; what `step_gradient` found.
    """

    flat: _Array
    weights: list[_Array]
    biases: list[_Array]
    gradient: _Array
    weight_gradients: list[_Array]
    bias_gradients: list[_Array]

    @staticmethod
    def fresh(rng: np.random.Generator, sizes: Sequence[int], dtype: type = np.float32) -> Network:
        """Random weights after He (2015): variance 2 / inputs."""
        shapes = list(itertools.pairwise(sizes))
        total = sum((inputs + 1) * outputs for inputs, outputs in shapes)
        flat: _Array = np.zeros(total, dtype=dtype)
        gradient: _Array = np.zeros(total, dtype=dtype)
        network = Network(flat, *_views(flat, shapes), gradient, *_views(gradient, shapes))
        for weight in network.weights:
            weight[...] = rng.standard_normal(weight.shape) * np.sqrt(2.0 / weight.shape[0])
        network.weights[-1][...] *= 0.1
        return network

    def step_gradient(
        self, x: _Array, y: _Array, *, dropout: float = 0.0, rng: np.random.Generator | None = None
    ) -> float:
        """Mean squared error of inputs x [N, inputs] against y [N]; its gradient goes to `gradient`."""
        inputs, masks = [x], []
        last = len(self.weights) - 1
        for layer in range(last):
            h = inputs[-1] @ self.weights[layer]
            h += self.biases[layer]
            mask = (h > 0).astype(h.dtype)
            if dropout and rng is not None:
                mask *= (rng.random(h.shape, dtype=np.float32) >= dropout) / (1 - dropout)
            h *= mask
            inputs.append(h)
            masks.append(mask)
        error = (inputs[-1] @ self.weights[last])[:, 0] + self.biases[last][0] - y
        back = (error * (2.0 / len(y)))[:, None].astype(x.dtype, copy=False)
        for layer in range(last, -1, -1):
            np.matmul(inputs[layer].T, back, out=self.weight_gradients[layer])
            np.sum(back, axis=0, out=self.bias_gradients[layer])
            if layer:
                back = back @ self.weights[layer].T
                back *= masks[layer - 1]
        return float(np.mean(np.square(error)))


def _views(flat: _Array, shapes: Sequence[tuple[int, int]]) -> tuple[list[_Array], list[_Array]]:
    weights, biases, at = [], [], 0
    for inputs, outputs in shapes:
        weights.append(flat[at : at + inputs * outputs].reshape(inputs, outputs))
        at += inputs * outputs
        biases.append(flat[at : at + outputs])
        at += outputs
    return weights, biases


class Adam:
    """Adam (Kingma and Ba, 2015) on one vector, in place."""

    def __init__(self, size: int) -> None:
        self._first = np.zeros(size, dtype=np.float32)
        self._second = np.zeros(size, dtype=np.float32)
        self._room = np.zeros(size, dtype=np.float32)
        self._steps = 0

    def step(self, flat: _Array, gradient: _Array, rate: float) -> None:
        """Move `flat` against `gradient`."""
        self._steps += 1
        first, second, room = self._first, self._second, self._room
        first *= 0.9
        np.multiply(gradient, 0.1, out=room)
        first += room
        second *= 0.999
        np.square(gradient, out=room)
        room *= 0.001
        second += room
        np.sqrt(second, out=room)
        room *= 1 / np.sqrt(1 - 0.999**self._steps).astype(np.float32)
        room += 1e-8
        np.divide(first, room, out=room)
        room *= rate / (1 - 0.9**self._steps)
        flat -= room


def fit(samples: Samples, how: Fit, *, seed: int) -> Scorer:
    """A model of `samples` (at least one), from random weights."""
    rng = np.random.default_rng(seed)
    low, high = samples.rows.min(axis=0), samples.rows.max(axis=0)
    mean, scale = samples.rows.mean(axis=0), samples.rows.std(axis=0)
    scale = np.where(scale > 1e-6, scale, 1.0).astype(np.float32)
    targets = to_target(np.clip(samples.ttft_s, LEAST_S, how.limit_s))
    target_mean, target_scale = float(targets.mean()), float(max(targets.std(), 1e-3))
    x = ((samples.rows - mean) / scale).astype(np.float32)
    y = ((targets - target_mean) / target_scale).astype(np.float32)
    network = Network.fresh(rng, (WIDTH, *HIDDEN, 1))
    _descend(network, x, y, how, rng)
    return Scorer(
        weights=tuple(weight.copy() for weight in network.weights),
        biases=tuple(bias.copy() for bias in network.biases),
        mean=mean,
        scale=scale,
        low=low,
        high=high,
        target_mean=target_mean,
        target_scale=target_scale,
        token_s=_token_s(samples),
        samples=len(samples),
    )


def _token_s(samples: Samples) -> NDArray[np.float32]:
    """As `Scorer.token_s`. A device of which nothing is known is taken for the median of all."""
    tokens = samples.rows[:, NEW_TOKENS] + samples.rows[:, PREFILL_TOKENS]
    each = samples.ttft_s / np.maximum(tokens, 1.0)
    large = tokens >= _LEAST_TOKENS
    found: NDArray[np.float32] = np.full(DEVICE_SLOTS, np.median(each[large]) if large.any() else 0.0, dtype=np.float32)
    for place in range(DEVICE_SLOTS):
        those = large & (samples.rows[:, len(NUMBERS) + place] > 0)
        if those.sum() >= _LEAST_SAMPLES:
            found[place] = np.median(each[those])
    return found


def _descend(network: Network, x: _Array, y: _Array, how: Fit, rng: np.random.Generator) -> None:
    adam, rate = Adam(len(network.flat)), how.rate
    for _ in range(how.epochs):
        order = rng.permutation(len(y))
        for begin in range(0, len(order), how.batch):
            part = order[begin : begin + how.batch]
            network.step_gradient(x[part], y[part], dropout=how.dropout, rng=rng)
            gradient = network.gradient
            gradient += how.weight_decay * network.flat
            length = float(np.sqrt(np.dot(gradient, gradient)))
            if length > how.clip:
                gradient *= how.clip / length
            adam.step(network.flat, gradient, rate)
        rate *= how.decay
