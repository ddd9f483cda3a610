"""From one plan to another: what stays stays, and no more moves than allowed."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.serving.allocation.migrate import keeping, started, stopped, within, worth
from headway.serving.allocation.place import place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Curve, Demand, Instance, ModelProfile, Plan, Shape, Share
from headway.serving.workflows.aggregate_types import Aggregate, ModelUse

NODES = [Node("n1", "a100", ((0, 1),)), Node("n2", "a100", ((0, 1),))]


def profile(model: str, rate: float = 10.0) -> ModelProfile:
    """Faster by as much as it has more of."""
    curves = {}
    for shape in [*(Shape(1, slices) for slices in range(1, 11)), Shape(2, 10)]:
        size = shape.tensor_parallel * shape.slices / 10
        curves[shape] = Curve((0.1 * rate * size,), (1 / size,), (2 / size,), rate * size)
    return ModelProfile(model, curves, {}, "test")


def demand(**calls: float) -> Demand:
    uses = tuple(ModelUse(model, count, 1.0, count, 1 / len(calls), 0.0, 10, 10) for model, count in calls.items())
    return Demand(Aggregate("w", 100, uses, 0.0, sum(calls.values()), 0.0), 1.0)


def plan(*shares: Share) -> Plan:
    return Plan(10, shares)


def placed(*shares: Share) -> Plan:
    return place(plan(*shares), NODES)


def fits(found: Plan) -> None:
    """No GPU is given away twice."""
    used: dict[tuple[str, int], int] = {}
    for it in found.instances:
        for gpu in it.gpus:
            used[it.node, gpu] = used.get((it.node, gpu), 0) + it.shape.slices
    assert max(used.values()) <= 10
    counts = {share.model: share.replicas for share in found.shares}
    assert counts == {model: sum(it.model == model for it in found.instances) for model in counts}


def test_the_same_shares_move_nothing_wherever_they_are() -> None:
    old = Plan(10, (Share("a", Shape(1, 10), 2),), (whole("a", 0, "n2", 1), whole("a", 1, "n1", 1)))
    new = keeping(plan(Share("a", Shape(1, 10), 2)), old, NODES)
    assert set(new.instances) == set(old.instances)
    assert not started(old, new)


def whole(model: str, number: int, node: str, gpu: int) -> Instance:
    return Instance(model, number, Shape(1, 10), node, (gpu,))


def test_a_replica_more_starts_one_and_a_replica_less_stops_one() -> None:
    old = placed(Share("a", Shape(1, 10), 2), Share("b", Shape(1, 5), 1))
    more = keeping(plan(Share("a", Shape(1, 10), 3), Share("b", Shape(1, 5), 1)), old, NODES)
    fits(more)
    assert [it.model for it in started(old, more)] == ["a"]
    assert not stopped(old, more)
    assert len({it.number for it in more.instances if it.model == "a"}) == 3
    less = keeping(plan(Share("a", Shape(1, 10), 1), Share("b", Shape(1, 5), 1)), old, NODES)
    assert not started(old, less)
    assert [it.model for it in stopped(old, less)] == ["a"]


def test_another_shape_moves_only_that_model() -> None:
    old = placed(Share("a", Shape(1, 10), 2), Share("b", Shape(1, 5), 2))
    new = keeping(plan(Share("a", Shape(1, 10), 2), Share("b", Shape(1, 4), 3)), old, NODES)
    fits(new)
    assert {it.model for it in started(old, new)} == {"b"}


def test_parts_go_beside_others_so_that_whole_gpus_stay_free() -> None:
    old = placed(Share("a", Shape(1, 6), 1))
    new = keeping(plan(Share("a", Shape(1, 6), 1), Share("b", Shape(1, 4), 1), Share("c", Shape(2, 10), 1)), old, NODES)
    fits(new)
    where = {it.model: (it.node, it.gpus) for it in new.instances}
    assert where["b"] == where["a"]


def test_where_nothing_can_stay_all_is_placed_anew() -> None:
    old = Plan(10, (Share("a", Shape(1, 5), 2),), (part("a", 0, "n1", 0), part("a", 1, "n2", 0)))
    new = keeping(plan(Share("a", Shape(1, 5), 2), Share("b", Shape(2, 10), 1)), old, NODES)
    fits(new)
    assert {it.model for it in started(old, new)} >= {"b"}


def part(model: str, number: int, node: str, gpu: int) -> Instance:
    return Instance(model, number, Shape(1, 5), node, (gpu,))


def test_without_room_it_says_so() -> None:
    with pytest.raises(UsageError):
        keeping(plan(Share("a", Shape(2, 10), 3)), placed(Share("a", Shape(2, 10), 1)), NODES)


def test_a_plan_within_some_moves_is_better_than_the_old_one_and_keeps_to_them() -> None:
    predictor = Predictor({model: profile(model) for model in "abc"})
    demands = [demand(a=8.0, b=1.0, c=1.0)]
    shares = tuple(Share(model, Shape(1, 10), 1) for model in "abc")
    old = Plan(10, shares, (whole("a", 0, "n1", 0), whole("b", 0, "n2", 0), whole("c", 0, "n2", 1)))
    better = plan(Share("a", Shape(2, 10), 1), Share("b", Shape(1, 8), 1), Share("c", Shape(1, 9), 1))
    best = {moves: within(old, better, NODES, demands, predictor, most_moves=moves) for moves in range(4)}
    for moves, found in best.items():
        assert len(started(old, found)) <= moves
        fits(found)
    costs = [worth(best[moves]) for moves in range(4)]
    assert costs == sorted(costs, reverse=True)
    assert best[0].shares == old.shares
    assert best[1].shares[0] == better.shares[0], "the one move that matters is the first that is made"
    assert costs[1] < costs[0]
