"""Routes by the predicted time to first token, and learns from what was measured. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.decide.journal import ServingRecord
from headway.errors import UsageError
from headway.serving.learned.corrections import Corrections
from headway.serving.learned.features import Features, Rows
from headway.serving.learned.guard import Arm, Guard, GuardRules
from headway.serving.learned.hash_filter import HashFilter
from headway.serving.learned.options import LearnedOptions, read
from headway.serving.learned.pools import Pools
from headway.serving.learned.scorer import Scorer, Vector
from headway.serving.learned.storage import Memory
from headway.serving.learned.trainer import InlineTrainer, Job, Result, Trainer
from headway.serving.policy import Candidate, Choice, Policy
from headway.serving.request import End, Outcome, Request

MOST_PENDING = 100_000
"""Requests without a first token that are remembered; beyond that the oldest are forgotten, and nothing is learnt of
them."""


@dataclass(frozen=True, slots=True)
class _Pending:
    row: Vector
    input_tokens: int
    replica: str
    modelled_s: float | None
    """What the model said, before the replica's correction."""
    predicted_s: float | None
    arm: Arm | None


class LearnedPolicy:
    """The replica with the least predicted TTFT (Lodestar, arXiv 2606.00946).

    A request goes through these steps, and the first that applies decides; `Choice.reason` says which it was:

        1. no model yet                                     the heuristic
        2. a feature of any replica is out of range         the heuristic
        3. the guard's draw: control arm, or not trusted    the heuristic
        4. with probability `explore`                       any replica
        5. else, of those that the hash filter keeps        the least predicted TTFT + price * avoidable work; chance
                                                            among those nearly as good

    Predictions are the model's times a correction for each replica (`corrections`). The heuristic chooses for every
    request, so that falling back costs nothing. Every measured TTFT becomes a sample at the first token, whoever chose;
    a client that left before that counts where it had waited longer than predicted, with the time that it waited: else
    only the patient would be learnt of.

    Avoidable work is the time that a replica takes for tokens that another one of its device has cached: it may cost
    this request little, but it keeps the replica from others, and its cache from their prefixes. It is not compared
    between devices: that some have no cache, or are slow, is no reason to leave them idle.

    Objective: mean TTFT, on any mix of replicas and loads, without a setting.
    Reads: hits, our counts, the engine's report, the device. Predictions are in `Choice.scores` as rewards: -TTFT in
    seconds, of all replicas, also where the heuristic chose though there is a model. Cost: that of the heuristic and
    about 0.08 ms for 16 replicas; 0.5 s of another core for each round of training.
    Loses: until it has samples, and after a change until it has new ones; by the control arm's share where the
    heuristic is much worse.

    Args:
        heuristic: chooses where the model must not; sees every request and every outcome.
        trainer: carries out rounds of training.
        seed: of all that is left to chance, and of the models' first weights.
        options: settings.
        memory: what an earlier run knew; None: nothing.
    """

    name = "learned"

    def __init__(
        self,
        heuristic: Policy,
        trainer: Trainer,
        *,
        seed: int,
        options: LearnedOptions | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._heuristic, self._trainer, self._options = heuristic, trainer, options or LearnedOptions()
        self._random, self._seed = random.Random(seed), seed
        self._features = Features(memory.devices if memory is not None else ())
        self._pools = Pools(fresh=self._options.fresh, replay=self._options.replay, seed=seed)
        self._filter = HashFilter(saturation=self._options.saturation)
        self._corrections = Corrections()
        self._guard = Guard(GuardRules(control_share=self._options.control_share))
        self._scorer: Scorer | None = None
        if memory is not None:
            self._scorer = memory.scorer
            self._pools.fill(memory.fresh, memory.replay)
        self._pending: dict[str, _Pending] = {}
        self._new = 0
        self._rounds = 0
        self._offered = 0
        self._records: list[ServingRecord] = []

    @property
    def trusted(self) -> bool:
        """Whether the guard lets the model choose."""
        return self._guard.trusted

    @property
    def samples(self) -> int:
        """Samples in the pools (count)."""
        return len(self._pools)

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """Who answers, and why."""
        self._swap(now_s)
        heuristic = self._heuristic.choose(request, candidates, now_s)
        rows = self._features.rows(request, candidates)
        choice, arm = self._decide(request, candidates, rows, heuristic, now_s)
        at = next(index for index, candidate in enumerate(candidates) if candidate.name == choice.replica)
        self._pending.pop(request.id, None)
        predicted_s = choice.predicted_ttft_s
        modelled_s = predicted_s / self._corrections.factor(choice.replica, now_s) if predicted_s is not None else None
        self._pending[request.id] = _Pending(
            rows[at], request.input_tokens, choice.replica, modelled_s, predicted_s, arm
        )
        if len(self._pending) > MOST_PENDING:
            del self._pending[next(iter(self._pending))]
        return choice

    def _decide(
        self, request: Request, candidates: Sequence[Candidate], rows: Rows, heuristic: Choice, now_s: float
    ) -> tuple[Choice, Arm | None]:
        options = self._options
        if self._scorer is None:
            return _instead(heuristic, f"no model yet, {len(self._pools)} of {options.least_samples} samples"), None
        column = self._scorer.outside(rows, options.range_tolerance)
        if column is not None:
            return _instead(heuristic, f"{self._features.name(column)} out of the range learnt"), None
        factors = np.array([self._corrections.factor(each.name, now_s) for each in candidates], dtype=np.float32)
        predicted_s = self._scorer.predict_s(rows) * factors
        rewards = {each.name: -float(value) for each, value in zip(candidates, predicted_s, strict=True)}
        arm = self._guard.arm(self._random.random())
        if arm is Arm.HEURISTIC:
            why = "control arm" if self._guard.trusted else "learned is not trusted"
            return _instead(heuristic, why, rewards), arm
        if options.explore and self._random.random() < options.explore:
            name = self._random.choice(candidates).name
            return Choice(
                name, f"exploring, {-rewards[name]:.3g} s predicted", self.name, rewards, -rewards[name]
            ), None
        kept = self._filter.kept(request, candidates)
        worth = -(predicted_s + options.price * factors * self._scorer.avoidable_s(rows))[kept]
        best = near_best(worth, options.near_best)
        name = candidates[kept[int(best[self._random.randrange(len(best))] if len(best) > 1 else best[0])]].name
        reason = f"{-rewards[name]:.3g} s predicted"
        if len(kept) < len(candidates):
            reason += f", of the {len(kept)} that its prefix belongs to"
        if len(best) > 1:
            reason += f", chance among {len(best)} nearly as good"
        return Choice(name, reason, self.name, rewards, -rewards[name]), arm

    def first_token(self, request_id: str, ttft_s: float, now_s: float) -> None:
        """Learn from it."""
        self._heuristic.first_token(request_id, ttft_s, now_s)
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            self._learn(pending, ttft_s, now_s)

    def observe(self, outcome: Outcome, now_s: float) -> None:
        """Learn from what ended without a first token, where that says something."""
        self._heuristic.observe(outcome, now_s)
        pending = self._pending.pop(outcome.request.id, None)
        if pending is None:
            return
        if outcome.end is End.FAILED:
            self._compare(pending, float("inf"), now_s)
        elif pending.predicted_s is not None and outcome.e2e_s > pending.predicted_s and outcome.end is End.CANCELLED:
            self._learn(pending, outcome.e2e_s, now_s)

    def records(self) -> list[ServingRecord]:
        """Models swapped, rounds that failed, the guard's moves."""
        records, self._records = self._records, []
        return records

    def _learn(self, pending: _Pending, ttft_s: float, now_s: float) -> None:
        self._pools.add(pending.row, ttft_s)
        if pending.modelled_s is not None:
            self._corrections.measured(pending.replica, ttft_s, pending.modelled_s, now_s)
        self._new += 1
        self._compare(pending, ttft_s, now_s)
        due = self._options.least_samples if self._scorer is None else self._options.retrain_every
        if self._new >= due and not self._trainer.busy:
            self._train(now_s)

    def _compare(self, pending: _Pending, ttft_s: float, now_s: float) -> None:
        if pending.arm is None or pending.predicted_s is None:
            return
        move = self._guard.measured(pending.arm, ttft_s, pending.predicted_s, pending.input_tokens)
        if move is not None:
            self._records.append(
                ServingRecord(
                    t_s=now_s,
                    event=move.event,
                    policy=self.name,
                    what=move.what,
                    samples=move.samples,
                    measured_s=move.learned_s,
                    reference_s=move.heuristic_s,
                )
            )

    def _train(self, now_s: float) -> None:
        left = self._pools.left
        self._offered, self._new = len(left), 0
        self._rounds += 1
        job = Job(
            fresh=self._pools.fresh,
            replay=self._pools.replay,
            left=left,
            keep=round(self._options.keep_share * len(left)),
            previous=self._scorer,
            devices=self._features.devices,
            seed=self._seed + self._rounds,
            how=self._options.fit,
        )
        self._trainer.start(job, now_s)

    def _swap(self, now_s: float) -> None:
        """Take a new model, where there is one; only between two decisions."""
        result = self._trainer.poll(now_s)
        if result is None:
            return
        if isinstance(result, Result):
            self._scorer = result.scorer
            self._pools.keep(self._offered, result.picked)
            self._guard.model_changed()
            what = f"model {self._rounds} routes, learnt from {result.scorer.samples} samples"
            samples = result.scorer.samples
            self._records.append(ServingRecord(t_s=now_s, event="model", policy=self.name, what=what, samples=samples))
        trouble = result if isinstance(result, str) else result.note
        if trouble:
            self._records.append(ServingRecord(t_s=now_s, event="model", policy=self.name, what=trouble))


def near_best(rewards: Vector, share: float) -> NDArray[np.intp]:
    """Indices of the rewards that are within `share` of the greatest one's size of it; that one is always among them.

    Rewards are negative: Lodestar's (1 - share) * greatest lies above the greatest, and nothing would ever be level.
    """
    best = rewards.max()
    return np.flatnonzero(rewards >= best - share * abs(best))


def _instead(heuristic: Choice, why: str, rewards: Mapping[str, float] | None = None) -> Choice:
    """The heuristic's choice, with the model's predictions where there are any."""
    return Choice(
        heuristic.replica,
        f"{why}: {heuristic.reason}",
        heuristic.by,
        heuristic.scores if rewards is None else rewards,
        None if rewards is None else -rewards[heuristic.replica],
    )


def build(
    *,
    seed: int,
    options: Mapping[str, object],
    policy: Callable[[str], Policy],
    trainer: Trainer | None = None,
    memory: Memory | None = None,
) -> LearnedPolicy:
    """From a configuration.

    Args:
        seed: as in `LearnedPolicy`.
        options: `LearnedOptions` by name, those that users can set.
        policy: makes the heuristic by its name.
        trainer: None: `InlineTrainer`, which is for a simulated clock only: it trains on the caller's time.
        memory: what an earlier run knew.

    Raises UsageError for options that are wrong.
    """
    settings = read(options)
    heuristic = policy(settings.heuristic)
    if isinstance(heuristic, LearnedPolicy):
        raise UsageError(
            "the heuristic can't be the learned policy itself", where="policy learned", hint="name another"
        )
    return LearnedPolicy(heuristic, trainer or InlineTrainer(), seed=seed, options=settings, memory=memory)
