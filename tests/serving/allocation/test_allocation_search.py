"""The search: closed forms, equality with looking at everything, and what must hold for any case."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.allocation_cases import Case, case
from headway.errors import UsageError
from headway.serving.allocation.exhaustive import exhaustive, explore_all
from headway.serving.allocation.packing import shares_fit
from headway.serving.allocation.place import place
from headway.serving.allocation.scepsy import explore_scepsy, scepsy
from headway.serving.allocation.search import Found, Room, explore, search
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand, Forecast, Plan, Shape, Share
from tests.serving.allocation.made import demand, flat, predictor, profile, scaling, workflow

SOME = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def made_case(seed: int, models: int, gpus: int, f: int, workflows: int) -> Case | None:
    """None where the models cannot all be on the GPUs."""
    try:
        return case(seed, models=models, gpus=gpus, slices_per_gpu=f, workflows=min(models, workflows))
    except UsageError:
        return None


CASES = st.builds(
    made_case,
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([2, 4, 5]),
    st.integers(1, 2),
).filter(bool)
ONE_WORKFLOW = st.builds(
    made_case, st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4), st.just(4), st.just(1)
).filter(bool)


def shares(plan: Plan) -> dict[str, tuple[int, int, int]]:
    """Degree, slices and replicas by model."""
    return {each.model: (each.shape.tensor_parallel, each.shape.slices, each.replicas) for each in plan.shares}


def test_one_model_gets_all_gpus_for_latency() -> None:
    known = predictor(scaling("m", f=4, degrees=(1, 2, 4)))
    plan = search([demand("w", {"m": 1.0}, 0.5)], known, gpus=4, slices_per_gpu=4, domain_gpus=4)
    assert shares(plan) == {"m": (4, 4, 1)}
    assert plan.forecasts[0].latency_s == pytest.approx(0.25)
    assert plan.forecasts[0].throughput == pytest.approx(4.0)


def test_tensor_parallel_stays_inside_the_fast_domain() -> None:
    known = predictor(scaling("m", f=4, degrees=(1, 2, 4)))
    plan = search([demand("w", {"m": 1.0}, 0.5)], known, gpus=4, slices_per_gpu=4, domain_gpus=2)
    assert shares(plan)["m"][0] == 2
    assert search([demand("w", {"m": 1.0}, 0.5)], known, gpus=4, slices_per_gpu=4, domain_gpus=[3, 1]).shares[
        0
    ].shape == (Shape(2, 4))


@pytest.mark.parametrize("f", [2, 4, 10])
def test_two_equal_models_get_equal_shares(f: int) -> None:
    known = predictor(scaling("a", f=f), scaling("b", f=f))
    plan = search([demand("w", {"a": 1.0, "b": 1.0}, 0.2)], known, gpus=1, slices_per_gpu=f, domain_gpus=1)
    assert shares(plan) == {"a": (1, f // 2, 1), "b": (1, f // 2, 1)}


def test_throughput_comes_before_latency() -> None:
    # At TP 2 a call takes half as long, but two instances take more calls than one.
    curves = {(1, 1): flat(1.0, 1.0), (2, 1): flat(0.5, 1.5)}
    known = predictor(profile("m", curves))
    slow = search([demand("w", {"m": 1.0}, 1.8)], known, gpus=2, slices_per_gpu=1, domain_gpus=2)
    quick = search([demand("w", {"m": 1.0}, 1.2)], known, gpus=2, slices_per_gpu=1, domain_gpus=2)
    assert shares(slow) == {"m": (1, 1, 2)}
    assert shares(quick) == {"m": (2, 1, 1)}


def test_where_nothing_carries_the_rates_all_get_the_same_part_of_theirs() -> None:
    known = predictor(scaling("a", f=4), scaling("b", f=4))
    asked = [demand("a", {"a": 1.0}, 3.0), demand("b", {"b": 1.0}, 1.0)]
    plan = search(asked, known, gpus=1, slices_per_gpu=4, domain_gpus=1)
    assert shares(plan) == {"a": (1, 3, 1), "b": (1, 1, 1)}
    assert [each.throughput / each.rate for each in plan.forecasts] == pytest.approx([0.25, 0.25])


def test_no_workflow_is_starved_for_another() -> None:
    # All of the GPU for the long one would be the least mean latency in seconds.
    known = predictor(scaling("long", f=4, latency_s=100.0), scaling("short", f=4, latency_s=0.1))
    asked = [demand("long", {"long": 1.0}, 0.01), demand("short", {"short": 1.0}, 0.01)]
    plan = search(asked, known, gpus=1, slices_per_gpu=4, domain_gpus=1)
    assert shares(plan) == {"long": (1, 2, 1), "short": (1, 2, 1)}


def test_memory_is_a_lower_bound() -> None:
    small = profile("m", {(1, slices): flat(1.0, 1.0) for slices in (1, 2, 3, 4)}, memory_bytes=50)
    known = predictor(small, scaling("n", f=4))
    plan = search(
        [demand("w", {"m": 1.0, "n": 1.0}, 0.1)], known, gpus=1, slices_per_gpu=4, domain_gpus=1, gpu_bytes=100
    )
    assert shares(plan) == {"m": (1, 2, 1), "n": (1, 2, 1)}
    with pytest.raises(UsageError, match=r"m: fits nowhere: it needs .* on each GPU"):
        search([demand("w", {"m": 1.0}, 0.1)], known, gpus=1, slices_per_gpu=4, domain_gpus=1, gpu_bytes=40)


def test_what_cannot_be_packed_is_not_proposed() -> None:
    # Three sixths of tenths make 1.8 GPUs, and need three.
    three = [scaling(name, f=10, least=6) for name in "abc"]
    asked = [demand("w", dict.fromkeys("abc", 1.0), 0.1)]
    with pytest.raises(UsageError, match=r"cannot all be on 2 GPUs at once; the least of each in GPUs: a 0\.6"):
        search(asked, predictor(*three), gpus=2, slices_per_gpu=10, domain_gpus=2)
    plan = search(asked, predictor(*three), gpus=3, slices_per_gpu=10, domain_gpus=2)
    assert shares(plan) == dict.fromkeys("abc", (1, 10, 1))


def test_the_order_rule_forbids_what_the_search_finds() -> None:
    # The verifier has the smaller part of the latency, but needs most of the GPU.
    verifier = profile("verifier", {(1, 3): flat(0.1, 9.0), (1, 4): flat(0.1, 9.0)})
    known = predictor(scaling("generator", f=4), verifier)
    asked = [demand("w", {"generator": 9.0, "verifier": 1.0}, 0.01)]
    plan = search(asked, known, gpus=1, slices_per_gpu=4, domain_gpus=1)
    assert shares(plan) == {"generator": (1, 1, 1), "verifier": (1, 3, 1)}
    with pytest.raises(UsageError, match="cannot all be"):
        scepsy(asked, known, gpus=1, slices_per_gpu=4, domain_gpus=1)


def test_scepsy_splits_whole_gpus_between_workflows() -> None:
    known = predictor(scaling("a", f=4), scaling("b", f=4))
    asked = [demand("a", {"a": 1.0}, 2.5), demand("b", {"b": 1.0}, 0.5)]
    plan = scepsy(asked, known, gpus=4, slices_per_gpu=4, domain_gpus=4)
    assert shares(plan) == {"a": (1, 4, 3), "b": (1, 4, 1)}
    one = [Demand(workflow("both", {"a": 2.0, "b": 1.0}), 0.5), demand("b", {"b": 1.0}, 0.1)]
    assert shares(scepsy(one, known, gpus=4, slices_per_gpu=4, domain_gpus=4)).keys() == {"a", "b"}


def test_rejected_neighbours_say_why() -> None:
    known = predictor(scaling("generator", f=4, degrees=(1, 2)), scaling("verifier", f=4))
    asked = [demand("beam", {"generator": 4.0, "verifier": 1.0}, 0.4)]
    plan = search(asked, known, gpus=3, slices_per_gpu=4, domain_gpus=2)
    assert shares(plan) == {"generator": (2, 4, 1), "verifier": (1, 4, 1)}
    why = {each.what: each.why for each in plan.rejected}
    assert why["generator at TP 1 x 2 instead of TP 2 x 1 (tensor parallel down)"] == (
        "beam 66.7% slower (5 s instead of 3 s)"
    )
    assert why["verifier at TP 1 x 2 instead of TP 1 x 1 (one replica more)"] == "needs 4 GPUs of 3"
    assert any("carries" in text or "throughput" in text or "slower" in text for text in why.values())
    assert len(why) == len(plan.rejected)


def test_throughput_is_the_reason_where_it_is() -> None:
    known = predictor(scaling("generator", f=4, degrees=(1, 2)), scaling("verifier", f=4))
    asked = [demand("beam", {"generator": 1.0, "verifier": 1.0}, 1.9)]
    plan = search(asked, known, gpus=4, slices_per_gpu=4, domain_gpus=2)
    reasons = [each.why for each in plan.rejected]
    assert any(reason.startswith("throughput 0.53 of what beam needs: ") for reason in reasons)


@pytest.mark.parametrize(
    ("asked", "room", "said"),
    [
        ([], {}, "no workflow"),
        ([demand("w", {"m": 1.0}, 1.0)], {"domain_gpus": [1, 2]}, "do not make"),
        ([demand("w", {"m": 1.0}, 1.0)], {"domain_gpus": 0}, "do not make"),
        ([demand("w", {"m": 1.0}, 1.0)], {"gpus": 0}, "do not make"),
        ([demand("w", {"m": 1.0}, 1.0)], {"slices_per_gpu": 0}, "parts is none"),
        ([demand("w", {"m": 1.0}, 1.0)], {"slices_per_gpu": 3}, "no shape where a GPU has 3"),
    ],
)
def test_wrong_searches(asked: list[Demand], room: dict[str, object], said: str) -> None:
    given_room = {"gpus": 2, "slices_per_gpu": 4, "domain_gpus": 2, **room}
    with pytest.raises(UsageError, match=said):
        search(asked, predictor(scaling("m", f=4)), **given_room)  # type: ignore[arg-type]


def test_too_many_for_looking_at_everything() -> None:
    made = case(1, models=3, gpus=32, slices_per_gpu=10, load=0.3)
    with pytest.raises(UsageError, match="more than 20,000,000 combinations"):
        exhaustive(made.demands, made.predictor, gpus=32, slices_per_gpu=10, domain_gpus=8)
    found = explore(made.demands, made.predictor, made.there)
    assert found.exact


def test_a_search_that_is_cut_short_says_so() -> None:
    made = case(1, models=4, gpus=8, slices_per_gpu=10, load=0.8)
    assert not explore(made.demands, made.predictor, made.there, most_nodes=4).exact


@SOME
@given(CASES)
def test_as_good_as_looking_at_everything(made: Case) -> None:
    found, best = (
        explore(made.demands, made.predictor, made.there),
        explore_all(made.demands, made.predictor, made.there),
    )
    assert found.exact
    assert found.fraction == pytest.approx(best.fraction, rel=2e-4)
    if best.fraction == 1.0:
        assert found.cost == pytest.approx(best.cost, rel=2e-4)


@SOME
@given(CASES)
def test_what_is_found_can_be_had(made: Case) -> None:
    for found in (explore(made.demands, made.predictor, made.there), _scepsy(made)):
        if found is None:
            continue
        f, domains = made.there.slices_per_gpu, made.there.domains
        assert sum(each.slices() for each in found.shares) <= sum(domains) * f
        assert shares_fit(found.shares, domains, f)
        nodes = [Node(f"n{at}", "a100", (tuple(range(size)),)) for at, size in enumerate(domains)]
        assert len(place(Plan(f, found.shares), nodes).instances) == sum(each.replicas for each in found.shares)
        assert all(each.shape.tensor_parallel <= max(domains) for each in found.shares)
        assert all(each.shape.tensor_parallel == 1 for each in found.shares if each.shape.slices < f)
        for forecast in made.predictor.forecast(made.demands, found.shares):
            carried = forecast.throughput / forecast.rate
            assert carried >= found.fraction * (1 - 1e-6)
            assert (forecast.latency_s < math.inf) == (carried > 1)


@SOME
@given(CASES)
def test_scepsy_keeps_the_order_and_is_never_better(made: Case) -> None:
    best, other = explore(made.demands, made.predictor, made.there), _scepsy(made)
    if other is None:
        return
    assert other.fraction <= best.fraction * (1 + 2e-4)
    if other.fraction == best.fraction == 1.0:
        assert other.cost >= best.cost * (1 - 2e-4)
        if len(made.demands) == 1:  # the cost is the latency, but for a constant
            (quick,), (slow,) = (made.predictor.forecast(made.demands, each.shares) for each in (best, other))
            assert other.cost / best.cost == pytest.approx(slow.latency_s / quick.latency_s)
    if len(made.demands) == 1:
        weight = {use.model: use.share for use in made.demands[0].aggregate.uses}
        ranked = sorted(other.shares, key=lambda share: -weight[share.model])
        sizes = [share.slices() for share in ranked]
        assert sizes == sorted(sizes, reverse=True)


@SOME
@given(ONE_WORKFLOW)
def test_one_gpu_more_is_never_worse(made: Case) -> None:
    more = replace(made.there, domains=(*made.there.domains, 1))
    (before,) = _forecasts(made, made.there)
    (after,) = _forecasts(made, more)
    assert after.latency_s <= before.latency_s * (1 + 2e-4)
    if before.latency_s == math.inf:
        assert after.throughput >= before.throughput * (1 - 2e-4)


def _forecasts(made: Case, there: Room) -> tuple[Forecast, ...]:
    return made.predictor.forecast(made.demands, explore(made.demands, made.predictor, there).shares)


def _scepsy(made: Case) -> Found | None:
    try:
        return explore_scepsy(made.demands, made.predictor, made.there)
    except UsageError:
        return None


def test_the_same_search_finds_the_same() -> None:
    made = case(3, models=4, gpus=8, slices_per_gpu=10, workflows=2)
    assert explore(made.demands, made.predictor, made.there) == explore(made.demands, made.predictor, made.there)


def test_a_model_that_is_never_called_still_has_its_place() -> None:
    known = predictor(scaling("m", f=4), scaling("n", f=4))
    plan = search([demand("w", {"m": 1.0, "n": 0.0}, 0.1)], known, gpus=1, slices_per_gpu=4, domain_gpus=1)
    assert shares(plan)["n"] == (1, 1, 1)
    assert Share("m", Shape(1, 3), 1) in plan.shares
