"""How well the detector names the congested link: rotating victims, both directions, UDP and TCP, and idle time.

    python -m bench.detector [--seeds 201,202,203,204,205] [--minutes 15] [--policy packing] [--out out/detector]
    python -m bench.detector --idle-minutes 30 [--out out/detector]
    python -m bench.detector --replay out/detector [--ratio 0.65,0.7,0.75,0.8]

Each seed is one job of all-reduces of 8 MB on `star8`: idle first, then every load in both directions, each on a host
drawn anew, with free time between. The tuner is at work, so that plans change under the detector as they do in use.
`--idle-minutes` is one job without any load, for false alarms. Every epoch's summaries are saved; `--replay` judges
them again with other thresholds. Thresholds were chosen on seeds 1 to 3 and 101 to 105; figures are for other seeds.
Needs root.

What is counted:
- an episode is found when its own link is named before it is over; its time runs from the load's beginning to the end
  of the epoch that names it. Episodes that made operations less than 10 % slower are counted apart: where the plan in
  force does not need a link, there is nothing to find, and nothing to gain.
- a naming is a link that comes up in the findings until it leaves them. It is right when that link is loaded, or was
  within the last `GRACE_S`; wrong when only another one is; a false alarm when none is.
- each of that for all findings, and for those that the tuner would act on (steady ones).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from pydantic import BaseModel

from headway.bench.markdown import table
from headway.cluster.model import Cluster, LinkKind, star
from headway.errors import HeadwayError
from headway.lab.files import load_scenario, parse_event
from headway.lab.lab import Lab
from headway.observe.detector import Detector
from headway.observe.findings import Finding, Pattern
from headway.observe.summary import RankSummary
from headway.observe.thresholds import Thresholds

SCENARIO = "star8"
HOSTS = 8
RATE_Bps = 25e6
SIZE_BYTES = 8_000_000
LOADS: tuple[dict[str, str | int], ...] = ({"udp": "50%"}, {"udp": "75%"}, {"tcp": 1})
IDLE_S, LOADED_S, FREE_S = 60.0, 10.0, 8.0
GRACE_S = 3.0
"""Two epochs: so long a finding may outlive its load."""
FELT = 1.10


class Episode(BaseModel):
    """One load on one link, in wall-clock seconds."""

    kind: LinkKind
    host: int
    what: str
    begin_s: float
    end_s: float


class Epoch(BaseModel):
    """What the detector was given: the end in wall-clock seconds, time in operations, plan state, summaries."""

    t_s: float
    now_s: float
    idle_plan: bool
    operation_s: float
    summaries: list[str]


class SeedRun(BaseModel):
    """One job."""

    seed: int
    episodes: list[Episode]
    epochs: list[Epoch]


# --- the job's side -------------------------------------------------------------------------------------------------


def work(seconds: float, out: Path) -> None:
    """One rank: all-reduces until `seconds` are over; rank 0 saves what its detector is given."""
    import torch
    import torch.distributed as dist

    import headway.collectives.tuner as tuner

    class Recording(Detector):
        """The detector, with its input written down."""

        def update(self, now_s: float, summaries: Sequence[RankSummary], *, idle_plan: bool = True) -> list[Finding]:
            span_s = statistics.median([sum(summary.bin_s) for summary in summaries]) if summaries else 0.0
            epoch = Epoch(
                t_s=time.time(),
                now_s=now_s,
                idle_plan=idle_plan,
                operation_s=span_s,
                summaries=[summary.to_json() for summary in summaries],
            )
            with out.open("a") as file:
                file.write(epoch.model_dump_json() + "\n")
            return super().update(now_s, summaries, idle_plan=idle_plan)

    mock.patch.object(tuner, "Detector", Recording).start()
    dist.init_process_group("headway")
    vector = torch.ones(SIZE_BYTES // 4)
    over = torch.zeros(1)
    dist.all_reduce(vector)
    if dist.get_rank() == 0:
        print("ready", flush=True)
    until_s = time.monotonic() + seconds
    while not over.item():
        vector.fill_(1.0)
        dist.all_reduce(vector)
        over.fill_(float(time.monotonic() > until_s))
        dist.broadcast(over, 0)
    dist.destroy_process_group()


# --- the lab's side -------------------------------------------------------------------------------------------------


def planned(seed: int) -> Iterator[tuple[float, float, dict[str, object], Episode]]:
    """Begin, end (seconds from ready), event and episode of every load, victims drawn with `seed`."""
    chance = random.Random(seed)
    turns = [(direction, load) for load in LOADS for direction in ("down", "up")]
    chance.shuffle(turns)
    begin_s = IDLE_S
    for index, (direction, load) in enumerate(turns):
        host = chance.randrange(HOSTS)
        event: dict[str, object] = {"id": f"load{index}", "type": "load", "target": f"host{host}", **load}
        event["direction"] = direction
        kind = LinkKind.DOWNLINK if direction == "down" else LinkKind.UPLINK
        words = f"UDP {load['udp']}" if "udp" in load else f"TCP {load['tcp']}"
        episode = Episode(kind=kind, host=host, what=f"{words} {direction}", begin_s=0.0, end_s=0.0)
        yield begin_s, begin_s + LOADED_S, event, episode
        begin_s += LOADED_S + FREE_S


def seconds_per_seed() -> float:
    """How long one job runs."""
    return IDLE_S + 2 * len(LOADS) * (LOADED_S + FREE_S)


def run_seed(seed: int, policy: str, out: Path, *, idle_s: float | None = None) -> SeedRun:
    """One job in a lab of its own; with `idle_s` one without load, for so long."""
    length_s = seconds_per_seed() if idle_s is None else idle_s
    path = out / f"epochs-{seed}.jsonl"
    path.unlink(missing_ok=True)
    steps = list(planned(seed)) if idle_s is None else []
    episodes: list[Episode] = []
    in_force: str | None = None
    ready_s: float | None = None
    with Lab.up(load_scenario(SCENARIO)) as lab:
        lab.warm_up()

        def hear(host: str, line: str) -> None:
            nonlocal ready_s
            if "ready" in line and ready_s is None:
                ready_s = time.monotonic()

        def play() -> None:
            nonlocal in_force
            if ready_s is None or not steps:
                return
            at_s = time.monotonic() - ready_s
            begin_s, end_s, data, episode = steps[0]
            if in_force is None and at_s >= begin_s:
                lab.apply(parse_event(data))
                in_force = str(data["id"])
                episodes.append(episode.model_copy(update={"begin_s": time.time(), "end_s": float("inf")}))
            elif in_force is not None and at_s >= end_s:
                lab.undo(in_force)
                in_force = None
                episodes[-1] = episodes[-1].model_copy(update={"end_s": time.time()})
                steps.pop(0)

        argv = [sys.executable, "-m", "bench.detector", "--work", str(length_s), "--out", str(path)]
        result = lab.run_ranks(
            argv,
            env={"HEADWAY_POLICY": policy},
            on_line=hear,
            on_tick=play,
            limit_s=length_s + 90,
        )
        if not result.ok:
            raise HeadwayError(f"seed {seed}: the job failed: {result.failure}")
    epochs = [Epoch.model_validate_json(line) for line in path.read_text().splitlines()]
    path.unlink()
    run = SeedRun(seed=seed, episodes=episodes, epochs=epochs)
    (out / f"seed-{seed}.json").write_text(run.model_dump_json())
    return run


# --- judging --------------------------------------------------------------------------------------------------------


@dataclass
class Score:
    """What one way of counting findings comes to, over all seeds."""

    right: int = 0
    wrong: int = 0
    false_alarms: int = 0
    felt: int = 0
    felt_found: int = 0
    unfelt: int = 0
    unfelt_found: int = 0
    free_s: float = 0.0
    delays_s: tuple[float, ...] = ()
    missed: tuple[str, ...] = ()

    def cells(self) -> list[str]:
        """The figures of a table's line."""
        named = self.right + self.wrong + self.false_alarms
        delays = sorted(self.delays_s)
        delay = f"{statistics.median(delays):.1f} ({delays[0]:.1f}-{delays[-1]:.1f})" if delays else "-"
        return [
            f"{self.right / named:.2f} ({self.right}/{named})" if named else "-",
            f"{self.felt_found}/{self.felt}",
            f"{self.unfelt_found}/{self.unfelt}",
            delay,
            str(self.wrong),
            f"{self.false_alarms} in {self.free_s / 60:.0f} min",
            f"{self.false_alarms / self.free_s * 3600:.1f}" if self.free_s else "-",
        ]


