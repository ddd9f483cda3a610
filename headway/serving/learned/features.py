"""What the model sees of a request and a replica: one row of numbers per candidate. Pure.

After Lodestar (arXiv 2606.00946): no name of a replica is among them, so that one model serves any number of replicas
and what is learnt on one holds for all of its kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headway.serving.policy import Candidate
from headway.serving.request import Request

Rows = NDArray[np.float32]
"""Features, [candidates or samples, WIDTH]."""

NUMBERS = (
    "input tokens",
    "new tokens",
    "hit share",
    "running",
    "waiting",
    "prefill tokens in flight",
    "decode tokens in flight",
    "prefill requests",
    "decode requests",
    "kv usage",
    "report missing",
    "log of tokens ahead",
)
"""The features that are numbers, in their order. Tokens and requests are counts, shares are 0 to 1. The tokens ahead
of the first one are those in flight and the new ones; the model learns a logarithm, and so gets theirs."""

NEW_TOKENS = NUMBERS.index("new tokens")
PREFILL_TOKENS = NUMBERS.index("prefill tokens in flight")

DEVICE_SLOTS = 8
"""Places of the one-hot code of the device. The first is for all that find no place of their own."""

WIDTH = len(NUMBERS) + DEVICE_SLOTS


class Features:
    """Makes rows. Remembers which device has which place in the one-hot code, in the order in which they were seen.

    Args:
        devices: the kinds of device that have a place already, at most DEVICE_SLOTS - 1.
    """

    def __init__(self, devices: Sequence[str] = ()) -> None:
        self._slots = {device: place for place, device in enumerate(devices[: DEVICE_SLOTS - 1], start=1)}

    @property
    def devices(self) -> tuple[str, ...]:
        """Those with a place of their own, in order of place."""
        return tuple(self._slots)

    def rows(self, request: Request, candidates: Sequence[Candidate]) -> Rows:
        """One row per candidate, [N, WIDTH]."""
        numbers: list[tuple[float, ...]] = []
        places: list[int] = []
        tokens = request.input_tokens
        for candidate in candidates:
            state = candidate.state
            report = state.report
            hit = min(candidate.hit_tokens, tokens)
            numbers.append(
                (
                    tokens,
                    tokens - hit,
                    hit / tokens if tokens else 0.0,
                    state.decode_requests if report is None else report.running,
                    state.prefill_requests if report is None else report.waiting,
                    state.prefill_tokens,
                    state.decode_tokens,
                    state.prefill_requests,
                    state.decode_requests,
                    0.0 if report is None or report.kv_usage is None else report.kv_usage,
                    1.0 if report is None else 0.0,
                    math.log1p(state.prefill_tokens + tokens - hit),
                )
            )
            places.append(self._place(state.spec.device))
        rows = np.zeros((len(numbers), WIDTH), dtype=np.float32)
        rows[:, : len(NUMBERS)] = numbers
        rows[np.arange(len(numbers)), np.asarray(places) + len(NUMBERS)] = 1.0
        return rows

    def _place(self, device: str) -> int:
        place = self._slots.get(device)
        if place is None:
            place = len(self._slots) + 1
            if place >= DEVICE_SLOTS:
                return 0
            self._slots[device] = place
        return place

    def name(self, column: int) -> str:
        """Of a column, for people."""
        if column < len(NUMBERS):
            return NUMBERS[column]
        place = column - len(NUMBERS)
        return f"device {self.devices[place - 1]!r}" if 0 < place <= len(self._slots) else "another device"
