"""The limit of an operation counts the events that were in force throughout, and no others."""

from __future__ import annotations

import pytest

from headway.lab.files import parse_scenario
from headway.lab.scenario import Scenario
from headway.sim.execution.collective import Execution
from headway.sim.run import simulate
from headway.sim.studies.event_limits import event_limits_s

BASE: dict[str, object] = {
    "name": "small",
    "hosts": 4,
    "access": "100Mbit",
    "jobs": [
        {
            "name": "train",
            "hosts": 4,
            "iterations": 12,
            "loop": [{"compute": "10ms"}, {"all_reduce": "1MB"}, {"send": "100kB", "src": 1, "dst": 2}],
        }
    ],
}


def scenario(**event: object) -> Scenario:
    events = [{"id": "e", "target": "host1", "start": "1s", "duration": "1s", **event}] if event else []
    return parse_scenario({**BASE, "events": events}, where="here")


def limits(case: Scenario) -> tuple[list[float], list[float], list[tuple[float, float]]]:
    """(limits under the events, limits on free links, (begin, end)) of each operation."""
    result = simulate(case, execution=Execution.STREAMS)
    operations = result.jobs["train"].operations
    spans = [(o.start_s, o.end_s) for o in operations]
    return list(event_limits_s(case, result)["train"]), [o.free_limit_s for o in operations], spans


def test_without_events_it_is_that_of_free_links() -> None:
    under, free, _ = limits(scenario())
    assert under == free


@pytest.mark.parametrize("event", [{"type": "load", "udp": "50%"}, {"type": "bw", "rate": "50%"}])
def test_what_holds_throughout_counts(event: dict[str, object]) -> None:
    under, free, spans = limits(scenario(**event))
    inside = [begin >= 1 and end <= 2 for begin, end in spans]
    assert 0 < sum(inside) < len(inside)
    for counted, mine, other in zip(inside, under, free, strict=True):
        assert (mine > other * 1.2) is counted


@pytest.mark.parametrize("event", [{"type": "load", "tcp": 3}, {"type": "delay", "delay": "5ms"}])
def test_what_bounds_nothing_does_not(event: dict[str, object]) -> None:
    under, free, _ = limits(scenario(**event))
    assert under == free


def test_events_that_come_and_go_many_times() -> None:
    case = scenario(type="load", udp="50%", start="0s", duration="3s", on="120ms", off="200ms")
    under, free, spans = limits(case)
    on = [(round(0.32 * k, 9), round(0.32 * k + 0.12, 9)) for k in range(10)]
    inside = [any(a <= begin and end <= b for a, b in on) for begin, end in spans]
    assert 0 < sum(inside) < len(inside)
    assert [mine > other * 1.2 for mine, other in zip(under, free, strict=True)] == inside


def test_nothing_is_faster_than_its_limit() -> None:
    for share in ("30%", "60%", "90%"):
        under, _, spans = limits(scenario(type="load", udp=share, direction="down"))
        assert all(end - begin >= least * (1 - 1e-9) for least, (begin, end) in zip(under, spans, strict=True))
