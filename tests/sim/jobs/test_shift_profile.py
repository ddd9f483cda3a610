"""Jobs alone as circles, and plans that hold when they are simulated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli.main import run
from headway.interleave.central import plan
from headway.lab.effects import WIRE_ALPHA_S
from headway.lab.files import load_scenario
from headway.sim.jobs.shift_profile import profile, shifted, starts_s
from headway.sim.topologies import PAYLOAD_SHARE
from tests.sim.scenarios import durations, job, scenario_of, streams

LINK_Bps = 25e6 * PAYLOAD_SHARE
SEND = {"send": f"{round(0.3 * LINK_Bps)}B"}


def test_a_sending_job_s_circle() -> None:
    profiled = profile(scenario_of(job("a", {"compute": "200ms"}, SEND, {"compute": "500ms"}, hosts=2)))
    (circle,) = profiled.circles
    assert circle.period_s == pytest.approx(1.0 + WIRE_ALPHA_S)
    assert set(circle.arcs) == {"uplink of host0", "downlink of host1"}
    (arc,) = circle.arcs["uplink of host0"]
    # The receiver is ready one latency after the sender, and begins what is called the iteration after it.
    assert arc.offset_s == pytest.approx(0.2, abs=2 * WIRE_ALPHA_S)
    assert circle.bytes_on("uplink of host0") == pytest.approx(0.3 * LINK_Bps, rel=1e-6)
    assert arc.demand_Bps == pytest.approx(LINK_Bps, rel=1e-3)


def test_a_collective_s_circle_has_its_links_and_bytes() -> None:
    profiled = profile(scenario_of(job("a", {"compute": "100ms"}, {"all_reduce": "4MB"}, plan="ring")))
    (circle,) = profiled.circles
    assert len(circle.arcs) == 8
    for link in circle.arcs:
        assert circle.bytes_on(link) == pytest.approx(4e6 * 2 * 3 / 4, rel=1e-6)


def test_noise_is_in_the_period() -> None:
    quiet, noisy = (
        profile(scenario_of(job("a", {"compute": "300ms", "noise": noise}, {"all_reduce": "1MB"}))).circles[0]
        for noise in ("0%", "10%")
    )
    assert noisy.period_s > quiet.period_s + 0.01
    assert noisy.arcs == quiet.arcs


def test_a_plan_holds_in_the_simulator() -> None:
    scenario = load_scenario("interleave-3")
    profiled = profile(scenario)
    held = shifted(scenario, profiled, plan(profiled.circles, profiled.capacity_Bps))
    result = streams(held)
    for each in held.jobs:
        assert each.interleave is None
        assert durations(result, each.name) == pytest.approx([1.0] * 30, abs=5e-4)
        starts = [iteration.start_s for iteration in result.jobs[each.name].iterations]
        assert starts[-1] - starts[0] == pytest.approx(29 * (each.period or 0), rel=1e-6)


def test_jobs_begin_no_earlier_than_they_did() -> None:
    loop = ({**SEND}, {"compute": "700ms"})
    scenario = scenario_of(
        job("a", *loop, hosts=["host0", "host2"]),
        job("b", *loop, hosts=["host1", "host2"], start="10s"),
    )
    profiled = profile(scenario)
    found = plan(profiled.circles, profiled.capacity_Bps)
    starts = starts_s(scenario, profiled, found)
    assert starts["a"] == 0.0
    period_s = found.periods_s["b"]
    assert 10 <= starts["b"] < 10 + period_s
    assert (starts["b"] - found.shifts_s["b"]) / period_s == pytest.approx(
        round((starts["b"] - found.shifts_s["b"]) / period_s), abs=1e-6
    )


def test_the_command_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, told = tmp_path / "shifted.yaml", tmp_path / "plan.json"
    assert run(["interleave", "plan", "interleave-2", "--slack", "1%", "-o", str(out), "--json", str(told)]) == 0
    printed = capsys.readouterr().out
    assert "downlink of host2: score 0.570 as they begin, 1.000 with the best shifts" in printed
    assert "no schedule is below 1.000" in printed
    fields = json.loads(told.read_text())
    written = load_scenario(out)
    assert fields["stretch"] == pytest.approx(1.01)
    for each in written.jobs:
        assert each.start == pytest.approx(fields["starts_s"][each.name], abs=1e-9)
        assert each.period == pytest.approx(fields["periods_s"][each.name], abs=1e-9)
        assert each.interleave is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["star8"], "has no jobs"), (["interleave-2", "--slack", "0.02"], "--slack: '0.02' is not a percentage")],
)
def test_the_command_says_what_is_wrong(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["interleave", "plan", *arguments]) == 2
    assert said in capsys.readouterr().err
