"""Which GPUs each instance of a plan gets (Scepsy's placement). Pure.

1. Instances of several GPUs, the largest first, each within one fast domain: the one with the least room that has
   enough, so that large domains stay whole.
2. Instances of one whole GPU, again where there is least room in the domain.
3. Parts of GPUs, the largest first, onto GPUs that are in use already, where they fit best; a new GPU only where none
   has room. Where that runs out of GPUs and another packing does not, that one is taken (`packing`).

Between places that are equally good, an instance goes to the node that has the fewest of its model, so that a node that
fails takes as few replicas as possible with it; then to the first node by order. Never at the cost of a tighter fit: a
whole GPU that stays free is worth more to the next plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headway.errors import UsageError
from headway.serving.allocation.packing import bins, spread_whole
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Instance, Plan, Share


@dataclass(slots=True)
class _Domain:
    """GPUs of a node that are joined, and which are free."""

    node: Node
    free: list[int]
    size: int


@dataclass(slots=True)
class _Placing:
    slices_per_gpu: int
    domains: list[_Domain]
    instances: list[Instance] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)
    on_node: Counter[tuple[str, str]] = field(default_factory=Counter)

    def put(self, share: Share, node: str, gpus: tuple[int, ...]) -> None:
        """One instance more of a model."""
        self.instances.append(Instance(share.model, self.used[share.model], share.shape, node, gpus))
        self.used[share.model] += 1
        self.on_node[share.model, node] += 1


def place(plan: Plan, nodes: Sequence[Node]) -> Plan:
    """The plan with its instances on GPUs.

    Args:
        plan: shares; instances that it has are placed anew.
        nodes: of one kind of GPU, in the order in which they are to be filled.

    Raises:
        UsageError: it does not fit; says which instance, and what would let it. Or nodes of several kinds.
    """
    kinds = sorted({node.device for node in nodes})
    if len(kinds) > 1:
        raise UsageError(
            f"the nodes have GPUs of several kinds: {', '.join(kinds)}",
            hint="profiles hold for one kind; plan for each kind by itself",
        )
    domains = [_Domain(node, list(domain), len(domain)) for node in nodes for domain in node.domains]
    placing = _Placing(plan.slices_per_gpu, domains)
    _place_whole(placing, [share for share in plan.shares if share.shape.slices == plan.slices_per_gpu])
    _place_parts(placing, [share for share in plan.shares if share.shape.slices < plan.slices_per_gpu])
    order = {share.model: at for at, share in enumerate(plan.shares)}
    instances = sorted(placing.instances, key=lambda each: (order[each.model], each.number))
    return replace(plan, instances=tuple(instances))


def check_places(plan: Plan, nodes: Sequence[Node] = (), *, where: str = "") -> None:
    """UsageError where a placed plan is on GPUs that are not there, not joined, or given away more than once.

    Args:
        plan: placed, perhaps edited since.
        nodes: the machines; empty: only what is given away is looked at.
        where: for errors.
    """
    by_name = {node.name: node for node in nodes}
    used: Counter[tuple[str, int]] = Counter()
    for it in plan.instances:
        who = f"{it.model} #{it.number}"
        if nodes:
            node = by_name.get(it.node)
            if node is None:
                raise UsageError(f"has {who} on {it.node}, and the nodes are {', '.join(by_name)}", where=where)
            missing = sorted(set(it.gpus) - {gpu for domain in node.domains for gpu in domain})
            if missing:
                raise UsageError(f"has {who} on GPU {missing[0]} of {it.node}, which has no such GPU", where=where)
            if not any(set(it.gpus) <= set(domain) for domain in node.domains):
                gpus = ", ".join(map(str, it.gpus))
                raise UsageError(
                    f"has {who} on GPUs {gpus} of {it.node}, which no fast interconnect joins", where=where
                )
        for gpu in it.gpus:
            used[it.node, gpu] += it.shape.slices
    for (name, gpu), slices in used.items():
        if slices > plan.slices_per_gpu:
            each = ", ".join(f"{it.model} #{it.number}" for it in plan.instances if it.node == name and gpu in it.gpus)
            worth = slices / plan.slices_per_gpu
            raise UsageError(f"has {worth:g} GPUs' worth on GPU {gpu} of {name}: {each}", where=where)


def _place_whole(placing: _Placing, shares: Sequence[Share]) -> None:
    ordered = sorted(shares, key=lambda share: -share.shape.tensor_parallel)
    each = [share for share in ordered for _ in range(share.replicas)]
    sizes = tuple(share.shape.tensor_parallel for share in each)
    if _largest_first_fits(sizes, [len(domain.free) for domain in placing.domains]):
        for share in each:
            degree = share.shape.tensor_parallel
            _take(
                placing,
                share,
                min(
                    (domain for domain in placing.domains if len(domain.free) >= degree),
                    key=lambda domain: (len(domain.free), placing.on_node[share.model, domain.node.name]),
                ),
            )
        return
    where = spread_whole(sizes, [len(domain.free) for domain in placing.domains])
    if where is None:
        raise _no_domain(placing, each)
    for share, at in zip(each, where, strict=True):
        _take(placing, share, placing.domains[at])


def _largest_first_fits(sizes: Sequence[int], rooms: list[int]) -> bool:
    """Whether largest first and best fit places all of these: which of equal rooms is taken does not matter."""
    for size in sizes:
        room = min((room for room in rooms if room >= size), default=None)
        if room is None:
            return False
        rooms[rooms.index(room)] -= size
    return True


def _take(placing: _Placing, share: Share, domain: _Domain) -> None:
    degree = share.shape.tensor_parallel
    gpus, domain.free = tuple(domain.free[:degree]), domain.free[degree:]
    placing.put(share, domain.node.name, gpus)


def _no_domain(placing: _Placing, each: Sequence[Share]) -> UsageError:
    """The first instance that has no place when the largest go first, and what would help."""
    rooms = sorted((domain.size for domain in placing.domains), reverse=True)
    total, needed = sum(rooms), sum(share.shape.tensor_parallel for share in each)
    for share in each:
        degree = share.shape.tensor_parallel
        fitting = [room for room in rooms if room >= degree]
        if fitting:
            rooms[rooms.index(min(fitting))] -= degree
            continue
        largest = max(domain.size for domain in placing.domains) if placing.domains else 0
        if degree > largest:
            hint = f"plan with a tensor-parallel degree of at most {largest}, or add a node with {degree} joined GPUs"
            return UsageError(
                f"{share.model} needs {degree} GPUs that are joined by a fast interconnect, and no node has more than "
                f"{largest}",
                hint=hint,
            )
        if needed > total:
            return UsageError(
                f"{share.model} at TP {degree} has no place: whole instances need {needed} GPUs and there are {total}",
                hint=f"add {needed - total} GPUs, or plan for {total}",
            )
        return UsageError(
            f"{share.model} at TP {degree} has no place: after the larger instances no domain has {degree} GPUs left, "
            f"the largest has {max(rooms)}",
            hint="headway plan make with these nodes (--nodes)",
        )
    raise AssertionError("largest first finds a place for all, but the caller found none")


def _place_parts(placing: _Placing, shares: Sequence[Share]) -> None:
    f = placing.slices_per_gpu
    each = sorted((share for share in shares for _ in range(share.replicas)), key=lambda share: -share.shape.slices)
    free = sum(len(domain.free) for domain in placing.domains)
    sizes = tuple(share.shape.slices for share in each)
    if not sizes:
        return
    groups = bins(sizes, f, free)
    if groups is None:
        needed = free + 1
        while bins(sizes, f, needed) is None:
            needed += 1
        models = ", ".join(sorted({share.model for share in each}))
        raise UsageError(
            f"the parts of GPUs of {models} ({sum(sizes) / f:g} GPUs in all) need {needed} GPUs, and whole instances "
            f"leave {free}",
            hint=f"add {needed - free} GPUs, or plan for fewer",
        )
    if not _best_fit(placing, each, free):
        _by_groups(placing, each, groups)


def _best_fit(placing: _Placing, each: Sequence[Share], free: int) -> bool:
    """Places parts where they fit best; False, and nothing placed, where that takes more GPUs than are free."""
    f = placing.slices_per_gpu
    rooms: list[int] = []
    for share in each:
        fitting = [room for room in rooms if room >= share.shape.slices]
        if fitting:
            rooms[rooms.index(min(fitting))] -= share.shape.slices
        else:
            rooms.append(f - share.shape.slices)
    if len(rooms) > free:
        return False
    opened: list[tuple[str, int]] = []
    room_of: dict[tuple[str, int], int] = {}
    holders: Counter[tuple[str, tuple[str, int]]] = Counter()
    for share in each:
        size = share.shape.slices
        fitting_gpus = [gpu for gpu in opened if room_of[gpu] >= size]
        if fitting_gpus:
            gpu = min(
                fitting_gpus,
                key=lambda gpu: (room_of[gpu], holders[share.model, gpu], placing.on_node[share.model, gpu[0]]),
            )
        else:
            gpu = _open(placing, share.model)
            opened.append(gpu)
            room_of[gpu] = f
        room_of[gpu] -= size
        holders[share.model, gpu] += 1
        placing.put(share, gpu[0], (gpu[1],))
    return True


def _open(placing: _Placing, model: str) -> tuple[str, int]:
    """A free GPU, from the domain with the least room."""
    domain = min(
        (domain for domain in placing.domains if domain.free),
        key=lambda domain: (len(domain.free), placing.on_node[model, domain.node.name]),
    )
    return domain.node.name, domain.free.pop(0)


def _by_groups(placing: _Placing, each: Sequence[Share], groups: Sequence[Sequence[int]]) -> None:
    """Places parts as a packing says that was found by search."""
    waiting: dict[int, list[Share]] = {}
    for share in each:
        waiting.setdefault(share.shape.slices, []).append(share)
    for group in groups:
        first = waiting[group[0]][0]
        node, gpu = _open(placing, first.model)
        for size in group:
            placing.put(waiting[size].pop(0), node, (gpu,))
