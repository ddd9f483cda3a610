"""`headway lab` as people run it: exit codes, Ctrl-C, a killed lab, two labs, events."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.decide.journal import EventRecord, parse_lines
from headway.lab import state
from tests.lab.remains import remains

HEADWAY = [sys.executable, "-m", "headway.cli.main", "lab"]
LAB = pytest.mark.lab


def headway(*arguments: str, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HEADWAY, *arguments], capture_output=True, text=True, timeout=limit_s)


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A running `lab run`, once a rank has printed "here"; and the lab's prefix."""
    process = subprocess.Popen([*HEADWAY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    found = re.search(r"lab ([0-9a-f]{6}) up", process.stderr.readline())
    assert found is not None
    assert "here" in process.stdout.readline()
    return process, f"hw{found.group(1)}-"


def finish(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=30)[1]


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text("hosts: 3\naccess: 100Mbit\nlatency: 1ms\n")
    return str(path)


def test_list_and_check_need_no_rights(tmp_path: Path) -> None:
    listed = headway("list")
    assert "star8-udp50-down" in listed.stdout
    checked = headway("check", "rack2x4-slow-uplink")
    assert checked.returncode == 0
    assert "8 hosts in 2 racks" in checked.stdout
    bad = tmp_path / "bad.yaml"
    bad.write_text("hosts: 3\naccess: 100\n")
    wrong = headway("check", str(bad))
    assert wrong.returncode == 2
    assert "bad.yaml: access.up" in wrong.stderr
    assert "Traceback" not in wrong.stderr


@LAB
@pytest.mark.usefixtures("privileged")
class TestRun:
    def test_success_and_prefixes(self, small: str) -> None:
        done = headway("run", small, "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
        assert done.returncode == 0
        assert sorted(done.stdout.splitlines()) == [f"[host{i}] rank {i} of 3" for i in range(3)]

    def test_the_first_failure_ends_all(self, small: str) -> None:
        done = headway("run", small, "--", "sh", "-c", '[ "$RANK" = 1 ] && exit 3; sleep 100')
        assert done.returncode == 1
        assert "rank 1 on host1 exited with status 3" in done.stderr

    def test_events_go_into_the_journal_and_begin_on_a_line(self, small: str, tmp_path: Path) -> None:
        path = Path(small)
        event = "{id: e, type: load, target: host1, direction: down, udp: 50%, duration: 300ms}"
        path.write_text(path.read_text() + f"events:\n  - {event}\n")
        journal = tmp_path / "events.jsonl"
        script = 'sleep 0.3; date +%s.%N > $TIMES.$RANK; [ "$RANK" = 2 ] && echo go; sleep 1'
        options = ["--events-journal", str(journal), "--start-events-on-line", "go"]
        done = headway("run", small, *options, "--", "env", f"TIMES={tmp_path}/t", "sh", "-c", script)
        assert done.returncode == 0, done.stderr
        records = list(parse_lines(journal.read_text().splitlines(), where="journal"))
        assert [(r.event, r.phase, r.links) for r in records if isinstance(r, EventRecord)] == [
            ("e", "begin", ["downlink of host1"]), ("e", "end", ["downlink of host1"]),
        ]  # fmt: skip
        assert records[0].t_s > float((tmp_path / "t.2").read_text())

    def test_ctrl_c_cleans_up(self, small: str) -> None:
        process, prefix = start("run", small, "--", "sh", "-c", "echo here; sleep 100")
        process.send_signal(signal.SIGINT)
        finish(process)
        assert process.returncode == 130
        assert remains(prefix) == []

    def test_being_asked_to_end_cleans_up(self, small: str) -> None:
        process, prefix = start("run", small, "--", "sh", "-c", "echo here; sleep 100")
        process.terminate()
        finish(process)
        assert process.returncode == 128 + signal.SIGTERM
        assert remains(prefix) == []

    def test_a_killed_lab_is_removed_by_the_next_down_and_another_lab_is_left_alone(self, small: str) -> None:
        event = "{id: e, type: load, target: host1, udp: 50%}"
        Path(small).write_text(Path(small).read_text() + f"events:\n  - {event}\n")
        killed, gone = start("run", small, "--", "sh", "-c", "echo here; setsid sleep 100 & sleep 100")
        other, alive = start("run", "star8", "--", "sh", "-c", "echo here; sleep 100")
        killed.kill()
        killed.wait()
        assert remains(gone)
        assert "abandoned" in headway("status").stdout
        down = headway("down")
        assert down.returncode == 0
        assert f"removed lab {gone[2:-1]}" in down.stdout
        assert remains(gone) == []
        assert other.poll() is None
        assert state.find(alive[2:-1]).owned
        other.send_signal(signal.SIGINT)
        finish(other)
        finish(killed)
        assert remains(alive) == []

    def test_load_ends_with_its_owner(self, small: str) -> None:
        event = "{id: e, type: load, target: host1, udp: 50%}"
        Path(small).write_text(Path(small).read_text() + f"events:\n  - {event}\n")
        process, prefix = start("run", small, "--", "sh", "-c", "echo here; sleep 100")
        try:
            process.kill()
            process.wait()
            deadline = time.monotonic() + 10
            while any("load.py" in line or "relay.py" in line or "sleep" in line for line in remains(prefix)):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            headway("down", prefix[2:-1])
        finish(process)

    def test_up_stays_until_down(self, small: str) -> None:
        made = headway("up", small)
        lab = made.stdout.strip()
        assert made.returncode == 0
        assert f"lab {lab}: small" in headway("status").stdout
        assert headway("down", lab).returncode == 0
        assert remains(f"hw{lab}-") == []
        missing = headway("down", lab)
        assert missing.returncode == 2
        assert lab in missing.stderr


@LAB
def test_without_rights_it_makes_a_user_namespace(small: str) -> None:
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
    Path(small).write_text(Path(small).read_text() + f"congestion_control: {allowed[0]}\n")
    command = ["run", small, "--", "sh", "-c", "echo $RANK; id -u"]
    drop = ["setpriv", "--bounding-set", "-sys_admin,-net_admin"] if os.geteuid() == 0 else []
    if drop and subprocess.run([*drop, "true"], capture_output=True).returncode != 0:
        pytest.skip("setpriv is needed to give up root's rights")
    if subprocess.run([*drop, "unshare", "-Urn", "true"], capture_output=True).returncode != 0:
        pytest.skip("this kernel refuses user namespaces")
    done = subprocess.run([*drop, *HEADWAY, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"[host{i}] {line}" for i in range(3) for line in (i, 0))
    up = subprocess.run([*drop, *HEADWAY, "up", small], capture_output=True, text=True, timeout=60)
    assert up.returncode == 1
    assert "needs root" in up.stderr
