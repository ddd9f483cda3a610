"""The study of shares counts what it says it counts."""

from __future__ import annotations

import pytest

from bench.workflow_shares import lines, simulate, spreads
from headway.serving.simulate.workflows import RunRow, Simulated
from headway.serving.workflows.calls import Call


def call(run: str, model: str, start_s: float, end_s: float) -> Call:
    return Call("w", run, f"{model}{start_s}", model, start_s, end_s, 1, 1)


def test_spreads_are_over_the_counted_runs() -> None:
    rows = [RunRow("w", name, name != "warm", 0.0, 9.0, 2) for name in ("warm", "1", "2")]
    calls = [
        *(call("warm", "a", 0, 50), call("1", "a", 0, 3), call("1", "b", 3, 4)),
        *(call("2", "a", 0, 6), call("2", "b", 6, 8)),
    ]
    found = spreads(Simulated(rows, calls, 9.0, False, 0))
    assert list(found.latencies_s) == [4.0, 8.0]
    a, b = found.models
    assert (a.model, a.share, a.share_deviation, a.share_cv) == ("a", 0.75, 0.0, 0.0)
    assert (b.model, b.share) == ("b", 0.25)
    assert [each.busy_cv for each in (a, b)] == pytest.approx([1 / 3, 1 / 3])
    first, second = lines("w", 0.5, found)
    assert first[:4] == ["w", "50%", "4.0-8", "33%"]
    assert second[4:] == ["b", "25.0%", "0.0", "0%", "33%", "", ""]


def test_a_named_workflow_is_simulated_as_long_as_asked() -> None:
    found = spreads(simulate("rag", 0.5, runs=5, warm_up=2, seed=3, keep_calls=True))
    assert len(found.latencies_s) == 5
    assert sum(each.share for each in found.models) == pytest.approx(1.0)
