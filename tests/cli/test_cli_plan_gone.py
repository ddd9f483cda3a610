"""`headway plan watch` where machines of the plan in force are not in the nodes' file any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.main import run
from headway.serving.allocation.files import read_plan
from headway.serving.allocation.types import Plan
from headway.serving.workflows.calls import Call
from headway.serving.workflows.files import write_calls
from tests.cli.tabled import prepare, recorded

RATE = 8.0
"""Runs per second: one GPU with `big` takes 10 calls per second, one with `small` as many."""


def called(rate: float = RATE) -> list[Call]:
    """As the plan promises, but for how many come."""
    return recorded("ask", ["big", "small"], every_s=1 / rate)


@pytest.fixture(autouse=True)
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """In the working directory, for four machines: a whole GPU for each of two instances of each model."""
    monkeypatch.chdir(tmp_path)
    prepare(called(), gpus="n1=1 --gpus n2=1 --gpus n3=1 --gpus n4=1")
    assert run(["plan", "make", "--calls", "calls.jsonl", "--rate", f"ask={2 * RATE}"]) == 0
    Path("now.jsonl").write_text(write_calls(called(2 * RATE)))
    capsys.readouterr()
    made = read_plan(Path("plan.yaml"))
    assert [(share.model, share.replicas) for share in made.shares] == [("big", 2), ("small", 2)]
    return made


@pytest.fixture
def watched(says: Callable[..., str]) -> Callable[..., str]:
    """What `plan watch` says with these machines alone."""

    def asked(nodes: list[str], options: str = "") -> str:
        names = " ".join(f"--gpus {name}=1" for name in nodes)
        says(f"plan nodes {names} --device a100 -o left.yaml")
        return says(f"plan watch --journal now.jsonl --nodes left.yaml -o new.yaml {options}", 1)

    return asked


def nodes_of(plan: Plan, model: str) -> list[str]:
    return [it.node for it in plan.instances if it.model == model]


def test_what_is_on_machines_that_are_gone_serves_nobody(old: Plan, watched: Callable[..., str]) -> None:
    big, small = nodes_of(old, "big"), nodes_of(old, "small")
    told = watched([big[0], *small])
    assert (
        "of 1 instance left.yaml does not have the GPUs, or does not join them: nobody is served there\n"
        f"  big #1 on {big[1]} GPU 0\n" in told
    )
    assert "nothing has drifted\n" in told, "and yet the exit code is 1"
    assert "  ask: cannot be served at 16/s: at most 10/s, which big limits\n" in told
    assert "no plan is clearly better" in told, "three GPUs carry no more"
    assert not Path("new.yaml").exists()


def test_another_machine_gets_what_was_there(old: Plan, watched: Callable[..., str]) -> None:
    big, small = nodes_of(old, "big"), nodes_of(old, "small")
    told = watched([big[0], *small, "n5"])
    assert "at most 10/s, which big limits" in told
    assert "proposed: 1 instance to start, 0 to stop\n  start big #1 on n5 GPU 0\n" in told
    assert nodes_of(read_plan(Path("new.yaml")), "big") == [big[0], "n5"]


def test_a_model_that_has_nothing_left_is_not_served(old: Plan, watched: Callable[..., str]) -> None:
    told = watched(nodes_of(old, "big"))
    assert "  ask at 16/s: not served: no engine has small\n" in told
    is_now = told.split("as it is, with what was measured:\n")[1].split("proposed: ")[0]
    assert "in the mean" not in is_now
    assert "at most" not in is_now
    assert "no engine serves" not in is_now, "it is said once"
    assert "proposed: " in told
    new = read_plan(Path("new.yaml"))
    assert {it.model for it in new.instances} == {"big", "small"}
    assert {it.node for it in new.instances} <= set(nodes_of(old, "big"))


def test_workflows_that_lost_no_model_are_served_as_before(
    old: Plan, says: Callable[..., str], watched: Callable[..., str]
) -> None:
    more = recorded("chat", ["big"], every_s=4.0)
    Path("now.jsonl").write_text(write_calls([*called(), *more]))
    says(f"plan make --calls now.jsonl --rate ask={RATE} --rate chat=0.25")
    made = read_plan(Path("plan.yaml"))
    told = watched(sorted(set(nodes_of(made, "big")) - set(nodes_of(made, "small"))))
    assert "no plan can be proposed: " in told, "both models do not fit on what is left"
    assert "  ask at 8/s: not served: no engine has small\n" in told
    assert "  chat at 0.25/s: 0.1 s in the mean; at most " in told


def test_few_moves_lead_to_a_plan_that_is_on_the_machines_there_are(old: Plan, watched: Callable[..., str]) -> None:
    big, small = nodes_of(old, "big"), nodes_of(old, "small")
    there = [big[0], small[0], "n5", "n6"]
    assert "no plan is clearly better" in watched(there, "--most-moves 1"), "10 of 16/s, whichever of both starts"
    assert "start big #1 on n5 GPU 0\n  start small #1 on n6 GPU 0\n" in watched(there, "--most-moves 2")
    assert {it.node for it in read_plan(Path("new.yaml")).instances} == set(there)
    told = watched(big, "--most-moves 0")
    assert "no plan can be proposed: --most-moves: 0 are too few to start" in told


def test_that_a_machine_is_gone_is_said_where_no_run_is_seen(old: Plan, watched: Callable[..., str]) -> None:
    Path("now.jsonl").write_text(write_calls(recorded("other", ["big"])))
    told = watched([*nodes_of(old, "small"), "n5", "n6"], "--last 1h")
    assert "ask: 0 runs seen: 10 are needed to say anything\n" in told
    assert "  start big #0 on n5 GPU 0\n  start big #1 on n6 GPU 0\n" in told


def test_what_was_measured_says_nothing_of_engines_that_are_gone(old: Plan, watched: Callable[..., str]) -> None:
    """Runs took twice as long as the plan promises, perhaps since instances of `big` were gone by then."""
    Path("now.jsonl").write_text(write_calls(recorded("ask", ["big", "small"], every_s=1 / 4, call_s=0.2)))
    big, small = nodes_of(old, "big"), nodes_of(old, "small")
    assert "ask at 4/s: 0.4 s in the mean" in watched([*big, *small])
    assert "ask at 4/s: 0.2 s in the mean" in watched([big[0], *small])


def test_gpus_that_are_not_joined_any_more_serve_no_instance_of_two(says: Callable[..., str]) -> None:
    prepare(recorded("ask", ["big"], every_s=1.0), gpus="n1=2")
    says("plan make --calls calls.jsonl --rate ask=1")
    assert [it.gpus for it in read_plan(Path("plan.yaml")).instances] == [(0, 1)]
    says("plan nodes --gpus n1=2 --device a100 --domain-gpus 1 -o left.yaml")
    told = says("plan watch --journal calls.jsonl --nodes left.yaml -o new.yaml", 1)
    assert "or does not join them: nobody is served there\n  big #0 on n1 GPU 0, 1\n" in told
    assert {len(it.gpus) for it in read_plan(Path("new.yaml")).instances} == {1}


def test_a_plan_that_gives_a_gpu_away_twice_is_refused(old: Plan, says: Callable[..., str]) -> None:
    text = Path("plan.yaml").read_text()
    first, second = nodes_of(old, "big")
    Path("twice.yaml").write_text(text.replace(f"node: {second}", f"node: {first}"))
    line = "plan watch --journal now.jsonl --plan twice.yaml --workflows plan.workflows.yaml"
    assert f"twice.yaml: has 2 GPUs' worth on GPU 0 of {first}: big #0, big #1" in says(line, 2)
