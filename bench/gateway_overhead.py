"""What a proxy in front of engines adds: `python -m bench.gateway_overhead --out FILE.json`.

The same seeded stream of streamed requests (answers of 50 tokens, one each 20 ms) goes to four cheap engines: directly,
through Headway's gateway with some of its policies, through nginx as a plain proxy, and through those peer routers that
are found on PATH or named by a flag. Each proxy has one core for itself; engines and client share the other. All take
turns in each case and round, in an order that is turned round from round to round, and those that wait are stopped
(SIGSTOP), so that they cost nothing. "Added" is a figure minus the direct one of the same case and round; tables give
the median over rounds and their range.

The second table is the most requests per second at which nothing fails and the added p99 of TTFT and of the whole
answer stays below a limit, found by bisection. A rate fails when it does so twice.

Other work on the machine disturbs this: start it on an idle one, or as root with `--nice -15`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.grid_script import as_script
from bench.headway_proxy import POLICIES, headway
from bench.overhead_tables import (
    DIRECT,
    Case,
    Measured,
    Peak,
    ladder,
    latency_table,
    peak_table,
    quantile,
    search,
)
from bench.own_process import write
from bench.proxies import KEY, PEERS, Proxy, Running, answers, command_of, free_ports, started, wait_until_up
from headway.errors import HeadwayError, UsageError

CASES = "10x2,50x2,100x2,200x2,400x2,50x32,10x256"
ENGINES = 4
WARM_S = 2.0
GIVE_UP = 0.9
"""A target that answers less of the requests than this isn't asked for as much again, nor for more."""
SETTLE_S = 60.0
"""Until such a one answers again."""
WAKE_S = 0.5
"""After a stopped proxy goes on, until it is asked: it reads its engines' load again, for one."""
RATES_Hz = ladder(50, 1600, 1.15)


@dataclass
class Target:
    """Where requests go. Nothing runs for the direct way."""

    name: str
    ports: list[int]
    running: Running | None = None

    def wake(self) -> None:
        """Let it run."""
        if self.running is not None:
            self.running.signal(signal.SIGCONT)
            time.sleep(WAKE_S)

    def settle(self) -> None:
        """Let it get over what was too much for it."""
        self.wake()
        until_s = time.monotonic() + SETTLE_S
        while not answers(self.ports[0]) and time.monotonic() < until_s:
            time.sleep(0.5)
        self.sleep()

    def sleep(self) -> None:
        """Keep it from running."""
        if self.running is not None:
            self.running.signal(signal.SIGSTOP)


