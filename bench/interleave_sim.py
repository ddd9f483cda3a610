"""Jobs that take turns, in the simulator: `python -m bench.interleave_sim --out FILE.json`. Prints tables of the docs.

Every job sends to one host, over a link that one job fills, then computes; an iteration alone takes 1 s unless said.
Times are from one iteration's begin to the next, over that of a job alone without noise; means and 99th percentiles
over all jobs. Settled: so many iterations until those of all jobs stay within a part (`NEAR`) of the time alone.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from headway.bench.markdown import table
from headway.interleave.aggressiveness import Aggressiveness, shift_s
from headway.interleave.central import CentralPlan, plan
from headway.lab.jobs import Job
from headway.lab.scenario import Scenario
from headway.sim.engine.fabric import Fabric
from headway.sim.execution.collective import Execution
from headway.sim.jobs.interleaved import STEPS, Push
from headway.sim.jobs.shift_profile import profile, shifted
from headway.sim.run import Simulation
from headway.sim.topologies import PAYLOAD_SHARE, fabric_of

RATE_Bps = 1e9
LINK_Bps = RATE_Bps * PAYLOAD_SHARE
NEAR = (0.05, 0.02)
SLACK, WIDE = 0.02, 0.1
FINE = 4096

Weight = Callable[[float], float]

SHAPES: Mapping[str, Weight | None] = {
    "fair share": None,
    "1.75 r + .25": Aggressiveness(1.75, 0.25).weight,
    "1.067 r + .267": Aggressiveness(1.067, 0.267).weight,
    "1 r + .5": Aggressiveness(1.0, 0.5).weight,
    "1.75 r^2 + .25": lambda ratio: 1.75 * ratio * ratio + 0.25,
    "2 - 1.75 r": lambda ratio: 2 - 1.75 * ratio,
}
"""F by its formula. The last two are no field of a scenario."""
DEFAULT = "1.75 r + .25"


@dataclass(frozen=True)
class Sender:
    """A job: its iteration alone, the part of it in which it sends, and when it begins.

    Attributes:
        noise: standard deviation of computing as a part of it. weight: static, of its flows.
        iterations: how many; None: as many as the run's.
    """

    start_s: float
    share: float
    period_s: float = 1.0
    noise: float = 0.0
    weight: float = 1.0
    iterations: int | None = None


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        senders: its jobs.
        shape: name of one of `SHAPES`.
        known: bytes per iteration are known rather than learned.
        shifted: carry out the central plan instead, with this slack; None: don't.
        until_s: simulated seconds. skip_s: what begins before is left out of the means.
    """

    senders: tuple[Sender, ...]
    shape: str = "fair share"
    known: bool = True
    shifted: float | None = None
    until_s: float = 60.0
    skip_s: float = 0.0
    steps: int = STEPS
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes:
        mean, p99: iteration time over the isolated one, over all jobs.
        settled: see the module, for each of `NEAR`; None: not in this run. With an arrival, and with a job that ends,
            only what begins after that counts.
        offsets_s: of each job's iterations against the first job's.
        jobs: mean of each job. times: of each job's iterations.
    """

    mean: float
    p99: float
    settled: list[int | None]
    offsets_s: list[list[float]]
    jobs: list[float]
    times: list[list[float]]


def scenario_of(case: Case) -> Scenario:
    """Senders on hosts of their own, all to the last host."""
    hosts = len(case.senders) + 1
    jobs = []
    for index, sender in enumerate(case.senders):
        busy_s = sender.share * sender.period_s
        jobs.append(
            {
                "name": f"job{index}",
                "hosts": [f"host{index}", f"host{hosts - 1}"],
                "start": sender.start_s,
                "iterations": sender.iterations or math.ceil(case.until_s / sender.period_s) + 1,
                "weight": sender.weight,
                "loop": [
                    {"send": round(busy_s * LINK_Bps)},
                    {"compute": sender.period_s - busy_s, "noise": sender.noise},
                ],
            }
        )
    access = {"up": RATE_Bps, "down": RATE_Bps}
    return Scenario.model_validate({"name": "interleave", "hosts": hosts, "access": access, "jobs": jobs})


def _fabric(scenario: Scenario) -> Fabric:
    return fabric_of(scenario, wire_alpha_s=0.0)


def central_plan(case: Case, slack: float = 0.0) -> tuple[Scenario, CentralPlan]:
    """The scenario with the shifts in it."""
    scenario = scenario_of(case)
    profiled = profile(scenario, fabric=_fabric(scenario))
    starts_s = {job.name: job.start for job in scenario.jobs}
    found = plan(profiled.circles, profiled.capacity_Bps, starts_s=starts_s, slack=slack)
    return shifted(scenario, profiled, found), found


def run(case: Case) -> Outcome:
    """Simulate it."""
    scenario = scenario_of(case) if case.shifted is None else central_plan(case, case.shifted)[0]
    shape = SHAPES[case.shape]

    def push_of(job: Job) -> Push | None:
        if shape is None or case.shifted is not None:
            return None
        known = {(0, 1): job.loop[0].size_bytes} if case.known else {}
        return Push(lambda ratio: 1.0 if ratio is None else shape(ratio), known, case.steps)

    simulation = Simulation(
        scenario, execution=Execution.STREAMS, fabric=_fabric(scenario), seed=case.seed, push_of=push_of
    )
    simulation.run(case.until_s)
    results = list(simulation.result().jobs.values())
    begins = [[each.start_s for each in result.iterations] for result in results]
    since_s = max(sender.start_s for sender in case.senders if sender.start_s < case.until_s)
    since_s = max(
        [since_s, *(r.iterations[-1].end_s for s, r in zip(case.senders, results, strict=True) if s.iterations)]
    )
    times, counted = [], []
    for sender, starts in zip(case.senders, begins, strict=True):
        pairs = [(begin, (end - begin) / sender.period_s) for begin, end in pairwise(starts)]
        times.append([time for begin, time in pairs if begin >= case.skip_s])
        counted.append([time for begin, time in pairs if begin >= (since_s if since_s > 1 else 0.0)])
    pooled = [time for each in times for time in each]
    return Outcome(
        mean=statistics.fmean(statistics.fmean(each) for each in times),
        p99=float(np.percentile(pooled, 99)),
        settled=[_settled_after(counted, near) for near in NEAR],
        offsets_s=[[begin - first for first, begin in zip(begins[0], starts, strict=False)] for starts in begins[1:]],
        jobs=[statistics.fmean(each) for each in times],
        times=times,
    )


def _settled_after(times: Sequence[Sequence[float]], near: float) -> int | None:
    """Iterations until all jobs' stay near 1; None where that is not long before the end."""
    late = [k + 1 for each in times for k, time in enumerate(each) if time > 1 + near]
    settled, rounds = max(late, default=0), max(map(len, times))
    return settled if settled < 0.9 * rounds else None


