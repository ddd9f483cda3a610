"""What `bench.interleave` runs: jobs on hosts of their own or shared ones, ways to let them take turns, and trials.

Senders are laid out as in the simulator's tables: each job on a host of its own sends to one host, over a downlink that
one job fills. Several trials run side by side in one lab, on hosts and links of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headway.interleave.central import CentralPlan, plan
from headway.lab.files import load_scenario
from headway.lab.scenario import Scenario
from headway.sim.jobs.shift_profile import profile, shifted
from headway.sim.topologies import PAYLOAD_SHARE

RATE_Bps = 25e6
LINK_Bps = RATE_Bps * PAYLOAD_SHARE
PERIOD_S = 1.0
SLACK, WIDE = 0.02, 0.1
"""By which the central plan's periods are longer than alone; the second under noise of 5 % and more."""
DOWNLOAD_BYTES = 20_000_000
"""One piece of a plain download; the next follows at once."""
SHARED_HOSTS = ("host0", "host1", "host2", "host3")
ALL_REDUCE_BYTES = 8_000_000
CONGESTED = "star8-udp50-down"
"""Its one event loads the downlink of host3."""
LATEST_S = 2.0
"""Between a job that is measured alone and the next one, beyond what it should take."""


@dataclass(frozen=True)
class Sender:
    """A job: its iteration alone, the part of it in which it sends, and when it begins.

    Attributes:
        noise: standard deviation of computing as a part of it.
        iterations: how many; None: as many as fill the time of the others'.
        download: no job but a plain download that runs until all others have ended, or for `iterations` pieces.
    """

    start_s: float
    share: float
    period_s: float = PERIOD_S
    noise: float = 0.0
    iterations: int | None = None
    download: bool = False


DOWNLOAD = Sender(0.0, 1.0, DOWNLOAD_BYTES / LINK_Bps, download=True)


@dataclass(frozen=True)
class Way:
    """How jobs share the link.

    Attributes:
        name: in tables.
        actuator: of `interleave`; empty: off.
        control: TCP congestion control; empty: the lab's own, CUBIC.
        static: weights n, n-1, ..., 1 (parallel connections).
        central: carry out the central plan with `SLACK`.
    """

    name: str
    actuator: str = ""
    control: str = ""
    static: bool = False
    central: bool = False


ALONE = Way("alone")
"""Each job by itself, one after the other."""
WAYS: Mapping[str, Way] = {
    way.name: way
    for way in (
        Way("cubic"),
        Way("reno", control="reno"),
        Way("bbr", control="bbr"),
        Way("static", static=True),
        Way("bpf-reno", actuator="bpf-reno"),
        Way("bpf-cubic", actuator="bpf-cubic"),
        Way("streams", actuator="streams"),
        Way("pacing", actuator="pacing"),
        Way("central", central=True),
    )
}
PLAIN = "cubic"
ACTUATORS = ("bpf-reno", "bpf-cubic", "streams", "pacing")


@dataclass(frozen=True)
class Case:
    """Jobs.

    Attributes:
        name: in tables.
        since_s: settling counts from here: the last change.
        changes: a job comes or goes; takes twice as many iterations.
    """

    name: str
    senders: tuple[Sender, ...]
    since_s: float = 0.0
    changes: bool = False


@dataclass(frozen=True)
class Trial:
    """One case in one way, the `repeat`th time, for about `iterations` periods of 1 s."""

    section: str
    case: Case
    way: Way
    repeat: int
    iterations: int

    @property
    def senders(self) -> tuple[Sender, ...]:
        """With starts as the repeat has them, and a number of iterations; alone: far apart."""
        if self.way == ALONE:
            start_s, apart = 0.0, []
            for sender in self.case.senders:
                quiet = replace(sender, noise=0.0, start_s=start_s, iterations=self.iterations)
                apart.append(quiet)
                start_s += self.iterations * sender.period_s * 1.1 + LATEST_S
            return tuple(apart)
        last_s = max(sender.start_s for sender in self.case.senders)
        return tuple(
            replace(
                sender,
                # Another order of magnitude is another case; another start within 1 to 3 % is another repeat.
                start_s=sender.start_s * (1 + 0.25 * self.repeat) if sender.start_s < PERIOD_S else sender.start_s,
                iterations=sender.iterations or (None if sender.download else self._count(sender, last_s)),
            )
            for sender in self.case.senders
        )

    def _count(self, sender: Sender, last_s: float) -> int:
        present_s = self.iterations * PERIOD_S - (sender.start_s if last_s >= PERIOD_S else 0.0)
        return max(2, round(present_s / sender.period_s))

    @property
    def estimate_s(self) -> float:
        """About how long it takes, if the jobs share the link fairly."""
        busy = sum(s.share for s in self.case.senders if not s.download) + any(s.download for s in self.case.senders)
        slow = 1.05 if self.way in (ALONE, WAYS["central"]) or self.way.actuator else min(1.5, max(1.0, busy * 1.1))
        if any(s.download for s in self.case.senders):
            slow = max(slow, 1.7)
        ends_s = (s.start_s + (s.iterations or 0) * s.period_s * slow for s in self.senders)
        return max(ends_s)


