"""`headway`: the command line. Exit codes: 0 done; 1 the run failed; 2 the command line or a file is wrong.

A verb's module is imported only when the verb is used, or when all verbs are listed: some need half a second.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import headway
from headway.errors import HeadwayError, UsageError

VERBS = {
    "lab": "headway.cli.lab:app",
    "bench": "headway.cli.bench:bench",
    "sim": "headway.cli.sim:app",
    "interleave": "headway.cli.interleave:app",
    "explain": "headway.cli.explain:explain",
    "report": "headway.cli.report:report",
    "trace": "headway.cli.trace:app",
    "demo": "headway.cli.demo:demo",
    "engine": "headway.cli.engine:engine",
    "gateway": "headway.cli.gateway:gateway",
    "loadgen": "headway.cli.loadgen:loadgen",
    "profile": "headway.cli.profile:profile",
    "plan": "headway.cli.plan:app",
    "doctor": "headway.cli.doctor:doctor",
}
"""Each verb's module and the name in it: a typer application with verbs of its own, or a function."""

UNSAID = {"sim": "run", "trace": "journal"}
"""Verbs with verbs of their own, and which one of these is meant when the next word is none of them."""


def _print_version(asked: bool) -> None:
    if asked:
        print(f"headway {headway.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keeps distributed AI moving on networks that are shared with others."""


def application(verbs: Sequence[str] = tuple(VERBS)) -> typer.Typer:
    """The command line with these verbs in it."""
    app = typer.Typer(
        name="headway",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for verb in verbs:
        module, _, name = VERBS[verb].partition(":")
        part = getattr(importlib.import_module(module), name)
        if isinstance(part, typer.Typer):
            app.add_typer(part, name=verb)
        else:
            app.command(verb)(part)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = _called(arguments)
        sys.stdout.flush()  # so that a full disk is heard of here, and not when Python ends
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        if error.errno != errno.EPIPE:  # else the reader of our output has gone (head, less): nothing is wrong
            print(f"headway: cannot write: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more may be written
        return 1
    return code


def _called(arguments: Sequence[str]) -> int:
    try:
        asked = [verb for verb in arguments[:1] if verb in VERBS]
        app = application(asked) if asked or list(arguments) == ["--version"] else application()
        app(args=_spelled_out(arguments), prog_name="headway")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UsageError as error:
        from headway.cli.shown import shown

        print(f"headway: {shown(str(error))}", file=sys.stderr)
        return 2
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # while a verb's modules are imported; inside of a verb it is an exit with 130
        print("headway: interrupted", file=sys.stderr)
        return 130
    return 0


def _spelled_out(arguments: Sequence[str]) -> list[str]:
    """`sim FILE` -> `sim run FILE`."""
    verb, *rest = arguments or ("",)
    if verb not in UNSAID or not rest or rest[0] in ("-h", "--help"):
        return list(arguments)
    module, _, name = VERBS[verb].partition(":")
    part: typer.Typer = getattr(importlib.import_module(module), name)
    known = {each.name or (each.callback.__name__ if each.callback else "") for each in part.registered_commands}
    return list(arguments) if rest[0] in known else [verb, UNSAID[verb], *rest]


def main() -> None:
    """The `headway` program."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
