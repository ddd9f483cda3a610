"""docs/journal.md is the format: its examples parse, and it has every field of every record."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from headway.collectives.plan_codec import decode
from headway.decide import journal
from headway.decide.journal import (
    DecisionRecord,
    FailureRecord,
    FindingRecord,
    FlowRecord,
    OptionRecord,
    Record,
    StartRecord,
    parse_lines,
    to_line,
)
from headway.errors import UsageError

PAGE = (Path(__file__).parents[2] / "docs" / "journal.md").read_text()
RECORDS: tuple[type[BaseModel], ...] = get_args(get_args(Record)[0])
COMMON = {"v", "kind", "t_s", "group"}


def kind_of(model: type[BaseModel]) -> str:
    return str(model.model_fields["kind"].default)


def section(kind: str) -> str:
    match = re.search(rf"^### {kind}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, f"docs/journal.md has no section {kind}"
    return match.group(1)


def documented(text: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


def example_lines() -> list[str]:
    blocks = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_the_examples_parse_and_show_every_kind() -> None:
    lines = example_lines()
    records = list(parse_lines(lines, where="docs/journal.md"))
    assert {type(record) for record in records} == set(RECORDS)
    for line, record in zip(lines, records, strict=True):
        unknown = set(json.loads(line)) - set(type(record).model_fields)
        assert not unknown, f"an example has fields that no record has: {unknown}"
        assert next(parse_lines([to_line(record)], where="again")) == record


def test_the_example_of_trees_is_a_plan() -> None:
    (start,) = [r for r in parse_lines(example_lines(), where="docs") if isinstance(r, StartRecord)]
    assert decode(start.plan_trees).size == start.world_size


@pytest.mark.parametrize("model", RECORDS, ids=kind_of)
def test_every_field_is_documented_and_no_other(model: type[BaseModel]) -> None:
    text = section(kind_of(model))
    if model is DecisionRecord:
        text, findings, options = re.split(r"^A \*\*finding\*\*:|^An \*\*option\*\*:", text, flags=re.MULTILINE)
        assert documented(findings) == set(FindingRecord.model_fields)
        assert documented(options) == set(OptionRecord.model_fields)
    assert documented(text) == set(model.model_fields) - COMMON


def test_the_common_fields_are_documented() -> None:
    text = PAGE[PAGE.index("Every record has these fields") : PAGE.index("## Records")]
    assert documented(text) == COMMON
    assert f"`v` is the format's version, {journal.VERSION}." in PAGE


def test_what_has_no_value_is_left_out_and_read_back() -> None:
    failure = FailureRecord(t_s=1.0, rank=0, blamed_rank=None, operation="barrier #1", what="timeout")
    flow = FlowRecord(t_s=1.0, epoch=0, src=0, dst=1, acked_bytes=0, network_limited_s=0.0)
    for record in (failure, flow):
        assert "null" not in to_line(record)
        assert next(parse_lines([to_line(record)], where="here")) == record


def test_an_infinite_prediction_survives() -> None:
    option = OptionRecord(plan="ring", predicted_s=math.inf, bottleneck="uplink of host 0")
    record = DecisionRecord(
        t_s=1.0, epoch=0, action="hold", reason="", from_operation=0, plan_before="", plan_after="", options=[option]
    )
    line = to_line(record)
    json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert next(parse_lines([line], where="here")) == record


def test_a_newer_field_is_ignored_and_a_newer_kind_or_version_is_named() -> None:
    line = json.loads(to_line(FailureRecord(t_s=1.0, rank=0, operation="barrier #1", what="timeout")))
    (record,) = parse_lines([json.dumps({**line, "severity": 3})], where="here")
    assert isinstance(record, FailureRecord)
    for change in ({"kind": "weather"}, {"v": 2}, {"rank": "three"}):
        with pytest.raises(UsageError, match=r"^here:2: .*docs/journal\.md"):
            list(parse_lines(["", json.dumps({**line, **change})], where="here"))
