"""Chance of jobs, seeded so that the lab and the simulator draw the same. Pure."""

from __future__ import annotations

import random
import zlib

from headway.lab.jobs import Job, Phase


def mix(*values: int) -> int:
    """A number of 64 bits that depends on all of `values` and looks random: for ECMP and for seeds. Stable.

    SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014), folded over the values.
    """
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state ^ (value & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state


def job_chance(job: Job, *stream: int, seed: int = 0) -> random.Random:
    """A generator of its own for a job and a `stream` in it: other jobs, and other streams, do not change its draws.

    Args:
        stream: what it is for, such as a rank.
        seed: of the whole run, beside the job's own.
    """
    return random.Random(mix(seed, job.seed, zlib.crc32(job.name.encode()), *stream))


class ComputeTimes:
    """How long the computing phases of one rank take, in the order in which it comes to them.

    Args:
        job: whose seed and name decide.
        rank: the job's rank.
        seed: of the whole run.
    """

    def __init__(self, job: Job, rank: int, *, seed: int = 0) -> None:
        self._chance = job_chance(job, rank, seed=seed)

    def draw(self, phase: Phase) -> float:
        """Seconds: normal with the phase's mean and noise, cut off at 0. 0 for a phase that does not compute."""
        mean_s = phase.compute or 0.0
        if not phase.noise or not mean_s:
            return mean_s
        return max(0.0, self._chance.normalvariate(mean_s, phase.noise * mean_s))
