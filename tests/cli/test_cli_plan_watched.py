"""`headway plan watch`: what it says and with which exit code, from a gateway that has just begun to a new workload."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headway.cli.main import run
from headway.decide.journal import ServingRecord, to_line
from headway.serving.allocation.files import read_aggregates, write_aggregates
from headway.serving.workflows.calls import Call
from headway.serving.workflows.files import write_calls
from tests.cli.tabled import prepare, recorded


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The working directory, with a plan for `ask`: 0.25 runs per second of one call to `big`, 0.05 s."""
    monkeypatch.chdir(tmp_path)
    prepare(recorded("ask", ["big"]), gpus="n1=2")
    assert run(["plan", "make", "--calls", "calls.jsonl", "--rate", "ask=0.25"]) == 0
    capsys.readouterr()


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Watches a file of these calls, checks the exit code, and gives back what was printed."""

    def watched(calls: Sequence[Call], code: int, options: str = "") -> str:
        Path("now.jsonl").write_text(write_calls(calls))
        assert run(["plan", "watch", "--journal", "now.jsonl", *options.split()]) == code
        printed = capsys.readouterr()
        return printed.err if code == 2 else printed.out

    return watched


def test_exit_codes_tell_all_is_well_from_drift_and_from_too_few_runs(says: Callable[..., str]) -> None:
    as_planned = recorded("ask", ["big"], call_s=0.05)
    assert "nothing has drifted" in says(as_planned, 0)
    assert "ask: 4 runs seen: 10 are needed" in says(as_planned[:4], 3)
    assert "ask: 0 runs seen" in says(recorded("other", ["big"]), 3)
    assert "drifted" in says(recorded("ask", ["big"], call_s=3.0), 1)
    assert "drifted" in says([*recorded("ask", ["big"], call_s=3.0), *recorded("new", ["big"], runs=1)], 1)


def test_a_call_to_a_model_without_a_profile_is_drift_for_which_there_is_no_plan(says: Callable[..., str]) -> None:
    told = says(recorded("ask", ["big", "huge"], call_s=0.05), 1, "-o new.yaml")
    assert "huge calls" in told
    assert "no plan can be proposed: ask: calls model 'huge', of which there is no profile" in told
    assert not Path("new.yaml").exists()


def test_a_call_to_a_model_that_the_plan_has_not_gets_a_new_plan(says: Callable[..., str]) -> None:
    told = says(recorded("ask", ["big", "small"], call_s=0.05), 1, "-o new.yaml")
    assert "and no engine serves small" in told
    assert "start small #0 on n1 GPU" in told
    assert "wrote new.yaml and new.workflows.yaml" in told
    told = says(recorded("ask", ["small"], call_s=0.05), 1)
    assert "ask at 0.25/s: calls no model of the plan" in told
    assert "start small #0" in told
    told = says(recorded("ask", ["big", "small"], call_s=0.05), 1, "--most-moves 0")
    assert "no plan can be proposed: --most-moves: 0 are too few to start" in told


def test_no_time_holds_no_runs(says: Callable[..., str]) -> None:
    assert "--last: no run began in no time" in says(recorded("ask", ["big"]), 2, "--last 0s")
    assert "nothing has drifted" in says(recorded("ask", ["big"], call_s=0.05), 0, "--last 1h")


@pytest.mark.parametrize(
    ("every", "why"),
    [("999ms", "is less than a second"), ("745h", "is more than 744h"), ("99999999999999999h", "is more than 744h")],
)
def test_a_time_between_looks_that_is_none(says: Callable[..., str], every: str, why: str) -> None:
    assert says(recorded("ask", ["big"]), 2, f"--every {every}") == f"headway: --every: {every} {why}\n"


def test_a_workflow_of_which_it_is_not_known_what_it_was_like(says: Callable[..., str]) -> None:
    """The plan is for two, and averages are there of one."""
    Path("calls.jsonl").write_text(write_calls([*recorded("ask", ["big"]), *recorded("other", ["big"])]))
    assert run(["plan", "make", "--calls", "calls.jsonl", "--rate", "ask=0.25", "--rate", "other=0.25"]) == 0
    write_aggregates(
        Path("one.yaml"), [each for each in read_aggregates(Path("plan.workflows.yaml")) if each.workflow == "ask"]
    )
    told = says(recorded("ask", ["big"], call_s=3.0), 1, "--workflows one.yaml")
    assert "no plan can be proposed: the plan is for other, and what that was like is not known (--workflows)" in told


def test_a_journal_that_has_no_run_yet(says: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("gateway.jsonl").write_text(joined())
    assert run(["plan", "watch", "--journal", "gateway.jsonl"]) == 3
    assert "no run of a workflow is recorded yet: 10 of each are needed" in capsys.readouterr().out
    assert run(["plan", "watch", "--journal", "missing.jsonl"]) == 2
    assert "missing.jsonl: cannot read it" in capsys.readouterr().err


def test_watching_again_and_again_waits_for_the_first_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journal is not there; then it is empty, then it has no run, then it has some; then the user has enough."""
    journal = Path("gateway.jsonl")
    states = iter(["", joined(), write_calls(recorded("ask", ["big"], call_s=0.05))])

    def next_state(every_s: float) -> None:
        assert every_s == 60.0
        state = next(states, None)
        if state is None:
            raise KeyboardInterrupt
        journal.write_text(state)

    monkeypatch.setattr(time, "sleep", next_state)
    assert run(["plan", "watch", "--journal", "gateway.jsonl", "--every", "1min"]) == 130
    told = capsys.readouterr().out
    assert told.count("no run of a workflow is recorded yet") == 3
    assert told.count("nothing has drifted") == 1


def joined() -> str:
    """A journal's lines of a gateway that no request has reached."""
    return to_line(ServingRecord(t_s=1.0, group="big", event="join", replica="r", what="r joined")) + "\n"
