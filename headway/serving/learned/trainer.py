"""A round of training as a job that something carries out, beside the routing. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from headway.serving.learned.pools import pick
from headway.serving.learned.samples import Samples
from headway.serving.learned.scorer import Scorer
from headway.serving.learned.training import Fit, fit


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What to learn from.

    Attributes:
        fresh, replay: the pools F and R.
        left: what has left F since the last round.
        keep: how many of those may enter R.
        previous: the model so far, which the coreset is picked by; None at the first round, when nothing is picked.
        devices: the features' devices, in order of place (`features.Features.devices`): saved with the model.
        how: how the model is fitted.
        seed: of the weights and of the order of samples.
    """

    fresh: Samples
    replay: Samples
    left: Samples
    keep: int
    previous: Scorer | None
    devices: tuple[str, ...]
    seed: int
    how: Fit = field(default_factory=Fit)


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What came of a job.

    Attributes:
        scorer: the new model.
        picked: those of `Job.left` that enter R.
        note: something else that went wrong, in a line.
    """

    scorer: Scorer
    picked: Samples
    note: str = ""


def carry_out(job: Job) -> Result:
    """Pick from what left F, then fit to F, R and what was picked. 0.5 s for 10,000 samples on one core."""
    picked = Samples.none()
    if job.previous is not None and len(job.left):
        picked = job.left[pick(job.left, job.keep, job.previous)]
    scorer = fit(Samples.joined(job.fresh, job.replay, picked), job.how, seed=job.seed)
    return Result(scorer, picked)


class Trainer(Protocol):
    """Carries out one job at a time, never on the caller's time."""

    def start(self, job: Job, now_s: float) -> None:
        """Begin. Never blocks. Only called when `busy` is False."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a job has begun whose end was not yet told by `poll`."""
        ...

    def poll(self, now_s: float) -> Result | str | None:
        """The result of the job that began, once; in words what went wrong with it; None while it lasts."""
        ...


class InlineTrainer:
    """For the simulated clock: carries the job out at once, and hands the result out `delay_s` later.

    Args:
        delay_s: simulated seconds that a round takes.
    """

    def __init__(self, delay_s: float = 2.0) -> None:
        self._delay_s = delay_s
        self._result: Result | None = None
        self._due_s = 0.0

    def start(self, job: Job, now_s: float) -> None:
        """Carry it out."""
        self._result, self._due_s = carry_out(job), now_s + self._delay_s

    @property
    def busy(self) -> bool:
        """Whether a result waits."""
        return self._result is not None

    def poll(self, now_s: float) -> Result | str | None:
        """The result, when its time has come."""
        if self._result is None or now_s < self._due_s:
            return None
        result, self._result = self._result, None
        return result
