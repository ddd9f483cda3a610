"""Figures of a simulated run: how fast jobs are, which links are busy, and against what they are held."""

from __future__ import annotations

import json

import pytest

from headway.lab.files import parse_scenario
from headway.lab.scenario import Scenario
from headway.report.sim_summary import JobSummary, LinkSummary, job_summaries, link_summaries, result_json
from headway.sim.execution.collective import Execution
from headway.sim.result import Result
from headway.sim.run import simulate
from headway.sim.studies.event_limits import event_limits_s, free_limits_s

UDP = {"id": "busy", "type": "load", "target": "host1", "direction": "down", "udp": "50%"}
RING = {"name": "a", "hosts": 4, "iterations": 4, "plan": "ring", "loop": [{"all_reduce": "1MB"}]}


def scenario(job: object, *events: object) -> Scenario:
    data: dict[str, object] = {"name": "n", "hosts": 4, "access": "100Mbit", "jobs": [job], "events": list(events)}
    return parse_scenario(data, where="here")


def summed(case: Scenario, execution: Execution = Execution.STREAMS) -> tuple[Result, JobSummary, list[LinkSummary]]:
    result = simulate(case, execution=execution)
    return result, job_summaries(result, event_limits_s(case, result))[0], link_summaries(result)


def test_the_pace_does_not_grow_with_the_number_of_iterations() -> None:
    paces = []
    for iterations in (5, 40):
        data: dict[str, object] = {
            "name": "n",
            "hosts": [{"name": f"h{i}", "access": rate} for i, rate in enumerate(("50Mbit", "200Mbit", "400Mbit"))],
            "access": "100Mbit",
            "jobs": [{"name": "a", "hosts": 3, "iterations": iterations, "loop": [{"reduce": "1MB"}]}],
        }
        result, job, _ = summed(parse_scenario(data, where="x"), Execution.ROUNDS)
        assert job.mean_s is not None
        assert job.mean_s * iterations == pytest.approx(result.end_s)
        paces.append(job.mean_s)
    assert paces[1] == pytest.approx(paces[0], rel=0.1)


def test_a_link_with_load_is_the_busiest_and_says_so() -> None:
    _, job, links = summed(scenario(RING, UDP))
    assert links[0].name == "downlink of host1"
    assert links[0].taken == pytest.approx(0.5)
    assert links[0].used > 0.9
    assert all(link.taken == 0 and link.used < 0.6 for link in links[1:])
    assert job.limit is not None
    assert job.free_limit is not None
    assert job.limit > 1.3 * job.free_limit


def test_what_events_took_counts_for_as_long_as_they_did() -> None:
    result, _, _ = summed(scenario(RING))
    half = {**UDP, "duration": result.end_s / 2}
    _, _, links = summed(scenario({**RING, "iterations": 40}, {**half, "duration": "500ms"}))
    busiest = next(link for link in links if link.name == "downlink of host1")
    assert 0.02 < busiest.taken < 0.3
    assert busiest.used <= 1 + 1e-9


def test_without_events_there_is_one_limit() -> None:
    _, job, links = summed(scenario(RING))
    assert job.limit == job.free_limit
    assert all(link.taken == 0 for link in links)


def test_no_network_no_limit() -> None:
    _, job, links = summed(scenario({**RING, "hosts": 1, "ranks_per_host": 4}))
    assert (job.limit, job.free_limit, links) == (None, None, [])


def test_json_has_both_limits_of_each_operation() -> None:
    case = scenario(RING, UDP)
    result = simulate(case, execution=Execution.STREAMS)
    document = json.loads(result_json(result, event_limits_s(case, result)))
    (job,) = document["jobs"]
    assert sum(job["paces_s"]) == pytest.approx(document["end_s"])
    assert all(each["limit_s"] > 1.3 * each["free_limit_s"] > 0 for each in job["operations"])
    free = json.loads(result_json(result, free_limits_s(result)))
    assert all(each["limit_s"] == each["free_limit_s"] for each in free["jobs"][0]["operations"])
