"""Placement and packing: domains, best fit, spreading, and what is said where it does not fit."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.serving.allocation.packing import Weights, bins, dual_feasible, fits, spread_whole
from headway.serving.allocation.place import place
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Plan, Shape, Share


def node(name: str, *sizes: int) -> Node:
    """Domains of these sizes."""
    starts = [0, *itertools.accumulate(sizes)]
    return Node(name, "a100", tuple(tuple(range(a, a + size)) for a, size in zip(starts, sizes, strict=False)))


def plan(*shares: tuple[str, int, int, int], f: int = 10) -> Plan:
    """Of (model, degree, slices, replicas)."""
    return Plan(f, tuple(Share(model, Shape(degree, slices), count) for model, degree, slices, count in shares))


def places(placed: Plan, model: str) -> list[tuple[str, tuple[int, ...]]]:
    """Nodes and GPUs of a model's instances by number."""
    return [(each.node, each.gpus) for each in placed.instances if each.model == model]


def test_largest_first_and_small_domains_before_large_ones() -> None:
    placed = place(plan(("small", 1, 10, 1), ("two", 2, 10, 1), ("four", 4, 10, 1)), [node("a", 4, 4), node("b", 2, 1)])
    assert places(placed, "four") == [("a", (0, 1, 2, 3))]
    assert places(placed, "two") == [("b", (0, 1))]
    assert places(placed, "small") == [("b", (2,))]


def test_parts_go_to_gpus_in_use_where_they_fit_best() -> None:
    placed = place(plan(("a", 1, 6, 1), ("b", 1, 5, 1), ("c", 1, 4, 1), ("d", 1, 5, 1)), [node("n", 4)])
    assert places(placed, "a") == places(placed, "c") == [("n", (0,))]
    assert places(placed, "b") == places(placed, "d") == [("n", (1,))]


def test_replicas_spread_over_nodes_where_it_costs_nothing() -> None:
    placed = place(plan(("m", 2, 10, 2)), [node("a", 2), node("b", 2)])
    assert {name for name, _ in places(placed, "m")} == {"a", "b"}
    packed = place(plan(("m", 2, 10, 2)), [node("a", 4), node("b", 8)])
    assert {name for name, _ in places(packed, "m")} == {"a"}  # b stays whole


def test_a_better_packing_is_found_where_best_fit_runs_out_of_gpus() -> None:
    # Best fit decreasing takes 6+3 and 5+4 first, and has no room for the last 2s of ten.
    sizes = {"a": 6, "b": 5, "c": 3, "d": 2}
    counts = {"a": 1, "b": 1, "c": 1, "d": 3}
    placed = place(plan(*((name, 1, sizes[name], counts[name]) for name in sizes)), [node("n", 2)])
    load = Counter(each.gpus[0] for each in placed.instances for _ in range(each.shape.slices))
    assert load == {0: 10, 1: 10}


def test_placed_anew_and_numbered() -> None:
    once = place(plan(("m", 1, 5, 3), ("n", 1, 10, 1)), [node("n", 3)])
    assert place(once, [node("n", 3)]) == once
    assert [(each.model, each.number) for each in once.instances] == [("m", 0), ("m", 1), ("m", 2), ("n", 0)]


@pytest.mark.parametrize(
    ("shares", "nodes", "said"),
    [
        ([("m", 4, 10, 1)], [node("a", 2, 2)], "no node has more than 2 .*degree of at most 2"),
        ([("m", 2, 10, 3)], [node("a", 4)], r"TP 2 has no place: whole instances need 6 GPUs and there are 4 \(add 2"),
        ([("m", 2, 10, 2)], [node("a", 3, 1)], r"no domain has 2 GPUs left, the largest has 1"),
        (
            [("m", 1, 10, 1), ("n", 1, 6, 2)],
            [node("a", 2)],
            r"parts of GPUs of n \(1.2 GPUs in all\) need 2 GPUs, .*leave 1",
        ),
        ([("m", 1, 10, 1)], [], "no node has more than 0"),
    ],
)
def test_what_does_not_fit_is_told_with_what_would(
    shares: list[tuple[str, int, int, int]], nodes: list[Node], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        place(plan(*shares), nodes)


def test_nodes_of_several_kinds() -> None:
    with pytest.raises(UsageError, match="several kinds: a100, h100"):
        place(plan(("m", 1, 10, 1)), [node("a", 1), Node("b", "h100", ((0,),))])


SHARES = st.lists(
    st.tuples(st.sampled_from([(1, 1), (1, 2), (1, 3), (1, 4), (2, 4), (4, 4)]), st.integers(1, 4)),
    min_size=1,
    max_size=4,
)
NODES = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=3)


