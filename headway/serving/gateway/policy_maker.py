"""The policies of a gateway, and the training processes behind those that learn."""

from __future__ import annotations

from collections.abc import Callable

from headway.errors import UsageError
from headway.serving.gateway.config import Pool
from headway.serving.gateway.telemetry import Telemetry
from headway.serving.gateway.training_process import TrainingProcess, remembered
from headway.serving.learned.policy import LearnedPolicy
from headway.serving.learned.policy import build as build_learned
from headway.serving.policies import build, known_as
from headway.serving.policy import Policy


class PolicyMaker:
    """Makes policies, and ends their training processes in the end.

    Args:
        told: called with a line that says what was remembered, or why that is of no use.
        telemetry: hears of policies that learn.
    """

    def __init__(self, told: Callable[[str], None], telemetry: Telemetry) -> None:
        self._told, self._telemetry = told, telemetry
        self._trainers: list[TrainingProcess] = []

    def policy(self, pool: Pool, name: str) -> Policy:
        """A pool's policy of this name; the pool's options go with the configured one only.

        UsageError names what is wrong with the name or the options.
        """
        own = known_as(name)
        options = pool.options if own == known_as(pool.policy) else {}
        if own != LearnedPolicy.name:
            if own == known_as(pool.policy):
                self._telemetry.learns_no_more(pool.name)
            return build(own, seed=pool.seed, options=options)
        memory, note = remembered(pool.memory) if pool.memory is not None else (None, "")
        if note:
            self._told(note)
        samples = memory.scorer.samples if memory is not None else 0
        if memory is not None:
            self._told(f"pool {pool.name} remembers a model learnt from {samples} samples ({pool.memory})")
        self._telemetry.learns(pool.name, samples)
        trainer = TrainingProcess(pool.memory)
        made = build_learned(
            seed=pool.seed,
            options=options,
            policy=lambda base: build(base, seed=pool.seed),
            trainer=trainer,
            memory=memory,
        )
        self._trainers.append(trainer)
        return made

    def begin(self) -> None:
        """Start the training processes of the policies made so far, before there are requests that this holds up."""
        for trainer in self._trainers:
            trainer.begin()

    def close(self) -> None:
        """End the training processes. Blocking: not for the event loop's thread."""
        for trainer in self._trainers:
            trainer.close()


def check_policy(pool: Pool) -> None:
    """UsageError where a pool's policy, its options, strategies or memory are wrong. Starts nothing."""
    try:
        build(pool.policy, seed=pool.seed, options=pool.options)
        names = {known_as(each) for each in (pool.policy, *pool.strategies) if each != "*"}
    except UsageError as error:
        place = f"pool {pool.name}" + (f": {error.where}" if error.where else "")
        raise UsageError(error.what, where=place, hint=error.hint) from None
    if pool.memory is not None and LearnedPolicy.name not in names and "*" not in pool.strategies:
        raise UsageError("only the policy learned has a memory", where=f"pool {pool.name}: memory")