def equal(count: int, share: float, noise: float = 0.0) -> tuple[Sender, ...]:
    """Jobs alike, each starting 1 to 3 % of an iteration after the one before."""
    return tuple(Sender(start_s, share, noise=noise) for start_s in (0.0, 0.02, 0.05, 0.06)[:count])


FITTING = {
    "2 x .45": equal(2, 0.45),
    "2 x .50": equal(2, 0.50),
    "3 x .30": equal(3, 0.30),
    "4 x .22": equal(4, 0.22),
}
OTHERS: Mapping[str, tuple[tuple[Sender, ...], tuple[float, ...]]] = {
    "unequal sizes .5/.2/.2": ((Sender(0, 0.5), Sender(0.02, 0.2), Sender(0.05, 0.2)), (1, 2, 3)),
    "harmonic 1.0 and 0.5 s, .4 each": ((Sender(0, 0.4), Sender(0.02, 0.4, 0.5)), (1, 2)),
    "incommensurate 1.0 and 0.83 s, .4 each": ((Sender(0, 0.4), Sender(0.02, 0.4, 0.83)), (1, 2)),
    "over-subscribed 2 x .6": (equal(2, 0.6), (1, 2)),
    "arrival: third of 3 x .30 after 10.01 s": (
        (Sender(0, 0.3), Sender(0.02, 0.3), Sender(10.01, 0.3)), (1, 2, 3),
    ),
    "departure: one of 3 x .40 ends after 15": (
        (Sender(0, 0.4), Sender(0.02, 0.4), Sender(0.05, 0.4, iterations=15)), (1, 2, 3),
    ),
}  # fmt: skip
"""Jobs, and the static weights that they are tried with."""
NOISES = (0.01, 0.03, 0.05, 0.10)


