from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster.model import star as star_cluster
from headway.collectives import families
from headway.collectives.loads import link_loads
from headway.collectives.plan import Collective, Plan, PlanError
from headway.collectives.verify import check
from tests.collectives.clusters import splits

FAST = settings(max_examples=40, deadline=None)


def all_reduce_families(core: list[int], last: list[int]) -> list[Plan]:
    order = [*core, *last]
    n = len(order)
    return [
        families.ring(order),
        families.ring(order, midway=True),
        families.chain(order),
        families.chain(order, midway=True),
        families.chains(core, last=last),
        families.chains(core, last=last, midway=False),
        families.star(n, core[0]),
        families.direct([1.0 + rank for rank in range(n)]),
        families.direct([1.0 if rank == core[0] else 0.0 for rank in range(n)]),
        families.double_tree(order),
        families.double_tree(core, last=last),
        families.double_tree(core, last=last, share=0.25),
        families.double_tree(order, share=1.0),
        families.double_tree(order, share=0.0),
        families.binary_tree(order),
        families.recursive_doubling(order),
        families.two_level([order[0::2], order[1::2]], last=last),
        families.two_level([order[0::3], order[1::3], order[2::3]], last=last, avoid=[(order[0], order[-1])]),
        families.two_level([[rank] for rank in order], midway=False, turn_groups=False, leaders=2),
    ]


@FAST
@given(splits())
def test_every_family_computes_an_all_reduce_for_any_order(split: tuple[list[int], list[int]]) -> None:
    for plan in all_reduce_families(*split):
        check(plan, Collective.ALL_REDUCE)


@FAST
@given(splits())
def test_families_rooted_at_each_rank_scatter_and_gather(split: tuple[list[int], list[int]]) -> None:
    core, last = split
    order = [*core, *last]
    groups = [group for group in (order[0::3], order[1::3], order[2::3]) if group]
    plans = [
        families.ring(order),
        families.ring(order, midway=True),
        families.recursive_doubling(order),
        families.direct([1.0] * len(order)),
        families.rooted_chains(core, last=last),
        families.rooted_chains(core, last=last, groups=groups),
    ]
    for plan in plans:
        check(plan, Collective.REDUCE_SCATTER)
        check(plan, Collective.ALL_GATHER)


@FAST
@given(splits(), st.data())
def test_families_with_one_root_broadcast_and_reduce(split: tuple[list[int], list[int]], data: st.DataObject) -> None:
    core, last = split
    order = [*core, *last]
    root = data.draw(st.sampled_from(order))
    rest = [rank for rank in order if rank != root]
    plans = [
        families.root_chains(root, core, last=last),
        families.chain([*rest, root]),
        families.binary_tree([root, *rest]),
        families.star(len(order), root),
    ]
    for plan in plans:
        check(plan, Collective.BROADCAST, root=root)
        check(plan, Collective.REDUCE, root=root)


def test_ring_sends_two_times_n_minus_one_over_n() -> None:
    loads = link_loads(families.ring(range(8)), star_cluster(8, 1.0), Collective.ALL_REDUCE)
    assert loads == pytest.approx([2 * 7 / 8] * 16)


def test_ranks_that_are_last_send_and_receive_the_vector_once() -> None:
    plan = families.chains([0, 1, 2, 4, 6, 7], last=[3, 5])
    loads = link_loads(plan, star_cluster(8, 1.0), Collective.ALL_REDUCE)
    assert [loads[3], loads[5], loads[8 + 3], loads[8 + 5]] == pytest.approx([1.0] * 4)
    healthy = [loads[rank] for rank in (0, 1, 2, 4, 6, 7)]
    assert healthy == pytest.approx([2 * 5 / 6 + 2 / 6] * 6)


def test_star_loads_its_root_n_minus_one_times() -> None:
    loads = link_loads(families.star(5, 2), star_cluster(5, 1.0), Collective.ALL_REDUCE)
    assert loads[2] == pytest.approx(4.0)
    assert loads[0] == pytest.approx(1.0)


def test_direct_loads_a_rank_by_its_share() -> None:
    shares = [0.1, 0.2, 0.3, 0.4]
    loads = link_loads(families.direct(shares), star_cluster(4, 1.0), Collective.ALL_REDUCE)
    assert loads[:4] == pytest.approx([1 + 2 * share for share in shares])
    assert loads[4:] == pytest.approx(loads[:4])


@pytest.mark.parametrize("n", range(2, 34))
def test_double_tree_ranks_are_inner_in_one_tree_and_leaf_in_the_other(n: int) -> None:
    plan = families.double_tree(range(n))
    inner_twice = [
        rank for rank in range(n) if all(tree.children[rank] for tree in plan.trees) and len(plan.trees) == 2
    ]
    assert inner_twice == []
    assert plan.depth <= n.bit_length()


def test_double_tree_of_odd_count_keeps_its_last_rank_a_leaf() -> None:
    plan = families.double_tree([4, 1, 0, 2, 3])
    assert [tree.children[3] for tree in plan.trees] == [(), ()]


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_recursive_doubling_has_log2_n_steps_and_the_bytes_of_a_ring(n: int) -> None:
    plan = families.recursive_doubling(range(n))
    assert plan.depth == n.bit_length() - 1
    loads = link_loads(plan, star_cluster(n, 1.0), Collective.ALL_GATHER)
    assert loads == pytest.approx([(n - 1) / n] * (2 * n))


def test_two_level_crosses_between_two_groups_once_per_tree_at_changing_leaders() -> None:
    left, right = {0, 1, 2, 3}, {4, 5, 6, 7}
    plan = families.two_level([sorted(left), sorted(right)])
    crossings = []
    for tree in plan.trees:
        across = [
            (rank, above) for rank, above in enumerate(tree.parents) if above >= 0 and (rank in left) != (above in left)
        ]
        assert len(across) == 1
        crossings.append(frozenset(across[0]))
    assert len(set(crossings)) == 4


def test_two_level_avoids_slow_pairs_between_groups() -> None:
    avoid = [(0, 4), (3, 4), (1, 6)]
    plan = families.two_level([[0, 1, 2, 3], [4, 5, 6, 7]], avoid=avoid)
    bad = {frozenset(pair) for pair in avoid}
    edges = {frozenset((rank, above)) for tree in plan.trees for rank, above in enumerate(tree.parents) if above >= 0}
    assert not edges & bad


def test_midway_halves_the_depth() -> None:
    assert families.chain(range(9)).depth == 8
    assert families.chain(range(9), midway=True).depth == 4


@pytest.mark.parametrize(
    "order",
    [[], [0, 0], [1, 2], [0, 2], [-1, 0]],
)
def test_an_order_that_is_no_permutation_is_refused(order: list[int]) -> None:
    with pytest.raises(PlanError, match="order must name each"):
        families.ring(order)


@pytest.mark.parametrize("shares", [[], [0.0, 0.0], [1.0, -0.5]])
def test_direct_refuses_shares_that_are_none(shares: list[float]) -> None:
    with pytest.raises(PlanError, match="direct needs shares"):
        families.direct(shares)


def test_chains_need_a_core() -> None:
    with pytest.raises(PlanError, match="at least one rank"):
        families.chains([], last=[0, 1])


def test_large_chains_use_few_rotations() -> None:
    plan = families.chains(range(200))
    assert len(plan.trees) == families.MAX_ROTATIONS
    check(plan, Collective.ALL_REDUCE)
