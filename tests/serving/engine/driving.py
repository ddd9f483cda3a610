"""Runs an engine to the end of a list of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headway.serving.engine.core import EngineCore
from headway.serving.engine.types import EngineProfile, Job

PROFILE = EngineProfile(
    device="test",
    step_s=0.001,
    token_s=0.0001,
    attention_s=1e-8,
    weights_s=0.01,
    context_s=1e-6,
    step_tokens=512,
    most_running=64,
    cache_tokens=65536,
    block_tokens=16,
)
"""A prompt of 100 tokens takes as much arithmetic as reading the weights once."""


def variant(**changes: float | bool) -> EngineProfile:
    """PROFILE with some fields changed."""
    return replace(PROFILE, **changes)  # type: ignore[arg-type]


@dataclass(slots=True)
class Seen:
    """When things happened, by request id; seconds."""

    first_s: dict[str, float] = field(default_factory=dict)
    end_s: dict[str, float] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    steps: int = 0


def drive(core: EngineCore, arrivals: Sequence[tuple[float, Job]], *, series: bool = False) -> Seen:
    """Submit each job at its time, in order of time, and run until all have ended."""
    seen = Seen()
    ahead = sorted(arrivals, key=lambda it: it[0])[::-1]
    now_s = 0.0
    for _ in range(1_000_000):
        if core.due_s is None:
            begun = core.begin_steps(now_s) if series else core.begin_step(now_s)
            if begun is None and not ahead:
                return seen
        if ahead and (core.due_s is None or ahead[-1][0] <= core.due_s):
            at_s, job = ahead.pop()
            now_s = max(now_s, at_s)
            core.submit(job, now_s)
            continue
        assert core.due_s is not None
        now_s = core.due_s
        seen.steps += 1
        for token in core.end_steps(now_s) if series else core.end_step(now_s):
            seen.tokens.setdefault(token.id, []).append(token.number)
            if token.number == 1:
                seen.first_s[token.id], seen.cached[token.id] = now_s, token.cached_tokens
            if token.last:
                seen.end_s[token.id] = now_s
    raise AssertionError("the engine never comes to an end")
