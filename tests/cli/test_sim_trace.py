"""`headway sim trace`, as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli import main
from headway.sim.formats.chakra import CommKind, NodeKind, TraceNode
from headway.sim.formats.chakra_write import encode_trace


@pytest.fixture
def inputs(tmp_path: Path) -> list[str]:
    nodes = [
        TraceNode(0, "forward", NodeKind.COMP, duration_s=1e-5),
        TraceNode(1, "gradients", NodeKind.COMM_COLL, (0,), comm=CommKind.ALL_REDUCE, size_bytes=2**20, group="1"),
    ]
    for npu in range(4):
        (tmp_path / f"job.{npu}.et").write_bytes(encode_trace(nodes))
    (tmp_path / "net.yml").write_text("topology: [Ring]\nnpus_count: [4]\nbandwidth: [50]\nlatency: [500]\n")
    (tmp_path / "sys.json").write_text('{"preferred-dataset-splits": 4, "local-mem-bw": 1600}')
    (tmp_path / "groups.json").write_text('{"1": [0, 1, 2, 3]}')
    return [
        *("sim", "trace", str(tmp_path / "job"), "--network", str(tmp_path / "net.yml")),
        *("--groups", str(tmp_path / "groups.json")),
    ]


def test_a_trace_as_tables_json_and_trace(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spans, data = tmp_path / "spans.json", tmp_path / "data.json"
    options = ["--system", str(tmp_path / "sys.json"), "--forwarding", "store"]
    assert main.run([*inputs, *options, "--trace", str(spans), "--json", str(data)]) == 0
    shown = capsys.readouterr().out
    assert "npu3   53000         10000       43000       81.1" in shown
    assert shown.splitlines()[-1].startswith("53000 ns, system's algorithms, store, ")
    assert json.loads(data.read_text())["npu_end_s"] == pytest.approx([53e-6] * 4)
    names = {event["name"] for event in json.loads(spans.read_text())["traceEvents"]}
    assert {"forward", "gradients"} <= names


def test_plans_and_other_rates(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    ends = []
    for options in ([], ["--rate", "link from npu0 to npu1=1GB/s"], ["--plan", "ring"], ["--plan", "best"]):
        assert main.run([*inputs, *options]) == 0
        ends.append(int(capsys.readouterr().out.splitlines()[-1].split()[0]))
    assert ends[1] > 2 * ends[0]
    assert ends[3] <= ends[2] < ends[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--plan", "snake"], "--plan: 'snake' is no plan"),
        (["--execution", "rounds"], "--execution: is for plans"),
        (["--rate", "npu0"], "--rate: 'npu0' is no LINK=RATE"),
        (["--rate", "npu0=1GB/s"], "--rate: there is no 'npu0'"),
        (["--plan", "ring", "--forwarding", "store"], "--forwarding: plans run on the fluid network only"),
    ],
)
def test_wrong_options_are_one_line(
    inputs: list[str], options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*inputs, *options]) == 2
    assert words in capsys.readouterr().err
