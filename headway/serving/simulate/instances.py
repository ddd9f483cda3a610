"""Planned instances as engines behind routers, one router for each model. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headway.errors import UsageError
from headway.serving.allocation.interference import Interference
from headway.serving.allocation.types import Instance, Shape, Share
from headway.serving.engine.hardware import EngineSettings, profile
from headway.serving.engine.types import EngineProfile, Job, Token
from headway.serving.fleet import Fleet
from headway.serving.policies import build, known_as
from headway.serving.replica import ReplicaSpec
from headway.serving.request import Request
from headway.serving.router import Router
from headway.serving.simulate.engine import TimedEngine
from headway.serving.simulate.workflows import Ended
from headway.sim.engine.loop import Loop

BLOCK_TOKENS = 64
"""Tokens in a block of simulated workflows' prompts. vLLM's 16 would make a run some times dearer, and find little more
of prompts that are hundreds of tokens long."""


BLIND = frozenset({"round-robin", "random", "least-requests", "power-of-two"})
"""Policies that read neither expected hits nor prompt tokens beyond them."""


@dataclass(frozen=True, slots=True)
class Running:
    """An instance, and the engine that it is.

    Attributes:
        name: unique.
        model: that it serves.
        profile: of the engine.
        gpus: (node, GPU) that it uses; empty: not placed, so that nobody slows it.
        part: of each of these GPUs (1).
    """

    name: str
    model: str
    profile: EngineProfile
    gpus: tuple[tuple[str, int], ...] = ()
    part: float = 1.0


def engine(
    device: str, model: str, shape: Shape, slices_per_gpu: int, *, block_tokens: int = BLOCK_TOKENS
) -> EngineProfile:
    """The profile of an instance of a shape. UsageError where the model does not fit."""
    settings: EngineSettings = {"block_tokens": block_tokens}
    part = shape.slices / slices_per_gpu
    return profile(device, model, tensor_parallel=shape.tensor_parallel, fraction=part, **settings)


def unplaced(
    shares: Sequence[Share], *, device: str, slices_per_gpu: int, block_tokens: int = BLOCK_TOKENS
) -> list[Running]:
    """All instances of shares, wherever they are: none slows another."""
    made: list[Running] = []
    for share in shares:
        one = engine(device, share.model, share.shape, slices_per_gpu, block_tokens=block_tokens)
        first = len([it for it in made if it.model == share.model])
        part = share.shape.slices / slices_per_gpu
        numbers = range(first, first + share.replicas)
        made += [Running(f"{share.model}-{number}", share.model, one, part=part) for number in numbers]
    return made


def placed(
    instances: Sequence[Instance],
    *,
    devices: Mapping[str, str],
    slices_per_gpu: int,
    block_tokens: Mapping[str, int] | None = None,
    engine_models: Mapping[str, str] | None = None,
) -> list[Running]:
    """Placed instances, in the order of the plan.

    Args:
        instances: of the plan.
        devices: by node, what kind its GPUs are.
        slices_per_gpu: parts of a GPU that shapes count in.
        block_tokens: tokens in a block of each model's prompts, where not BLOCK_TOKENS.
        engine_models: what `hardware.MODELS` knows a model as, where not by its own name.

    Raises UsageError where a model does not fit.
    """
    sizes, names = block_tokens or {}, engine_models or {}
    return [
        Running(
            f"{it.model}-{it.number}",
            it.model,
            engine(
                devices[it.node],
                names.get(it.model, it.model),
                it.shape,
                slices_per_gpu,
                block_tokens=sizes.get(it.model, BLOCK_TOKENS),
            ),
            tuple((it.node, gpu) for gpu in it.gpus),
            it.shape.slices / slices_per_gpu,
        )
        for it in instances
    ]


class Instances:
    """The engines of a plan behind the real routers.

    Left out: the network and the gateway's own time (under a millisecond), and polls of the engines' metrics, which the
    policies that are meant here do not read. Those that look at counts only (BLIND) are not told of prompts' blocks,
    which halves what routing costs.

    An instance that shares a GPU runs at each instant as slow as the neighbours that are busy then make it, from its
    next step on.

    Args:
        loop: the clock.
        ended: told of each job's end.
        running: the instances; those of one model have blocks of one size.
        policy: of all routers: "least-requests", "prefix-and-load", or another name of `policies`.
        interference: how neighbours slow each other; None: not at all.
        seed: of the routers' choices among equals.
    """

    def __init__(
        self,
        loop: Loop,
        ended: Ended,
        running: Sequence[Running],
        *,
        policy: str = "least-requests",
        interference: Interference | None = None,
        seed: int = 0,
    ) -> None:
        self._block_tokens = {it.model: it.profile.block_tokens for it in running}
        unlike = [it for it in running if it.profile.block_tokens != self._block_tokens[it.model]]
        if not running or unlike or len({it.name for it in running}) < len(running):
            raise UsageError(
                "instances need names, each another, and those of a model blocks of one size", where="instances"
            )
        self.block_tokens = max(self._block_tokens.values())
        self._loop = loop
        self._ended = ended
        self._blind = known_as(policy) in BLIND
        self._routers: dict[str, Router] = {}
        self._engines: dict[str, TimedEngine] = {}
        self._near = _Neighbours(running, self._engines, interference)
        for index, it in enumerate(running):
            router = self._routers.get(it.model)
            if router is None:
                router = self._routers[it.model] = Router(Fleet(), build(policy, seed=seed + index))
            self._engines[it.name] = TimedEngine(loop, it.profile, self._taker(it.name, router))
            router.join(_spec(it), loop.now_s)

    @property
    def engines(self) -> Mapping[str, TimedEngine]:
        """By the instances' names."""
        return self._engines

    def submit(self, model: str, job: Job) -> None:
        """Route a call. UsageError where no instance serves the model, or it does not fit."""
        router = self._routers.get(model)
        if router is None:
            raise UsageError(f"no instance serves {model}", hint=f"served: {', '.join(self._routers)}")
        request = Request(job.id, model, job.input_tokens, () if self._blind else job.blocks, self._block_tokens[model])
        choice = router.route(request, self._loop.now_s)
        self._engines[choice.replica].submit(job)
        self._near.look(choice.replica)

    def _taker(self, name: str, router: Router) -> Callable[[Token], None]:
        """Takes what an engine produces."""

        def produced(token: Token) -> None:
            now_s = self._loop.now_s
            if token.number == 1:
                router.first_token(token.id, now_s)
            if token.last:
                router.finished(token.id, now_s, output_tokens=token.number, cached_tokens=token.cached_tokens)
                self._ended(token.id)
                self._near.look(name)

        return produced


