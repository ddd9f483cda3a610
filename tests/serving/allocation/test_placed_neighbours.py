"""What the neighbours of a placed plan lack, with the instances that they meet; whether an edited plan can be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.errors import UsageError
from headway.serving.allocation.interference import Interference
from headway.serving.allocation.neighbours import placed_neighbours
from headway.serving.allocation.place import check_places, place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.search import search
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand, Plan, Shape, Share
from tests.serving.allocation.made import scaling, workflow

NODE = Node("n", "a100", ((0, 1), (2,)))
ASKED = [Demand(workflow("ask", {"a": 1.0, "b": 1.0}), 0.001)]


MOVED = "a at 0.25 GPU x 1 instead of 0.5 GPU x 1 and b at 0.75 GPU x 1 instead of 0.5 GPU x 1"


def reasons(plan: Plan, nodes: list[Node], known: Predictor, **limits_s: float) -> dict[str, str]:
    """Why each lost, by what it is."""
    return {each.what: each.why for each in placed_neighbours(plan, nodes, ASKED, known, limits_s=limits_s)}


def planned(shares: tuple[Share, ...], nodes: list[Node], known: Predictor) -> Plan:
    plan = place(Plan(4, shares), nodes)
    return replace(plan, forecasts=known.forecast(ASKED, plan.shares, plan.instances))


def halves(interference: float) -> tuple[Plan, list[Node], Predictor]:
    """Two models with half a GPU each, on one."""
    known = Predictor(
        {model: scaling(model, f=4) for model in "ab"}, interference=Interference(interference), slices_per_gpu=4
    )
    nodes = [Node("n", "a100", ((0,),))]
    shares = (Share("a", Shape(1, 2), 1), Share("b", Shape(1, 2), 1))
    return planned(shares, nodes, known), nodes, known


def test_neighbours_are_compared_as_they_would_be_placed() -> None:
    plan, nodes, known = halves(0.5)
    assert plan.forecasts[0].latency_s == pytest.approx(4.0, rel=0.01), "idle neighbours slow hardly"
    assert reasons(plan, nodes, known)[MOVED] == "ask 33.3% slower (5.34 s instead of 4 s)", "4 s and 4/3 s"
    unplaced = search(ASKED, known, gpus=1, slices_per_gpu=4, domain_gpus=1)
    assert any("instead of 5 s" in each.why for each in unplaced.rejected), "not placed: both beside a busy half"


@pytest.mark.parametrize(
    ("rate", "told"),
    [(1.5, "0.67 of what ask"), (1.002, "0.998 of what ask"), (1.0, "just what ask"), (1.0000001, "0.9999999 of")],
)
def test_what_falls_just_short_does_not_read_as_enough(rate: float, told: str) -> None:
    """One GPU takes 1 call/s, and there are two."""
    known = Predictor({"a": scaling("a", f=4)}, slices_per_gpu=4)
    asked = [Demand(workflow("ask", {"a": 1.0}), rate)]
    plan = search(asked, known, gpus=2, slices_per_gpu=4, domain_gpus=1)
    (less,) = plan.rejected
    assert less.why.startswith(f"throughput {told}")


def test_breaking_a_limit_is_the_reason_where_the_plan_keeps_it() -> None:
    plan, nodes, known = halves(0.0)
    told = reasons(plan, nodes, known, ask=4.5)[MOVED]
    assert told == "breaks ask's limit (5.333 s instead of at most 4.5 s)"
    assert "slower" in reasons(plan, nodes, known, ask=3.0)[MOVED], "the plan itself misses it"


def test_what_the_search_left_out_is_said() -> None:
    plan, nodes, known = halves(0.0)
    worse = planned((Share("a", Shape(1, 1), 1), Share("b", Shape(1, 1), 2)), nodes, known)
    why = reasons(worse, nodes, known)[
        "b at 0.25 GPU x 1 instead of 0.25 GPU x 2 and a at 0.75 GPU x 1 instead of 0.25 GPU x 1"
    ]
    assert why.startswith("ask 33.3% faster (5.33 s instead of 8 s): the search, which reckons with")
    assert not any("left it out" in why for why in reasons(plan, nodes, known).values())


def test_places_that_can_be_are_no_error() -> None:
    plan = place(Plan(4, (Share("a", Shape(2, 4), 1), Share("b", Shape(1, 2), 2))), [NODE])
    check_places(plan, [NODE])
    check_places(plan)


@pytest.mark.parametrize(
    ("number", "node", "gpus", "what"),
    [
        (0, "m", (0, 1), "has a #0 on m, and the nodes are n"),
        (0, "n", (0, 5), "has a #0 on GPU 5 of n, which has no such GPU"),
        (0, "n", (1, 2), "has a #0 on GPUs 1, 2 of n, which no fast interconnect joins"),
        (1, "n", (0,), "has 1.5 GPUs' worth on GPU 0 of n: a #0, b #0"),
    ],
)
def test_places_that_cannot_be(number: int, node: str, gpus: tuple[int, ...], what: str) -> None:
    plan = place(Plan(4, (Share("a", Shape(2, 4), 1), Share("b", Shape(1, 2), 1))), [NODE])
    edited = list(plan.instances)
    edited[number] = replace(edited[number], node=node, gpus=gpus)
    with pytest.raises(UsageError) as caught:
        check_places(replace(plan, instances=tuple(edited)), [NODE])
    assert str(caught.value) == what