HEADS = [
    "findings",
    "precision",
    "recall, felt",
    "recall, not felt",
    "time to detect (s)",
    "wrong link",
    "false alarms",
    "per hour",
]


def judge(run: SeedRun, score: Score, thresholds: Thresholds, cluster: Cluster, *, steady_only: bool) -> None:
    """Replay one job and add to `score`."""
    detector = Detector(cluster, thresholds, trust_nominal=False)
    up: set[tuple[LinkKind, int, int | None]] = set()
    found: dict[int, float] = {}
    first_s = run.episodes[0].begin_s if run.episodes else float("inf")
    usual_s = statistics.median(epoch.operation_s for epoch in run.epochs if epoch.t_s < first_s)
    slowest_s = [0.0] * len(run.episodes)
    before_s = run.epochs[0].t_s
    for epoch in run.epochs:
        summaries = [RankSummary.from_json(text) for text in epoch.summaries]
        findings = detector.update(epoch.now_s, summaries, idle_plan=epoch.idle_plan)
        begin_s = epoch.t_s - epoch.operation_s
        near = [each for each in run.episodes if each.begin_s < epoch.t_s and begin_s < each.end_s + GRACE_S]
        for index, episode in enumerate(run.episodes):
            if episode.begin_s < begin_s and epoch.t_s < episode.end_s:
                slowest_s[index] = max(slowest_s[index], epoch.operation_s)
        if not near:
            score.free_s += epoch.t_s - before_s
        before_s = epoch.t_s
        counted = [each for each in findings if not steady_only or each.pattern is Pattern.STEADY]
        for finding in counted:
            hit = [each for each in near if (each.kind, each.host) == (finding.kind, finding.host)]
            if (finding.kind, finding.host, finding.peer) not in up:
                score.right += bool(hit)
                score.wrong += bool(near) and not hit
                score.false_alarms += not near
            for episode in hit:
                index = run.episodes.index(episode)
                if epoch.t_s <= episode.end_s and index not in found:
                    found[index] = epoch.t_s - episode.begin_s
        up = {(each.kind, each.host, each.peer) for each in counted}
    for index, episode in enumerate(run.episodes):
        felt = slowest_s[index] > FELT * usual_s
        score.felt += felt
        score.unfelt += not felt
        score.felt_found += felt and index in found
        score.unfelt_found += not felt and index in found
        if felt and index in found:
            score.delays_s += (found[index],)
        if felt and index not in found:
            score.missed += (f"seed {run.seed}: {episode.what} of host{episode.host}",)


