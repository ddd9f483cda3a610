"""`headway sim flows`, with the example of docs/sim-formats.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headway.cli.main import run

DOCS = Path(__file__).parents[2] / "docs" / "sim-formats.md"
COLLISION_FREE_S = 2 * 2e6 / (100e9 / 8 * 4086 / 4150)


@pytest.fixture
def example(tmp_path: Path) -> tuple[str, str]:
    """The page's two files."""
    text = DOCS.read_text()
    found = {}
    for name in ("two-racks.topo", "four.cm"):
        block = re.search(rf"^`{name}`:\n\n```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert block is not None, name
        found[name] = tmp_path / name
        found[name].write_text(block.group(1))
    return str(found["four.cm"]), str(found["two-racks.topo"])


def test_it_says_when_connections_are_complete(
    example: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix, topology = example
    answer = tmp_path / "times.json"
    assert run(["sim", "flows", matrix, "--network", topology, "--json", str(answer)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "four: 4 connections on two-racks, 8 hosts"
    assert out[1].split() == ["complete", "mean", "p50", "p99", "longest", "last", "at"]
    assert out[2].split()[0] == "4"
    assert len([line for line in out if "->" in line]) == 4
    rows = json.loads(answer.read_text())["connections"]
    incast = [row for row in rows if row["dst"] == 4]
    assert all(row["end_s"] - row["start_s"] >= COLLISION_FREE_S for row in incast)
    assert rows[3]["start_s"] >= rows[2]["end_s"]


def test_subflows_spread_a_connection(example: tuple[str, str], tmp_path: Path) -> None:
    matrix, topology = example
    ends = []
    for subflows in ("1", "8"):
        answer = tmp_path / f"{subflows}.json"
        arguments = ["sim", "flows", matrix, "--network", topology, "--subflows", subflows, "--json", str(answer)]
        assert run(arguments) == 0
        ends.append(max(row["end_s"] for row in json.loads(answer.read_text())["connections"]))
    assert ends[1] < ends[0]


def test_starts_in_microseconds(example: tuple[str, str], tmp_path: Path) -> None:
    matrix, topology = example
    answer = tmp_path / "times.json"
    assert run(["sim", "flows", matrix, "--network", topology, "--start-unit", "us", "--json", str(answer)]) == 0
    assert json.loads(answer.read_text())["connections"][2]["start_s"] == pytest.approx(10.0)


@pytest.mark.parametrize("swapped", [True, False])
def test_what_is_wrong_is_one_line(example: tuple[str, str], swapped: bool, capsys: pytest.CaptureFixture[str]) -> None:
    matrix, topology = example
    files = [topology, "--network", matrix] if swapped else ["absent.cm", "--network", topology]
    assert run(["sim", "flows", *files]) == 2
    error = capsys.readouterr().err
    assert error.startswith("headway: ")
    assert error.count("\n") == 1
