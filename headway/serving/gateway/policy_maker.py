"""The policies of a gateway, and the training processes behind those that learn."""

from __future__ import annotations

from collections.abc import Callable

from headway.serving.gateway.config import Pool
from headway.serving.gateway.training_process import TrainingProcess, remembered
from headway.serving.learned.policy import LearnedPolicy
from headway.serving.learned.policy import build as build_learned
from headway.serving.policies import build, known_as
from headway.serving.policy import Policy


class PolicyMaker:
    """Makes policies, and ends their training processes in the end.

    Args:
        told: called with a line where what was remembered is of no use.
    """

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        self._trainers: list[TrainingProcess] = []

    def policy(self, pool: Pool, name: str) -> Policy:
        """A pool's policy of this name; the pool's options go with the configured one only.

        UsageError names what is wrong with the name or the options.
        """
        own = known_as(name)
        options = pool.options if own == known_as(pool.policy) else {}
        if own != LearnedPolicy.name:
            return build(own, seed=pool.seed, options=options)
        memory, note = remembered(pool.memory) if pool.memory is not None else (None, "")
        if note:
            self._told(note)
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

    def close(self) -> None:
        """End the training processes. Blocking: not for the event loop's thread."""
        for trainer in self._trainers:
            trainer.close()


def check_policy(pool: Pool) -> None:
    """UsageError where a pool's policy or its options are wrong. Starts nothing."""
    build(pool.policy, seed=pool.seed, options=pool.options)
