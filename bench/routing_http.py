"""Policies on engines over HTTP, beside the simulation of the same fleets and loads: `python -m bench.routing_http`.

For each cell and policy: `headway engine` processes (one per kind of accelerator), `headway gateway` and `headway
loadgen` over loopback; and the same requests at the same times, the same engines and the same policy on the simulated
clock. The tables have mean and p99 TTFT of the requests after the warm-up, and how alike the two orders of policies
are (Kendall's tau over mean TTFT, 1: the same). Engines run faster than they would (`--speed`), in both, so that a cell
takes a minute; what a policy needs in real seconds (the polls of 0.1 s) stays. A rate is a share of what the fleet just
serves in simulation.

The simulation knows exact token counts and blocks; the gateway estimates them from the text.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from scipy import stats

from bench.grid_script import as_script
from bench.headway_proxy import COMMAND
from bench.own_process import write
from bench.proxies import Running, free_ports
from headway.bench.markdown import table
from headway.errors import HeadwayError, UsageError
from headway.serving.engine.hardware import profile
from headway.serving.enginehttp.pace import sped_up
from headway.serving.loadgen.plan import Wanted, plan
from headway.serving.policies import NAMES, build
from headway.serving.simulate.load import load as planned
from headway.serving.simulate.replicas import Replica, replicas
from headway.serving.simulate.result import spread, summary
from headway.serving.simulate.run import simulate
from headway.serving.simulate.saturation import saturation

MODEL = "llama-3-8b"
FLEETS = {"4xA30": {"a30": 4}, "2xA30+2xV100": {"a30": 2, "v100": 2}}
LOADS = ("sharing-30", "sharing-70")
POLICIES = ("round-robin", "least-requests", "prefix", "prefix-and-load", "lmetric", "learned")
MOST_INPUT_TOKENS = 30_000
BLOCK_TOKENS = 16
"""Of the engines over HTTP. Loads of larger blocks share only whole ones, so that nothing is found in between."""
UP_LIMIT_S = 60.0


@dataclass(frozen=True)
class Cell:
    """What is run.

    Attributes:
        fleet, load: names.
        rate_Hz: requests per second.
        speed: of the engines, against what they are.
        requests, warm_up: in all; that are not counted.
    """

    fleet: str
    load: str
    rate_Hz: float
    speed: float
    requests: int
    warm_up: int
    seed: int


@dataclass(frozen=True)
class Told:
    """One policy in one cell.

    Attributes:
        where: "http" or "simulated".
        mean_ttft_s, p50_ttft_s, p99_ttft_s: of requests after the warm-up.
        cached: share of their prompts that the engines had in their caches.
        done: of `counted` requests, that were answered to the end.
        late_p99_s: how late the load generator sent.
        slow: what the engines said of the machine being too slow; empty: it was not.
    """

    fleet: str
    load: str
    rate_Hz: float
    policy: str
    where: str
    mean_ttft_s: float
    p50_ttft_s: float
    p99_ttft_s: float
    cached: float
    done: int
    counted: int
    late_p99_s: float = 0.0
    slow: str = ""


def fleet_of(name: str, speed: float) -> list[Replica]:
    """For the simulation."""
    kinds = [
        (n, sped_up(profile(device, MODEL, block_tokens=BLOCK_TOKENS), speed)) for device, n in FLEETS[name].items()
    ]
    return replicas(*kinds)


def rate_of(fleet: str, load: str, speed: float, share: float, seed: int) -> float:
    """A share of the rate that a fleet just serves."""
    arrivals = plan(Wanted(load=load, rate=1.0, requests=1200, seed=seed, most_input_tokens=MOST_INPUT_TOKENS))
    return share * saturation(fleet_of(fleet, speed), planned(arrivals), seed=seed)


def simulated(cell: Cell, policy: str) -> Told:
    """A cell on the simulated clock."""
    arrivals = plan(
        Wanted(
            load=cell.load,
            rate=cell.rate_Hz,
            requests=cell.requests,
            seed=cell.seed,
            most_input_tokens=MOST_INPUT_TOKENS,
        )
    )
    fleet = fleet_of(cell.fleet, cell.speed)
    result = simulate(fleet, planned(arrivals), build(policy, seed=cell.seed), seed=cell.seed)
    counted = summary(result.rows, warm_up_requests=cell.warm_up)
    return Told(
        fleet=cell.fleet,
        load=cell.load,
        rate_Hz=cell.rate_Hz,
        policy=policy,
        where="simulated",
        mean_ttft_s=counted.ttft.mean_s,
        p50_ttft_s=counted.ttft.p50_s,
        p99_ttft_s=counted.ttft.p99_s,
        cached=counted.cached_share,
        done=counted.done,
        counted=counted.requests,
    )


def over_http(cell: Cell, policy: str, nice: int) -> Told:
    """A cell with processes. HeadwayError where one of them fails."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        urls: list[str] = []
        engines = []
        for device, count in FLEETS[cell.fleet].items():
            ports = consecutive(count)
            argv = [COMMAND, "engine", "--device", device, "--model", MODEL, "--served-model-name", "m"]
            argv += ["--replicas", str(count), "--port", str(ports[0]), "--speed", f"{cell.speed:g}x"]
            engines.append(run(stack, f"engines {device}", argv, folder, nice))
            urls += [f"http://127.0.0.1:{port}" for port in ports]
        for url in urls:
            await_up(f"{url}/health")
        port = free_ports(1)[0]
        pool = {"models": ["m"], "policy": policy, "seed": cell.seed, "replicas": urls, "ask_usage": True}
        config = folder / "gateway.json"
        config.write_text(json.dumps({"listen": {"port": port}, "pools": [pool]}))
        run(stack, "gateway", (COMMAND, "gateway", str(config)), folder, nice)
        await_up(f"http://127.0.0.1:{port}/ready")
        out = folder / "rows.jsonl"
        argv = [COMMAND, "loadgen", f"http://127.0.0.1:{port}", "--model", "m", "--load", cell.load]
        argv += ["--rate", repr(cell.rate_Hz), "--requests", str(cell.requests), "--seed", str(cell.seed)]
        argv += ["--limit-in", str(MOST_INPUT_TOKENS), "--out", str(out)]
        client = run(stack, "loadgen", argv, folder, nice)
        limit_s = 120 + 3 * cell.requests / cell.rate_Hz
        try:
            code = client.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise HeadwayError(f"{policy}: the load did not end within {limit_s:.0f} s") from None
        if code:
            raise HeadwayError(f"{policy}: the load generator failed: {client.ended()}")
        slow = [line for engine in engines for line in engine.log.read_text().splitlines() if "too slow" in line]
        return heard(cell, policy, out.read_text().splitlines(), slow[-1] if slow else "")


