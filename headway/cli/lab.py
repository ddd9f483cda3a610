"""`headway lab`: an emulated cluster of namespaces, shaped links and real TCP."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from headway.cluster.units import format_rate, format_time
from headway.decide.journal import EventRecord, to_line
from headway.lab import kernel, state
from headway.lab.build import has_netem
from headway.lab.files import load_scenario, shipped
from headway.lab.lab import Lab, require_privileges
from headway.lab.ranks import RunResult
from headway.lab.rootless import become_root_in_user_namespace
from headway.lab.scenario import Scenario
from headway.lab.signals import Deferred
from headway.lab.timeline import Player

app = typer.Typer(no_args_is_help=True, help="An emulated cluster: namespaces, shaped links, real TCP.")

ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO", help="A shipped scenario's name, or a file.")]


@app.command()
def run(
    scenario: ScenarioArgument,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What each host runs.")],
    events_journal: Annotated[Path | None, typer.Option(help="Append each event's begin and end to this file.")] = None,
    start_events_on_line: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Events begin when a rank prints a line with TEXT.")
    ] = None,
    limit: Annotated[float | None, typer.Option(metavar="SECONDS", help="End all after this long.")] = None,
) -> None:
    """Build a lab, run COMMAND once per host with torchrun's environment, take the lab down."""
    chosen = load_scenario(scenario)
    with _Interruptible():
        if not kernel.privileged():
            become_root_in_user_namespace()
        code = _run(chosen, command, events_journal, start_events_on_line, limit)
    raise typer.Exit(code)


def _run(scenario: Scenario, command: list[str], journal: Path | None, text: str | None, limit: float | None) -> int:
    def write(record: EventRecord) -> None:
        _say(f"event {record.event} {record.phase}s: {record.what}")
        if journal is not None:
            with journal.open("a") as file:
                file.write(to_line(record) + "\n")

    begun = time.monotonic()
    with Deferred() as signals, Lab.up(scenario) as lab:
        signals.check()
        _say(f"{_headline(scenario)}{_impairments(lab)}; lab {lab.id} up in {format_time(time.monotonic() - begun)}")
        if any(event.type == "load" for event in scenario.events):
            lab.warm_up()
        player = Player(lab, scenario, write)
        waiting = [text] if text is not None else []

        def on_line(_host: str, line: str) -> None:
            if waiting and waiting[0] in line:
                waiting.clear()
                player.start()

        if not waiting:
            player.start()
        try:
            result = lab.run_ranks(command, on_line=on_line, on_tick=player.check, echo=True, limit_s=limit)
        finally:
            player.stop()
    return _report(result, never_began=bool(waiting and scenario.events), text=text)


def _report(result: RunResult, *, never_began: bool, text: str | None) -> int:
    if not result.ok:
        _say(f"failed after {format_time(result.duration_s)}: {result.failure}; all others were ended")
        return 1
    if never_began:
        _say(f"no line had {text!r} in it, so no event ever began")
    return 0


@app.command()
def up(scenario: ScenarioArgument) -> None:
    """Build a lab that stays until `lab down`; its events are not played."""
    chosen = load_scenario(scenario)
    require_privileges()
    lab = Lab.up(chosen, detached=True)
    lab.leave_up()
    print(lab.id)
    _say(f"{_headline(chosen)}; enter a host with: ip netns exec {lab.hosts[0].namespace} sh")


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
    print(_headline(chosen))
    for event in chosen.events:
        until = f"{event.end:g} s" if event.duration is not None else "the end"
        targets = ", ".join(chosen.targets_of(event))
        print(f"  {event.id}: {event.start:g} s to {until}, at {targets}: {event.what('it')}")


def _headline(scenario: Scenario) -> str:
    access = {entry.access or scenario.access for entry in scenario.host_entries}
    rates = [format_rate(rate) for rates in access for rate in (rates.up, rates.down)]
    rate = rates[0] if len(set(rates)) == 1 else f"{min(rates)} to {max(rates)}"
    racks = f" in {len(scenario.rack_names)} racks" if scenario.racks else ""
    return f"{scenario.name}: {len(scenario.host_names)} hosts{racks}, {rate}, {scenario.congestion_control}"


def _impairments(lab: Lab) -> str:
    return f", delay and loss by {lab.record.impairments}" if any(link.relayed for link in lab.topology.links) else ""


def _say(line: str) -> None:
    sys.stderr.write(f"[lab] {line}\n")
    sys.stderr.flush()


class _Interruptible:
    """Ctrl-C ends with a line and the usual exit code, after the lab is gone."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            _say("interrupted; the lab is gone")
            raise typer.Exit(130) from None
