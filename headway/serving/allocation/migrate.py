"""From one placed plan to another with few moves. Pure.

A move is an instance that has to be started somewhere: its weights are loaded, its cache is empty. `keeping` places new
shares so that what can stay where it is stays; `within` takes only as much of a better plan as some moves allow.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from headway.errors import UsageError
from headway.serving.allocation.place import place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand, Instance, Plan, Shape

MOST_MODELS = 12
"""Models that differ, up to which every choice of them is looked at: 4096 plans (count)."""

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


def keeping(plan: Plan, old: Plan, nodes: Sequence[Node]) -> Plan:
    """The plan placed so that as many of the old one's instances stay as the room for the others allows.

    Those of a model whose shape stays are kept, as many as it still has; the others go where they fit best, largest
    first. Where they do not fit beside those, everything is placed anew.

    Raises:
        UsageError: there is no room even so.
    """
    wanted = {share.model: share for share in plan.shares}
    kept: list[Instance] = []
    count: Counter[str] = Counter()
    for it in old.instances:
        share = wanted.get(it.model)
        if share is not None and share.shape == it.shape and count[it.model] < share.replicas:
            kept.append(it)
            count[it.model] += 1
    room = _Room(nodes, plan.slices_per_gpu)
    if any(not room.has(it) for it in kept):
        return place(plan, nodes)
    for it in kept:
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
    order = {share.model: at for at, share in enumerate(plan.shares)}
    return replace(plan, instances=tuple(sorted(kept, key=lambda it: (order[it.model], it.number))))


def within(
    old: Plan, better: Plan, nodes: Sequence[Node], demands: Sequence[Demand], predictor: Predictor, *, most_moves: int
) -> Plan:
    """The best plan on the way to a better one that takes at most so many moves; the old one if there is none.

    Each model keeps its share or gets its new one; of all choices those that fit are compared by their forecasts, first
    by the part of the demanded rates that they carry (at most all), then by latency weighted with the rates.

    Args:
        old: placed.
        better: shares, placed or not.
        nodes: what there is.
        demands: for the forecasts.
        predictor: predicts.
        most_moves: instances that may be started.
    """
    now = {share.model: share for share in old.shares}
    then = {share.model: share for share in better.shares}
    changed = [model for model in then if then[model] != now.get(model)]
    best = replace(old, forecasts=predictor.forecast(demands, old.shares, old.instances), rejected=())
    for choice in _choices(changed):
        shares = tuple(then[model] if model in choice or model not in now else now[model] for model in then)
        try:
            plan = keeping(Plan(better.slices_per_gpu, shares), old, nodes)
        except UsageError:
            continue  # this choice does not fit; the whole of `better` does
        if len(started(old, plan)) > most_moves:
            continue
        plan = replace(plan, forecasts=predictor.forecast(demands, shares, plan.instances))
        if worth(plan) < worth(best):
            best = plan
    return best


def worth(plan: Plan) -> tuple[float, float]:
    """Less is better: the part of the demanded rates that is not carried, then mean latency in seconds."""
    carried = min((min(1.0, it.throughput / it.rate) for it in plan.forecasts), default=1.0)
    rate = sum(it.rate for it in plan.forecasts)
    return 1.0 - carried, sum(it.rate * it.latency_s for it in plan.forecasts) / rate if rate else 0.0


def _choices(models: Sequence[str]) -> Iterator[frozenset[str]]:
    if len(models) > MOST_MODELS:
        yield frozenset(models)
        return
    for size in range(1, len(models) + 1):
        yield from map(frozenset, itertools.combinations(models, size))


class _Room:
    """What is left of the GPUs, in slices."""

    def __init__(self, nodes: Sequence[Node], slices_per_gpu: int) -> None:
        self._slices = slices_per_gpu
        self._domains = [(node.name, domain) for node in nodes for domain in node.domains]
        self._free: dict[tuple[str, int], int] = defaultdict(int)
        for name, domain in self._domains:
            for gpu in domain:
                self._free[name, gpu] = slices_per_gpu

    def has(self, it: Instance) -> bool:
        """Whether an instance can be where it says."""
        return all(self._free.get((it.node, gpu), 0) >= it.shape.slices for gpu in it.gpus)

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
