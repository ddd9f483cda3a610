"""Lines on a terminal: indented where they go on, and not steered by what is in a name."""

from __future__ import annotations

import sys

import pytest

from headway.cli.shown import cell, print_line, shown

LONG = "llama at TP 1 x 2 instead of TP 2 x 1 (tensor parallel down): ask 22.9% slower"


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("käse/模型 №1", "käse/模型 №1"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("two\nlines\t\x7f\x9b", "two\\nlines\\t\\x7f\\x9b"),
        ("left\u202eright\u2028", "left\\u202eright\\u2028"),
    ],
)
def test_only_what_steers_the_terminal_is_escaped(name: str, seen: str) -> None:
    assert shown(name) == seen
    assert cell(f"[red]{name}").plain == f"[red]{seen}"


def test_a_line_that_is_too_long_for_the_terminal_goes_on_further_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_line(LONG, indent="  ")
    assert capsys.readouterr().out == f"  {LONG}\n", "whole where it is no terminal"
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_line(LONG, indent="  ")
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("  llama")
    assert others
    assert all(line.startswith("    ") and line[4] != " " for line in others)
    assert all(len(line) <= 40 for line in (first, *others))
    assert " ".join(" ".join((first, *others)).split()) == LONG
