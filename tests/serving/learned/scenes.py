"""Candidates, requests and trainers for the learned policy's tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from headway.serving.learned.features import DEVICE_SLOTS, NUMBERS, WIDTH
from headway.serving.learned.samples import Samples
from headway.serving.learned.scorer import HIDDEN, SHORT_S, Scorer
from headway.serving.learned.trainer import Job, Result
from headway.serving.policies.rule import Rule
from headway.serving.policy import Candidate, Choice
from headway.serving.replica import EngineReport, ReplicaSpec, ReplicaState
from headway.serving.request import Request


class First(Rule):
    """Chooses the first candidate."""

    name = "first"

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        return Choice(candidates[0].name, "the first", self.name)


class Given:
    """A trainer whose results the test hands in."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.next: Result | str | None = None
        self.busy = False

    def start(self, job: Job, now_s: float) -> None:
        assert not self.busy
        self.jobs.append(job)
        self.busy = True

    def poll(self, now_s: float) -> Result | str | None:
        result, self.next = self.next, None
        if result is not None:
            self.busy = False
        return result


def candidate(name: str, *, waiting: int = 0, hit: int = 0, kv: float = 0.1, device: str = "a30") -> Candidate:
    report = EngineReport(running=1, waiting=waiting, kv_usage=kv)
    return Candidate(ReplicaState(ReplicaSpec(name, device=device), report=report, report_age_s=0.05), hit)


def asked(id_: str = "q", tokens: int = 1000, blocks: tuple[int, ...] = ()) -> Request:
    return Request(id_, "m", tokens, blocks)


def waiting_model(logs_each: float = 0.5, *, samples: int = 100) -> Scorer:
    """Predicts 0.4 s * e^(logs_each * waiting) - 0.3 s, and takes everything up to a million for in range."""
    waiting = NUMBERS.index("waiting")
    sizes = (WIDTH, *HIDDEN, 1)
    weights = [np.zeros((before, after), dtype=np.float32) for before, after in itertools.pairwise(sizes)]
    weights[0][waiting, 0] = logs_each
    for weight in weights[1:]:
        weight[0, 0] = 1.0
    return Scorer(
        weights=tuple(weights),
        biases=tuple(np.zeros(after, dtype=np.float32) for after in sizes[1:]),
        mean=np.zeros(WIDTH, dtype=np.float32),
        scale=np.ones(WIDTH, dtype=np.float32),
        low=np.zeros(WIDTH, dtype=np.float32),
        high=np.full(WIDTH, 1e6, dtype=np.float32),
        target_mean=float(np.log(SHORT_S + 0.1)),
        target_scale=1.0,
        token_s=np.full(DEVICE_SLOTS, 2e-4, dtype=np.float32),
        samples=samples,
    )


def told(scorer: Scorer) -> Result:
    """As the result of a round."""
    return Result(scorer, Samples.none())
