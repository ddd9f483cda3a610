"""`headway lab`: an emulated cluster of namespaces, shaped links and real TCP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.lab_run import Command, Jobs, Work, headline, run_in_lab, say
from headway.errors import UsageError
from headway.lab import kernel, state
from headway.lab.build import has_netem
from headway.lab.files import load_scenario, shipped
from headway.lab.lab import Lab, require_privileges
from headway.lab.rootless import become_root_in_user_namespace

app = typer.Typer(no_args_is_help=True, help="An emulated cluster: namespaces, shaped links, real TCP.")

ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO", help="A shipped scenario's name, or a file.")]


@app.command()
def run(
    scenario: ScenarioArgument,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="What each host runs; else the jobs run.")
    ] = None,
    events_journal: Annotated[Path | None, typer.Option(help="Append each event's begin and end to this file.")] = None,
    start_events_on_line: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Events begin when a rank prints a line with TEXT.")
    ] = None,
    limit: Annotated[float | None, typer.Option(metavar="SECONDS", help="End all after this long.")] = None,
    backend: Annotated[str | None, typer.Option(help="Of the jobs' collectives: headway (default) or gloo.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the jobs' times to this file.")] = None,
    journals: Annotated[Path | None, typer.Option(help="Folder for the jobs' journals, JOB.jsonl.")] = None,
) -> None:
    """Build a lab, run COMMAND once per host with torchrun's environment, or the scenario's jobs; take the lab down."""
    chosen = load_scenario(scenario)
    given = [name for name, value in (("--backend", backend), ("--json", json), ("--journals", journals)) if value]
    if command and given:
        raise UsageError("is for jobs, and a command was given", where=given[0])
    work: Work = Command(command) if command else Jobs(chosen, backend or "headway", json, journals)
    with _Interruptible():
        if not kernel.privileged():
            become_root_in_user_namespace()
        code = run_in_lab(chosen, work, journal=events_journal, text=start_events_on_line, limit_s=limit)
    raise typer.Exit(code)


@app.command()
def up(scenario: ScenarioArgument) -> None:
    """Build a lab that stays until `lab down`; its events are not played."""
    chosen = load_scenario(scenario)
    require_privileges()
    lab = Lab.up(chosen, detached=True)
    lab.leave_up()
    print(lab.id)
    say(f"{headline(chosen)}; enter a host with: ip netns exec {lab.hosts[0].namespace} sh")


@app.command()
def down(
    lab: Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="These labs.")] = None,
    all_labs: Annotated[bool, typer.Option("--all", help="Also labs that a command still uses.")] = False,
) -> None:
    """Remove labs: the ones named, or those made by `lab up` and those whose owner is gone."""
    if lab:
        chosen = [state.find(name) for name in lab]
    else:
        chosen = [record for record in state.labs() if all_labs or record.detached or not record.owned]
    for record in chosen:
        killed = state.remove(record)
        also = f", {killed} process{'es' * (killed != 1)} killed" if killed else ""
        print(f"removed lab {record.id} ({record.scenario}{also})")
    left = [record.id for record in state.labs()]
    if left:
        print(f"still in use: {', '.join(left)} (--all removes them too)")
    elif not chosen:
        print("no lab is up")


@app.command()
def status() -> None:
    """Which labs are up, and how delay and loss are made on this machine."""
    if kernel.privileged():
        how = "netem, in the kernel" if has_netem() else "a relay in user space (this kernel has no netem)"
        print(f"delay and loss: {how}")
    else:
        print("delay and loss: known to root only; without root, `lab run` works in a user namespace")
    for record in state.labs():
        whose = "stays until lab down" if record.detached else f"used by process {record.owner_pid}"
        if not record.detached and not record.owned:
            whose = "abandoned: `headway lab down` removes it"
        print(f"lab {record.id}: {record.scenario}, {record.impairments}, {record.congestion_control}; {whose}")
        for name, address in record.hosts.items():
            print(f"  {name:12} {address:14} ip netns exec {record.prefix}{name}")
    if not state.labs():
        print("no lab is up")


@app.command("list")
def list_shipped() -> None:
    """Scenarios that come with Headway."""
    for name in shipped():
        print(f"{name:20} {load_scenario(name).description}")


@app.command()
def check(scenario: ScenarioArgument) -> None:
    """Read a scenario, and say what it holds or what is wrong with it."""
    chosen = load_scenario(scenario)
    print(headline(chosen))
    for event in chosen.events:
        until = f"{event.end:g} s" if event.duration is not None else "the end"
        targets = ", ".join(chosen.targets_of(event))
        print(f"  {event.id}: {event.start:g} s to {until}, at {targets}: {event.what('it')}")


class _Interruptible:
    """Ctrl-C ends with a line and the usual exit code, after the lab is gone."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            say("interrupted; the lab is gone")
            raise typer.Exit(130) from None