def heard(cell: Cell, policy: str, lines: Sequence[str], slow: str) -> Told:
    """What the load generator's lines say of the requests after the warm-up. Pure."""
    rows = [row for row in map(json.loads, lines) if row["number"] >= cell.warm_up]
    done = [row for row in rows if row["end"] == "done"]
    ttft = spread([row["ttft_s"] for row in done])
    asked = sum(row["prompt_tokens"] or 0 for row in done)
    late = sorted(row["sent_s"] - row["due_s"] for row in rows if row["sent_s"] is not None)
    return Told(
        fleet=cell.fleet,
        load=cell.load,
        rate_Hz=cell.rate_Hz,
        policy=policy,
        where="http",
        mean_ttft_s=ttft.mean_s,
        p50_ttft_s=ttft.p50_s,
        p99_ttft_s=ttft.p99_s,
        cached=sum(row["cached_tokens"] or 0 for row in done) / asked if asked else math.nan,
        done=len(done),
        counted=len(rows),
        late_p99_s=late[math.ceil(0.99 * len(late)) - 1] if late else math.nan,
        slow=slow,
    )


def consecutive(count: int) -> list[int]:
    """Free ports in a row. HeadwayError after some tries."""
    for first in free_ports(50):
        wanted = list(range(first, first + count))
        with ExitStack() as stack:
            try:
                for port in wanted:
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return wanted
    raise HeadwayError(f"no {count} ports in a row are free")


def run(stack: ExitStack, name: str, argv: Sequence[str], folder: Path, nice: int) -> Running:
    """A process until the stack ends, on any core."""
    log = folder / f"{name.replace(' ', '-')}.log"
    running = Running(name, argv, core=None, environment={}, log=log, nice=nice)
    stack.callback(running.stop)
    return running


def await_up(url: str) -> None:
    """Until a page answers with 200. HeadwayError after a while."""
    until_s = time.monotonic() + UP_LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as page:
                if page.status == 200:
                    return
        except OSError:
            if time.monotonic() > until_s:
                raise HeadwayError(f"{url} does not answer within {UP_LIMIT_S:.0f} s") from None
        time.sleep(0.1)


