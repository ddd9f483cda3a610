"""From one placed plan to another with few moves. Pure.

A move is an instance that has to be started somewhere: its weights are loaded, its cache is empty. `keeping` places new
shares so that what can stay where it is stays; `in_few_moves` takes only as much of a better plan as some moves allow.
An instance whose GPUs are not there any more serves nobody: `remaining` is what is left of a plan.

Two things may be asked of the new plan, as of one that is made from nothing: that it is on the fewest GPUs on which
workflows keep limits on their mean latency (`limits_s`, see `fewest`), and that whole instances and parts of one size
are on nodes apart (`apart`, see `equal_parts`).
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headway.errors import UsageError
from headway.serving.allocation.branch import ROUNDING
from headway.serving.allocation.equal_parts import place_apart
from headway.serving.allocation.place import place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand, Instance, Plan, Shape

MOST_MODELS = 12
"""Models that differ, up to which every choice of them is looked at: 4096 plans (count)."""

MORE = 0.01
"""Of the demanded rates (1): a plan that carries so much more of them is clearly better. Ours."""

_Key = tuple[str, Shape, str, tuple[int, ...]]


def _key(instance: Instance) -> _Key:
    return instance.model, instance.shape, instance.node, tuple(sorted(instance.gpus))


def started(old: Plan, new: Plan) -> list[Instance]:
    """Instances of the new plan that the old one has not: the moves."""
    there = Counter(_key(it) for it in old.instances)
    found = []
    for it in new.instances:
        if there[_key(it)]:
            there[_key(it)] -= 1
        else:
            found.append(it)
    return found


def stopped(old: Plan, new: Plan) -> list[Instance]:
    """Instances of the old plan that the new one has not."""
    return started(new, old)


def gone(plan: Plan, nodes: Sequence[Node]) -> list[Instance]:
    """Instances of a placed plan whose GPUs are not all there, or not joined any more."""
    return [it for it in plan.instances if not _has(nodes, it)]


def remaining(plan: Plan, nodes: Sequence[Node]) -> Plan:
    """What is left of a placed plan: instances whose GPUs are there, and shares of as many; no forecasts.

    A model that has none left has no share.
    """
    left = tuple(it for it in plan.instances if _has(nodes, it))
    count = Counter(it.model for it in left)
    shares = tuple(replace(share, replicas=count[share.model]) for share in plan.shares if count[share.model])
    return Plan(plan.slices_per_gpu, shares, left)


def _has(nodes: Sequence[Node], it: Instance) -> bool:
    return any(node.name == it.node and set(it.gpus) <= set(domain) for node in nodes for domain in node.domains)


def keeping(plan: Plan, old: Plan, nodes: Sequence[Node], *, apart: bool = False) -> Plan:
    """The plan placed so that as many of the old one's instances stay as the room for the others allows.

    Those of a model whose shape stays are kept where their GPUs are still there, as many as it still has; the others go
    where they fit best, largest first. Where they do not fit beside those, everything is placed anew.

    Args:
        plan: shares; instances that it has do not matter.
        old: placed.
        nodes: what there is.
        apart: whole instances and parts, which are of one size, on nodes of their own.

    Raises:
        UsageError: there is no room even so.
    """
    if apart:
        return _keeping_apart(plan, old, nodes)
    wanted = {share.model: share for share in plan.shares}
    kept: list[Instance] = []
    count: Counter[str] = Counter()
    room = _Room(nodes, plan.slices_per_gpu)
    for it in old.instances:
        share = wanted.get(it.model)
        if share is not None and share.shape == it.shape and count[it.model] < share.replicas and room.has(it):
            kept.append(it)
            count[it.model] += 1
            room.take(it)
    missing = [share for share in plan.shares for _ in range(share.replicas - count[share.model])]
    used = {(it.model, it.number) for it in kept}
    for share in sorted(missing, key=lambda it: (-it.shape.tensor_parallel, -it.shape.slices, it.model)):
        found = room.find(share.shape)
        if found is None:
            return place(plan, nodes)
        number = next(number for number in itertools.count() if (share.model, number) not in used)
        it = Instance(share.model, number, share.shape, *found)
        room.take(it)
        kept.append(it)
        used.add((it.model, number))
    return _with(plan, kept)


def staying(
    made: Plan,
    old: Plan,
    nodes: Sequence[Node],
    demands: Sequence[Demand],
    predictor: Predictor,
    *,
    apart: bool = False,
    limits_s: Mapping[str, float] | None = None,
) -> Plan:
    """A plan that was placed from nothing, with what can stay where it is; as it was where that breaks what it holds.

    Args:
        made: placed, with forecasts.
        old, nodes, apart: as for `keeping`.
        demands: for the forecasts.
        predictor: predicts.
        limits_s: of the mean latency, by workflow, seconds, where it has any.
    """
    kept = keeping(made, old, nodes, apart=apart)
    kept = replace(kept, forecasts=predictor.forecast(demands, kept.shares, kept.instances))
    return made if worth(made, limits_s).holds and not worth(kept, limits_s).holds else kept


def in_few_moves(
    old: Plan,
    better: Plan,
    nodes: Sequence[Node],
    demands: Sequence[Demand],
    predictor: Predictor,
    *,
    most_moves: int,
    apart: bool = False,
    limits_s: Mapping[str, float] | None = None,
) -> Plan | None:
    """The best plan on the way to a better one that takes at most so many moves.

    Each model keeps what `remaining` leaves of its share, or gets its new one; of all choices those that fit are
    compared by their `worth`. Where none is better than no move at all, that is what `remaining` leaves; None: models
    that are called have nothing left, or never had, and so many moves are too few to start them.

    Args:
        old: placed.
        better: shares, placed or not.
        nodes: what there is.
        demands: for the forecasts.
        predictor: predicts.
        most_moves: instances that may be started.
        apart: as for `keeping`.
        limits_s: of the mean latency, by workflow, seconds, where it has any.
    """
    stays = remaining(old, nodes)
    now = {share.model: share for share in stays.shares}
    then = {share.model: share for share in better.shares}
    changed = [model for model in then if then[model] != now.get(model)]
    best = None
    if predictor.load(demands).keys() <= now.keys():
        best = replace(stays, forecasts=predictor.forecast(demands, stays.shares, stays.instances))
    for choice in _choices(changed):
        shares = tuple(then[model] if model in choice or model not in now else now[model] for model in then)
        try:
            plan = keeping(Plan(better.slices_per_gpu, shares), old, nodes, apart=apart)
        except UsageError:
            continue  # this choice does not fit; the whole of `better` does
        if len(started(old, plan)) > most_moves:
            continue
        plan = replace(plan, forecasts=predictor.forecast(demands, shares, plan.instances))
        if best is None or worth(plan, limits_s) < worth(best, limits_s):
            best = plan
    return best


@dataclass(frozen=True, order=True, slots=True)
class Worth:
    """What a plan is worth. Less is better, and of two figures the first counts.

    Attributes:
        short: part of the demanded rates that is not carried (1).
        over: by how much a limit is missed, the worst, as a part of it (1).
        gpus: that it uses, where there are limits (count); else 0, since then all are there to be used.
        latency_s: mean of the workflows' latencies weighted with their rates, seconds.
    """

    short: float
    over: float
    gpus: int
    latency_s: float

    @property
    def holds(self) -> bool:
        """Whether it carries all and keeps all limits."""
        return self.latency_s < float("inf") and self.over == 0

    def clearly_better(self, than: Worth, *, by: float) -> bool:
        """Whether a plan of this worth is worth its moves: it does more of what is asked, or does it with less.

        Args:
            than: of the plan in force.
            by: part of a latency, or of how far it misses a limit, by which it must be less (1).
        """
        if self.short < than.short - MORE:
            return True
        if self.short > than.short or self.over > than.over:
            return False
        if than.over > 0:
            return self.over == 0 or 1 + self.over < (1 + than.over) * (1 - by)
        if self.gpus != than.gpus:
            return self.gpus < than.gpus
        return self.latency_s < than.latency_s * (1 - by)


def worth(plan: Plan, limits_s: Mapping[str, float] | None = None) -> Worth:
    """Of a placed plan with forecasts; limits are of the mean latency, by workflow, seconds, where it has any."""
    bounds_s = limits_s or {}
    carried = min((min(1.0, it.throughput / it.rate) for it in plan.forecasts), default=1.0)
    over = max(
        (it.latency_s / bounds_s[it.workflow] - 1 for it in plan.forecasts if it.workflow in bounds_s), default=0
    )
    rate = sum(it.rate for it in plan.forecasts)
    return Worth(
        short=1.0 - carried,
        over=over if over > ROUNDING else 0.0,
        gpus=len({(it.node, gpu) for it in plan.instances for gpu in it.gpus}) if bounds_s else 0,
        latency_s=sum(it.rate * it.latency_s for it in plan.forecasts) / rate if rate else 0.0,
    )


def _with(plan: Plan, instances: Iterable[Instance]) -> Plan:
    """In the order of the shares."""
    order = {share.model: at for at, share in enumerate(plan.shares)}
    return replace(plan, instances=tuple(sorted(instances, key=lambda it: (order[it.model], it.number))))


def _keeping_apart(plan: Plan, old: Plan, nodes: Sequence[Node]) -> Plan:
    """What may be on which node is as in a plan that is made from nothing; there, what can stay stays."""
    f = plan.slices_per_gpu
    sizes = {share.shape.slices for share in plan.shares if share.shape.slices < f}
    split = place_apart(plan, nodes) if len(sizes) < 2 and all(f % size == 0 for size in sizes) else None
    if split is None:
        raise UsageError("whole instances and parts of one size have no room on nodes of their own")
    of_whole = {it.node for it in split.instances if it.shape.slices == f}
    instances: list[Instance] = []
    for whole in (True, False):
        shares = tuple(share for share in plan.shares if (share.shape.slices == f) == whole)
        there = [node for node in nodes if (node.name in of_whole) == whole]
        instances += keeping(replace(plan, shares=shares), old, there).instances
    return _with(plan, instances)


def _choices(models: Sequence[str]) -> Iterator[frozenset[str]]:
    if len(models) > MOST_MODELS:
        yield frozenset(models)
        return
    for size in range(1, len(models) + 1):
        yield from map(frozenset, itertools.combinations(models, size))


class _Room:
    """What is left of the GPUs, in slices."""

    def __init__(self, nodes: Sequence[Node], slices_per_gpu: int) -> None:
        self._slices, self._nodes = slices_per_gpu, nodes
        self._domains = [(node.name, domain) for node in nodes for domain in node.domains]
        self._free: dict[tuple[str, int], int] = defaultdict(int)
        for name, domain in self._domains:
            for gpu in domain:
                self._free[name, gpu] = slices_per_gpu

    def has(self, it: Instance) -> bool:
        """Whether an instance can be where it says."""
        return _has(self._nodes, it) and all(self._free[it.node, gpu] >= it.shape.slices for gpu in it.gpus)

    def take(self, it: Instance) -> None:
        for gpu in it.gpus:
            self._free[it.node, gpu] -= it.shape.slices

    def find(self, shape: Shape) -> tuple[str, tuple[int, ...]] | None:
        """Whole GPUs in the fast domain that has the fewest left; a part on the fullest GPU that it fits on."""
        if shape.slices < self._slices:
            fits = [(left, *gpu) for gpu, left in self._free.items() if left >= shape.slices]
            if not fits:
                return None
            _, node, number = min(fits)
            return node, (number,)
        rooms = []
        for name, domain in self._domains:
            empty = [gpu for gpu in domain if self._free[name, gpu] == self._slices]
            if len(empty) >= shape.tensor_parallel:
                rooms.append((len(empty), name, tuple(empty[: shape.tensor_parallel])))
        return min(rooms)[1:] if rooms else None
