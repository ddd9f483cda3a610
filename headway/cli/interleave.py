"""`headway interleave`: jobs that take turns on a link."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated

import typer

from headway.cli.interleave_plan import plan
from headway.errors import UsageError
from headway.interleave import bpf
from headway.lab.signals import Deferred

app = typer.Typer(no_args_is_help=True, help="Jobs that take turns on the links they share.")
_POLL_S = 0.2

app.command()(plan)


@app.command()
def load(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="bpf-reno, bpf-cubic; both.")] = None,
) -> None:
    """Register the congestion controls for every user of this machine, until Ctrl-C or SIGTERM. For root.

    Jobs of root register their own and need none of this. However this command ends, they are unregistered.
    """
    chosen = list(dict.fromkeys(names or bpf.PUBLIC))
    for name in chosen:
        if name not in bpf.PUBLIC:
            raise UsageError(f"there is no {name!r} to load", where="NAME", hint=f"one of {', '.join(bpf.PUBLIC)}")
        missing = [reason for reason in bpf.requirements(name).values() if reason is not None]
        if missing:
            raise UsageError(f"{name} cannot be loaded here: {'; '.join(missing)}")
        if bpf.public(name):
            raise UsageError(f"{bpf.PUBLIC[name]} is loaded already, by another process")
    with contextlib.ExitStack() as registered, contextlib.suppress(KeyboardInterrupt), Deferred() as asked:
        for name in chosen:
            registered.callback(bpf.register_public(name).close)
        print(f"loaded {', '.join(bpf.PUBLIC[name] for name in chosen)}; Ctrl-C unloads", flush=True)
        while True:
            asked.check()
            time.sleep(_POLL_S)