def tau(found: Sequence[Told]) -> float:
    """Kendall's tau of the two orders of policies in one cell, by mean TTFT; NaN for fewer than two policies. Pure."""
    by: dict[str, dict[str, float]] = {"http": {}, "simulated": {}}
    for told in found:
        by[told.where][told.policy] = told.mean_ttft_s
    both = sorted(by["http"].keys() & by["simulated"].keys())
    if len(both) < 2:
        return math.nan
    return float(stats.kendalltau([by["http"][p] for p in both], [by["simulated"][p] for p in both]).statistic)


def shown(found: Sequence[Told]) -> str:
    """As tables: a line per cell and policy, best on HTTP first; then a line per cell."""
    rows, taus = [], []
    for key in dict.fromkeys((told.fleet, told.load, told.rate_Hz) for told in found):
        here = [told for told in found if (told.fleet, told.load, told.rate_Hz) == key]
        order = {
            w: sorted((t for t in here if t.where == w), key=lambda t: t.mean_ttft_s) for w in ("http", "simulated")
        }
        ranks = {told.policy: str(1 + number) for number, told in enumerate(order["simulated"])}
        simulated_of = {told.policy: told for told in order["simulated"]}
        for rank, told in enumerate(order["http"], 1):
            twin = simulated_of.get(told.policy)
            pair = [told, twin] if twin is not None else [told]
            rows.append(
                (
                    f"{told.fleet}, {told.load}, {told.rate_Hz:.1f}/s",
                    told.policy,
                    " / ".join(f"{1e3 * each.mean_ttft_s:.0f}" for each in pair),
                    " / ".join(f"{1e3 * each.p50_ttft_s:.0f}" for each in pair),
                    " / ".join(f"{1e3 * each.p99_ttft_s:.0f}" for each in pair),
                    " / ".join(f"{100 * each.cached:.0f}" for each in pair),
                    f"{rank} / {ranks.get(told.policy, '')}",
                    f"{told.counted - told.done}",
                    "too slow" if told.slow else f"{1e3 * told.late_p99_s:.0f}",
                )
            )
        taus.append((f"{key[0]}, {key[1]}, {key[2]:.1f}/s", f"{tau(here):.2f}"))
    heads = ("cell", "policy", "mean TTFT, ms", "p50", "p99", "cached, %", "rank", "failed", "sent late p99, ms")
    text = table(heads, rows) + "\n\nEach figure: HTTP / simulated.\n\n"
    return text + table(("cell", "Kendall's tau of the orders by mean TTFT"), taus)


def chosen(text: str, known: Sequence[str], where: str) -> list[str]:
    """Names in a list. UsageError for one that isn't known."""
    names = text.split(",")
    for name in names:
        if name not in known:
            raise UsageError(f"unknown {name!r}", where=where, hint=f"known: {', '.join(known)}")
    return names


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON, after each run")
    parser.add_argument("--replay", type=Path, help="run nothing: figures that --out wrote")
    parser.add_argument("--fleets", default=",".join(FLEETS))
    parser.add_argument("--loads", default=",".join(LOADS), help="as of headway loadgen")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--share", type=float, default=0.8, help="of the rate that the fleet just serves")
    parser.add_argument("--speed", type=float, default=5.0, help="of the engines; a slower machine needs less")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=1000, help="requests that are not counted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nice", type=int, default=0, help="niceness of all that is started; below 0 needs root")
    options = parser.parse_args()
    if options.replay is not None:
        print(shown([Told(**each) for each in json.loads(options.replay.read_text())["runs"]]))
        return
    policies = chosen(options.policies, NAMES, "--policies")
    found: list[Told] = []
    for fleet in chosen(options.fleets, tuple(FLEETS), "--fleets"):
        for load in options.loads.split(","):
            rate_Hz = round(rate_of(fleet, load, options.speed, options.share, options.seed), 2)
            cell = Cell(fleet, load, rate_Hz, options.speed, options.requests, options.warm_up, options.seed)
            for policy in policies:
                for told in (simulated(cell, policy), over_http(cell, policy, options.nice)):
                    found.append(told)
                    what = f"{fleet}, {load}, {rate_Hz}/s, {policy}, {told.where}"
                    print(f"{what}: mean TTFT {1e3 * told.mean_ttft_s:.0f} ms {told.slow}", file=sys.stderr, flush=True)
                if options.out is not None:
                    write(options.out, {"runs": found})
    print(shown(found))


if __name__ == "__main__":
    as_script("routing_http", main)