@dataclass
class Bench:
    """What is measured on, and what was measured."""

    time_s: float
    seed: int
    client_core: int
    heard: Path
    nice: int
    found: list[Measured] = field(default_factory=list)

    def measure(self, target: Target, case: Case, number: int, time_s: float) -> Measured:
        """Send the case's load to the target, once. HeadwayError when the client fails."""
        target.wake()
        cpu_s = target.running.cpu_s() if target.running is not None else 0.0
        argv = [sys.executable, "-m", "bench.raw_client"]
        argv += [*map(str, target.ports), "--rate", str(case.rate_Hz), "--prompt-bytes", str(case.prompt_bytes)]
        argv += ["--time", str(time_s), "--warm", str(WARM_S), "--seed", str(self.seed + number), "--key", KEY]
        argv += ["--out", str(self.heard)]
        limit_s = 60 + 5 * time_s
        log = self.heard.with_suffix(".log")
        client = Running("client", argv, core=self.client_core, environment={}, log=log, nice=self.nice)
        try:
            code = client.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise HeadwayError(f"{target.name}, {case.name}: the client didn't end within {limit_s:.0f} s") from None
        finally:
            client.stop()
        if code:
            raise HeadwayError(f"{target.name}, {case.name}: the client failed: {client.ended()}")
        cpu_s = target.running.cpu_s() - cpu_s if target.running is not None else 0.0
        rss_MB = target.running.rss_MB() if target.running is not None else 0.0
        target.sleep()
        heard = json.loads(self.heard.read_text())
        errors = sorted(heard["errors"].items(), key=lambda pair: -pair[1])
        return Measured(
            target=target.name,
            rate_Hz=case.rate_Hz,
            prompt_bytes=case.prompt_bytes,
            round=number,
            sent=heard["sent"],
            done=len(heard["e2e_s"]),
            ttft_p50_s=quantile(heard["ttft_s"], 0.5),
            ttft_p99_s=quantile(heard["ttft_s"], 0.99),
            e2e_p50_s=quantile(heard["e2e_s"], 0.5),
            e2e_p99_s=quantile(heard["e2e_s"], 0.99),
            late_p99_s=quantile(heard["late_s"], 0.99),
            cpu_s=cpu_s,
            all_sent=heard["all_sent"],
            rss_MB=rss_MB,
            errors=", ".join(f"{count}x {what}" for what, count in errors[:3]),
        )

    def compare(self, targets: Sequence[Target], cases: Sequence[Case], rounds: int) -> None:
        """All targets in all cases, in turn."""
        lost_Hz: dict[tuple[str, int], float] = {}
        for number in range(rounds):
            for case in cases:
                for target in targets if number % 2 == 0 else targets[::-1]:
                    if case.rate_Hz >= lost_Hz.get((target.name, case.prompt_bytes), math.inf):
                        continue
                    told = self.measure(target, case, number, self.time_s)
                    self.found.append(told)
                    if told.done < GIVE_UP * told.sent:
                        lost_Hz[target.name, case.prompt_bytes] = case.rate_Hz
                        target.settle()
                    say(
                        f"round {number}, {case.name}, {target.name}: TTFT p50 {1e3 * told.ttft_p50_s:.2f} "
                        f"p99 {1e3 * told.ttft_p99_s:.2f} ms, {told.done} of {told.sent} {told.errors}"
                    )

    def peaks(self, targets: Sequence[Target], limit_s: float, time_s: float) -> list[Peak]:
        """The most that each target holds, prompts of 2 KiB."""
        direct: dict[float, Measured] = {}
        way = next(target for target in targets if target.name == DIRECT)

        def trouble(target: Target, rate_Hz: float) -> str:
            case = Case(rate_Hz, 2048)
            if rate_Hz not in direct:
                direct[rate_Hz] = self.measure(way, case, 0, time_s)
            for _ in range(2):
                told = self.measure(target, case, 0, time_s)
                why = not_held(told, direct[rate_Hz], limit_s)
                say(f"{target.name} at {rate_Hz:.0f} req/s: {why or 'holds'}")
                if not why:
                    return ""
            return why

        return [search(target.name, RATES_Hz, partial(trouble, target)) for target in targets]


def not_held(told: Measured, direct: Measured, limit_s: float) -> str:
    """What kept a target from holding a rate; empty when it held."""
    if told.done < told.sent:
        return f"{told.sent - told.done} of {told.sent} failed: {told.errors}"
    ttft_s, e2e_s = told.ttft_p99_s - direct.ttft_p99_s, told.e2e_p99_s - direct.e2e_p99_s
    if told.target == DIRECT:
        ttft_s = told.ttft_p99_s
    if ttft_s > limit_s:
        return f"TTFT p99 +{1e3 * ttft_s:.1f} ms"
    return f"e2e p99 +{1e3 * e2e_s:.1f} ms" if e2e_s > limit_s else ""


def say(text: str) -> None:
    """How far it is."""
    print(text, file=sys.stderr, flush=True)


def parsed(text: str) -> list[Case]:
    """`200x2,50x32` as cases: requests per second, KiB of prompt. UsageError for anything else."""
    cases = []
    for part in text.split(","):
        rate, _, size = part.partition("x")
        try:
            case = Case(float(rate), int(size) * 1024)
        except ValueError:
            raise UsageError(f"{part!r} is no case", where="--cases", hint="requests per second x KiB: 200x2") from None
        if case.rate_Hz <= 0 or case.prompt_bytes <= 0:
            raise UsageError(f"{part!r} is no case", where="--cases", hint="both are above 0")
        cases.append(case)
    return cases