def cases() -> dict[str, Case]:
    """All runs by name."""
    made: dict[str, Case] = {}
    for shape in SHAPES:
        made[f"shift {shape}"] = Case(equal(2, 0.45), shape, until_s=9.0, steps=FINE)
        for name, senders in FITTING.items():
            made[f"settle {name} {shape}"] = Case(senders, shape, until_s=40.0)
    for name, senders in FITTING.items():
        made[f"settle {name} central"] = Case(senders, shifted=0.0, until_s=40.0)
        for shape in list(SHAPES)[1:4]:
            made[f"learned {name} {shape}"] = Case(senders, shape, known=False, until_s=40.0)
    for noise in NOISES:
        senders = equal(2, 0.45, noise)
        plain = Case(senders, until_s=300.0, skip_s=20.0)
        made[f"noise {noise} alone"] = replace(plain, senders=senders[:1])
        made |= _ways(f"noise {noise}", plain, (1, 2))
        made[f"noise {noise} central"] = replace(plain, shifted=SLACK)
        made[f"noise {noise} wide"] = replace(plain, shifted=WIDE)
    for name, (senders, weights) in OTHERS.items():
        changes = "arrival" in name or "departure" in name
        plain = Case(senders, until_s=40.0) if changes else Case(senders, until_s=60.0, skip_s=20.0)
        made |= _ways(f"other {name}", plain, weights)
        made[f"other {name} central"] = replace(plain, shifted=0.0)
    for steps in (16, 64, 256, 1024):
        made[f"steps {steps}"] = Case(equal(2, 0.45), DEFAULT, until_s=9.0, steps=steps)
    return made


def _ways(name: str, plain: Case, weights: Sequence[float]) -> dict[str, Case]:
    """The same jobs with fair shares, with static weights, and with F."""
    weighted = tuple(replace(s, weight=weight) for s, weight in zip(plain.senders, weights, strict=True))
    return {
        f"{name} fair": plain,
        f"{name} static": replace(plain, senders=weighted),
        f"{name} known": replace(plain, shape=DEFAULT),
        f"{name} learned": replace(plain, shape=DEFAULT, known=False),
    }


def euler_offsets(step_s: float, count: int, *, share: float = 0.45, offset_s: float = 0.02) -> list[float]:
    """The same two jobs, period 1 s, by fixed steps in time, each job's end rounded up to its step."""
    weight, starts = Aggressiveness().weight, [0.0, offset_s]
    offsets = []
    for _ in range(count):
        offsets.append(starts[1] - starts[0])
        now_s, sent, ends = starts[0], [0.0, 0.0], [math.inf, math.inf]
        while math.inf in ends:
            active = [job for job in (0, 1) if ends[job] == math.inf and now_s >= starts[job] - 1e-12]
            weights = {job: weight(sent[job] / share) for job in active}
            for job in active:
                sent[job] += step_s * weights[job] / sum(weights.values())
                if sent[job] >= share - 1e-12:
                    ends[job] = now_s + step_s
            now_s += step_s
        starts = [end + 1 - share for end in ends]
    return offsets


def formula_offsets(shape: Aggressiveness, count: int) -> list[float]:
    """By the paper's shift."""
    offsets = [0.02]
    while len(offsets) < count:
        offsets.append(offsets[-1] + shift_s(shape, offsets[-1], period_s=1.0, share=0.45))
    return offsets


def _four(values: Sequence[float]) -> str:
    return " ".join(f"{value:.4f}"[1:] for value in values)


