"""The fewest GPUs: closed forms, equality with placing every plan, and what is said where all are not enough."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.allocation_cases import case
from headway.errors import UsageError
from headway.serving.allocation.fewest import Fewest, fewest, first_gpus
from headway.serving.allocation.interference import Interference
from headway.serving.allocation.packing import shares_fit
from headway.serving.allocation.place import place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.search import explore, room
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand, Plan, Share
from tests.serving.allocation.made import demand, flat, predictor, profile, scaling, workflow

SOME = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def machines(*domains: int) -> list[Node]:
    """A node for each domain."""
    return [Node(f"n{at}", "a100", (tuple(range(size)),)) for at, size in enumerate(domains)]


def shares(plan: Plan) -> dict[str, tuple[int, int, int]]:
    """Degree, slices and replicas by model."""
    return {each.model: (each.shape.tensor_parallel, each.shape.slices, each.replicas) for each in plan.shares}


@dataclass(frozen=True)
class Asked:
    """One question."""

    demands: tuple[Demand, ...]
    predictor: Predictor
    nodes: tuple[Node, ...]
    limits_s: Mapping[str, float]
    f: int

    def fewest(self, most_nodes: int = 40_000, most_placed: int = 40_000) -> Fewest:
        """The answer."""
        return fewest(
            self.demands,
            self.predictor,
            self.nodes,
            self.limits_s,
            slices_per_gpu=self.f,
            most_nodes=most_nodes,
            most_placed=most_placed,
        )

    def keeps(self, plan: Plan) -> bool:
        """Whether a placed plan carries all, within the limits."""
        return all(
            each.latency_s < math.inf and each.latency_s <= self.limits_s.get(each.workflow, math.inf) * (1 + 1e-9)
            for each in self.predictor.forecast(self.demands, plan.shares, plan.instances)
        )

    def every_plan(self, gpus: int) -> Iterator[Plan]:
        """All that fit on the first GPUs, placed."""
        nodes = first_gpus(self.nodes, gpus)
        domains = tuple(len(domain) for node in nodes for domain in node.domains)
        choices = [
            [
                Share(model, shape, count)
                for shape in self.predictor.profiles[model].curves
                for count in range(1, gpus * self.f // (shape.tensor_parallel * shape.slices) + 1)
            ]
            for model in self.predictor.load(self.demands)
        ]
        for each in itertools.product(*choices):
            if shares_fit(each, domains, self.f):
                yield place(Plan(self.f, each), nodes)

    def by_looking_at_all(self) -> int | None:
        """The smallest number of GPUs with a plan that holds; None: there is none."""
        for gpus in range(1, sum(node.gpus for node in self.nodes) + 1):
            if any(self.keeps(plan) for plan in self.every_plan(gpus)):
                return gpus
        return None


def made_question(seed: int, models: int, f: int, domains: Sequence[int], workflows: int, limited: int) -> Asked | None:
    """A seeded case with limits about what all GPUs can do; None where the models cannot all be on them."""
    gpus, rng = sum(domains), random.Random(seed)
    try:
        made = case(
            seed,
            models=models,
            gpus=gpus,
            slices_per_gpu=f,
            workflows=min(models, workflows),
            load=rng.uniform(0.05, 1.0),
        )
        there = room(gpus, f, domains)
        forecasts = made.predictor.forecast(made.demands, explore(made.demands, made.predictor, there).shares)
    except UsageError:
        return None
    limits_s = {
        each.workflow: each.latency_s * rng.uniform(0.85, 2.5) if each.latency_s < math.inf else 1e6
        for each, demanded in zip(forecasts[:limited], made.demands, strict=False)
    }
    limits_s = {
        each.aggregate.workflow: max(limits_s[each.aggregate.workflow], each.aggregate.other_s * 1.01)
        for each in made.demands[:limited]
    }
    return Asked(made.demands, made.predictor, tuple(machines(*domains)), limits_s, f)


QUESTIONS = st.one_of(
    st.builds(
        made_question,
        st.integers(0, 10**6),
        st.integers(1, 2),
        st.sampled_from([2, 4]),
        st.sampled_from([(3,), (1, 2), (2, 1), (1, 1, 1), (2, 2)]),
        st.integers(1, 2),
        st.integers(0, 2),
    ),
    st.builds(
        made_question,
        st.integers(0, 10**6),
        st.just(3),
        st.just(2),
        st.sampled_from([(3,), (1, 2), (2, 1)]),
        st.integers(1, 3),
        st.integers(1, 3),
    ),
).filter(bool)


def test_gpus_are_taken_domain_by_domain() -> None:
    nodes = [Node("a", "a100", ((0, 1), (2, 3))), Node("b", "a100", ((4, 5, 6),))]
    assert first_gpus(nodes, 1) == (Node("a", "a100", ((0,),)),)
    assert first_gpus(nodes, 3) == (Node("a", "a100", ((0, 1), (2,))),)
    assert first_gpus(nodes, 5) == (nodes[0], Node("b", "a100", ((4,),)))
    assert first_gpus(nodes, 7) == tuple(nodes)


def test_a_limit_asks_for_tensor_parallelism_and_so_for_gpus() -> None:
    # One call of 1 s / GPUs; the rate alone needs one GPU.
    known = predictor(scaling("m", f=4, degrees=(1, 2, 4)))
    asked = (demand("w", {"m": 1.0}, 0.5),)
    for limit_s, gpus in ((1.0, 1), (0.9, 2), (0.5, 2), (0.49, 4), (0.25, 4)):
        found = Asked(asked, known, tuple(machines(8)), {"w": limit_s}, 4).fewest()
        assert (found.gpus, found.of, found.missed, found.exact) == (gpus, 8, (), True)
        assert found.plan.forecasts[0].latency_s <= limit_s
        assert {gpu for it in found.plan.instances for gpu in it.gpus} <= set(range(gpus))
        assert (found.less is None) == (gpus == 1)


def test_what_one_gpu_less_would_do() -> None:
    known = predictor(scaling("m", f=4, degrees=(1, 2, 4)))
    found = Asked((demand("w", {"m": 1.0}, 0.5),), known, tuple(machines(8)), {"w": 0.3}, 4).fewest()
    assert found.gpus == 4
    assert found.less is not None
    (missed,) = found.less.missed
    assert missed.forecast.latency_s == pytest.approx(0.5)
    assert missed.limit_s == 0.3
    whole = predictor(profile("m", {(2, 4): flat(1.0, 9.0)}))
    found = Asked((demand("w", {"m": 1.0}, 0.5),), whole, tuple(machines(2)), {"w": 3.0}, 4).fewest()
    assert found.gpus == 2
    assert found.less is not None
    assert "is more than the 1 joined" in found.less.why


def test_gpus_are_in_the_order_of_the_nodes() -> None:
    known = predictor(scaling("m", f=1, degrees=(1, 2)))
    asked = (demand("w", {"m": 1.0}, 0.5),)
    small_first, large_first = (
        Asked(asked, known, tuple(machines(*domains)), {"w": 0.6}, 1).fewest() for domains in ((1, 2), (2, 1))
    )
    assert (small_first.gpus, large_first.gpus) == (3, 2)


def test_without_limits_rates_decide() -> None:
    known = predictor(scaling("a", f=4, least=2), scaling("b", f=4, least=2))
    both = (demand("a", {"a": 1.0}, 2.2), demand("b", {"b": 1.0}, 0.6))
    found = Asked(both, known, tuple(machines(2, 2, 2)), {}, 4).fewest()
    assert found.gpus == 4, "2.25 and 0.75 GPUs, but in pieces of at least a half that 3 GPUs do not hold"
    assert found.less is not None
    assert found.less.missed[0].forecast.latency_s == math.inf
    assert found.less.missed[0].limit_s is None


def test_a_plan_may_keep_both_limits_where_the_fastest_one_breaks_one() -> None:
    # Whichever has the other GPU's slices is quicker; the mean is least where they are equal, and the limit is not.
    known = predictor(scaling("a", f=4), scaling("b", f=4))
    asked = (demand("a", {"a": 1.0}, 0.01), demand("b", {"b": 1.0}, 0.01))
    plain = explore(asked, known, room(1, 4, [1]))
    assert [share.shape.slices for share in plain.shares] == [2, 2]
    found = Asked(asked, known, tuple(machines(1, 1)), {"a": 1.5, "b": 5.0}, 4).fewest()
    assert (found.gpus, shares(found.plan)) == (1, {"a": (1, 3, 1), "b": (1, 1, 1)})


def test_idle_neighbours_may_do_where_busy_ones_would_not() -> None:
    # Beside a busy half 1.1 s; beside one that is busy in 1 % of the time, hardly more than 1 s.
    curves = {(1, 1): flat(1.0, 9.0), (1, 2): flat(1.0, 9.0)}
    known = Predictor({name: profile(name, curves) for name in "ab"}, interference=Interference(0.2), slices_per_gpu=2)
    asked = (demand("a", {"a": 1.0}, 0.01), demand("b", {"b": 1.0}, 0.01))
    for limit_s, gpus in ((1.1, 1), (1.05, 1), (1.0005, 2)):
        found = Asked(asked, known, tuple(machines(2)), {"a": limit_s, "b": limit_s}, 2).fewest()
        assert (found.gpus, found.missed, found.exact) == (gpus, (), True)
    cut = Asked(asked, known, tuple(machines(2)), {"a": 1.05}, 2).fewest(most_placed=0)
    assert (cut.gpus, cut.missed, cut.exact) == (1, (), True), "the nearest plan on 1 GPU did"
    cut = Asked(asked, known, tuple(machines(2)), {"a": 1.0005}, 2).fewest(most_placed=0)
    assert (cut.gpus, cut.missed, cut.exact) == (2, (), False)


def test_all_gpus_are_not_enough() -> None:
    known = predictor(scaling("a", f=4), scaling("b", f=4))
    asked = (demand("a", {"a": 1.0}, 0.01), demand("b", {"b": 1.0}, 0.01))
    found = Asked(asked, known, tuple(machines(1)), {"a": 1.0, "b": 3.5}, 4).fewest()
    assert (found.gpus, found.of, found.less) == (1, 1, None)
    assert shares(found.plan) == {"a": (1, 3, 1), "b": (1, 1, 1)}, "4/3 of both limits is the least"
    assert [(each.forecast.workflow, each.limit_s) for each in found.missed] == [("a", 1.0), ("b", 3.5)]


def test_rates_that_are_too_much_come_before_limits() -> None:
    known = predictor(scaling("a", f=4), scaling("b", f=4))
    asked = (demand("a", {"a": 1.0}, 3.0), demand("b", {"b": 1.0}, 1.0))
    found = Asked(asked, known, tuple(machines(1)), {"b": 100.0}, 4).fewest()
    assert shares(found.plan) == {"a": (1, 3, 1), "b": (1, 1, 1)}
    assert {each.forecast.latency_s for each in found.missed} == {math.inf}


def test_memory_is_a_lower_bound() -> None:
    large = profile("m", {(1, 4): flat(1.0, 9.0)}, memory_bytes=90)
    known = predictor(large, profile("n", {(1, 4): flat(1.0, 9.0)}, memory_bytes=90))
    asked = [demand("w", {"m": 1.0, "n": 1.0}, 0.1)]
    found = fewest(asked, known, machines(3), {"w": 9.0}, slices_per_gpu=4, gpu_bytes=100)
    assert found.gpus == 2
    assert found.less is not None
    assert "cannot all be on 1 GPU at once" in found.less.why
    with pytest.raises(UsageError, match="m: fits nowhere"):
        fewest(asked, known, machines(3), {"w": 9.0}, slices_per_gpu=4, gpu_bytes=80)
    with pytest.raises(UsageError, match="cannot all be on 1 GPU at once"):
        fewest(asked, known, machines(1), {"w": 9.0}, slices_per_gpu=4, gpu_bytes=100)


@pytest.mark.parametrize(
    ("limits_s", "said"),
    [
        ({"other": 1.0}, "other: has a limit and is not planned for"),
        ({"w": 2.0}, "w: a limit of 2 s is not above the 2 s of a run without any call"),
        ({"w": math.inf}, "w: a limit of inf s"),
        ({"w": math.nan}, "w: a limit of nan s"),
    ],
)
def test_limits_that_make_no_sense(limits_s: dict[str, float], said: str) -> None:
    asked = [Demand(workflow("w", {"m": 1.0}, other_s=2.0), 0.1)]
    with pytest.raises(UsageError, match=said):
        fewest(asked, predictor(scaling("m", f=4)), machines(1), limits_s, slices_per_gpu=4)


@SOME
@given(QUESTIONS)
def test_as_few_as_by_placing_every_plan(asked: Asked) -> None:
    found, fewest_gpus = asked.fewest(), asked.by_looking_at_all()
    assert found.exact
    assert (None if found.missed else found.gpus) == fewest_gpus
    assert asked.keeps(found.plan) == (fewest_gpus is not None)
    assert found.plan.forecasts == asked.predictor.forecast(asked.demands, found.plan.shares, found.plan.instances)
    there = {(node.name, gpu) for node in first_gpus(asked.nodes, found.gpus) for dom in node.domains for gpu in dom}
    assert {(it.node, gpu) for it in found.plan.instances for gpu in it.gpus} <= there
    if found.less is not None:
        assert found.less.gpus == found.gpus - 1
        assert (found.less.plan is None) == bool(found.less.why)
        assert not found.less.holds


@SOME
@given(QUESTIONS)
def test_looser_limits_never_need_more(asked: Asked) -> None:
    looser = Asked(
        asked.demands,
        asked.predictor,
        asked.nodes,
        {workflow: limit_s * 1.3 for workflow, limit_s in asked.limits_s.items()},
        asked.f,
    )
    tight, loose = asked.fewest(), looser.fewest()
    assert loose.gpus <= tight.gpus
    assert not loose.missed or tight.missed


def test_the_same_question_has_the_same_answer() -> None:
    asked = made_question(5, 2, 4, (2, 2), 2, 2)
    assert asked is not None
    assert asked.fewest() == asked.fewest()
