"""Calls as files: what is written is read again; what is wrong is said with file, line and field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from headway.decide.journal import RequestRecord, to_line
from headway.errors import UsageError
from headway.serving.workflows.calls import Call
from headway.serving.workflows.files import read_calls, write_calls
from headway.serving.workflows.importing import Format, Source, format_of, import_calls
from headway.serving.workflows.record import from_journal, left_out, runs_of
from tests.serving.workflows.made_calls import any_calls

GOOD = {
    "v": 1,
    "kind": "call",
    "workflow": "w",
    "run": "1",
    "id": "x",
    "model": "m",
    "start_s": 0.5,
    "end_s": 1,
    "input_tokens": 3,
    "output_tokens": 0,
}


@settings(deadline=None, max_examples=150)
@given(any_calls())
def test_what_was_written_is_read_again(calls: list[Call]) -> None:
    assert read_calls(write_calls(calls).split("\n"), where="f") == calls


@settings(deadline=None, max_examples=50)
@given(any_calls())
def test_importing_calls_gives_the_same_calls_by_time(calls: list[Call]) -> None:
    if calls:
        found = import_calls([Source("f", write_calls(calls))])
        assert sorted(found.calls, key=lambda c: c.id) == sorted(calls, key=lambda c: c.id)
        assert [c.start_s for c in found.calls] == sorted(c.start_s for c in calls)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start_s": None}, "start_s: "),
        ({"end_s": 0.5}, "end_s 0.5 is not after start_s 0.5"),
        ({"end_s": "1"}, "end_s: "),
        ({"input_tokens": -1}, "input_tokens: "),
        ({"input_tokens": 1.5}, "input_tokens: "),
        ({"output_tokens": True}, "output_tokens: "),
        ({"run": ""}, "run: "),
        ({"model": 7}, "model: "),
        ({"v": 2}, "v: "),
        ({"kind": "request"}, "kind: "),
        ({"blocks": [1]}, "blocks need block_tokens"),
        ({"blocks": ["a"], "block_tokens": 16}, "blocks.0: "),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_field(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        read_calls([json.dumps({**GOOD, "id": "first"}), "", json.dumps({**GOOD, **changes})], where="calls.jsonl")
    assert caught.value.where == "calls.jsonl:3"


def test_a_field_left_out_a_line_that_is_no_json_and_a_call_twice() -> None:
    for field in GOOD:
        with pytest.raises(UsageError, match=f"{field}: is missing"):
            read_calls([json.dumps({name: value for name, value in GOOD.items() if name != field})], where="f")
    with pytest.raises(UsageError, match="f:1: "):
        read_calls(["{"], where="f")
    with pytest.raises(UsageError, match=r"f:2: id: the run '1' of 'w' has a call 'x' already in line 1"):
        read_calls([json.dumps(GOOD)] * 2, where="f")
    read_calls([json.dumps(GOOD), json.dumps({**GOOD, "run": "2", "later": "field"})], where="f")


def test_the_page_documents_every_field_and_its_example_is_read() -> None:
    page = Path("docs/workflows.md").read_text()
    section = page.partition("## The file of calls")[2].partition("\n## ")[0]
    fields = re.findall(r"^\| `([a-z_]+)` \|", section, re.M)
    assert fields == [*GOOD, "blocks", "block_tokens"]
    (example,) = re.findall(r"```json\n(.*?)```", section, re.S)
    calls = read_calls(example.strip().split("\n"), where="docs/workflows.md")
    assert len(calls) >= 2
    assert any(call.blocks for call in calls)


def request(number: int, workflow: str, **changes: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "t_s": 1000.0 + number + 2,
        "group": "m",
        "request": f"r{number}",
        "arrived_s": 1000.0 + number,
        "policy": "p",
        "input_tokens": 100,
        "output_tokens": 7,
        "e2e_s": 2.0,
        "status": 200,
        "end": "done",
    }
    return RequestRecord(workflow=workflow, **{**fields, **changes})


def test_a_journal_gives_the_calls_that_name_a_run_and_were_answered() -> None:
    records = [
        request(0, "beam/1"),
        request(1, "beam/1", request="r0"),  # the client names all its requests alike
        request(2, "beam", session="s7"),
        request(3, "rag/x/y", prefix_blocks=[5, 6, 7], block_tokens=40),
        request(4, "rag/2", prefix_blocks=[5, 6, 7], block_tokens=64),  # the engine counted fewer tokens
        request(5, ""),
        request(6, "beam"),
        request(7, "beam/1", end="failed", status=502),
        request(8, "beam/1", end="cancelled", status=499),
        request(9, "beam/1", status=404),
        request(10, "beam/1", end="refused", status=429, e2e_s=0.0),
    ]
    calls = from_journal(records)
    assert [(c.workflow, c.run, c.id) for c in calls] == [
        *(("beam", "1", "r0"), ("beam", "1", "r0#2"), ("beam", "s7", "r2"), ("rag", "x/y", "r3"), ("rag", "2", "r4")),
    ]
    assert calls[0] == Call("beam", "1", "r0", "m", 1000.0, 1002.0, 100, 7)
    assert [(c.blocks, c.block_tokens) for c in calls[3:]] == [((5, 6, 7), 40), ((5, 6, 7), 34)]
    assert left_out(records) == {
        "of no workflow": 1,
        "of a workflow but of no run": 1,
        "failed or broken off": 4,
    }
    assert [(run.workflow, run.id, len(run.calls)) for run in runs_of(calls)] == [
        *(("beam", "1", 2), ("beam", "s7", 1), ("rag", "x/y", 1), ("rag", "2", 1)),
    ]


def test_a_files_kind_is_told_by_what_is_in_it() -> None:
    journal = to_line(request(0, "beam/1")) + "\n" + to_line(request(1, "beam/1"))
    spans: dict[str, Any] = {"resourceSpans": [{"scopeSpans": []}]}
    for text, wanted in (
        (journal, Format.JOURNAL),
        ("\n" + json.dumps(GOOD), Format.CALLS),
        (json.dumps(spans), Format.SPANS),
        (json.dumps(spans, indent=2), Format.SPANS),
        (json.dumps([spans]), Format.SPANS),
        (f"{json.dumps(spans)}\n{json.dumps(spans)}\n", Format.SPANS),
    ):
        assert format_of(Source("f", text)) is wanted
        import_calls([Source("f", text)])
    for text in ("", " \n"):
        with pytest.raises(UsageError, match="f: is empty"):
            format_of(Source("f", text))
    for text in ("{", journal[:40], json.dumps(spans)[:-3], '{"resourceSpans": [fal', '{"resourceSp'):
        with pytest.raises(UsageError, match="f: ends in the middle"):
            format_of(Source("f", text))
    for text in ("[]", "3", "{x and so on", '{"data": } and so on and on', "hello", '{"data": []}', '"resourceSpans"'):
        with pytest.raises(UsageError, match="f: is neither"):
            format_of(Source("f", text))
    cut = journal[:-20]  # its gateway still writes
    assert len(import_calls([Source("f", cut)]).calls) == 1
    with pytest.raises(UsageError, match="f:2: "):
        import_calls([Source("f", cut + "\n")])
