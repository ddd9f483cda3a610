"""`headway`: the command line. Exit codes: 0 done; 1 the run failed; 2 the command line or a file is wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import headway
from headway.cli.bench import bench
from headway.cli.demo import demo
from headway.cli.explain import explain
from headway.cli.lab import app as lab
from headway.cli.report import report
from headway.errors import HeadwayError, UsageError

app = typer.Typer(
    name="headway",
    help=headway.__doc__,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(lab, name="lab")
app.command()(bench)
app.command()(demo)
app.command()(explain)
app.command()(report)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"headway {headway.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keeps distributed AI moving on networks that are shared with others."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        app(args=list(arguments), prog_name="headway")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UsageError as error:
        print(f"headway: {error}", file=sys.stderr)
        return 2
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output has gone (head, less): nothing is wrong, and nothing more may be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def main() -> None:
    """The `headway` program."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