@given(SHARES, NODES)
@settings(deadline=None)
def test_placed_whenever_it_fits_and_never_twice_on_a_slice(
    shapes: list[tuple[tuple[int, int], int]], sizes: list[list[int]]
) -> None:
    made = plan(*((f"m{at}", *shape, count) for at, (shape, count) in enumerate(shapes)), f=4)
    nodes = [node(f"n{at}", *each) for at, each in enumerate(sizes)]
    whole = [degree for (degree, slices), count in shapes for _ in range(count) if slices == 4]
    parts = [slices for (_, slices), count in shapes for _ in range(count) if slices < 4]
    domains = tuple(size for each in sizes for size in each)
    if not fits(whole, parts, domains=domains, slices_per_gpu=4):
        with pytest.raises(UsageError):
            place(made, nodes)
        return
    placed = place(made, nodes)
    load: Counter[tuple[str, int]] = Counter()
    for each in placed.instances:
        assert len(each.gpus) == each.shape.tensor_parallel
        joined = [
            domain for one in nodes if one.name == each.node for domain in one.domains if set(each.gpus) <= set(domain)
        ]
        assert len(joined) == 1
        for gpu in each.gpus:
            load[each.node, gpu] += each.shape.slices
    assert max(load.values()) <= 4
    assert Counter(each.model for each in placed.instances) == {share.model: share.replicas for share in made.shares}


def possible(left: tuple[int, ...], rooms: tuple[int, ...]) -> bool:
    """By trying everything."""
    if not left:
        return True
    return any(
        room >= left[0] and possible(left[1:], (*rooms[:at], room - left[0], *rooms[at + 1 :]))
        for at, room in enumerate(rooms)
    )


@given(st.lists(st.sampled_from([1, 2, 4, 8]), max_size=6), st.lists(st.integers(1, 9), min_size=1, max_size=4))
@settings(deadline=None)
def test_largest_first_is_exact_for_powers_of_two(sizes: list[int], domains: list[int]) -> None:
    ordered = tuple(sorted(sizes, reverse=True))
    assert (spread_whole(ordered, domains) is not None) == possible(ordered, tuple(domains))


@given(st.lists(st.integers(1, 10), max_size=7), st.integers(1, 4))
@settings(deadline=None)
def test_packing_is_exact(sizes: list[int], most: int) -> None:
    ordered = tuple(sorted(sizes, reverse=True))
    found = bins(ordered, 10, most)
    assert (found is not None) == possible(ordered, (10,) * most)
    if found is not None:
        assert len(found) <= most
        assert all(sum(group) <= 10 for group in found)
        assert sorted(size for group in found for size in group) == sorted(sizes)


@given(st.integers(1, 14), st.data())
@settings(deadline=None)
def test_what_fits_on_a_gpu_weighs_no_more_than_it(f: int, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, f), max_size=f).filter(lambda sizes: sum(sizes) <= f))
    for weights in dual_feasible(f):
        assert weights.of[f] == weights.gpu
        assert sum(weights.of[size] for size in sizes) <= weights.gpu


def test_weights_see_what_never_shares_a_gpu() -> None:
    by_weight = {Fraction(sum(each.of[size] for size in (6, 6, 6)), each.gpu) for each in dual_feasible(10)}
    assert max(by_weight) == 3
    assert max(Fraction(5 * each.of[4], each.gpu) for each in dual_feasible(10)) == Fraction(5, 2)
    assert dual_feasible(1) == (Weights((0, 1), 1),)
    assert dual_feasible(2) == (Weights((0, 1, 2), 2),)


def test_odd_degrees_are_packed_by_search() -> None:
    assert spread_whole((3, 3, 2, 2, 2), (6, 6)) is not None
    assert spread_whole((4, 3, 3, 2), (6, 6)) == (0, 1, 1, 0)
    assert spread_whole((5, 5), (6, 4)) is None