def scenario_of(trials: Sequence[Trial]) -> Scenario:
    """All trials side by side on one switch; trial i has the hosts `ti-hj` and the jobs `ti-j`."""
    hosts: list[str] = []
    jobs: list[object] = []
    for number, trial in enumerate(trials):
        own = _one(trial, f"t{number}-")
        hosts += own.host_names
        jobs += own.jobs
    entries = [{"name": name} for name in hosts]
    return Scenario.model_validate({"name": "interleave", "hosts": entries, "access": RATE_Bps, "jobs": jobs})


def _one(trial: Trial, prefix: str) -> Scenario:
    senders = trial.senders
    names = [f"{prefix}h{index}" for index in range(len(senders) + 1)]
    jobs = []
    for index, sender in enumerate(senders):
        busy_s = sender.share * sender.period_s
        size_bytes = DOWNLOAD_BYTES if sender.download else round(busy_s * LINK_Bps)
        loop: list[object] = [{"send": size_bytes}]
        job: dict[str, object] = {
            "name": f"{prefix}{index}",
            "hosts": [names[index], names[-1]],
            "start": sender.start_s,
            "iterations": sender.iterations,
            "seed": trial.repeat,
            "loop": loop,
        }
        if not sender.download:
            loop.append({"compute": sender.period_s - busy_s, "noise": sender.noise})
            job["congestion_control"] = trial.way.control
            if trial.way.static:
                job["weight"] = len(senders) - index
            if trial.way.actuator:
                job["interleave"] = {"actuator": trial.way.actuator}
        jobs.append(job)
    entries = [{"name": name} for name in names]
    scenario = Scenario.model_validate({"name": "interleave", "hosts": entries, "access": RATE_Bps, "jobs": jobs})
    if not trial.way.central:
        return scenario
    profiled = profile(scenario)
    slack = WIDE if max(sender.noise for sender in senders) >= 0.05 else SLACK
    return shifted(scenario, profiled, plan(profiled.circles, profiled.capacity_Bps, slack=slack))


def central(case: Case) -> CentralPlan:
    """The best known schedule and the limit of any, without slack."""
    scenario = scenario_of([Trial("", case, WAYS[PLAIN], 0, 2)])
    profiled = profile(scenario)
    starts_s = {job.name: job.start for job in scenario.jobs}
    return plan(profiled.circles, profiled.capacity_Bps, starts_s=starts_s)


def equal(count: int, share: float, noise: float = 0.0) -> tuple[Sender, ...]:
    """Jobs alike, each starting about 2 % of an iteration after the one before."""
    return tuple(Sender(0.02 * index, share, noise=noise) for index in range(count))


MAIN = (Case("2 x .45", equal(2, 0.45)), Case("2 x .50", equal(2, 0.50)), Case("3 x .30", equal(3, 0.30)))
SHIFTS = MAIN[0]


