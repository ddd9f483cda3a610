"""`headway doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli import doctor
from headway.cli.main import run
from headway.interleave import actuator, bpf
from headway.lab import kernel

PARTS = {"machine", "lab", "transport", "interleave"}


def test_every_actuator_has_a_line_and_all_is_there_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert {check["part"] for check in checks.values()} == PARTS
    assert set(actuator.NAMES) <= set(checks)
    assert checks["streams"]["ok"]
    for name in actuator.NAMES:
        assert checks[name]["ok"] == (actuator.why_not(name) is None)
    assert checks["auto"]["says"].split()[0] == actuator.choose()
    assert run(["doctor"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in checks)


def test_what_is_required_decides_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpf, "requirements", lambda _name: {"rights": "none given"})
    monkeypatch.setattr(bpf, "public", lambda _name: False)
    assert run(["doctor", "--require", "streams", "--require", "python"]) == 0
    capsys.readouterr()
    assert run(["doctor", "--require", "bpf-reno"]) == 1
    assert "none given" in capsys.readouterr().out
    assert run(["doctor", "--require", "moon"]) == 2
    assert "'moon' is no line" in capsys.readouterr().err


@pytest.mark.parametrize(("allowed", "refused"), [("reno", True), ("reno cubic", False)])
def test_the_lab_s_line_says_when_the_default_congestion_control_needs_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, allowed: str, refused: bool
) -> None:
    (tmp_path / "tcp_allowed_congestion_control").write_text(f"{allowed}\n")
    (tmp_path / "namespaces").write_text("7\n")
    monkeypatch.setattr(doctor, "_CONTROLS", tmp_path)
    monkeypatch.setattr(doctor, "_USER_NAMESPACES", tmp_path / "namespaces")
    monkeypatch.setattr(kernel, "privileged", lambda: False)
    assert run(["doctor", "--json"]) == 0
    says = {check["name"]: check["says"] for check in json.loads(capsys.readouterr().out)}["lab"]
    assert says.startswith("`lab run`, in a user namespace; `lab up` needs root")
    assert ("so do scenarios with cubic" in says) == refused