def report(runs: Sequence[SeedRun], ratios: Sequence[float]) -> str:
    """The table, and what was missed."""
    cluster = star(HOSTS, RATE_Bps)
    lines, missed = [], []
    for ratio in ratios:
        thresholds = replace(Thresholds(), slow_ratio=ratio)
        for steady_only in (False, True):
            score = Score()
            for run in runs:
                judge(run, score, thresholds, cluster, steady_only=steady_only)
            lines.append([f"{'steady' if steady_only else 'all'}, below {ratio:g}", *score.cells()])
            missed += [f"missed ({'steady' if steady_only else 'all'}, {ratio:g}): {each}" for each in score.missed]
    return "\n".join([table(HEADS, lines), "", *missed])


def main() -> None:
    """Run the seeds that fit in the time, or judge saved ones again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="201,202,203,204,205")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--idle-minutes", type=float)
    parser.add_argument("--policy", default="packing", choices=["packing", "react"])
    parser.add_argument("--out", type=Path, default=Path("out/detector"))
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--ratio", default=str(Thresholds().slow_ratio))
    parser.add_argument("--work", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work is not None:
        work(args.work, args.out)
        return
    ratios = [float(text) for text in args.ratio.split(",")]
    if args.replay is not None:
        runs = [
            SeedRun.model_validate(json.loads(path.read_text())) for path in sorted(args.replay.glob("seed-*.json"))
        ]
        print(report(runs, ratios))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    if args.idle_minutes is not None:
        print(report([run_seed(0, args.policy, args.out.resolve(), idle_s=60 * args.idle_minutes)], ratios))
        return
    until_s = time.monotonic() + 60 * args.minutes
    runs = []
    for seed in (int(text) for text in args.seeds.split(",")):
        if runs and time.monotonic() + seconds_per_seed() > until_s:
            print(f"no time left for seed {seed}", file=sys.stderr)
            break
        print(f"seed {seed}: {seconds_per_seed():.0f} s", file=sys.stderr)
        runs.append(run_seed(seed, args.policy, args.out.resolve()))
    print(report(runs, ratios))


if __name__ == "__main__":
    try:
        main()
    except HeadwayError as error:
        sys.exit(str(error))