def variety(iterations: int) -> tuple[Case, ...]:
    """Jobs that are not alike; where one comes or goes, it does after about so many iterations."""
    middle = iterations
    stays = equal(2, 0.30)
    return (
        Case("unequal .5/.2/.2", (Sender(0, 0.5), Sender(0.02, 0.2), Sender(0.05, 0.2))),
        Case("harmonic 1 and .5 s, .4 each", (Sender(0, 0.4), Sender(0.02, 0.4, 0.5))),
        Case("incommensurate 1 and .83 s, .4 each", (Sender(0, 0.4), Sender(0.02, 0.4, 0.83))),
        *(Case(f"noise {noise:.0%}, 2 x .45", equal(2, 0.45, noise)) for noise in (0.01, 0.05, 0.10)),
        Case("over-subscribed 2 x .60", equal(2, 0.60)),
        Case("third of 3 x .30 arrives", (*stays, Sender(middle + 0.01, 0.30)), since_s=middle + 0.01, changes=True),
        Case(
            "one of 3 x .40 leaves", (*equal(2, 0.40), Sender(0.05, 0.40, iterations=max(2, middle // 2))), changes=True
        ),
    )


VARIETY_WAYS = (PLAIN, "bpf-reno", "streams", "central")
HARM = Case("2 x .45 and a download", (*equal(2, 0.45), DOWNLOAD))
DOWNLOAD_ALONE = Case("a download", (replace(DOWNLOAD, iterations=6),))
HARM_WAYS = (PLAIN, "reno", "static", *ACTUATORS)
SINGLE = Case("one job of .45", equal(1, 0.45))
SINGLE_WAYS = (PLAIN, "reno", *ACTUATORS)


@dataclass(frozen=True)
class GroupWay:
    """How two jobs of real collectives run.

    Attributes:
        name: in tables. backend: of torch.distributed. actuator: of `interleave`; empty: off.
        policy: of headway. alone: one job after the other. central: carry out the central plan.
        loaded: with the event of `CONGESTED`.
    """

    name: str
    backend: str = "headway"
    actuator: str = ""
    policy: str = "off"
    alone: bool = False
    central: bool = False
    loaded: bool = False


DDP_WAYS = (
    GroupWay("headway, alone", alone=True),
    GroupWay("headway"),
    GroupWay("headway, bpf-reno", actuator="bpf-reno"),
    GroupWay("headway, streams", actuator="streams"),
    GroupWay("headway, central", central=True),
    GroupWay("gloo, alone", "gloo", alone=True),
    GroupWay("gloo", "gloo"),
    GroupWay("gloo, bpf-reno", "gloo", actuator="bpf-reno"),
)
REACT_WAYS = (
    GroupWay("alone, link free", alone=True),
    GroupWay("alone, loaded", alone=True, loaded=True),
    GroupWay("alone, loaded, packing", alone=True, loaded=True, policy="packing"),
    GroupWay("neither", loaded=True),
    GroupWay("packing", policy="packing", loaded=True),
    GroupWay("interleaved (bpf-reno)", actuator="bpf-reno", loaded=True),
    GroupWay("both", actuator="bpf-reno", policy="packing", loaded=True),
)
DDP_COMPUTE_S, REACT_COMPUTE_S = 0.614, 0.8


@dataclass(frozen=True)
class GroupTrial:
    """Two jobs that compute and all-reduce on the same hosts of star8."""

    section: str
    way: GroupWay
    compute_s: float
    iterations: int
    repeat: int = 0

    @property
    def alone_s(self) -> float:
        """About one iteration by itself; longer where a host is loaded."""
        wire_s = 1.5 * ALL_REDUCE_BYTES / LINK_Bps
        return self.compute_s + wire_s * (2 if self.way.loaded else 1)

    @property
    def estimate_s(self) -> float:
        """About how long it takes; starting torch is most of the rest."""
        factor = 2.2 if self.way.alone else 1.3
        return 12 + self.iterations * self.alone_s * factor

    def scenario(self) -> Scenario:
        """The Scenario object for lab and simulator."""
        apart_s = self.iterations * self.alone_s * 1.1 + LATEST_S if self.way.alone else 0.02 * (1 + 0.25 * self.repeat)
        job: dict[str, object] = {
            "hosts": SHARED_HOSTS,
            "iterations": self.iterations,
            "policy": self.way.policy,
            "seed": self.repeat,
            "loop": [{"compute": self.compute_s, "noise": 0.02}, {"all_reduce": ALL_REDUCE_BYTES}],
        }
        if self.way.actuator:
            job["interleave"] = {"actuator": self.way.actuator}
        base = load_scenario(CONGESTED if self.way.loaded else "star8")
        jobs = [{**job, "name": name, "start": start_s} for name, start_s in (("first", 0.0), ("second", apart_s))]
        fields = {"name": base.name, "hosts": base.hosts, "access": base.access, "jobs": jobs}
        scenario = base.model_copy(update={"jobs": Scenario.model_validate(fields).jobs})
        if not self.way.central:
            return scenario
        profiled = profile(scenario)
        return shifted(scenario, profiled, plan(profiled.circles, profiled.capacity_Bps, slack=2 * SLACK))
