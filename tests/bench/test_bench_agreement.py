"""The comparison of lab, model and simulator: its cases, its arithmetic, and one pair for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.agreement import Row, line, read, replayed, run, summary, timed
from bench.agreement_cases import (
    ALL,
    GRID,
    JOBS,
    MB,
    MODELS,
    Pair,
    jobs_scenario,
    pairs_of,
    plan_of,
    scenario_of,
    simulated,
    simulated_jobs_s,
    simulated_s,
    uneven,
)
from headway.collectives.plan_codec import encode
from headway.collectives.verify import check
from headway.errors import HeadwayError, UsageError
from headway.lab.job_runs import check_runnable
from headway.lab.lab import Lab, require_privileges
from headway.sim.topologies import PAYLOAD_SHARE


def row(
    times_s: list[float], *, predicted_s: float | None = None, ideal_s: float = 1.0, scenario: str = "star8",
    job: str = "", plan: str = "ring", trees: str = "",
) -> Row:  # fmt: skip
    return Row(scenario, job, plan, 4 * MB, trees, times_s, predicted_s, ideal_s)


def test_there_are_enough_pairs_and_every_plan_is_right() -> None:
    pairs = [pair for name in ("star8", "star8-udp50-down", "rack2x4", "wan4") for pair in pairs_of(name, GRID)]
    for pair in pairs:
        check(pair.plan, ALL)
        assert pair.size_bytes % (4 * pair.plan.size) == 0
        assert abs(pair.size_bytes - round(pair.size_bytes / MB) * MB) < 4 * pair.plan.size
    count = sum(len(plans) for sizes in GRID.values() for plans in sizes.values())
    assert count + len(JOBS) >= 30


def test_events_that_begin_later_are_left_out() -> None:
    assert [event.id for event in scenario_of("wan4-congested").events] == ["busy"]


def test_packing_knows_the_congestion() -> None:
    idle, loaded = (plan_of("packing", scenario_of(name), 4 * MB) for name in ("star8", "star8-udp75-down"))
    assert idle.trees != loaded.trees


def test_jobs_can_run_in_the_lab_and_end_in_the_simulator() -> None:
    for name in JOBS:
        check_runnable(jobs_scenario(name))
    assert set(simulated_jobs_s(jobs_scenario("two senders to one host"), MODELS["ideal"])) == {"a"}


def test_a_simulated_ring_meets_its_closed_form() -> None:
    (pair,) = (pair for pair in pairs_of("star8", {"star8": {16: ("ring",)}}))
    rate_Bps = 25 * MB * PAYLOAD_SHARE
    assert simulated_s(pair, (), MODELS["ideal"]) == pytest.approx(2 * 7 / 8 * pair.size_bytes / rate_Bps, rel=0.02)


def test_of_simulated_draws_those_like_the_lab_s_count() -> None:
    pair = next(pairs_of("rack2x4-slow-uplink", {"rack2x4-slow-uplink": {1: ("ring",)}}))
    drawn = [simulated(pair, key, MODELS["ideal"], key) for key in range(8)]
    slow, fast = (each(drawn, key=lambda draw: draw.time_s) for each in (max, min))
    assert slow.time_s > 1.5 * fast.time_s
    assert simulated_s(pair, (), MODELS["ideal"], draws=8) == pytest.approx(sum(draw.time_s for draw in drawn) / 8)
    for spread in (slow.uneven, fast.uneven):
        like = [draw.time_s for draw in drawn if draw.uneven == pytest.approx(spread, abs=1000)]
        assert simulated_s(pair, [spread], MODELS["ideal"], draws=8) == pytest.approx(sum(like) / len(like), rel=1e-6)


def test_how_flows_are_spread_leaves_out_what_all_links_carry() -> None:
    carried = {"uplink of host0": 9.0, "uplink of rack0 by spine 0": 30.0, "uplink of rack0 by spine 1": 10.0}
    more = {name: each + 5 for name, each in carried.items()}
    assert uneven(carried) == {"uplink of rack0 by spine 0": 10.0, "uplink of rack0 by spine 1": -10.0}
    assert uneven(carried) == uneven(more)


def test_errors_are_relative_to_the_median_measured() -> None:
    one = row([2.0, 1.0, 4.0], predicted_s=1.8, ideal_s=2.2)
    assert one.error("predicted") == pytest.approx(-0.1)
    assert one.error("ideal") == pytest.approx(0.1)
    assert row([1.0, 2.0]).error("predicted") is None
    assert "+10.0%" in line(one)
    others = [row([1.0, 1.0], ideal_s=1 + size / 100) for size in range(20)]
    told = summary(others, "ideal")
    assert "20 pairs" in told
    assert "median 9.5%, p95 18.0%" in told
    assert "star8, ring, 4 MB 19.0%" in told
    assert summary(others, "predicted") == "predicted: nothing"


def test_rows_are_written_read_back_and_told_anew(tmp_path: Path) -> None:
    pair = next(pairs_of("star8", {"star8": {1: ("ring",)}}))
    rows = [
        row([0.1, 0.1], trees=encode(pair.plan)),
        row([0.6, 0.7], scenario="two senders to one host", job="a", plan="send"),
    ]
    said: list[str] = []
    run(replayed(rows), tmp_path / "out.json", said.append)
    assert len(said) == 6
    back = read(tmp_path / "out.json")
    assert [each.times_s for each in back] == [[0.1, 0.1], [0.6, 0.7]]
    assert back[0].predicted_s is not None
    assert back[1].predicted_s is None
    assert back[1].ideal_s == simulated_jobs_s(jobs_scenario("two senders to one host"), MODELS["ideal"])["a"]
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({"rows": [{"plan": 1}]}))
    with pytest.raises(UsageError, match=r"bad\.json: holds no rows"):
        read(bad)


@pytest.mark.lab
def test_a_plan_runs_in_a_lab() -> None:
    try:
        require_privileges()
    except HeadwayError as error:
        pytest.skip(str(error))
    scenario = scenario_of("rack2x4-slow-uplink").model_copy(update={"hosts": 4})
    size_bytes = 100_000 // 16 * 16
    pair = Pair(scenario, "ring", plan_of("ring", scenario, size_bytes), size_bytes)
    with Lab.up(scenario) as lab:
        ((times_s, spreads),) = timed(lab, [pair], quick=True)
    assert len(times_s) == 2
    assert min(times_s) > 0
    assert all(sum(spread.values()) == pytest.approx(0, abs=1) for spread in spreads)
