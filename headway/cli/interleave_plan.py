"""`headway interleave plan`: the shifts that a central planner would give to a scenario's jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Table

from headway.cli.journals import write_text
from headway.cluster.units import format_time
from headway.errors import UsageError
from headway.interleave.central import CentralPlan
from headway.interleave.central import plan as planned
from headway.lab.files import load_scenario, parse_scenario, scenario_mapping
from headway.report.words import counted

SLACK = "2%"
PLAIN_WIDTH = 120  # columns where the output is no terminal


def plan(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A shipped scenario's name, or a file.")],
    slack: Annotated[
        str, typer.Option(help="How much longer than alone an iteration is held, so that noise is made up.")
    ] = SLACK,
    seed: Annotated[int, typer.Option(help="Of noise, random placement and ECMP.")] = 0,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write the scenario with the shifts in it.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the plan as JSON.")] = None,
) -> None:
    """One time shift per job, so that the jobs' bursts meet as little as possible; and what the links allow at best."""
    # Here, because it loads numba: the other verbs run where nothing is compiled, as root with nothing to write to.
    from headway.sim.jobs.shift_profile import profile, starts_s

    chosen = load_scenario(scenario)
    if not chosen.jobs:
        raise UsageError("the scenario has no jobs", where=chosen.name, hint="see docs/lab.md for the fields")
    profiled = profile(chosen, seed=seed)
    begins_s = {job.name: job.start for job in chosen.jobs}
    found = planned(profiled.circles, profiled.capacity_Bps, starts_s=begins_s, slack=_part(slack))
    starts = starts_s(chosen, profiled, found)
    if out is not None:
        write_text(out, _shifted_yaml(scenario, found, starts))
    if json_file is not None:
        fields = {**asdict(found), "starts_s": starts, "stretch": found.stretch, "limit": found.limit}
        write_text(json_file, json.dumps(fields, indent=1))
    _print(chosen.name, found, starts)


def _part(text: str) -> float:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text)
    if match is None:
        raise UsageError(f"{text!r} is not a percentage", where="--slack", hint="write for example 2%")
    return float(match.group(1)) / 100


def _shifted_yaml(source: str, found: CentralPlan, starts: Mapping[str, float]) -> str:
    """The scenario's own fields with starts and periods; `interleave` goes, since the shifts replace it."""
    mapping = scenario_mapping(source, base=Path.cwd(), where=source)
    jobs = mapping["jobs"]
    assert isinstance(jobs, list), "the scenario was read before"
    for job in jobs:
        job["start"] = _written(starts[job["name"]])
        job["period"] = _written(found.periods_s[job["name"]])
        job.pop("interleave", None)
    text = yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True, width=PLAIN_WIDTH)
    parse_scenario(mapping, where=source)
    return text


def _written(time_s: float) -> str:
    """As scenarios write times, to the nanosecond."""
    return f"{time_s * 1e3:.6f}".rstrip("0").rstrip(".") + "ms"


def _print(name: str, found: CentralPlan, starts: Mapping[str, float]) -> None:
    print(f"{name}: {counted(len(starts), 'job')}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    table.add_column("job", no_wrap=True)
    for head in ("alone", "shift", "start", "period", "over alone", "limit"):
        table.add_column(head, justify="right", no_wrap=True)
    for job, alone_s in found.isolated_s.items():
        table.add_row(
            job,
            *(format_time(time_s) for time_s in (alone_s, found.shifts_s[job], starts[job], found.periods_s[job])),
            f"{found.periods_s[job] / alone_s:.3f}",
            f"{found.limit_s[job] / alone_s:.3f}",
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH, highlight=False)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
    alike: dict[tuple[str, str], list[str]] = {}
    for link, score in found.scores.items():
        alike.setdefault((f"{found.unshifted[link]:.3f}", f"{score:.3f}"), []).append(link)
    for (before, after), links in alike.items():
        more = f" and {len(links) - 1} more like it" if len(links) > 1 else ""
        print(f"{links[0]}{more}: score {before} as they begin, {after} with the best shifts")
    if not found.scores:
        print("no two jobs share a link")
    fits = "fit" if found.fits else "do not fit"
    print(f"the jobs {fits} at their own periods; with these shifts {found.stretch:.3f} of the time alone on average,")
    print(
        f"no schedule is below {found.limit:.3f}"
        + ("" if found.exact else "; the search for shifts was not exhaustive")
    )
