"""Watches whether the learned policy earns its keep, and says when to fall back and when to trust again. Pure.

A random share of the requests is routed by the heuristic: the control arm. Who is in it is drawn after everything else
is known, so both arms have the same requests and the same fleet, and a difference is the choice's own. What this
cannot see is what a choice does to later requests, as these are in both arms.

TTFT has a heavy tail, and the control arm is small. Each TTFT is first freed of what the request's own length explains:
a line over log(1 + input tokens), fitted to both arms (a control variate; Deng et al., WSDM 2013). Two one-sided
z-tests follow, with the variance pooled over both arms: the small arm, which often has seen no outlier yet, must not
look more certain than it is.

    seconds     mean TTFT: what the operator pays, moved by the tail
    logs        mean log TTFT: the typical request, which needs far fewer requests to show

Learned is worse if the seconds say so, or the logs do and the mean is above too. It is trusted again when it has had as
many requests as an arm needs, its predictions are right, its typical TTFT is above the heuristic's by no more than the
margin, and its mean by no more than one standard error.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_LEAST_S = 1e-4


class Arm(Enum):
    """Who chooses for a request."""

    LEARNED = "learned"
    HEURISTIC = "heuristic"


@dataclass(frozen=True, slots=True)
class Move:
    """The guard has changed its mind.

    Attributes:
        event: as the journal calls it.
        what: in a sentence.
        samples: requests that it rests on.
        learned_s, heuristic_s: mean TTFT of both arms in the window, seconds.
    """

    event: Literal["fall-back", "trust"]
    what: str
    samples: int
    learned_s: float
    heuristic_s: float


@dataclass(frozen=True, slots=True)
class GuardRules:
    """When the guard moves.

    Attributes:
        control_share: share of requests that the heuristic chooses for while learned is trusted (0 to 1).
        probe_share: share that learned chooses for while it is not.
        window: newest requests that count. At the shares above the smaller arm has 150 of 3000.
        least: requests that an arm needs before anything is said.
        confidence_z: standard errors that make a difference (3: one false alarm in 740 looks, were they independent).
        margin: what learned may typically be worse by when it is trusted again (1).
        limit_s: longer TTFTs count as this long; so do requests that failed. Seconds.
        error_window, error_factor: of the newest `error_window` predictions, the median may be wrong by this factor,
            and by its root when learned is trusted again.
        look_every: requests between two looks: a look costs about 0.2 ms.
    """

    control_share: float = 0.05
    probe_share: float = 0.1
    window: int = 3000
    least: int = 30
    confidence_z: float = 3.0
    margin: float = 0.05
    limit_s: float = 60.0
    error_window: int = 200
    error_factor: float = 3.0
    look_every: int = 20


class Guard:
    """Compares both arms over a sliding window.

    Attributes:
        trusted: whether learned chooses for all but the control arm.
    """

    def __init__(self, rules: GuardRules) -> None:
        self._rules = rules
        self._seen = np.zeros((rules.window, 3))
        """Ring of: whether learned chose (1), TTFT in seconds, log(1 + input tokens)."""
        self._count = 0
        """Requests that went into it since it was last emptied."""
        self._errors: deque[float] = deque(maxlen=rules.error_window)
        self._since = 0
        self.trusted = True

    def arm(self, draw: float) -> Arm:
        """Who chooses, given a uniform random number in [0, 1)."""
        if self.trusted:
            return Arm.HEURISTIC if draw < self._rules.control_share else Arm.LEARNED
        return Arm.LEARNED if draw < self._rules.probe_share else Arm.HEURISTIC

    def model_changed(self) -> None:
        """Predictions of another model count from here on."""
        self._errors.clear()

    def measured(self, arm: Arm, ttft_s: float, predicted_s: float, input_tokens: int) -> Move | None:
        """What became of a request, and of the prediction for the replica that it went to. The move that follows.

        `ttft_s` of a request that failed before its first token is infinite; it says nothing about the prediction.
        """
        limit_s = self._rules.limit_s
        if ttft_s != float("inf"):
            self._errors.append(abs(math.log(max(ttft_s, _LEAST_S) / max(predicted_s, _LEAST_S))))
        seconds = min(max(ttft_s, _LEAST_S), limit_s)
        self._seen[self._count % len(self._seen)] = (arm is Arm.LEARNED, seconds, math.log1p(input_tokens))
        self._count += 1
        self._since += 1
        if self._since < self._rules.look_every:
            return None
        self._since = 0
        return self._look()

    def _look(self) -> Move | None:
        wrong = self._wrong_by()
        compared = _compared(self._seen[: self._count])
        least = self._rules.least
        enough = compared is not None and min(compared.learned, compared.heuristic) >= least
        if self.trusted:
            if wrong is not None and wrong > self._rules.error_factor:
                return self._turn(compared, f"predictions are wrong by a factor of {wrong:.2g} (median)")
            if compared is not None and enough and compared.worse(self._rules.confidence_z):
                return self._turn(compared, f"learned is worse than the heuristic: {compared}")
            return None
        if wrong is None or wrong > self._rules.error_factor**0.5:
            return None
        if compared is not None and enough and compared.level(self._rules.margin):
            return self._turn(compared, f"learned is no worse than the heuristic: {compared}")
        return None

    def _wrong_by(self) -> float | None:
        if len(self._errors) < self._rules.error_window // 4:
            return None
        return float(np.exp(np.median(self._errors)))

    def _turn(self, compared: Comparison | None, what: str) -> Move:
        event: Literal["fall-back", "trust"] = "fall-back" if self.trusted else "trust"
        self.trusted = not self.trusted
        samples = min(self._count, len(self._seen))
        self._count = 0
        self._errors.clear()
        nothing = float("nan")
        return Move(
            event,
            what,
            samples,
            compared.learned_s if compared else nothing,
            compared.heuristic_s if compared else nothing,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both arms beside each other, freed of what the requests' lengths explain.

    Attributes:
        learned, heuristic: requests.
        learned_s, heuristic_s: mean TTFT, seconds, adjusted.
        seconds_z, logs_z: learned above the heuristic, in standard errors.
        logs: difference of mean log TTFT.
    """

    learned: int
    heuristic: int
    learned_s: float
    heuristic_s: float
    seconds_z: float
    logs_z: float
    logs: float

    def worse(self, z: float) -> bool:
        """Whether learned is, by so many standard errors."""
        return self.seconds_z > z or (self.logs_z > z and self.learned_s > self.heuristic_s)

    def level(self, margin: float) -> bool:
        """Whether learned is typically not above by more than the margin, and its mean not visibly."""
        return self.logs <= math.log1p(margin) and self.seconds_z <= 1

    def __str__(self) -> str:
        return (
            f"mean TTFT {self.learned_s:.3g} s against {self.heuristic_s:.3g} s, typical {np.exp(self.logs):.3g} times"
            f" (z {self.seconds_z:.1f} and {self.logs_z:.1f}; {self.learned} and {self.heuristic} requests)"
        )


