"""The model: a small perceptron that predicts the time to first token from a row of features. Pure, immutable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.serving.learned.features import DEVICE_SLOTS, NEW_TOKENS, NUMBERS, Rows

Vector = NDArray[np.float32]

SHORT_S = 0.3
"""Errors of a TTFT well below count by their seconds, well above by their share: what is lost by a wrong choice is
seconds, but a tail of minutes must not rule the fit."""

LEAST_S = 1e-4
"""TTFTs below are taken for this: nothing real answers faster."""

HIDDEN = (128, 128, 128)
"""Units of the hidden layers (Lodestar, section 4)."""


def to_target(seconds: Vector) -> Vector:
    """What the perceptron learns of TTFTs: log(SHORT_S + TTFT)."""
    logs: Vector = np.log(np.float32(SHORT_S) + seconds)
    return logs


def to_seconds(target: Vector) -> Vector:
    """Its inverse, at least 0.1 ms."""
    seconds: Vector = np.exp(np.minimum(target, _MOST_LOG)) - np.float32(SHORT_S)
    return np.maximum(seconds, np.float32(LEAST_S))


@dataclass(frozen=True, slots=True, eq=False)
class Scorer:
    """Predicts `to_target` of TTFT with a perceptron of rectified units. A swap of the model is one assignment.

    Attributes:
        weights: of each layer, [inputs, outputs]; the last has one output.
        biases: of each layer, [outputs].
        mean, scale: of each feature in the training data, [WIDTH]: rows are normalised with them. A feature that never
            changed has scale 1.
        low, high: least and greatest value of each feature in the training data, [WIDTH].
        target_mean, target_scale: of what is learnt, `to_target` of the training data.
        token_s: seconds per prompt token that a replica has to compute, for each place in the device's one-hot code,
            [DEVICE_SLOTS]: the median over the training data of TTFT / (tokens in flight + new ones).
        samples: how many it was trained on.
    """

    weights: tuple[Vector, ...]
    biases: tuple[Vector, ...]
    mean: Vector
    scale: Vector
    low: Vector
    high: Vector
    target_mean: float
    target_scale: float
    token_s: Vector
    samples: int

    def predict_s(self, rows: Rows) -> Vector:
        """TTFT of each row in seconds, [N]."""
        hidden = self.hidden(rows)
        outputs = (hidden @ self.weights[-1])[:, 0] + self.biases[-1][0]
        seconds: Vector = to_seconds(outputs * self.target_scale + self.target_mean)
        return seconds

    def hidden(self, rows: Rows) -> Rows:
        """What comes out of the last hidden layer, [N, units]."""
        x = (rows - self.mean) / self.scale
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = x @ weight
            x += bias
            np.maximum(x, 0.0, out=x)
        return x

    def avoidable_s(self, rows: Rows) -> Vector:
        """How long each row's replica computes tokens that another one of its device has cached, seconds, [N]."""
        places = rows[:, len(NUMBERS) :].argmax(axis=1)
        new_tokens = rows[:, NEW_TOKENS]
        least = np.full(DEVICE_SLOTS, np.inf, dtype=np.float32)
        np.minimum.at(least, places, new_tokens)
        seconds: Vector = (new_tokens - least[places]) * self.token_s[places]
        return seconds

    def outside(self, rows: Rows, tolerance: float) -> int | None:
        """The first feature in which any row lies outside the training data's range; None where none does.

        The range is widened on each side by `tolerance` times its width. A feature that never changed has no width.
        """
        slack = (self.high - self.low) * np.float32(tolerance)
        bad = ((rows < self.low - slack) | (rows > self.high + slack)).any(axis=0)
        return int(bad.argmax()) if bad.any() else None


_MOST_LOG = np.float32(12.0)
"""Predictions end at e^12 s, two days: an exponential of a wild guess must stay a number."""
