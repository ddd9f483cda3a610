"""Pages of simulated runs and sweeps: what is drawn is what was measured, and nothing else is needed to show it."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from pydantic import JsonValue

from headway.lab.files import parse_scenario
from headway.report.page import render_page
from headway.report.runs import runs_of
from headway.report.sim_page import event_shades, lanes_of, render_run, window_of
from headway.report.sim_summary import link_summaries
from headway.report.sim_trace import TraceRecorder
from headway.report.sweep_chart import highest
from headway.report.sweep_page import panels_of, render_sweep, roles_of
from headway.sim.execution.collective import Execution
from headway.sim.result import Result
from headway.sim.run import Simulation
from headway.sim.studies.cells import Row
from headway.sim.studies.event_limits import free_limits_s

JOBS = [
    {"name": "big", "hosts": 4, "iterations": 30, "loop": [{"compute": "5ms", "noise": 0.1}, {"all_reduce": "1MB"}]},
    {"name": "pipe", "hosts": ["host0", "host2"], "loop": [{"compute": "3ms"}, {"send": "200kB"}]},
    {"name": "late", "hosts": 4, "start": "1s", "loop": [{"all_gather": "800kB"}]},
]
BUSY = {"id": "busy", "type": "load", "target": "host1", "udp": "50%", "start": "1500ms", "duration": "1s"}


@pytest.fixture(scope="module")
def simulated() -> tuple[Result, TraceRecorder]:
    data: dict[str, object] = {"name": "three", "hosts": 4, "access": "100Mbit", "events": [BUSY], "jobs": JOBS}
    recorder = TraceRecorder()
    simulation = Simulation(parse_scenario(data, where="x"), execution=Execution.STREAMS, spans=recorder)
    recorder.network = simulation.network
    simulation.run()
    return simulation.result(), recorder


def pictures(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def self_contained(page: str) -> bool:
    links = re.findall(r'(?:src|href)="[^"]*"|url\([^)]*\)', page)
    return not links and "prefers-color-scheme: dark" in page


def test_a_run_has_lanes_links_and_tables(simulated: tuple[Result, TraceRecorder]) -> None:
    result, recorder = simulated
    page = render_run(result, free_limits_s(result), recorder.spans, recorder.used(), title="a & b", lead="4 hosts")
    assert self_contained(page)
    assert "<title>a &amp; b</title>" in page
    lanes, links = pictures(page)
    assert lanes.get("aria-label") == "What each job did"
    texts = [element.text for element in links.iter() if element.tag.endswith("text")]
    assert "uplink of host0" in texts
    assert "Shaded: up- and downlink of host1 loaded with UDP at 50 %." in page
    for name in ("big", "pipe", "late"):
        assert f"<td>{name}</td>" in page


def test_lanes_hold_what_ranks_did(simulated: tuple[Result, TraceRecorder]) -> None:
    result, recorder = simulated
    lanes = lanes_of(result, recorder.spans)
    assert [lane.label for lane in lanes[:4]] == [f"big on {host}" for host in result.jobs["big"].hosts]
    assert {lane.colour for lane in lanes} == {0, 1, 2}
    first = lanes[0]
    computing = sum(b.end_s - b.begin_s for b in first.blocks if b.kind == "compute")
    assert 0.03 * 0.5 < computing / 5 < 0.03 * 1.5
    assert {b.kind for b in first.blocks} == {"compute", "all_reduce"}
    assert all(b.end_s <= result.end_s for lane in lanes for b in lane.blocks)
    assert min(b.begin_s for b in lanes[-1].blocks) >= 1.0
    # With more ranks than fit, each job has one lane.
    wide = replace(result, jobs={n: replace(j, hosts=[*j.hosts] * 5) for n, j in result.jobs.items()})
    assert [lane.label for lane in lanes_of(wide, recorder.spans)] == ["big", "pipe", "late"]


def test_the_window_is_around_the_first_event(simulated: tuple[Result, TraceRecorder]) -> None:
    result, _ = simulated
    shades = event_shades(result)
    assert [(shade.begin_s, shade.end_s) for shade in shades] == [(1.5, 2.5)]
    begin_s, end_s = window_of(result, shades)
    assert begin_s < 1.5 < end_s
    few = replace(result, jobs={"big": replace(result.jobs["big"], iterations=result.jobs["big"].iterations[:3])})
    few = replace(few, end_s=few.jobs["big"].iterations[-1].end_s)
    assert window_of(few, []) == (0.0, few.end_s)


def test_use_of_links_adds_up_to_what_they_carried(simulated: tuple[Result, TraceRecorder]) -> None:
    result, recorder = simulated
    busy = {"uplink of host1", "downlink of host1"}
    assert busy <= {name for name, _ in recorder.used()}
    for name, stretches in recorder.used():
        assert all(part <= 1 + 1e-9 for _, _, part in stretches)
        if name not in busy:
            carried = sum((end - begin) * part for begin, end, part in stretches) * result.capacity_Bps[name]
            assert carried == pytest.approx(result.carried_bytes[name], rel=0.02)


def test_a_link_is_full_when_it_carries_all_that_events_leave() -> None:
    always = {**BUSY, "udp": "75%", "start": "0s", "duration": None, "direction": "down"}
    job = {"name": "a", "hosts": 4, "iterations": 3, "plan": "ring", "loop": [{"all_reduce": "1MB"}]}
    data: dict[str, object] = {"name": "busy", "hosts": 4, "access": "100Mbit", "events": [always], "jobs": [job]}
    recorder = TraceRecorder()
    simulation = Simulation(parse_scenario(data, where="x"), execution=Execution.STREAMS, spans=recorder)
    recorder.network = simulation.network
    simulation.run()
    result = simulation.result()
    name, stretches = recorder.used()[0]
    assert name == "downlink of host1"
    assert all(part > 0.9 for _, _, part in stretches)
    busiest = link_summaries(result)[0]
    assert busiest.name == name
    assert busiest.taken == pytest.approx(0.75)
    assert busiest.used == pytest.approx(1, rel=0.05)
    page = render_run(result, free_limits_s(result), recorder.spans, recorder.used(), title="t")
    assert '<td>downlink of host1</td><td class="n">95.64 Mbit/s</td><td class="n">75.0</td>' in page


def test_the_report_reads_a_simulated_journal(simulated: tuple[Result, TraceRecorder]) -> None:
    result, _ = simulated
    runs = runs_of([("sim", list(result.records))])
    assert {run.group for run in runs} == {"big", "late"}
    big = next(run for run in runs if run.group == "big")
    assert big.zero_s == 0.0
    assert [(e.begin_s, e.end_s) for e in big.events] == [(1.5, 2.5)]
    page = render_page(runs)
    assert "Began: up- and downlink of host1 loaded with UDP at 50 %." in page
    assert pictures(page)


def row(figures: dict[str, JsonValue] | None = None, **parameters: JsonValue) -> Row:
    jobs: dict[str, JsonValue] = {"train": figures or {}}
    known = {name.replace("__", "."): value for name, value in parameters.items()}
    return Row("k", known, {"jobs": jobs, "events": 7}, "", 0.5)


def grid() -> list[Row]:
    rows = []
    for policy in ("off", "react"):
        for size in ("1MB", "4MB", "16MB"):
            for rate in ("1Gbit", "2Gbit"):
                for seed in (1, 2):
                    algbw = 1e6 * (len(policy) * 10 + len(size) + len(rate) + seed)
                    figures: dict[str, JsonValue] = {
                        "algbw_Bps": algbw,
                        "limit_Bps": 60e6,
                        "mean_s": 1.0,
                        "switches": 2,
                    }
                    rows.append(row(figures, jobs__0__policy=policy, size=size, access=rate, seed=seed))
    return rows


def test_each_axis_has_its_role() -> None:
    roles = roles_of(grid())
    assert (roles.compared, roles.along, roles.repeated, roles.panels) == ("jobs.0.policy", "size", "seed", ("access",))
    alone = roles_of([row({}, hosts=n) for n in (8, 16)])
    assert (alone.compared, alone.along, alone.panels) == (None, "hosts", ())
    seeds = roles_of([row({}, seed=n) for n in (1, 2, 3)])
    assert (seeds.along, seeds.repeated) == ("seed", None)
    policies = roles_of([row({}, policy=name) for name in ("off", "react")])
    assert (policies.along, policies.compared) == ("policy", None)


def test_panels_hold_means_over_seeds_and_the_limit() -> None:
    rows = grid()
    panels = panels_of(rows, roles_of(rows))
    assert [panel.title for panel in panels] == ["access 1Gbit", "access 2Gbit"]
    off, react = panels[0].lines
    assert (off.label, react.label) == ("off", "react")
    assert [point.mean for point in off.points] == [pytest.approx(30 + n + 5 + 1.5) for n in (3, 3, 4)]
    assert off.points[0].least == pytest.approx(39)
    assert off.points[0].most == pytest.approx(40)
    assert panels[0].limit == ((0, 60.0), (1, 60.0), (2, 60.0))
    assert highest(panels) == pytest.approx(61.0)
    assert panels[0].places == ("1MB", "4MB", "16MB")


def test_a_sweep_is_one_page_that_needs_nothing_else() -> None:
    failed = replace(grid()[0], error="the worker was ended <by> SIGKILL", values={})
    page = render_sweep([*grid(), failed], title="a <sweep>")
    assert self_contained(page)
    assert "a &lt;sweep&gt;" in page
    assert "ended &lt;by&gt; SIGKILL" in page
    assert len(pictures(page)) == 3
    assert page.count("<tr>") == 1 + 24 + 1
    assert "1 failed." in page


def test_jobs_that_only_compute_are_compared_by_time() -> None:
    rows = [row({"algbw_Bps": None, "limit_Bps": None, "mean_s": 0.02 * n, "switches": 0}, hosts=n) for n in (1, 2)]
    (panel,) = panels_of(rows, roles_of(rows))
    assert panel.unit == "ms"
    assert [p.mean for p in panel.lines[0].points] == [pytest.approx(20), pytest.approx(40)]
    assert panel.limit == ()


def test_every_row_failed() -> None:
    page = render_sweep([replace(row({}, seed=1), error="no", values={})], title="t")
    assert pictures(page) == []
    assert "1 cell over seed (1). 1 failed." in page