class _Neighbours:
    """Who is busy beside whom, and how slow that makes them."""

    def __init__(
        self, running: Sequence[Running], engines: Mapping[str, TimedEngine], interference: Interference | None
    ) -> None:
        self._engines = engines
        self._interference = interference or Interference(per_neighbour=0.0)
        self._part = {it.name: it.part for it in running}
        self._busy = dict.fromkeys(self._part, False)
        self._beside: dict[str, list[list[str]]] = {}
        if interference is None:
            return
        for it in running:
            beside = [[other.name for other in running if other is not it and gpu in other.gpus] for gpu in it.gpus]
            if any(beside):
                self._beside[it.name] = beside

    def look(self, name: str) -> None:
        """An instance may have become busy or idle."""
        if name not in self._beside:
            return
        core = self._engines[name].core
        busy = core.running + core.waiting > 0
        if busy == self._busy[name]:
            return
        self._busy[name] = busy
        for other in {other for beside in self._beside[name] for other in beside}:
            self._engines[other].slow_down(self._slowdown(other))

    def _slowdown(self, name: str) -> float:
        """By the worst of its GPUs, since the others wait for it."""
        return max(
            self._interference.slowdown((self._part[it], float(self._busy[it])) for it in beside)
            for beside in self._beside[name]
        )


def instances(
    running: Sequence[Running],
    *,
    policy: str = "least-requests",
    interference: Interference | None = None,
    seed: int = 0,
) -> Callable[[Loop, Ended], Instances]:
    """Starts instances, as `run_workflows` wants it."""
    return lambda loop, ended: Instances(loop, ended, running, policy=policy, interference=interference, seed=seed)


def _spec(it: Running) -> ReplicaSpec:
    return ReplicaSpec(
        it.name,
        device=it.profile.device,
        speed=1 / it.profile.token_s,
        cache_tokens=it.profile.cache_tokens if it.profile.prefix_caching else 0,
    )