def _compared(table: NDArray[np.float64]) -> Comparison | None:
    learned = table[:, 0] > 0.5
    count, others = int(learned.sum()), int((~learned).sum())
    if min(count, others) < 2:
        return None
    seconds = _adjusted(table[:, 1], table[:, 2])
    logs = _adjusted(np.log(table[:, 1]), table[:, 2])
    return Comparison(
        learned=count,
        heuristic=others,
        learned_s=float(seconds[learned].mean()),
        heuristic_s=float(seconds[~learned].mean()),
        seconds_z=_z(seconds, learned),
        logs_z=_z(logs, learned),
        logs=float(logs[learned].mean() - logs[~learned].mean()),
    )


def _adjusted(values: NDArray[np.float64], explains: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = explains - explains.mean()
    spread = float(centred @ centred)
    if spread < 1e-9 * len(values):  # all of one length, but for rounding
        return values
    freed: NDArray[np.float64] = values - (float(centred @ values) / spread) * centred
    return freed


def _z(values: NDArray[np.float64], learned: NDArray[np.bool_]) -> float:
    ours, theirs = values[learned], values[~learned]
    squares = float(np.square(ours - ours.mean()).sum() + np.square(theirs - theirs.mean()).sum())
    error = np.sqrt(squares / (len(values) - 2) * (1 / len(ours) + 1 / len(theirs))) if len(values) > 2 else np.inf
    difference = float(ours.mean() - theirs.mean())
    return difference / float(error) if error > 0 else float(np.sign(difference)) * np.inf if difference else 0.0
