"""`headway trace sample`: calls to try plans with."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli.main import run
from headway.serving.workflows.files import read_calls
from headway.serving.workflows.programs.named import NAMED
from headway.serving.workflows.record import runs_of


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def recorded(file: str) -> list[str]:
    return Path(file).read_text().splitlines()


@pytest.mark.parametrize("name", NAMED)
def test_a_sample_calls_all_models_of_its_workflow(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "sample", name, "--runs", "6"]) == 0
    calls = read_calls(recorded("calls.jsonl"), where="calls.jsonl")
    assert {call.model for call in calls} == set(NAMED[name].models)
    assert len(runs_of(calls)) == 6
    assert all(call.blocks for call in calls if call.input_tokens >= call.block_tokens > 0)
    assert f"{len(calls)} calls of 6 runs" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_calls() -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert run(["trace", "sample", "rag", "--runs", "3", "--seed", seed, "-o", name]) == 0
    assert recorded("a") == recorded("b") != recorded("c")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chat"], "unknown workflow 'chat'"),
        (["rag", "--runs", "0"], "--runs: 0 is not from 1 to 5000"),
        (["rag", "--device", "abacus"], "unknown device 'abacus'"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "sample", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not Path("calls.jsonl").exists()
