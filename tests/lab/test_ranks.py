"""Running ranks, on hosts that are plain processes here: environment, output, and what ends a run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.lab.ranks import RunResult, rank_environment, run_ranks


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
    return run_ranks(
        lab, ["sh", "-c", script], env={"PATH": "/usr/bin:/bin"}, on_line=on_line, on_tick=on_tick, echo=echo,
        limit_s=limit_s,
    )  # fmt: skip


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
    run_ranks(
        Local(1), [sys.executable, "-c", code], env=None, on_line=lambda _, line: lines.append(line),
        on_tick=lambda: None, echo=False, limit_s=None,
    )  # fmt: skip
    assert lines == [str(i) for i in range(20000)]
