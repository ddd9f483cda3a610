"""The families of plans that people know, as weighted sets of spanning trees.

| known as | trees here |
| --- | --- |
| flat aggregator, parameter server | `star` |
| direct, butterfly, sharded aggregators | `direct`: n stars, one rooted at each rank |
| ring | `ring`: the n rotations of one chain |
| chain | `chain`: one of them, for broadcast and reduce too |
| rotated chains with slow ranks as leaves | `chains` |
| double binary tree (NCCL's "tree") | `double_tree` |
| recursive doubling and halving (Rabenseifner) | `recursive_doubling` |
| rack-aware, hierarchical | `two_level` |

n is the number of ranks, S the bytes of the whole vector. "Steps" counts messages that wait for one another in an
all-reduce (up and down); a reduce-scatter, all-gather, broadcast or reduce takes half of them, and about half of the
bytes. "Bytes" is what a rank sends in an all-reduce; it receives as much.

A tree costs a rank `share * S` per direction for each tree edge it has, wherever the root is. The root only sets the
depth; so `midway` chains are rooted in their middle, which halves the steps at the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from headway.collectives.parents import (
    binary_row,
    holder,
    joined,
    path_row,
    path_rows,
    permutation,
    places_near,
    rotated,
    star_row,
)
from headway.collectives.plan import Plan, PlanError, plan_of

MAX_ROTATIONS = 64
"""Above this many core ranks, `chains` takes this many evenly spaced rotations: the load differs from all of them
by less than 1/64, and the number of trees stays small."""


def ring(order: Sequence[int], *, midway: bool = False) -> Plan:
    """The n rotations of one chain, share 1/n each.

    Objective: equal load on equal links, no incast (each rank talks to two neighbours).
    Steps: 2(n-1); midway: n. Bytes: 2(n-1)/n S, the least possible when all links are equal.
    Loses: when one rank is slow (it pays 2(n-1)/n S where S would do), and on small vectors (steps).
    """
    ranks = permutation(order)
    n = len(ranks)
    rows = path_rows(rotated(ranks, n), n // 2 if midway else n - 1, n)
    return plan_of("ring, rooted midway" if midway else "ring", rows, np.full(n, 1 / n), order=ranks)


def chain(order: Sequence[int], *, midway: bool = False) -> Plan:
    """One chain; the root is the last of `order`, or the middle one.

    Objective: fewest flows; the two ends send and receive only S. The chain rooted at its end is also the best
    broadcast and reduce of a large vector.
    Steps: 2(n-1); midway: n. Bytes: 2S inside, S at the ends.
    Loses: all inner ranks carry 2S, a bit more than a ring, and the pipeline fills over the whole length.
    """
    ranks = permutation(order)
    n = len(ranks)
    return plan_of("chain", path_row(ranks, n // 2 if midway else n - 1, n)[None, :], [1.0])


def chains(
    order: Sequence[int],
    *,
    last: Sequence[int] = (),
    avoid: Collection[tuple[int, int]] = (),
    midway: bool = True,
    rotations: int | None = None,
) -> Plan:
    """Rotated chains over the healthy ranks `order`, with the slow ranks `last` hung on as leaves.

    Objective: a slow rank sends S and receives S, the least it can, and the rest is spread evenly.
    Steps: about m + 2 for m healthy ranks (midway), 2m else. Bytes: S for ranks in `last`; for the others
    2(m-1)/m S + len(last)/m S.
    Loses: on small vectors; when the slow ranks are so many that the few healthy ones carry them all.

    Args:
        order: the healthy ranks in chain order; at least one.
        last: ranks that are leaves in every tree. They hang near the root: where a leaf hangs does not change the
            load, and near the root it gets its result earliest.
        avoid: pairs of ranks (either direction) that shall not be leaf and holder where that can be helped.
        midway: root in the middle.
        rotations: number of trees; default all m, at most MAX_ROTATIONS, evenly spaced.
    """
    core, leaves = np.asarray(order, dtype=np.int32), list(last)
    n, m = len(core) + len(leaves), len(core)
    permutation([*core.tolist(), *leaves])
    if m == 0:
        raise PlanError("chains need at least one rank that is not last")
    count = min(m, MAX_ROTATIONS) if rotations is None else rotations
    root_at = m // 2 if midway else m - 1
    places = places_near(root_at, m)
    bad = {frozenset(pair) for pair in avoid}
    spines = rotated(core, count)
    rows = path_rows(spines, root_at, n)
    for index, leaf in enumerate(leaves):
        place = places[index % m]
        rows[:, leaf] = spines[:, place]
        if any(leaf in pair for pair in bad):
            rows[:, leaf] = [holder(spine, place, leaf, bad) for spine in spines.tolist()]
    name = f"chains over {m}" + (f", {names(leaves)} last" if leaves else "")
    return plan_of(name, rows, np.full(count, 1 / count))


def star(size: int, root: int) -> Plan:
    """Everybody sends to `root`, which sends the result to everybody (parameter server).

    Objective: fewest steps with fewest messages.
    Steps: 2. Bytes: (n-1)S at the root, S elsewhere.
    Loses: on anything but small vectors: the root's links carry everything, and its incast is the worst there is.
    """
    return plan_of(f"star at rank {root}", star_row(size, root)[None, :], [1.0])


def direct(shares: Sequence[float]) -> Plan:
    """One star per rank: rank i aggregates the share shares[i] of the vector (butterfly, sharded aggregators).

    Objective: least time for any capacities: with the shares of `columns.direct_shares` it meets the limit.
    Steps: 2. Bytes: S(1 + w_i(n-2)) at rank i.
    Loses: n(n-1) flows; incast unless pieces are sent in rotated order. Racks: most flows cross the uplinks.

    Args:
        shares: one per rank, not negative, sum above 0; scaled to sum 1. Ranks with share 0 aggregate nothing.
    """
    weights = np.asarray(shares, dtype=np.float64)
    size, total = len(weights), float(weights.sum())
    if size == 0 or not total > 0 or bool((weights < 0).any()):
        raise PlanError("direct needs shares that are not negative and add up to more than 0")
    roots = np.flatnonzero(weights > 0)
    rows = np.repeat(roots[:, None], size, axis=1)
    rows[np.arange(len(roots)), roots] = -1
    even = len(roots) == size and bool(np.allclose(weights, total / size))
    return plan_of("direct" if even else "direct with shares", rows, weights[roots] / total)


def double_tree(order: Sequence[int], *, last: Sequence[int] = (), share: float = 0.5) -> Plan:
    """Two binary trees; a rank that is inner in one is a leaf in the other as far as possible (NCCL's "tree").

    Objective: logarithmic depth at nearly full bandwidth.
    Steps: about 4 log2 n. Bytes: at most 2S for most ranks; the last rank of an odd count is a leaf in both and
    pays S.
    Loses: to the ring on large vectors when n is small (inner ranks carry 3 edges of half the vector each).

    Args:
        order: ranks in the order of their places. Places 2, 4, 6... are inner in the first tree.
        last: ranks hung as leaves on leaves of both trees; they pay S.
        share: what the first tree carries.
    """
    core = np.asarray(order, dtype=np.int32)
    n, m = len(core) + len(last), len(core)
    permutation([*core.tolist(), *last])
    if m == 0:
        raise PlanError("a double tree needs at least one rank that is not last")
    mirrored = core[::-1] if m % 2 == 0 else np.roll(core, 1)
    rows = []
    for places in (core, mirrored):
        row = binary_row(places, n)
        for index, leaf in enumerate(last):
            row[leaf] = places[(2 * index) % m]
        rows.append(row)
    name = "double tree" + (f", {names(last)} last" if last else "")
    if m == 1 and not last:
        return plan_of(name, rows[0][None, :], [1.0], order=core)
    if share >= 1 or share <= 0:
        half = rows[0 if share >= 1 else 1][None, :]
        return plan_of(name + ", one half only", half, [1.0], order=(*core, *last))
    return plan_of(name, np.stack(rows), [share, 1 - share], order=(*core, *last))


def binary_tree(order: Sequence[int]) -> Plan:
    """One binary heap-shaped tree, rooted at order[0]: broadcast and reduce of a small vector.

    Objective: few steps without a star's incast. Steps: log2 n each way. Bytes: up to 2S (3S in an all-reduce).
    Loses: to the chain on large vectors.
    """
    ranks = permutation(order)
    places = np.arange(1, len(ranks))
    row = np.full(len(ranks), -1, dtype=np.int32)
    row[ranks[places]] = ranks[(places - 1) // 2]
    return plan_of("binary tree", row[None, :], [1.0])


def recursive_doubling(order: Sequence[int]) -> Plan:
    """Binomial trees, one rooted at each rank, share 1/n: recursive-doubling all-gather; up, recursive halving.

    The rank at place p exchanges with place p xor 2^k in step k, in which 2^k blocks move. Beyond the largest power
    of two p0 <= n, the rank at place p0 + j hands its block to place j first and gets all blocks from there last.
    Objective: logarithmic steps at the ring's bytes. Steps: 2 log2 n. Bytes: 2(n-1)/n S for a power of two, else
    up to twice that at the ranks which serve an extra one.
    Loses: when the ranks far apart share a thin uplink (the large steps all cross it); for n just above a power of 2.
    """
    ranks = permutation(order)
    n = len(ranks)
    p0 = 1 << (n.bit_length() - 1)
    places = np.arange(p0)
    rows = np.full((n, n), -1, dtype=np.int32)
    for root in range(n):
        inner = root if root < p0 else root - p0
        distance = places ^ inner
        others = places[distance > 0]
        highest = 1 << (np.frexp(distance[others])[1] - 1).astype(np.int64)
        rows[root, ranks[others]] = ranks[others ^ highest]
        extras = np.arange(p0, n)
        rows[root, ranks[extras]] = ranks[extras - p0]
        if root >= p0:
            rows[root, ranks[inner]], rows[root, ranks[root]] = ranks[root], -1
    return plan_of("recursive doubling", rows, np.full(n, 1 / n), order=ranks)


def two_level(
    groups: Sequence[Sequence[int]],
    *,
    last: Collection[int] = (),
    avoid: Collection[tuple[int, int]] = (),
    leaders: int | None = None,
    midway: bool = True,
    turn_groups: bool = True,
) -> Plan:
    """A chain through each group, the groups' chains joined into one; each tree joins at other leaders.

    Objective: each group's uplink carries a tree once per direction and neighbour group: S for the two groups at the
    ends of the chain of groups, 2S for those between, whatever the size of the groups.
    Steps: about n. Bytes: 2(n-1)/n S per rank, S for ranks in `last`.
    Loses: against the ring when the uplinks of the groups are not short; it is as deep as a chain.

    Args:
        groups: the ranks of each rack (or host), in the order in which groups are joined: slow uplinks first and last.
        last: ranks that are leaves, hung within their own group. A group of only such ranks is kept as a chain.
        avoid: pairs of ranks (either direction) that shall not meet between groups where another choice exists.
        leaders: number of trees with leaders of their own; default: the largest group's healthy ranks.
        midway: root in the middle.
        turn_groups: rotate the order of groups over the trees, so that every group is at an end now and then.
    """
    slow = set(last)
    cores = [[r for r in group if r not in slow] or list(group) for group in groups if len(group)]
    hung = [
        [r for r in group if r not in core] for group, core in zip([g for g in groups if len(g)], cores, strict=True)
    ]
    n = sum(len(core) + len(leaves) for core, leaves in zip(cores, hung, strict=True))
    permutation([r for core, leaves in zip(cores, hung, strict=True) for r in (*core, *leaves)])
    count = leaders if leaders is not None else min(MAX_ROTATIONS, max(len(core) for core in cores))
    turns = len(cores) if turn_groups and len(cores) > 2 else 1
    bad = {frozenset(pair) for pair in avoid}
    rows = []
    for t in range(count * turns):
        at = t % turns
        spine: list[int] = []
        for core in cores[at:] + cores[:at]:
            spine += joined(core, t // turns, spine[-1] if spine else None, bad)
        row = path_row(np.asarray(spine, dtype=np.int32), len(spine) // 2 if midway else len(spine) - 1, n)
        for core, leaves in zip(cores, hung, strict=True):
            for index, leaf in enumerate(leaves):
                row[leaf] = holder(core, (index + t) % len(core), leaf, bad)
        rows.append(row)
    name = f"two-level over {len(cores)} groups" + (f", {names(sorted(slow))} last" if slow else "")
    return plan_of(name, np.stack(rows), np.full(len(rows), 1 / len(rows)))


def rooted_chains(
    order: Sequence[int],
    *,
    last: Collection[int] = (),
    groups: Sequence[Sequence[int]] | None = None,
    avoid: Collection[tuple[int, int]] = (),
) -> Plan:
    """One chain rooted at each rank, share 1/n, for reduce-scatter and all-gather, with the ranks `last` as leaves.

    Objective: a rank in `last` forwards nothing: it only sends its own block once and receives the others (an
    all-gather), or receives its own block once and sends the others (a reduce-scatter).
    Steps: n-1. Bytes: S/n from ranks in `last`; (n-1)/n S + len(last)/m S from the m others.
    Loses: on small vectors, and if the slow direction is the one that every rank must use in full.

    Args:
        order: the other ranks in chain order.
        last: ranks that are leaves except in the tree of their own block.
        groups: racks, if each shall be entered once per tree; must hold all ranks.
        avoid: pairs of ranks (either direction) that shall not be leaf and holder where that can be helped.
    """
    leaves = list(last)
    core = [r for r in order if r not in set(leaves)]
    n = len(core) + len(leaves)
    permutation([*core, *leaves])
    if not core:
        raise PlanError("chains need at least one rank that is not last")
    group_of = {r: g for g, group in enumerate(groups or ()) for r in group}
    bad = {frozenset(pair) for pair in avoid}
    rows = []
    for root in range(n):
        if root in group_of:
            racks = [[r for r in group if r in set(core)] for group in (groups or ())]
            turned = racks[group_of[root] :] + racks[: group_of[root]]
            if root in turned[0]:
                at = turned[0].index(root)
                turned[0] = turned[0][at:] + turned[0][:at]
            spine = [r for k, rack in enumerate(turned) for r in (rack if k == 0 else np.roll(rack, -root).tolist())]
        else:
            at = core.index(root) if root in core else leaves.index(root) % len(core)
            spine = core[at:] + core[:at]
        if root not in core:
            spine.insert(0, root)
        row = np.full(n, -1, dtype=np.int32)
        row[spine[1:]] = spine[:-1]
        for index, leaf in enumerate(leaves):
            if leaf != root:
                holders = [r for r in spine if r != root and group_of.get(r) == group_of.get(leaf)]
                holders = holders or [r for r in spine if r != root] or [root]
                row[leaf] = holder(holders, (index + root) % len(holders), leaf, bad)
        rows.append(row)
    name = "chains from each rank" + (f", {names(leaves)} last" if leaves else "")
    return plan_of(name, np.stack(rows), np.full(n, 1 / n))


def root_chains(root: int, order: Sequence[int], *, last: Sequence[int] = ()) -> Plan:
    """Chains from one root through the rotations of `order`, with the ranks `last` as leaves: broadcast, reduce.

    Objective: everybody forwards the same; a rank in `last` forwards nothing.
    Steps: m + 1. Bytes (broadcast): S from the root; (m-1)/m S + len(last)/m S from each of the m others in `order`.
    Loses: on small vectors, to the binary tree and the star.
    """
    core, leaves = [r for r in order if r != root], [r for r in last if r != root]
    n = 1 + len(core) + len(leaves)
    permutation([root, *core, *leaves])
    count = max(1, min(len(core), MAX_ROTATIONS))
    rows = []
    for k in range(count):
        at = k * len(core) // count
        spine = [root, *core[at:], *core[:at]]
        row = np.full(n, -1, dtype=np.int32)
        row[spine[1:]] = spine[:-1]
        for index, leaf in enumerate(leaves):
            row[leaf] = spine[-1 - index % max(1, len(core))]
        rows.append(row)
    name = f"chains from rank {root}" + (f", {names(leaves)} last" if leaves else "")
    return plan_of(name, np.stack(rows), np.full(count, 1 / count))


def names(ranks: Sequence[int]) -> str:
    """Ranks in words, as names of plans have them: \"rank 3\", \"ranks 0, 8, 16 and 5 more\"."""
    shown = ", ".join(str(rank) for rank in ranks[:3])
    more = f" and {len(ranks) - 3} more" if len(ranks) > 3 else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
