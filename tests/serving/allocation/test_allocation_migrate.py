"""From one plan to another: what stays stays, and no more moves than allowed."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.serving.allocation.interference import Interference
from headway.serving.allocation.migrate import (
    gone,
    in_few_moves,
    keeping,
    remaining,
    started,
    staying,
    stopped,
    worth,
)
from headway.serving.allocation.place import check_places, place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Curve, Demand, Forecast, Instance, ModelProfile, Plan, Shape, Share
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
    best = {moves: few(old, better, NODES, demands, predictor, most_moves=moves) for moves in range(4)}
    for moves, found in best.items():
        assert len(started(old, found)) <= moves
        fits(found)
    costs = [worth(best[moves]) for moves in range(4)]
    assert costs == sorted(costs, reverse=True)
    assert best[0].shares == old.shares
    assert best[1].shares[0] == better.shares[0], "the one move that matters is the first that is made"
    assert costs[1] < costs[0]


def few(
    old: Plan,
    better: Plan,
    nodes: list[Node],
    demands: list[Demand],
    predictor: Predictor,
    *,
    most_moves: int,
    limits_s: dict[str, float] | None = None,
) -> Plan:
    found = in_few_moves(old, better, nodes, demands, predictor, most_moves=most_moves, limits_s=limits_s)
    assert found is not None
    return found


def test_what_is_left_of_a_plan_is_on_gpus_that_are_there_and_joined() -> None:
    old = Plan(
        10,
        (Share("a", Shape(1, 10), 2), Share("b", Shape(2, 10), 1)),
        (whole("a", 0, "n1", 0), whole("a", 1, "n1", 1), Instance("b", 0, Shape(2, 10), "n2", (0, 1))),
    )
    assert remaining(old, NODES) == old
    assert not gone(old, NODES)
    one = [Node("n1", "a100", ((0,),)), NODES[1]]
    assert remaining(old, one).shares == (Share("a", Shape(1, 10), 1), Share("b", Shape(2, 10), 1))
    assert gone(old, one) == [old.instances[1]]
    apart = [NODES[0], Node("n2", "a100", ((0,), (1,)))]
    assert remaining(old, apart) == Plan(10, old.shares[:1], old.instances[:2])
    assert gone(old, apart) == [old.instances[2]]
    assert old.instances[2] not in keeping(plan(old.shares[1]), old, [*apart, Node("n3", "a100", ((0, 1),))]).instances


@pytest.mark.parametrize("moves", range(4))
def test_few_moves_never_lead_to_gpus_that_are_gone(moves: int) -> None:
    predictor = Predictor({model: profile(model) for model in "ab"})
    demands = [demand(a=2.0, b=1.0)]
    old = Plan(
        10,
        (Share("a", Shape(1, 10), 2), Share("b", Shape(1, 10), 1)),
        (whole("a", 0, "n1", 0), whole("a", 1, "n2", 0), whole("b", 0, "n1", 1)),
    )
    left = [NODES[0], Node("n3", "a100", ((0, 1),))]
    better = plan(Share("a", Shape(2, 10), 1), Share("b", Shape(1, 10), 2))
    found = few(old, better, left, demands, predictor, most_moves=moves)
    check_places(found, left)
    fits(found)
    assert len(started(old, found)) <= moves
    if moves == 0:
        assert found.shares == (Share("a", Shape(1, 10), 1), Share("b", Shape(1, 10), 1))


def test_where_nothing_is_left_of_a_model_there_may_be_too_few_moves() -> None:
    predictor = Predictor({model: profile(model) for model in "ab"})
    demands = [demand(a=1.0, b=1.0)]
    shares = (Share("a", Shape(1, 10), 1), Share("b", Shape(1, 10), 1))
    old = Plan(10, shares, (whole("a", 0, "n1", 0), whole("b", 0, "n2", 0)))
    better = plan(Share("a", Shape(1, 5), 1), Share("b", Shape(1, 5), 1))
    assert in_few_moves(old, better, NODES[:1], demands, predictor, most_moves=0) is None
    found = few(old, better, NODES[:1], demands, predictor, most_moves=1)
    assert found.shares == (shares[0], better.shares[1])
    check_places(found, NODES[:1])


def test_what_was_on_a_gpu_that_is_gone_moves_and_the_rest_stays() -> None:
    old = placed(Share("a", Shape(1, 10), 2), Share("b", Shape(1, 5), 2))
    gone = {(it.node, it.gpus) for it in old.instances if it.node == "n2"}
    new = keeping(plan(Share("a", Shape(1, 10), 1), Share("b", Shape(1, 5), 2)), old, NODES[:1])
    fits(new)
    assert gone
    assert all(it.node == "n1" for it in new.instances)
    assert {it for it in old.instances if it.node == "n1"} & set(new.instances)
    assert len(started(old, new)) < len(new.instances)


THREE = [Node(name, "a100", ((0,),)) for name in ("n1", "n2", "n3")]


def test_apart_whole_instances_and_parts_have_nodes_of_their_own_and_what_can_stay_stays() -> None:
    old = Plan(
        10, (Share("a", Shape(1, 10), 1), Share("b", Shape(1, 5), 1)), (whole("a", 0, "n1", 0), part("b", 0, "n3", 0))
    )
    shares = (Share("a", Shape(1, 10), 1), Share("b", Shape(1, 5), 1), Share("c", Shape(1, 5), 3))
    new = keeping(plan(*shares), old, THREE, apart=True)
    fits(new)
    assert set(old.instances) <= set(new.instances)
    assert {it.node for it in new.instances if it.shape.slices == 5} == {"n2", "n3"}
    together = (Share("a", Shape(1, 10), 2), Share("b", Shape(1, 5), 1), Share("c", Shape(1, 4), 1))
    fits(keeping(plan(*together), old, THREE))
    with pytest.raises(UsageError, match="no room on nodes of their own"):
        keeping(plan(*together), old, THREE, apart=True)
    with pytest.raises(UsageError, match="no room on nodes of their own"):
        keeping(plan(Share("c", Shape(1, 4), 1)), old, THREE, apart=True)


def test_what_would_break_a_limit_does_not_stay() -> None:
    """Two busy models are each beside an idle one, which keeps a limit; in the old plan they share a GPU."""
    predictor = Predictor({model: profile(model) for model in "abcd"}, interference=Interference(0.5))
    demands = [demand(a=0.1, b=0.1, c=2.0, d=2.0)]
    shares = tuple(Share(model, Shape(1, 5), 1) for model in "abcd")

    def on_gpus(*gpus: int) -> Plan:
        instances = tuple(part(model, 0, "n1", gpu) for model, gpu in zip("abcd", gpus, strict=True))
        return Plan(10, shares, instances, predictor.forecast(demands, shares, instances))

    made, old = on_gpus(0, 1, 0, 1), on_gpus(0, 0, 1, 1)
    kept_s, broken_s = made.forecasts[0].latency_s, old.forecasts[0].latency_s
    assert kept_s < broken_s < float("inf")
    there = [Node("n1", "a100", ((0, 1),))]
    assert staying(made, old, there, demands, predictor, limits_s={"w": (kept_s + broken_s) / 2}) == made
    assert staying(made, old, there, demands, predictor) == old
    assert staying(made, old, there, demands, predictor, limits_s={"w": 2 * broken_s}) == old


def forecast(latency_s: float, *, rate: float = 1.0, throughput: float = 2.0) -> Forecast:
    return Forecast("w", rate, latency_s, throughput, {"a": latency_s}, "a")


def on(gpus: int, latency_s: float, *, throughput: float = 2.0) -> Plan:
    """So many whole instances."""
    instances = tuple(whole("a", number, "n1", number) for number in range(gpus))
    return Plan(10, (Share("a", Shape(1, 10), gpus),), instances, (forecast(latency_s, throughput=throughput),))


INF = float("inf")


@pytest.mark.parametrize(
    ("new", "now", "limit_s", "better"),
    [
        (on(2, 0.8), on(2, 1.0), None, True),
        (on(2, 0.95), on(2, 1.0), None, False),
        (on(1, 1.0), on(2, 1.0), None, False),
        (on(2, 5.0), on(2, INF, throughput=0.5), None, True),
        (on(2, INF, throughput=0.505), on(2, INF, throughput=0.5), None, False),
        (on(2, INF, throughput=0.5), on(2, 1.0), None, False),
        (on(1, 1.9), on(2, 1.0), 2.0, True),
        (on(3, 0.1), on(2, 1.0), 2.0, False),
        (on(2, 0.8), on(2, 1.0), 2.0, True),
        (on(1, 2.1), on(2, 1.0), 2.0, False),
        (on(4, 1.99), on(2, 2.01), 2.0, True),
        (on(4, 2.9), on(2, 3.0), 2.0, False),
        (on(4, 2.5), on(2, 3.0), 2.0, True),
    ],
)
def test_a_plan_is_clearly_better_where_it_does_more_of_what_is_asked_or_does_it_with_less(
    new: Plan, now: Plan, limit_s: float | None, better: bool
) -> None:
    limits_s = None if limit_s is None else {"w": limit_s}
    assert worth(new, limits_s).clearly_better(worth(now, limits_s), by=0.1) is better


def test_the_way_to_fewer_gpus_goes_within_the_limits() -> None:
    predictor = Predictor({"a": profile("a")})
    demands = [demand(a=1.0)]
    old = Plan(10, (Share("a", Shape(2, 10), 2),), (pair(0, "n1"), pair(1, "n2")))
    fewer = plan(Share("a", Shape(1, 10), 1))
    assert few(old, fewer, NODES, demands, predictor, most_moves=1).shares == old.shares
    assert few(old, fewer, NODES, demands, predictor, most_moves=1, limits_s={"w": 9.0}).shares == fewer.shares
    tight = few(old, fewer, NODES, demands, predictor, most_moves=1, limits_s={"w": 0.7})
    assert tight.shares == old.shares


def pair(number: int, node: str) -> Instance:
    return Instance("a", number, Shape(2, 10), node, (0, 1))