def tables(found: Mapping[str, Outcome]) -> str:
    """As markdown."""
    parts = ["Offsets of two jobs, a = .45, T = 1 s, the second .02 s later, F = 1.75 r + .25"]
    rows = [
        ("the paper's formula", _four(formula_offsets(Aggressiveness(), 7))),
        ("simulated, F in 4096 parts", _four(found[f"shift {DEFAULT}"].offsets_s[0][:7])),
        *((f"simulated, F in {n} parts", _four(found[f"steps {n}"].offsets_s[0][:7])) for n in (1024, 256, 64, 16)),
        ("time steps of 0.1 ms", _four(euler_offsets(1e-4, 7))),
        ("time steps of 0.01 ms", _four(euler_offsets(1e-5, 7))),
    ]
    parts.append(table(("", "offsets, s"), rows))
    worst = {
        name: max(
            abs(a - b)
            for a, b in zip(
                formula_offsets(Aggressiveness(slope, intercept), 7), found[f"shift {name}"].offsets_s[0], strict=False
            )
        )
        for name, slope, intercept in (
            ("1.75 r + .25", 1.75, 0.25),
            ("1.067 r + .267", 1.067, 0.267),
            ("1 r + .5", 1.0, 0.5),
        )
    }
    parts.append(", ".join(f"{name}: {value:.1e} s" for name, value in worst.items()) + " off the formula at most.")
    parts.append("Iterations until all stay within 5 % / 2 % of the time alone (mean, p99 over it, 40 s), bytes known")
    heads = ("jobs x share", *SHAPES, "central")
    parts.append(
        table(heads, [(n, *(_settled(found[f"settle {n} {s}"]) for s in (*SHAPES, "central"))) for n in FITTING])
    )
    parts.append("The same with bytes per iteration learned")
    shapes = list(SHAPES)[1:4]
    parts.append(
        table(
            ("jobs x share", *(f"{s}, {how}" for s in shapes for how in ("known", "learned"))),
            [
                (n, *(_settled(found[f"{how} {n} {s}"]) for s in shapes for how in ("settle", "learned")))
                for n in FITTING
            ],
        )
    )
    parts.append("Noise of computing, 2 x .45: mean and p99 over the isolated time, iterations after 20 s")
    parts.append(
        table(
            ("noise", "alone", "fair", "static 1:2", "F, known", "F, learned", "central + 2 %", "central + 10 %"),
            [
                (f"{noise:.0%}", *(_pair(found[f"noise {noise} {how}"])
                  for how in ("alone", "fair", "static", "known", "learned", "central", "wide")))
                for noise in NOISES
            ],
        )
    )  # fmt: skip
    parts.append("Other jobs: mean and p99 over the isolated time")
    limits = {}
    for name, (senders, _) in OTHERS.items():
        _, planned = central_plan(Case(senders))
        limits[name] = (planned.fits, planned.limit)
    parts.append(
        table(
            ("jobs", "fit", "limit", "fair", "static", "F, known", "F, learned", "central"),
            [
                (name, "yes" if limits[name][0] else "no", f"{limits[name][1]:.3f}",
                 *(_pair(found[f"other {name} {how}"]) for how in ("fair", "static", "known", "learned", "central")))
                for name in OTHERS
            ],
        )
    )  # fmt: skip
    parts.append("After an arrival or a departure: iterations until all stay within 5 % / 2 % of the time alone")
    ways = ("fair", "static", "known", "learned", "central")
    changed = [name for name in OTHERS if "arrival" in name or "departure" in name]
    counts = [(name, *(_count(found[f"other {name} {how}"]) for how in ways)) for name in changed]
    parts.append(table(("jobs", "fair", "static", "F, known", "F, learned", "central"), counts))
    return "\n\n".join(parts)


def _count(outcome: Outcome) -> str:
    return " / ".join("never" if settled is None else str(settled) for settled in outcome.settled)


def _settled(outcome: Outcome) -> str:
    return f"{_count(outcome)} ({_pair(outcome)})"


def _pair(outcome: Outcome) -> str:
    return f"{outcome.mean:.3f}, {outcome.p99:.3f}"


def main() -> None:
    """Run, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write all figures here, as JSON")
    options = parser.parse_args()
    made = cases()
    with multiprocessing.get_context("spawn").Pool() as pool:
        found = dict(zip(made, pool.map(run, made.values(), chunksize=1), strict=True))
    print(tables(found))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        document = {name: {"case": asdict(made[name]), **asdict(outcome)} for name, outcome in found.items()}
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
