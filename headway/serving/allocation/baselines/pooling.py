"""All models on all GPUs, by turns: as Aegaeon. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headway.errors import UsageError
from headway.serving.engine.core import EngineCore
from headway.serving.engine.hardware import BYTES_PER_VALUE, MODELS, profile
from headway.serving.engine.types import EngineProfile, Job, Token
from headway.serving.simulate.instances import BLOCK_TOKENS
from headway.serving.simulate.workflows import Ended
from headway.sim.engine.loop import Loop, Timer

HOST_LINK_Bps = 25e9
"""From the host's memory to a GPU: PCIe 4.0 with 16 lanes, as measured by most, bytes per second."""
TURN_SWITCHES = 4.0
"""A model's turn lasts so many times as long as it took to load it, so that a fifth of the time at most goes to loading
(1). Ours; Aegaeon derives turns from a goal for the time between tokens."""
LEAST_TURN_S = 0.1
"""However short the loading, seconds."""
GROUP = 8
"""Calls by which a GPU may have more than another and still be preferred because it works for the model already: the
size of Aegaeon's groups of prefills (count)."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """A model in the pool: its engine on a whole GPU, and how long it takes to load it there, seconds."""

    profile: EngineProfile
    switch_s: float


def pooled(
    device: str, model: str, *, block_tokens: int = BLOCK_TOKENS, host_link_Bps: float = HOST_LINK_Bps
) -> Pooled:
    """A model in the pool; infinite `host_link_Bps`: as if all models were in the GPU's memory at once."""
    engine = profile(device, model, block_tokens=block_tokens)
    return Pooled(engine, MODELS[model].parameters * BYTES_PER_VALUE / host_link_Bps)


class Pool:
    """GPUs that each work for one model at a time, and change between tokens.

    A GPU runs a model's engine until it has nothing to do, or its turn is over and another model has calls; then it
    loads the next one, round-robin. Calls go to the GPU with the fewest, where GROUP calls count for the model's
    being there already.

    After Aegaeon (Xiang et al., SOSP 2025). Left out: its split into prefill and decode GPUs, turns weighted by goals
    for the time between tokens, loading the next model ahead while the old one runs. Kinder than the original: moving
    KV caches to the host and back takes no time, no cache is ever lost, and each model has the cache that it would have
    with the GPU to itself. Every model must fit on one GPU.

    Args:
        loop: the clock.
        ended: told of each job's end.
        models: by name.
        gpus: how many.
    """

    def __init__(self, loop: Loop, ended: Ended, models: Mapping[str, Pooled], *, gpus: int) -> None:
        sizes = {it.profile.block_tokens for it in models.values()}
        if gpus < 1 or len(sizes) != 1:
            raise UsageError("a pool needs GPUs, and models with blocks of one size", where="pool")
        self.block_tokens = sizes.pop()
        self.gpus = [_Gpu(loop, ended, models) for _ in range(gpus)]
        self._models = models

    def submit(self, model: str, job: Job) -> None:
        """A call is there. UsageError where the model is unknown, or the call does not fit."""
        if model not in self._models:
            raise UsageError(f"no model {model} is in the pool", hint=f"there are {', '.join(self._models)}")
        min(self.gpus, key=lambda gpu: gpu.calls - (GROUP if gpu.works_for(model) else 0)).submit(model, job)


class _Gpu:
    """One GPU.

    Attributes:
        calls: that it has (count).
        switches: how often it loaded a model (count).
    """

    def __init__(self, loop: Loop, ended: Ended, models: Mapping[str, Pooled]) -> None:
        self.calls = 0
        self.switches = 0
        self._loop = loop
        self._ended = ended
        self._models = models
        self._names = list(models)
        self._cores = {name: EngineCore(it.profile) for name, it in models.items()}
        self._loaded: str | None = None
        self._held = False  # loading, or in the middle of telling what a step gave
        self._turn_ends_s = 0.0
        self._timer: Timer | None = None
        self._due_s: float | None = None

    def works_for(self, model: str) -> bool:
        """Whether the model is loaded, or has calls here."""
        return model == self._loaded or self._busy(model)

    def submit(self, model: str, job: Job) -> None:
        """A call is there."""
        self._cores[model].submit(job, self._loop.now_s)
        self.calls += 1
        if not self._held:
            self._go_on()

    def _busy(self, model: str) -> bool:
        core = self._cores[model]
        return core.running + core.waiting > 0

    def _next(self) -> str | None:
        """The model after the loaded one, in turn, that has calls; the loaded one last."""
        start = self._names.index(self._loaded) + 1 if self._loaded is not None else 0
        return next((it for it in self._names[start:] + self._names[:start] if self._busy(it)), None)

    def _go_on(self) -> None:
        now_s = self._loop.now_s
        loaded = self._cores[self._loaded] if self._loaded is not None else None
        if loaded is None or loaded.due_s is None:  # between steps
            chosen = self._next()
            if chosen is None:
                return
            stays = self._loaded is not None and self._busy(self._loaded) and now_s < self._turn_ends_s
            if chosen != self._loaded and not stays:
                self._load(chosen)
                return
            if chosen == self._loaded and now_s >= self._turn_ends_s:
                self._begin_turn()
            assert self._loaded is not None
            loaded = self._cores[self._loaded]
            loaded.begin_steps(now_s)
        if self._next() != self._loaded:
            loaded.cut(max(now_s, self._turn_ends_s))
        self._wait_for(loaded)

    def _wait_for(self, core: EngineCore) -> None:
        if core.due_s != self._due_s:
            if self._timer is not None:
                self._timer.cancel()
            assert core.due_s is not None
            self._due_s = core.due_s
            self._timer = self._loop.at(core.due_s, self._due)

    def _load(self, model: str) -> None:
        self._held = True
        self.switches += 1
        self._loaded = model
        self._loop.after(self._models[model].switch_s, self._is_loaded)

    def _is_loaded(self) -> None:
        self._held = False
        self._begin_turn()
        self._go_on()

    def _begin_turn(self) -> None:
        assert self._loaded is not None
        switch_s = self._models[self._loaded].switch_s
        self._turn_ends_s = self._loop.now_s + max(LEAST_TURN_S, TURN_SWITCHES * switch_s)

    def _due(self) -> None:
        assert self._loaded is not None
        self._due_s = self._timer = None
        self._held = True
        for token in self._cores[self._loaded].end_steps(self._loop.now_s):
            self._produced(token)
        self._held = False
        self._go_on()

    def _produced(self, token: Token) -> None:
        if token.last:
            self.calls -= 1
            self._ended(token.id)


def pool(models: Mapping[str, Pooled], *, gpus: int) -> Callable[[Loop, Ended], Pool]:
    """Starts a pool, as `run_workflows` wants it."""
    return lambda loop, ended: Pool(loop, ended, models, gpus=gpus)