def proxies(
    options: argparse.Namespace, engines: Sequence[int], folder: Path
) -> tuple[list[tuple[Proxy, int]], list[str]]:
    """Those that can be started, with their ports, and why others can't."""
    only = set(options.only.split(",")) if options.only else None
    found: list[tuple[Proxy, int]] = []
    missing = []
    ports = iter(free_ports(len(PEERS) + len(POLICIES)))
    for policy in POLICIES:
        if only is None or f"headway {policy}" in only or "headway" in only:
            port = next(ports)
            found.append((headway(policy, port, engines, folder), port))
    for name, (make, command) in PEERS.items():
        if only is not None and name not in only:
            continue
        path = command_of(name, getattr(options, name.replace("-", "_")))
        if path is None:
            missing.append(f"{name} is left out: no {command} on PATH (name one with --{name})")
            continue
        port = next(ports)
        found.append((make(path, port, engines, folder), port))
    return found, missing


@contextlib.contextmanager
def engines_on(core: int, folder: Path, nice: int) -> Iterator[list[int]]:
    """Ports of the cheap engines."""
    ports = free_ports(ENGINES)
    argv = (sys.executable, "-m", "bench.raw_engine", *map(str, ports))
    running = Running("engines", argv, core=core, environment={}, log=folder / "engines.log", nice=nice)
    try:
        wait_until_up(running, ports[0])
        yield ports
    finally:
        running.stop()


def run(options: argparse.Namespace) -> None:
    """Start all, measure, print, write."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # what was started is ended then, too
    cases = parsed(options.cases)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise UsageError("this needs two cores: one for the proxy, one for client and engines")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        bench = Bench(options.time, options.seed, cores[1], folder / "heard.json", options.nice)
        engines = stack.enter_context(engines_on(cores[1], folder, options.nice))
        known, missing = proxies(options, engines, folder)
        targets = [Target(DIRECT, list(engines))]
        for proxy, port in known:
            try:
                running = stack.enter_context(started(proxy, port, core=cores[0], folder=folder, nice=options.nice))
            except HeadwayError as error:
                missing.append(f"{proxy.name} is left out: {error}")
                continue
            targets.append(Target(proxy.name, [port], running))
            targets[-1].sleep()
            say(f"{proxy.name} is up ({proxy.version})")
        bench.compare(targets, cases, options.rounds)
        peaks = bench.peaks(targets, options.limit_ms / 1e3, options.peak_time) if options.peak_time else []
        for target in targets:
            target.wake()
            if target.running is not None and not answers(target.ports[0]):
                missing.append(f"{target.name} no longer answered in the end")
    print(latency_table(bench.found), end="\n\n")
    if peaks:
        print(peak_table(peaks), end="\n\n")
    print("; ".join(proxy.version for proxy, _ in known) + f"; {options.rounds} rounds of {options.time:g} s.")
    for line in missing:
        print(line)
    if options.out is not None:
        write(options.out, {"measured": bench.found, "peaks": peaks})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    parser.add_argument("--cases", default=CASES, help="requests per second x KiB of prompt (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time", type=float, default=8.0, help="seconds of each measurement, after 2 of warm-up")
    parser.add_argument("--peak-time", type=float, default=5.0, help="the same of each step of the search; 0: none")
    parser.add_argument("--limit-ms", type=float, default=5.0, help="added p99 at which a rate no longer holds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nice", type=int, default=0, help="niceness of all that is started; below 0 needs root")
    parser.add_argument("--only", default="", help="some targets beside the direct one: nginx,headway,litellm")
    for name, (_, command) in PEERS.items():
        parser.add_argument(f"--{name}", metavar="COMMAND", help=f"default: {command} on PATH")
    run(parser.parse_args())


if __name__ == "__main__":
    as_script("gateway_overhead", main)
