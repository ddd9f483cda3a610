"""Calls as a file of JSON lines, one call a line; `docs/workflows.md` documents the fields. Pure: lines in, text out.

Unknown fields are ignored, so that an older Headway reads what a newer one wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headway.errors import UsageError
from headway.serving.workflows.calls import Call

VERSION: Literal[1] = 1
KIND = "call"
_KNOWN: dict[str, tuple[object, ...]] = {"v": (VERSION,), "kind": (KIND,)}
_WORDS = {
    "missing": "is missing",
    "json_invalid": "is no JSON",
    "model_type": "is no object",
    "string_type": "is no text",
    "string_too_short": "is empty",
    "int_type": "is no whole number",
    "int_from_float": "is no whole number",
    "float_type": "is no number",
    "finite_number": "is no finite number",
    "greater_than_equal": "is below 0",
    "tuple_type": "is no list",
}
"""By pydantic's type of error."""
_Name = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(allow_inf_nan=False)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    v: Literal[1]
    kind: Literal["call"]
    workflow: _Name
    run: _Name
    id: _Name
    model: _Name
    start_s: _Seconds
    end_s: _Seconds
    input_tokens: _Count
    output_tokens: _Count
    blocks: tuple[int, ...] = ()
    block_tokens: _Count = 0

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.end_s <= self.start_s:
            raise ValueError(f"end_s {self.end_s:g} is not after start_s {self.start_s:g}")
        if self.blocks and not self.block_tokens:
            raise ValueError("blocks need block_tokens, the tokens in a whole one")
        return self


def read_calls(lines: Iterable[str], *, where: str) -> list[Call]:
    """The calls of a file's lines, in its order; blank lines are skipped.

    Raises:
        UsageError: names `where`, line and field of what is wrong, or of a call that is there twice.
    """
    calls: list[Call] = []
    lines_of: dict[tuple[str, str, str], int] = {}
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        line = _parsed(text, f"{where}:{number}")
        before = lines_of.setdefault((line.workflow, line.run, line.id), number)
        if before != number:
            raise UsageError(
                f"id: the run {line.run!r} of {line.workflow!r} has a call {line.id!r} already in line {before}",
                where=f"{where}:{number}",
                hint="a call's id is unique in its run",
            )
        calls.append(
            Call(
                workflow=line.workflow,
                run=line.run,
                id=line.id,
                model=line.model,
                start_s=line.start_s,
                end_s=line.end_s,
                input_tokens=line.input_tokens,
                output_tokens=line.output_tokens,
                blocks=line.blocks,
                block_tokens=line.block_tokens,
            )
        )
    return calls


def write_calls(calls: Iterable[Call]) -> str:
    """A whole file's text; `read_calls` gives the same calls."""
    return "".join(f"{to_line(call)}\n" for call in calls)


def to_line(call: Call) -> str:
    """One call as a line, without the newline; blocks only where there are any."""
    fields: dict[str, object] = {
        "v": VERSION,
        "kind": KIND,
        "workflow": call.workflow,
        "run": call.run,
        "id": call.id,
        "model": call.model,
        "start_s": call.start_s,
        "end_s": call.end_s,
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
    }
    if call.blocks:
        fields |= {"blocks": call.blocks, "block_tokens": call.block_tokens}
    return json.dumps(fields, separators=(",", ":"))


def _parsed(text: str, where: str) -> _Line:
    try:
        return _Line.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = _WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
        if first["type"] == "literal_error":
            message = f"is {first['input']!r}, and only {' or '.join(map(repr, _KNOWN[field]))} is known"
        raise UsageError(
            f"{field}: {message}" if field else message, where=where, hint="see docs/workflows.md for the format"
        ) from None
