"""Plans that the device plugin can share out: on each node whole instances, or parts of one size 1/r."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.serving.allocation.equal_parts import place_apart, search_equal_parts
from headway.serving.allocation.search import search
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Plan, Shape, Share
from tests.serving.allocation.made import demand, flat, predictor, profile, scaling


def node(name: str, gpus: int) -> Node:
    return Node(name, "a100", (tuple(range(gpus)),))


def sizes(plan: Plan) -> dict[str, set[int]]:
    return {it.node: {each.shape.slices for each in plan.instances if each.node == it.node} for it in plan.instances}


def test_two_models_on_one_gpu_get_half_each_though_unequal_parts_were_better() -> None:
    known = predictor(scaling("a", f=10), scaling("b", f=10))
    asked = [demand("w", {"a": 4.0, "b": 1.0}, 0.01)]
    free = search(asked, known, gpus=1, slices_per_gpu=10, domain_gpus=1)
    assert {share.model: share.shape.slices for share in free.shares} == {"a": 7, "b": 3}
    plan = search_equal_parts(asked, known, [node("n", 1)], slices_per_gpu=10)
    assert plan.shares == (Share("a", Shape(1, 5), 1), Share("b", Shape(1, 5), 1))
    assert plan.forecasts[0].latency_s == pytest.approx(10.0)
    assert len(plan.instances) == 2


def test_whole_instances_and_parts_have_nodes_of_their_own() -> None:
    """Three models on two nodes of one GPU: the one that works most has one for itself."""
    known = predictor(*(scaling(model, f=4) for model in "abc"))
    asked = [demand("w", {"a": 8.0, "b": 1.0, "c": 1.0}, 0.01)]
    plan = search_equal_parts(asked, known, [node("m", 1), node("n", 1)], slices_per_gpu=4)
    assert sizes(plan) == {"m": {4}, "n": {2}}
    on_one = search_equal_parts(asked, known, [node("m", 2)], slices_per_gpu=4)
    assert [len(each) for each in sizes(on_one).values()] == [1]


def test_where_no_size_has_room_the_error_says_whether_several_would_have() -> None:
    asked = [demand("w", {"a": 1.0, "b": 1.0}, 0.01)]
    known = predictor(profile("a", {(1, 3): flat(1.0, 1.0)}), profile("b", {(1, 1): flat(1.0, 1.0)}))
    with pytest.raises(UsageError, match=r"no room on 1 GPU, where .* would: a 0\.75 GPU x 1, b 0\.25 GPU x 1"):
        search_equal_parts(asked, known, [node("n", 1)], slices_per_gpu=4)
    large = predictor(profile("a", {(1, 3): flat(1.0, 1.0)}), profile("b", {(1, 4): flat(1.0, 1.0)}))
    with pytest.raises(UsageError, match="cannot all be on 1 GPU at once"):
        search_equal_parts(asked, large, [node("n", 1)], slices_per_gpu=4)


def test_placing_apart_takes_as_few_nodes_for_whole_instances_as_will_do() -> None:
    shares = (Share("a", Shape(1, 4), 2), Share("b", Shape(1, 1), 3))
    nodes = [node("l", 1), node("m", 1), node("n", 1)]
    plan = place_apart(Plan(4, shares), nodes)
    assert plan is not None
    assert sizes(plan) == {"l": {4}, "m": {4}, "n": {1}}
    assert place_apart(Plan(4, shares), nodes[:2]) is None
    assert place_apart(Plan(4, shares), [node("l", 3)]) is None, "one node cannot be cut for some of its GPUs"


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(st.floats(0.5, 8.0), min_size=1, max_size=4),
)
def test_every_plan_can_be_shared_out(gpus: list[int], calls: list[float]) -> None:
    models = "abcd"[: len(calls)]
    known = predictor(*(scaling(model, f=4, degrees=(1, 2)) for model in models))
    asked = [demand("w", dict(zip(models, calls, strict=True)), 0.01)]
    nodes = [node(f"n{at}", count) for at, count in enumerate(gpus)]
    plan = search_equal_parts(asked, known, nodes, slices_per_gpu=4)
    assert all(len(each) == 1 and 4 % min(each) == 0 for each in sizes(plan).values())
    best = search(asked, known, gpus=sum(gpus), slices_per_gpu=4, domain_gpus=gpus)
    assert plan.forecasts[0].latency_s >= best.forecasts[0].latency_s * (1 - 1e-9)
