"""`headway profile`: what it refuses, in one line and with nothing written, and what its table says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.cli import profile as profile_command
from headway.cli.main import run
from headway.serving.allocation import engine_profile
from headway.serving.allocation.files import read_profiles, write_profiles
from headway.serving.allocation.types import Curve, ModelProfile, Shape
from headway.serving.workflows.calls import Call
from headway.serving.workflows.files import write_calls
from tests.fakes.engine import engines
from tests.fakes.openai_server import nobody

HEAD = "model,tensor_parallel,slices,rate,latency_s,p99_s,saturation\n"
SMALL, HUGGING_FACE = "llama-3.2-1b", "meta-llama/Meta-Llama-3-8B-Instruct"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files lie in an empty folder, and profiles are of few calls."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine_profile, "CALLS", 40)
    for model, name in ((SMALL, "calls.jsonl"), (HUGGING_FACE, "hf.jsonl")):
        calls = [Call("w", f"r{at}", "0", model, 5.0 * at, 5.0 * at + 1, 100 + at, 5) for at in range(8)]
        Path(name).write_text(write_calls(calls))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--import t.csv --slices 5", "t.csv:2: 1 x 6 slices is no shape where a GPU has 5"),
        ("--import t.csv --slices 10 --model other", "t.csv: has no curves of other (it has mine)"),
        ("--import t.csv --slices 100000", "--slices: 100000 is not from 1 to 100"),
        ("--import t.csv --slices 0", "--slices: 0 is not from 1 to 100"),
        ("--from engine-model --device a100 --calls calls.jsonl --domain-gpus 0", "--domain-gpus: 0 is not from 1 to"),
        ("--from engine-model --calls calls.jsonl", "--device: is needed (known: a10"),
        ("--from engine-model --calls calls.jsonl --device b1", "unknown device 'b1'"),
        ("--from engine-model --calls calls.jsonl --device a100 --model x", "--model: no call to x was recorded"),
        (
            "--from engine-model --device a100 --calls hf.jsonl",
            f"does not know '{HUGGING_FACE}' (say what it is like: --engine-model {HUGGING_FACE}=MODEL, where MODEL is "
            "llama-3-8b, ",
        ),
        (f"--engine 1x5=http://127.0.0.1:1 --calls calls.jsonl --model {SMALL} --point 0s", "--point: 0s is no time"),
        (f"--engine 1x5=http://127.0.0.1:1 --calls calls.jsonl --model {SMALL} --limit 0s", "--limit: 0s is no time"),
        (f"--engine 1x5=http://127.0.0.1:1 --calls calls.jsonl --model {SMALL} --spread 0", "--spread: 0 is not from"),
        ("--from engine-model --device a100 --calls empty.jsonl", "empty.jsonl: is empty"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("t.csv").write_text(f"{HEAD}mine,1,6,1,0.2,0.3,9\n")
    Path("empty.jsonl").write_text("")
    assert run(["profile", *line.split()]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not Path("profiles.yaml").exists()


def test_a_device_may_be_written_in_capitals_and_another_model_be_named() -> None:
    line = (
        f"profile --from engine-model --device A100 --calls hf.jsonl --engine-model {HUGGING_FACE}={SMALL} --no-cache"
    )
    assert run([*line.split(), "--slices", "1", "--domain-gpus", "1"]) == 0
    assert read_profiles(Path("profiles.yaml"))[1][HUGGING_FACE].device == "a100"


@pytest.mark.parametrize("terminal", [False, True])
def test_any_name_of_a_model_is_shown_and_is_no_markup(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "org/[/x]:smile:\x1b[31m"
    Path("odd.jsonl").write_text(Path("calls.jsonl").read_text().replace(SMALL, json.dumps(name)[1:-1]))
    monkeypatch.setattr(profile_command, "MANY_CURVES", 1)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    line = "profile --from engine-model --device a100 --slices 1 --domain-gpus 1 --no-cache --calls odd.jsonl"
    assert run([*line.split(), f"--engine-model={name}={SMALL}"]) == 0
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert r"org/[/x]:smile:\x1b[31m" in text
        assert name not in text
    assert (r"\x1b[31m: 1 curves are made" in printed.err) is not terminal


def test_what_the_engine_model_knows_a_model_as_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"profile --from engine-model --device a100 --calls hf.jsonl --engine-model {HUGGING_FACE}={SMALL}"
    assert run([*line.split(), f"--engine-model={HUGGING_FACE}=llama-3-8b"]) == 2
    assert capsys.readouterr().err == f"headway: --engine-model: {HUGGING_FACE} is there twice\n"


def test_mean_and_p99_half_loaded_are_at_the_same_rate(capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.csv").write_text(f"{HEAD}mine,1,10,2,1,2,20\nmine,1,10,18,3,10,20\n")
    assert run(["profile", "--import", "t.csv", "--device", "h100"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("mine"))
    assert row.split() == ["mine", "1", "20", "1", "s", "2", "s", "6", "s"]


@pytest.mark.parametrize(
    "way",
    [
        "--import t.csv",
        "--from engine-model --device a100 --calls calls.jsonl",
        f"--engine 1x10=http://127.0.0.1:1 --calls calls.jsonl --model {SMALL}",
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_measured(
    way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("t.csv").write_text(f"{HEAD}mine,1,10,2,0.2,0.3,9\n")
    write_profiles(Path("five.yaml"), [], slices_per_gpu=5)
    before = Path("five.yaml").read_bytes()
    for output, says in (
        ("none/x.yaml", "none/x.yaml: cannot write it: No such file or directory"),
        (".", ".: cannot write it: Is a directory"),
        ("five.yaml", "five.yaml: has 5 slices for a GPU, not 10 (another --output, or --slices)"),
        ("t.csv", "t.csv: "),
    ):
        assert run(["profile", *way.split(), "-o", output]) == 2
        shown = capsys.readouterr()
        assert shown.err.startswith(f"headway: {says}")
        assert not shown.out, "no step of a measurement was told"
    assert Path("five.yaml").read_bytes() == before


def test_curves_of_another_gpu_are_refused_before_an_engine_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    curve = Curve((1.0,), (1.0,), (2.0,), 5.0)
    old = ModelProfile(SMALL, {Shape(1, 5): curve}, {}, "live: http://x", device="a100")
    write_profiles(Path("profiles.yaml"), [old], slices_per_gpu=10)
    line = f"profile --engine 1x10=http://127.0.0.1:1 --calls calls.jsonl --model {SMALL} --device h100"
    assert run(line.split()) == 2
    assert f"has curves of {SMALL} on a100, not on h100" in capsys.readouterr().err


def test_an_engine_that_is_not_there_is_a_failure_and_leaves_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    with nobody() as url:
        line = f"profile --engine 1x10={url} --calls calls.jsonl --model {SMALL}"
        assert run(line.split()) == 1
    assert capsys.readouterr().err == f"headway: cannot connect to {url} (refused)\n"
    assert not Path("profiles.yaml").exists()


def long_calls(model: str, tokens: int) -> str:
    """A file of calls, one of which has so many tokens with its answer."""
    calls = [Call("w", f"r{at}", "0", model, 5.0 * at, 5.0 * at + 1, 100 + at, 5) for at in range(8)]
    Path("long.jsonl").write_text(write_calls([*calls, Call("w", "long", "7", model, 90.0, 91.0, tokens - 5, 5)]))
    return "--calls long.jsonl"


def test_a_call_that_is_longer_than_the_models_context(capsys: pytest.CaptureFixture[str]) -> None:
    model = "deepseek-7b"
    line = "profile --from engine-model --device a100 --slices 1 --domain-gpus 1 --no-cache"
    assert run([*line.split(), *long_calls(model, 4097).split()]) == 2
    shown = capsys.readouterr()
    assert shown.err == (
        f"headway: --calls: a call to {model} has 4097 tokens with its answer (call 7 of run long of w), and the "
        f"context of {model} is 4096 (leave such runs out)\n"
    )
    assert not shown.out
    assert not Path("profiles.yaml").exists()
    assert run([*line.split(), *long_calls(model, 4096).split()]) == 0
    assert run([*line.split(), *long_calls(model, 4097).split(), f"--engine-model={model}=llama-3-8b"]) == 0


def test_an_engine_that_says_what_it_takes_is_not_sent_more(capsys: pytest.CaptureFixture[str]) -> None:
    with an_engine(SMALL) as url:
        line = f"profile --engine 1x10={url} --calls calls.jsonl --model {SMALL}"
        assert run(line.replace("--calls calls.jsonl", long_calls(SMALL, 32769)).split()) == 2
    shown = capsys.readouterr()
    assert f"a call to {SMALL} has 32769 tokens with its answer (call 7 of run long of w)" in shown.err
    assert f"and {url} takes 32768 at most (leave such runs out)\n" in shown.err
    assert not shown.out, "nothing was measured"
    assert not Path("profiles.yaml").exists()


def test_of_an_engine_that_does_not_say_it_the_models_own_context_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with nobody() as url:
        line = f"profile --engine 1x10={url} {long_calls(SMALL, 131073)}"
        assert run(line.split()) == 2
        assert f"and the context of {SMALL} is 131072 (leave such runs out)\n" in capsys.readouterr().err
        assert run([*line.split(), "--served-model-name", "somebody/else"]) == 1
    assert capsys.readouterr().err.startswith("headway: cannot connect to")


@contextmanager
def an_engine(model: str) -> Iterator[str]:
    """Where one runs, in a thread, until the block ends."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    stop, urls = asyncio.Event(), []

    async def serve() -> None:
        async with engines(1, model=model) as running:
            urls.append(running[0].url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()
        loop.close()
