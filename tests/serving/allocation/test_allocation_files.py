"""Files: what is written is read again, and what is wrong is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.serving.allocation import files
from headway.serving.allocation.place import place
from headway.serving.allocation.search import search
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Shape
from tests.serving.allocation.made import demand, flat, predictor, profile, scaling, workflow


@pytest.mark.parametrize("name", ["it.yaml", "it.json"])
def test_everything_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    aggregates = [workflow("a", {"m": 3.0, "n": 0.25}, other_s=1e-7), workflow("b", {"m": 1.0})]
    files.write_aggregates(path, aggregates)
    assert files.read_aggregates(path) == aggregates

    plain = profile("m", {(1, 1): flat(1.5, 1e-5), (2, 4): flat(0.1, 30.0)}, memory_bytes=16 << 30)
    spread = replace(plain, model="n", spread_curves={2: {shape: flat(1.0, 9.0) for shape in plain.curves}})
    files.write_profiles(path, [plain, spread], slices_per_gpu=4)
    assert files.read_profiles(path) == (4, {"m": plain, "n": spread})

    nodes = [Node("a", "a100", ((0, 1), (2,))), Node("b", "a100", ((0,),))]
    files.write_nodes(path, nodes)
    assert files.read_nodes(path) == nodes

    for rate in (0.5, 50.0):
        known = predictor(scaling("m", f=4), scaling("n", f=4))
        plan = search([demand("w", {"m": 1.0, "n": 2.0}, rate)], known, gpus=2, slices_per_gpu=4, domain_gpus=2)
        placed = place(plan, [Node("a", "a100", ((0, 1),))])
        files.write_plan(path, placed)
        assert files.read_plan(path) == placed
        assert (placed.forecasts[0].latency_s == math.inf) == (rate == 50.0)


PLAN = """\
kind: headway-plan
version: 1
slices_per_gpu: 10
shares: [{model: m, tensor_parallel: 1, slices: 4, replicas: 2}]
"""
NODES = "kind: headway-nodes\nversion: 1\nnodes: [{name: n, device: a100, domains: [[0, 1]]}]\n"
PROFILES = """\
kind: headway-profiles
version: 1
slices_per_gpu: 10
profiles:
- model: m
  source: here
  memory_bytes: {1: 100}
  curves:
  - {tensor_parallel: 1, slices: 10, saturation: 9, rates: [1, 2], latencies_s: [1, 2], p99_s: [1, 2]}
"""


PLACED = (
    PLAN
    + """\
instances:
- {model: m, number: 0, tensor_parallel: 1, slices: 4, node: n, gpus: [0]}
- {model: m, number: 1, tensor_parallel: 1, slices: 4, node: n, gpus: [1]}
"""
)


@pytest.mark.parametrize(
    ("was", "is_", "said"),
    [
        ("shares: [{model: m, tensor_parallel: 1", "shares: [{model: m, tensor_parallel: 2", "m has 2 x 4 slices"),
        ("number: 0, tensor_parallel: 1", "number: 0, tensor_parallel: 2", "m has 2 x 4 slices"),
        ("slices_per_gpu: 10", "slices_per_gpu: 3", "1 x 4 slices, which is no shape where a GPU has 3"),
        ("replicas: 2", "replicas: 3", "m has 3 replicas and 2 instances"),
        ("number: 1", "number: 0", "m #0 is there twice"),
        ("model: m, number: 1", "model: n, number: 1", "n has an instance and no share"),
        ("number: 1, tensor_parallel: 1, slices: 4", "number: 1, tensor_parallel: 1, slices: 5", "another shape"),
        ("gpus: [1]", "gpus: [1, 2]", r"m #1 is on GPUs \[1, 2\], and needs 1"),
        ("replicas: 2}", "replicas: 2}, {model: m, tensor_parallel: 1, slices: 4, replicas: 2}", "more than one share"),
    ],
)
def test_plans_that_were_edited_are_checked(was: str, is_: str, said: str) -> None:
    assert files.parse_plan(PLACED, where="f").instances
    assert PLACED.count(was) == 1
    with pytest.raises(UsageError, match=said):
        files.parse_plan(PLACED.replace(was, is_), where="f")


def test_files_by_hand() -> None:
    assert files.parse_plan(PLAN, where="p").shares[0].shape == Shape(1, 4)
    assert files.parse_nodes(NODES, where="n")[0].gpus == 2
    assert files.parse_profiles(PROFILES, where="f")[1]["m"].memory_bytes == {1: 100}


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (files.parse_plan, "", "f: is not a file of kind headway-plan"),
        (files.parse_plan, NODES, "f: kind: is 'headway-nodes', not 'headway-plan'"),
        (files.parse_plan, PLAN.replace("version: 1", "version: 2"), "f: version: is 2, and only 1 is known"),
        (
            files.parse_plan,
            PLAN.replace("replicas: 2", "replicas: 0"),
            r"f: shares.0.replicas: .*greater than or equal",
        ),
        (files.parse_plan, PLAN.replace("model: m, ", ""), "f: shares.0.model: is missing"),
        (files.parse_plan, PLAN + "forecast: []\n", "f: forecast: there is no such field"),
        (files.parse_plan, PLAN + "shares: [", r"f:5: expected"),
        (files.parse_nodes, NODES.replace("[[0, 1]]", "[[0, 1], [1]]"), "f: nodes.0: a GPU is in two domains"),
        (files.parse_nodes, NODES.replace("[[0, 1]]", "[[]]"), "a domain has no GPUs"),
        (
            files.parse_nodes,
            NODES.replace("nodes: [", "nodes: [{name: n, device: a, domains: [[0]]}, "),
            "f: n is there twice",
        ),
        (files.parse_profiles, PROFILES.replace("[1, 2]", "[2, 1]", 1), "rates do not rise"),
        (files.parse_profiles, PROFILES.replace("saturation: 9", "saturation: 2"), "not above the last"),
        (files.parse_profiles, PROFILES.replace("p99_s: [1, 2]", "p99_s: [1]"), "different lengths"),
        (files.parse_profiles, PROFILES.replace("{1: 100}", "{1: -100}"), r"memory_bytes\.1: .*greater than or equal"),
        (files.parse_profiles, PROFILES.replace("slices: 10", "slices: 11"), "1 x 11 slices is no shape"),
        (files.parse_profiles, PROFILES + PROFILES.splitlines()[-1] + "\n", "curves.1: this shape is there twice"),
        (
            files.parse_profiles,
            PROFILES + "- {model: m, source: '', memory_bytes: {}, curves: []}\n",
            "'m' is there twice",
        ),
    ],
)
def test_what_is_wrong_is_named(parse: Callable[..., object], text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(text, where="f")


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read it: No such file"):
        files.read_plan(tmp_path / "none.yaml")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not text"):
        files.read_nodes(tmp_path / "bytes")
    with pytest.raises(UsageError, match="cannot write it"):
        files.write_nodes(tmp_path / "no" / "where.yaml", [])
