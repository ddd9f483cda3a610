"""Options that commands have in common: each command has them all, with its own beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from headway.cli.grouped import grouped
from headway.cli.main import run


@dataclass(frozen=True, slots=True)
class Both:
    size: Annotated[int, typer.Option(help="How large.")] = 3
    part: Annotated[list[str] | None, typer.Option("--piece", metavar="NAME")] = None


def told(*arguments: str) -> str:
    """What a command prints that has these options and two of its own, one of which must be given."""
    app = typer.Typer()

    @app.command()
    @grouped(Both)
    def command(where: Annotated[str, typer.Option()], both: Both, call: typer.Context, dry: bool = False) -> None:
        """Do it."""
        source = call.get_parameter_source("size")
        print(where, both, dry, source.name if source is not None else "")

    result = CliRunner().invoke(app, arguments)
    return result.output


def test_fields_are_options_and_come_as_one_value() -> None:
    assert told("--where", "x") == f"x {Both()} False DEFAULT\n"
    given = told("--piece", "a", "--where", "x", "--size", "5", "--piece", "b", "--dry")
    assert given == f"x {Both(5, ['a', 'b'])} True COMMANDLINE\n"
    assert "Invalid value for '--size'" in told("--where", "x", "--size", "many")
    assert "Missing option '--where'" in told("--size", "5")
    assert "How large." in told("--help")


@pytest.mark.parametrize("verb", ["manifests", "apply"])
def test_what_makes_objects_is_asked_of_both_commands(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", verb, "--help"]) == 0
    shown = capsys.readouterr().out
    for option in (
        *("--plan", "--nodes", "--image", "--weights", "--known-as", "--arg", "--sharing", "--namespace", "--name"),
        *("--weights-claim", "--cpu", "--memory", "--policy", "--gateway-image", "--gateway-keys", "--journal-claim"),
    ):
        assert f"  {option} " in shown, option
