"""`headway plan simulate`: recorded runs on a plan's engines, against what can be said of them beforehand."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import run
from headway.serving.allocation.files import write_nodes, write_plan
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Forecast, Instance, Plan, Shape, Share
from headway.serving.simulate.instances import engine
from headway.serving.simulate.workflows import Simulated, run_workflows
from headway.serving.workflows.calls import Call
from headway.serving.workflows.files import write_calls

MODEL = "llama-3.2-1b"
WHOLE = Shape(1, 10)
TOOL_S = 5.0


def recorded(workflow: str, calls: int, *, model: str = MODEL) -> list[Call]:
    """20 runs of so many calls, a tool's time apart; what they took when they were recorded is not what they take."""
    return [
        Call(workflow, f"r{number}", f"{at}", model, begin_s, begin_s + 1.0, 500, 100)
        for number in range(20)
        for at in range(calls)
        for begin_s in (100.0 * number + at * (1.0 + TOOL_S),)
    ]


def plan(workflow: str, rate: float, *, replicas: int = 1) -> Plan:
    return Plan(
        10,
        (Share(MODEL, WHOLE, replicas),),
        tuple(Instance(MODEL, number, WHOLE, "n", (number,)) for number in range(replicas)),
        (Forecast(workflow, rate, 1.25, 9.0, {MODEL: 1.25}, MODEL),),
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory, with a machine of two GPUs."""
    monkeypatch.chdir(tmp_path)
    write_nodes(Path("nodes.yaml"), [Node("n", "t4", ((0,), (1,)))])


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Simulates a plan with these calls, checks the exit code, and gives back what was printed."""

    def simulated(made: Plan, calls: list[Call], options: str = "", code: int = 0) -> str:
        write_plan(Path("plan.yaml"), made)
        Path("calls.jsonl").write_text(write_calls(calls))
        assert run(["plan", "simulate", "--calls", "calls.jsonl", *options.split()]) == code
        printed = capsys.readouterr()
        return printed.err if code == 2 else printed.out

    return simulated


def rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()[1:]]


def test_a_run_takes_what_its_calls_take_on_the_engines_and_the_time_between_them(says: Callable[..., str]) -> None:
    """Runs that meet no other one: two calls with a tool in between take twice one call, and the tool's time."""
    (one,) = rows(says(plan("w", 0.001), recorded("w", 1), "--load 1 --runs 30"))
    (two,) = rows(says(plan("w", 0.001), recorded("w", 2), "--load 1 --runs 30"))
    assert one[:3] == ["1", "w", "0.001"]
    assert one[-2:] == ["1.25", "yes"], "what was planned, and that it keeps up"
    mean_s, median_s, p99_s = map(float, one[3:6])
    assert mean_s == median_s == p99_s, "each has an engine for itself"
    alone = engine("t4", MODEL, WHOLE, 10)
    steps_s = 100 * alone.step_s + max(500 * alone.token_s, alone.weights_s)
    assert mean_s == pytest.approx(steps_s + 99 * (alone.weights_s + 550 * alone.context_s), rel=0.02)
    assert float(two[3]) == pytest.approx(2 * mean_s + TOOL_S, abs=0.02)


def test_each_load_has_a_line_and_only_the_whole_one_what_was_planned(says: Callable[..., str]) -> None:
    told = rows(says(plan("w", 1.0), recorded("w", 1), "--load 1,0.25,0.5 --runs 100"))
    assert [row[:3] for row in told] == [["0.25", "w", "0.25"], ["0.5", "w", "0.5"], ["1", "w", "1"]]
    assert [len(row) for row in told] == [8, 8, 8]
    assert [row[6] for row in told] == ["-", "-", "1.25"]
    means_s = [float(row[3]) for row in told]
    assert means_s == sorted(means_s), "the same runs at higher rates"
    (two,) = rows(says(plan("w", 1.0, replicas=2), recorded("w", 1), "--load 1 --runs 100"))
    assert float(two[3]) < means_s[-1]


def test_a_plan_that_does_not_carry_the_rate_is_exit_code_1(says: Callable[..., str]) -> None:
    told = says(plan("w", 60.0), recorded("w", 1), "--load 0.01,1 --runs 100", 1)
    low, high = rows(told)[:2]
    assert (low[-1], high[-1]) == ("yes", "no")
    assert told.splitlines()[-1] == "At load 1 runs pile up: the plan does not carry it"


def test_more_runs_are_measured_where_few_do_not_tell(says: Callable[..., str]) -> None:
    """14 latencies' worth, some 400 and 200 runs, leave it open at both rates; the engine takes some 30 a second."""
    (over,) = rows(says(plan("w", 36.0), recorded("w", 1), "--load 1 --runs 2", 1))[:1]
    assert over[-1] == "no"
    told = says(plan("w", 16.0), recorded("w", 1), "--load 1 --runs 2")
    assert rows(told)[0][-1] == "yes"
    assert "note: at load 1 2% of the runs of w piled up, which may be chance" in told


