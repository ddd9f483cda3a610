"""Running ranks, on hosts that are plain processes here: environment, output, and what ends a run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.lab.ranks import RankProcess, RunResult, one_on_each, rank_environment, run_processes


@dataclass(frozen=True)
class Host:
    name: str
    address: str = "127.0.0.1"


class Local:
    """A lab whose hosts are this machine."""

    def __init__(self, count: int) -> None:
        self.hosts: Sequence[Host] = [Host(f"h{i}") for i in range(count)]
        self.started: list[subprocess.Popen[bytes]] = []

    def popen(
        self, host: str | int, argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdout: int | None = None,
        stderr: int | None = None, cwd: str | Path | None = None,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        process = subprocess.Popen(argv, env=env, stdout=stdout, stderr=stderr, cwd=cwd, start_new_session=True)
        self.started.append(process)
        return process


def run(
    lab: Local, script: str, *, on_line: Callable[[str, str], None] | None = None, limit_s: float | None = None,
    echo: bool = False, on_tick: Callable[[], None] = lambda: None,
) -> RunResult:  # fmt: skip
    ranks = one_on_each(lab.hosts, ["sh", "-c", script], {"PATH": "/usr/bin:/bin"})
    return run_processes(lab, ranks, on_line=on_line, on_tick=on_tick, echo=echo, limit_s=limit_s)


def test_every_rank_gets_torchrun_s_environment() -> None:
    lines: set[tuple[str, str]] = set()
    result = run(
        Local(3),
        'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $GROUP_RANK"',
        on_line=lambda host, line: lines.add((host, line)),
    )
    assert result.ok
    assert result.codes == (0, 0, 0)
    assert lines == {(f"h{i}", f"{i} 3 0 1 127.0.0.1 29500 {i}") for i in range(3)}


def test_users_settings_of_threads_and_buffering_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert rank_environment([Host("a")], 0)["OMP_NUM_THREADS"] == "7"


def test_output_is_prefixed_and_the_last_line_needs_no_end(capsys: pytest.CaptureFixture[str]) -> None:
    run(Local(1), "printf 'a\\nb'; printf 'c\\351\\n' >&2", echo=True)
    out, err = capsys.readouterr()
    assert out == "[h0] a\n[h0] b\n"
    assert err == "[h0] c\ufffd\n"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("[ $RANK = 1 ] && exit 7; sleep 60", "rank 1 on h1 exited with status 7"),
        ("[ $RANK = 2 ] && kill -9 $$; sleep 60", "rank 2 on h2 was killed by SIGKILL"),
    ],
)
def test_the_first_failure_ends_all(script: str, words: str) -> None:
    lab = Local(3)
    result = run(lab, script)
    assert result.failure == words
    assert all(process.returncode is not None for process in lab.started)
    assert sum(code == 0 for code in result.codes) == 0


def test_children_of_ranks_end_too() -> None:
    lines: list[str] = []
    run(
        Local(2),
        "[ $RANK = 1 ] && { sleep 0.3; exit 1; }; sleep 300 & echo $!; wait",
        on_line=lambda _, s: lines.append(s),
    )
    (child,) = lines
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_limit_ends_all_and_names_who_was_late() -> None:
    assert "rank 0 on h0, rank 1 on h1" in run(Local(2), "sleep 60", limit_s=0.2).failure


def test_an_exception_of_a_callback_ends_all() -> None:
    lab = Local(2)

    def stop(host: str, line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(lab, "echo x; sleep 60", on_line=stop)
    assert all(process.returncode is not None for process in lab.started)


def test_much_output_is_not_lost() -> None:
    lines: list[str] = []
    code = "import sys\nfor i in range(20000): sys.stdout.write(f'{i}\\n')"
    lab = Local(1)
    run_processes(
        lab, one_on_each(lab.hosts, [sys.executable, "-c", code]), on_line=lambda _, line: lines.append(line),
        on_tick=lambda: None, echo=False, limit_s=None,
    )  # fmt: skip
    assert lines == [str(i) for i in range(20000)]


def test_ranks_that_share_hosts_know_their_place_there() -> None:
    hosts = [Host("a", "10.0.0.1"), Host("a", "10.0.0.1"), Host("b", "10.0.0.2"), Host("b", "10.0.0.2")]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT")
    told = [[rank_environment(hosts, rank, port=4)[name] for name in names] for rank in range(4)]
    assert told == [
        ["0", "4", "0", "2", "0", "2", "4"],
        ["1", "4", "1", "2", "0", "2", "4"],
        ["2", "4", "0", "2", "1", "2", "4"],
        ["3", "4", "1", "2", "1", "2", "4"],
    ]


def test_when_it_is_enough_the_rest_is_ended_and_nothing_has_failed() -> None:
    lab = Local(1)
    lines: list[tuple[str, str]] = []

    def process(label: str, script: str) -> RankProcess:
        return RankProcess(0, ["sh", "-c", script], {}, label, f"rank of {label}")

    result = run_processes(
        lab, [process("short", "echo a"), process("long", "echo b; trap 'echo c' TERM; sleep 60 & wait")],
        on_line=lambda label, line: lines.append((label, line)), on_tick=lambda: None, echo=False, limit_s=30,
        enough=lambda: len(lines) == 2,
    )  # fmt: skip
    assert result.ok
    assert sorted(lines) == [("long", "b"), ("short", "a")]
    assert all(process.returncode is not None for process in lab.started)
