"""The study's cells: what they build, and that their figures say what the study is to show."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from headway.cluster.model import star
from headway.collectives.plan import Collective
from headway.collectives.verify import check
from headway.sim.studies.react import CONDITIONS, PatternBook, Policy, Study, run


def figures(study: Study) -> dict[str, float]:
    values = run(asdict(study))
    return {name: float(str(values[name])) for name in ("algbw_Bps", "of_limit", "limit_Bps")}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_condition_runs_and_no_plan_beats_its_limit(condition: str) -> None:
    assert figures(Study("ring", 8, condition, "clairvoyant", operations=20))["of_limit"] < 1.0


@pytest.mark.parametrize("hosts", [8, 16])
def test_the_gain_over_a_ring_is_the_papers_and_no_more_than_two_less_two_nths(hosts: int) -> None:
    off = figures(Study("ring", hosts, "uplink at 25 %", "off"))
    policies: tuple[Policy, ...] = ("react", "packing")
    for policy in policies:
        gain = figures(Study("ring", hosts, "uplink at 25 %", policy))["algbw_Bps"] / off["algbw_Bps"]
        most = 2 * (hosts - 1) / hosts
        assert 0.95 * most < gain <= most


def test_rounds_and_streams_agree_on_a_ring_with_one_slow_host() -> None:
    streams = Study("ring", 8, "downlink at 50 %", "off", operations=20)
    rounds = replace(streams, execution="rounds")
    assert figures(rounds)["algbw_Bps"] == pytest.approx(figures(streams)["algbw_Bps"], rel=0.1)


def test_packing_goes_beyond_reacts_moves_in_an_all_gather() -> None:
    cell = Study("recursive doubling", 8, "uplink at 25 %", "off")
    off, react, packing = (figures(replace(cell, policy=policy))["algbw_Bps"] for policy in ("off", "react", "packing"))
    assert react < 1.05 * off
    assert packing > 2 * off


def test_several_jobs_share_what_one_has() -> None:
    one = figures(Study("ring", 8, "idle", "off", operations=20))
    two = figures(Study("ring", 8, "idle", "off", jobs=2, operations=20))
    assert two["algbw_Bps"] == pytest.approx(one["algbw_Bps"] / 2, rel=0.1)


def test_the_seed_and_the_noise_matter_to_a_tuner() -> None:
    cell = Study("recursive doubling", 16, "rack uplink at 25 %", "off", operations=16)
    assert figures(cell) != figures(replace(cell, seed=1))  # ECMP
    assert figures(cell) == figures(replace(cell, noise=0.3))  # nothing is measured
    react = Study("ring", 8, "uplink at 50 %", "packing", operations=24)
    assert run(asdict(react)) != run(asdict(replace(react, noise=0.5)))


def test_cells_are_told_apart_by_their_parameters_and_run_from_their_work() -> None:
    cell = Study("double tree", 8, "idle", "off", operations=12).cell()
    assert cell.parameters["pattern"] == "double tree"
    assert run(cell.work)["plan"] == "double tree"


def test_a_pattern_carries_what_it_can_and_a_ring_the_rest() -> None:
    cluster = star(6, 1e9)
    for pattern in ("ring", "double tree", "recursive doubling"):
        book = PatternBook(cluster, "react", bitwise=False, pattern=pattern)
        for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
            check(book.idle(collective, 2**20), collective)