def test_lines_of_a_load_are_there_before_the_next_one_is_measured(
    says: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def watched(*args: Any, **named: Any) -> Simulated:
        said.append(capsys.readouterr().out)
        return run_workflows(*args, **named)

    monkeypatch.setattr("headway.cli.plan_simulate.run_workflows", watched)
    says(plan("a workflow", 0.01), recorded("a workflow", 1), "--load 0.5,1 --runs 10")
    assert [len(each.splitlines()) for each in said] == [1, 1], "the head; the first load"
    head, first = (each.splitlines()[0] for each in said)
    assert head.index("keeps up") == first.index("yes")
    assert head.index("workflow") == first.index("a workflow")


def test_a_model_may_have_another_name_in_the_engine_model(says: Callable[..., str]) -> None:
    made = plan("w", 0.001)
    named = replace(
        made,
        shares=(replace(made.shares[0], model="org/Mine"),),
        instances=(replace(made.instances[0], model="org/Mine"),),
    )
    (plain,) = rows(says(made, recorded("w", 1), "--load 1 --runs 10"))
    calls = recorded("w", 1, model="org/Mine")
    (other,) = rows(says(named, calls, f"--load 1 --runs 10 --engine-model org/Mine={MODEL}"))
    assert other == plain
    assert (
        "the engine model does not know 'org/Mine' (say what it is like: --engine-model org/Mine=MODEL, where MODEL is "
        in says(named, calls, code=2)
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--load 1,x", "--load: '1,x' is no list of numbers above 0"),
        ("--load 0", "--load: '0' is no list of numbers above 0"),
        ("--load nan", "--load: 'nan' is no list of numbers above 0"),
        ("--load 1,11", "--load: 11 is more than 10 times what the plan is for"),
        ("--runs 1", "--runs: 1 are too few to measure"),
        ("--policy learned", "--policy: 'learned' is none of"),
        ("--engine-model other=llama-3-8b", "--engine-model: 'other=llama-3-8b' names none of llama-3.2-1b"),
        (f"--engine-model {MODEL}=nothing", "nothing"),
        (
            f"--engine-model {MODEL}=llama-3-8b --engine-model {MODEL}=llama-3.2-3b",
            f"--engine-model: {MODEL} is there twice",
        ),
        ("--interference -1", "--interference: a slowdown of -1 is not 0 or more"),
        ("--plan none.yaml", "none.yaml: cannot read it"),
        ("--nodes none.yaml", "none.yaml: cannot read it"),
    ],
)
def test_options_that_make_no_sense(says: Callable[..., str], options: str, what: str) -> None:
    error = says(plan("w", 1.0), recorded("w", 1), options, 2)
    assert what in error
    assert len(error.strip().splitlines()) == 1


def test_a_call_that_is_longer_than_the_models_context(says: Callable[..., str]) -> None:
    fits, longer = recorded("w", 1), recorded("w", 1)
    fits[3] = replace(fits[3], input_tokens=131072 - 100)
    longer[3] = replace(longer[3], input_tokens=131072 - 99)
    assert "yes" in says(plan("w", 0.001), fits, "--load 1 --runs 10")
    error = says(plan("w", 0.001), longer, code=2)
    assert error == (
        "headway: --calls: a call to llama-3.2-1b has 131073 tokens with its answer (call 0 of run r3 of w), and the "
        "context of llama-3.2-1b is 131072 (leave such runs out)\n"
    )
    named = f"--engine-model {MODEL}=llama-3-8b --nodes large.yaml"
    write_nodes(Path("large.yaml"), [Node("n", "a100", ((0,),))])
    assert f"a call to {MODEL} has 131073 tokens" in says(plan("w", 0.001), longer, named, 2)
    assert "the context of llama-3-8b is 8192" in says(plan("w", 0.001), longer, named, 2)


def test_a_call_that_is_longer_than_what_the_cache_of_a_part_holds(says: Callable[..., str]) -> None:
    """0.3 of 16 GiB: 0.9 of it less 1 GiB and 2.5 GB of weights, at 32 KiB a token, as `plan manifests` says it."""
    third = Shape(1, 3)
    made = plan("w", 0.001)
    made = replace(made, shares=(Share(MODEL, third, 1),), instances=(replace(made.instances[0], shape=third),))
    held_tokens = ((16 * 2**30 * 3 // 10 * 9 // 10 - 2**30 - 2 * 1235746816) // (1 << 15) // 256 - 1) * 256
    fits, longer = recorded("w", 1), recorded("w", 1)
    fits[0] = replace(fits[0], input_tokens=held_tokens - 100)
    longer[0] = replace(longer[0], input_tokens=held_tokens - 99)
    assert "yes" in says(made, fits, "--load 1 --runs 10")
    error = says(made, longer, code=2)
    assert f"a call to {MODEL} has {held_tokens + 1} tokens with its answer (call 0 of run r0 of w)" in error
    assert (
        f"and #0 of the plan takes {held_tokens} at most: its cache does not hold the model's context of 131072"
        in error
    )
    assert error.count("\n") == 1
    assert run(["plan", "manifests", "-o", "k8s"]) == 0
    assert f"'{held_tokens}'" in Path("k8s/engines.yaml").read_text()


def test_files_that_do_not_go_together(says: Callable[..., str]) -> None:
    made = plan("w", 1.0)
    assert "plan.yaml: is not placed" in says(replace(made, instances=()), recorded("w", 1), code=2)
    assert "--calls: no run of w was recorded (recorded: v)" in says(made, recorded("v", 1), code=2)
    told = says(made, [*recorded("w", 1), replace(recorded("w", 1)[0], id="x", model="other")], code=2)
    assert "--calls: the recorded runs call other, which the plan has not" in told
    elsewhere = replace(made, instances=(replace(made.instances[0], node="m"),))
    assert "plan.yaml: has llama-3.2-1b #0 on m, and the nodes are n" in says(elsewhere, recorded("w", 1), code=2)
    write_nodes(Path("nodes.yaml"), [Node("n", "abacus", ((0,),))])
    assert "abacus" in says(made, recorded("w", 1), code=2)
    os.truncate("calls.jsonl", 0)
    assert run(["plan", "simulate", "--calls", "calls.jsonl"]) == 2
