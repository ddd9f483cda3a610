"""`headway plan make`, `show` and `nodes`: what they say, and what they do not take."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.main import run
from headway.serving.allocation.files import read_plan
from tests.cli.tabled import curve, prepare, recorded


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """The working directory, with what a plan is made from."""
    monkeypatch.chdir(tmp_path)
    prepare([*recorded("ask", ["big", "small"]), *recorded("chat", ["small"], runs=3)])
    capsys.readouterr()
    return tmp_path


MAKE = "plan make --calls calls.jsonl --rate ask=0.5"


def test_what_was_recorded_and_what_is_left_out_is_said(says: Callable[..., str]) -> None:
    told = says(MAKE).splitlines()
    assert "recorded: 20 runs of ask, at 0.25/s" in told
    assert "not planned for: chat (their calls will meet the same engines)" in told
    assert not any(line.startswith("note: ask") for line in told)
    assert "recorded" not in says("plan make --workflows plan.workflows.yaml --rate ask=0.5 -o again.yaml")


def test_few_runs_are_a_note(says: Callable[..., str]) -> None:
    told = says("plan make --calls calls.jsonl --rate chat=0.5")
    assert "note: chat: 3 runs recorded: averages of less than 10 say little" in told.splitlines()


@pytest.mark.parametrize("rate", ["0.5", "0.5/s", "30/min", "1800/h"])
def test_rates_have_units_or_are_per_second(says: Callable[..., str], rate: str) -> None:
    says(f"plan make --calls calls.jsonl --rate ask={rate}")
    assert read_plan(Path("plan.yaml")).forecasts[0].rate == pytest.approx(0.5)


@pytest.mark.parametrize("rate", ["ask=", "ask=0", "ask=-1/s", "ask=1/day", "ask=1/", "ask=inf", "ask=nan", "ask=x/s"])
def test_what_is_no_rate(says: Callable[..., str], rate: str) -> None:
    error = says(f"plan make --calls calls.jsonl --rate {rate}", 2)
    assert error.startswith(f"headway: --rate: {rate!r} is not NAME=RATE")


def test_nothing_that_is_read_is_written_over(says: Callable[..., str], folder: Path) -> None:
    says("trace calls calls.jsonl --aggregates w.yaml")
    says("plan make --workflows w.yaml --rate ask=0.5 -o old.yaml")
    Path("topo").write_text("\tGPU0\nGPU0\t X \n")
    Path("linked.jsonl").symlink_to("calls.jsonl")
    os.link("calls.jsonl", "hard.jsonl")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for line, path in (
        (f"{MAKE} -o nodes.yaml", "nodes.yaml"),
        (f"{MAKE} -o ./profiles.yaml", "profiles.yaml"),
        (f"{MAKE} -o {folder}/calls.jsonl", f"{folder}/calls.jsonl"),
        (f"{MAKE} -o linked.jsonl", "linked.jsonl"),
        (f"{MAKE} -o hard.jsonl", "hard.jsonl"),
        ("plan make --workflows w.yaml --rate ask=0.5 -o w.yaml", "w.yaml"),
        ("plan make --workflows old.workflows.yaml --rate ask=0.5 -o old.yaml", "old.workflows.yaml"),
        ("plan watch --journal calls.jsonl --plan old.yaml -o old.yaml", "old.yaml"),
        ("plan watch --journal calls.jsonl --plan old.yaml -o calls.jsonl", "calls.jsonl"),
        ("plan nodes --topo n1=topo --device a100 -o topo", "topo"),
        ("trace calls calls.jsonl --json -o calls.jsonl", "calls.jsonl"),
        ("trace calls calls.jsonl --aggregates calls.jsonl", "calls.jsonl"),
        ("trace import calls.jsonl", "calls.jsonl"),
    ):
        assert says(line, 2).startswith(f"headway: {path}: is read here and would be written over"), line
    assert "t.json: would be written twice" in says("trace calls calls.jsonl -o t.json --aggregates t.json", 2)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_what_is_no_file_may_be_written_and_read(says: Callable[..., str]) -> None:
    says("trace calls calls.jsonl -o /dev/null --aggregates /dev/null")


def test_the_figures_of_a_plan_and_of_its_reasons_are_of_one_kind(says: Callable[..., str]) -> None:
    """Two models on one GPU, idle: none slows the other, neither in the plan nor in what was rejected."""
    prepare(
        recorded("ask", ["big", "small"]),
        gpus="n1=1",
        curves="".join(
            curve(model, 1, slices, saturation=slices) for model in ("big", "small") for slices in (2, 4, 5, 6)
        ),
    )
    told = says("plan make --calls calls.jsonl --rate ask=0.001 --interference 0.9")
    assert "ask at 0.001/s: 0.4 s in the mean" in told
    assert "ask 4.2% slower (0.417 s instead of 0.4 s)" in told, "0.1 s x 10 slices / 4, and / 6"


def test_a_broken_limit_is_the_reason(says: Callable[..., str]) -> None:
    told = says("plan make --calls calls.jsonl --rate ask=0.5 --within ask=160ms --interference 0 --most 99", 1)
    assert "2 GPUs are not enough" in told
    told = says("plan make --calls calls.jsonl --rate ask=0.5 --within ask=200ms --interference 0 --most 99")
    assert told.startswith("2 of 2 GPUs are enough")


def test_names_cannot_steer_the_terminal_nor_be_markup(says: Callable[..., str]) -> None:
    prepare(recorded("a\x1b[31m", ["big", "[bold]x"]), curves="")
    Path("t.csv").write_text(Path("t.csv").read_text().replace("small", "[bold]x"))
    assert run(["profile", "--import", "t.csv", "--device", "a100", "-o", "profiles.yaml"]) == 0
    told = says("trace calls calls.jsonl")
    assert "a\\x1b[31m: 20 runs" in told
    assert "[bold]x" in told
    assert run(["plan", "make", "--calls", "calls.jsonl", "--rate", "a\x1b[31m=0.5"]) == 0
    told += says("plan show")
    assert "of a\\x1b[31m" in told
    assert "[bold]x #0" in told
    told += says("plan make --calls calls.jsonl --rate other=0.5", 2)
    assert "recorded: a\\x1b[31m" in told
    assert "\x1b" not in told


def test_numbers_that_are_too_large_or_too_small(says: Callable[..., str]) -> None:
    says(MAKE)
    for line, what in (
        (f"{MAKE} --most -1", "--most: -1 is below 0"),
        ("plan show --most -1", "--most: -1 is below 0"),
        ("plan nodes --gpus n=99999999 --device a100", "--gpus: n=99999999 is no number of GPUs from 1 to 1024"),
        ("plan nodes --gpus a\x1b[31m/c=4 --device a100", "--gpus and --topo: 'a\\x1b[31m/c' is no name of a node"),
        (
            "plan nodes --gpus n1=4 --gpus n2=99999999999 --device a100",
            "--gpus: n2=99999999999 is no number of GPUs from 1 to 1024\n",
        ),
        ("plan nodes --gpus n=1.5 --device a100", "--gpus: n=1.5 is no number of GPUs"),
        ("plan nodes --gpus n=4 --device a100 --domain-gpus 0", "--domain-gpus: 0 is not from 1 to 1024"),
    ):
        assert what in says(line, 2)


def test_options_that_would_mean_nothing(says: Callable[..., str]) -> None:
    Path("topo").write_text("\tGPU0\nGPU0\t X \n")
    for line, what in (
        ("plan nodes --topo n=topo --device a100 --domain-gpus 2", "--domain-gpus: means nothing without --gpus"),
        ("plan nodes --gpus n=2 --device a100 --pcie", "--pcie: means nothing without --topo"),
        ("plan nodes --gpus n=2 --device a100 --context c", "--context: means nothing without --cluster"),
        ("plan nodes --gpus n=2 --device a100 --kubeconfig k", "--kubeconfig: means nothing without --cluster"),
        ("plan nodes --cluster --device a100", "--device: means nothing without --gpus or --topo"),
        ("plan nodes --gpus n=2", "--device: is needed: one of"),
        (f"{MAKE} --equal-parts --within ask=1s", "--equal-parts: does not go with --within"),
    ):
        assert what in says(line, 2)
    assert "n: 1 x a100" in says("plan nodes --topo n=topo --device A100")


def test_an_edited_plan_is_checked_before_it_is_shown(says: Callable[..., str]) -> None:
    says(MAKE)
    good = Path("plan.yaml").read_text()
    for changed, what in (
        (good.replace("node: n1", "node: n9"), "has big #0 on n9, and the nodes are n1"),
        (good.replace("gpus: [1]", "gpus: [7]"), "on GPU 7 of n1, which has no such GPU"),
        (good.replace("gpus: [1]", "gpus: [0]"), "has 2 GPUs' worth on GPU 0 of n1: big #0, small #0"),
    ):
        assert changed != good
        Path("edited.yaml").write_text(changed)
        assert f"edited.yaml: {what}" in says("plan show edited.yaml --nodes nodes.yaml", 2).replace(
            "edited.yaml: has small #0 on", "edited.yaml: on"
        ).replace("edited.yaml: has big #0 on GPU", "edited.yaml: on GPU")
    assert "GPUs' worth on GPU 0" in says("plan show edited.yaml", 2), "without the nodes, too"


def test_equal_parts_are_of_one_size_and_meet_no_whole_instance(says: Callable[..., str]) -> None:
    prepare(recorded("ask", ["big", "small"]), gpus="n1=1 --gpus n2=1")
    says(f"{MAKE} --equal-parts")
    plan = read_plan(Path("plan.yaml"))
    sizes = {
        it.node: {other.shape.slices for other in plan.instances if other.node == it.node} for it in plan.instances
    }
    assert all(len(each) == 1 for each in sizes.values())


def test_figures_of_recorded_calls_are_said_in_our_words(says: Callable[..., str]) -> None:
    line = json.loads(Path("calls.jsonl").read_text().splitlines()[0])
    Path("bad.jsonl").write_text(json.dumps({**line, "start_s": float("nan")}) + "\n")
    assert "bad.jsonl:1: start_s: is no finite number" in says("trace calls bad.jsonl", 2)


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_path_that_names_no_file(says: Callable[..., str], path: str) -> None:
    says(MAKE)
    watch = "plan watch --journal calls.jsonl"
    for line, option in ((MAKE, "--output"), (watch, "--output"), (watch, "--plan")):
        assert says(line, 2, option, path) == f"headway: {option}: names no file (write for example plan.yaml)\n"


def test_a_file_of_another_kind_is_not_written_over(says: Callable[..., str]) -> None:
    says(f"{MAKE} -o made.yaml")
    says(f"{MAKE} -o made.json")
    Path("notes.md").write_text("Mine.\n")
    Path("x.workflows.yaml").write_text(Path("made.yaml").read_text())
    Path("d").mkdir()
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    machines = "plan nodes --gpus n1=1 --device a100"
    watch = "plan watch --plan made.yaml --journal calls.jsonl"
    for line, path, is_kind in (
        (MAKE, "made.workflows.yaml", "headway-aggregates"),
        (MAKE, "made.workflows.json", "headway-aggregates"),
        (MAKE, "notes.md", "no file of ours"),
        (f"{MAKE} -o x.yaml", "x.workflows.yaml", "headway-plan"),
        (f"{watch} -o x.yaml", "x.workflows.yaml", "headway-plan"),
        (watch, "made.workflows.json", "headway-aggregates"),
        (watch, "t.csv", "no file of ours"),
        (machines, "made.json", "headway-plan"),
        (machines, "profiles.yaml", "headway-profiles"),
    ):
        error = says(line if " -o " in line else f"{line} -o {path}", 2)
        assert error.startswith(f"headway: {path}: is {is_kind}, and headway-"), line
        assert error.count("\n") == 1
    assert says(f"{MAKE} -o d", 2) == "headway: d: is a folder (name a file in it)\n"
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before


def test_files_of_the_same_kind_and_empty_ones_are_written_over(says: Callable[..., str]) -> None:
    Path("empty.yaml").touch()
    for path in ("made.yaml", "made.json", "made.yaml", "made.json", "empty.yaml"):
        assert f"wrote {path}" in says(f"{MAKE} -o {path}")
    Path("nodes.yaml").write_text("# Of the lab.\n" + Path("nodes.yaml").read_text())
    says("plan nodes --gpus n1=1 --device a100")
