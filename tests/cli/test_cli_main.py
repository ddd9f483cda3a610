"""The command line: exit codes and one-line errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from headway.cli import main
from headway.errors import HeadwayError, UsageError


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"headway {headway.__version__}\n"


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown for verb in main.VERBS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bogus"], "bogus"),
        (["--bogus"], "--bogus"),
        (["bench"], "collective"),
        (["bench", "all_reduce", "--bogus"], "--bogus"),
        (["bench", "all_everything"], "all_everything"),
        (["bench", "all_reduce", "-b", "12"], "-b: '12' has no unit"),
        (["bench", "all_reduce", "-b", "1M", "-e", "1K"], "-e: the last size"),
        (["bench", "all_reduce", "-f", "0.5"], "-f: 0.5"),
        (["bench", "all_reduce", "-n", "0"], "-n: needs at least one"),
        (["bench", "all_reduce", "-d", "quad"], "-d: unknown type 'quad'"),
        (["bench", "all_reduce", "-o", "xor"], "-o: unknown reduction 'xor'"),
        (["bench", "all_reduce", "--backends", "nccl"], "unknown backend 'nccl'"),
        (["bench", "all_reduce", "--ranks", "0"], "--ranks: needs at least one"),
        (["bench", "all_reduce", "--ranks", "2", "--scenario", "star8"], "exclude each other"),
        (["bench", "all_reduce", "--scenario", "nosuch"], "'nosuch'"),
        (["bench", "broadcast", "-r", "9", "--ranks", "2", "--backends", "gloo", "-J", "/nowhere/x"], "-J: "),
        (["demo", "--backends", "nccl"], "nccl"),
        (["demo", "--scenario", "star8"], "has no event"),
        (["lab", "bogus"], "bogus"),
    ],
)
def test_mistakes_exit_with_2_and_say_what_was_wrong(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert main.run(arguments) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert "Traceback" not in shown.err
    if shown.err.startswith("headway: "):
        assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (UsageError("what", where="here", hint="do this"), 2, "headway: here: what (do this)\n"),
        (HeadwayError("it failed"), 1, "headway: it failed\n"),
    ],
)
def test_errors_become_one_line_and_an_exit_code(
    error: HeadwayError, code: int, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setitem(main.VERBS, "fail", "failing:fail")
    monkeypatch.setitem(sys.modules, "failing", type(sys)("failing"))
    monkeypatch.setattr(sys.modules["failing"], "fail", fail, raising=False)
    assert main.run(["fail"]) == code
    assert capsys.readouterr().err == shown


def test_ctrl_c_while_modules_are_imported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main.run(["sim", "star8"]) == 130
    assert capsys.readouterr().err == "headway: interrupted\n"


def test_the_installed_program_answers_without_importing_torch() -> None:
    code = "import sys; from headway.cli import main; main.run(['bench', '--help']); sys.exit('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "--minbytes" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["all_reduce", "-b", "1B"], "-b: 1 B is less than one float (at least 4B)"),
        (
            ["reduce_scatter", "-b", "10B", "-d", "double"],
            "-b: 10 B is less than one double for each of 4 ranks (at least 32B)",
        ),
        (["all_reduce", "-o", "avg", "-d", "int32"], "-o: an average of int32 is no integer (-d float)"),
        (["broadcast", "-r", "5"], "--root: root 5 is no rank of 4"),
        (["broadcast", "-r", "8", "--scenario", "star8"], "--root: root 8 is no rank of 8"),
    ],
)
def test_bench_refuses_before_anything_starts(
    arguments: list[str], shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert main.run(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"headway: {shown}\n"
    assert captured.out == ""


def test_bench_in_a_job_refuses_it_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main.run(["bench", "broadcast", "-r", "2"]) == 2
    assert capsys.readouterr().err == "headway: --root: root 2 is no rank of 2\n"


@pytest.mark.ranks
def test_bench_on_loopback_prints_rows_and_writes_json(tmp_path: Path) -> None:
    from headway.bench.results import load

    path = tmp_path / "out.json"
    command = [
        sys.executable, "-m", "headway.cli.main", "bench", "all_reduce", "-b", "4KiB", "-e", "16KiB", "-n", "3",
        "--ranks", "2", "--backends", "gloo,headway", "-J", str(path),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("headway:packing") == 3
    rows = load(path).rows
    assert [row.size_bytes for row in rows] == [4096, 4096, 8192, 8192, 16384, 16384]
    assert all(row.wrong == 0 and len(row.iterations_s) == 3 for row in rows)


def test_a_full_disk_is_said_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        asked = [sys.executable, "-m", "headway.cli.main", "--version"]
        ended = subprocess.run(asked, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "headway: cannot write: No space left on device\n"


def test_a_reader_that_is_gone_is_no_mistake() -> None:
    read, write = os.pipe()
    os.close(read)
    asked = [sys.executable, "-m", "headway.cli.main", "--version"]
    ended = subprocess.run(asked, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write)
    assert ended.returncode == 1
    assert ended.stderr == ""
