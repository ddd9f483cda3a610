"""A lab in use: build it, run commands on its hosts, change its links, take it down.

with Lab.up(load_scenario("star8")) as lab:
    result = lab.run_ranks(["python", "train.py"])
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from headway.cluster.model import Cluster
from headway.errors import UsageError
from headway.lab import kernel, state
from headway.lab.build import Fabric, LinkCounters, has_netem
from headway.lab.daemons import LoadDaemon, RelayDaemon
from headway.lab.effects import Effect, cluster, effects_of, link_settings, load_legs
from headway.lab.kernel import LabError
from headway.lab.ranks import RankProcess, RunResult, one_on_each, run_processes
from headway.lab.scenario import Event, Scenario
from headway.lab.topology import LinkId, LinkSettings, Topology, plan

_ENTER = Path(__file__).with_name("enter.py")


@dataclass(frozen=True, slots=True)
class LabHost:
    """A host: its rank is its place in the scenario; `namespace` is what `ip netns` calls it."""

    name: str
    rank: int
    address: str
    address6: str
    namespace: str


class Lab:
    """An emulated cluster that is up. Made by `Lab.up`; `close` removes all of it. Threads may share it."""

    def __init__(self, scenario: Scenario, topology: Topology, record: state.LabRecord, fabric: Fabric) -> None:
        self.scenario, self.topology, self.record = scenario, topology, record
        self._fabric = fabric
        self._relay: RelayDaemon | None = None
        self._load: LoadDaemon | None = None
        self._effects: dict[str, tuple[Effect, ...]] = {}
        self._settings = link_settings(topology, ())
        self._lock = threading.RLock()
        self._closed = False
        self.hosts = tuple(
            LabHost(host.name, host.rank, host.address, host.address6, record.prefix + host.name)
            for host in topology.hosts
        )

    @classmethod
    def up(cls, scenario: Scenario, *, detached: bool = False, impair_all: bool = False) -> Lab:
        """Build the lab.

        Args:
            detached: it outlives this process, until `lab down`.
            impair_all: `delay` and `loss` can be applied to every link later, not only where the scenario has them.

        Raises:
            UsageError: the scenario asks for what this machine lacks.
            LabError: this user may not build labs, or the kernel refused something. Nothing is left behind.
        """
        require_privileges()
        netem = has_netem()
        topology = plan(scenario, relay=not netem, impair_all=impair_all)
        record = state.new_record(
            scenario=scenario.name, detached=detached, impairments="netem" if netem else "relay",
            congestion_control=scenario.congestion_control,
            hosts={host.name: host.address for host in topology.hosts},
        )  # fmt: skip
        lab = cls(scenario, topology, record, Fabric(topology, record.prefix, netem=netem))
        try:
            lab._build()
        except BaseException:
            lab.close()
            raise
        return lab

    def _build(self) -> None:
        self._fabric.make_namespaces()
        self._fabric.make_cables()
        if any(cable.relayed for cable in self.topology.cables):
            self._relay = RelayDaemon(self.topology, self.record.prefix, detached=self.record.detached)
        self._fabric.finish()
        names = [f"{a} {host.name}\n" for host in self.hosts for a in _addresses(host)]
        (self.record.directory / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + "".join(names))

    @property
    def id(self) -> str:
        """Six hexadecimal digits, which tell it from other labs on this machine."""
        return self.record.id

    def host(self, name: str | int) -> LabHost:
        """A host by name or rank. KeyError when there is none."""
        for host in self.hosts:
            if name in (host.name, host.rank):
                return host
        raise KeyError(f"no host {name!r} in this lab")

    def command_prefix(self, host: str | int, *, tied: bool = False) -> list[str]:
        """What to put before a command so that it runs on `host`.

        Args:
            tied: kill the command when this process ends, or when the thread that starts it ends.
        """
        there = self.host(host)
        prefix = [sys.executable, "-I", "-S", str(_ENTER), "--netns"]
        prefix += [str(kernel.namespace_directory() / there.namespace), "--hostname", there.name]
        prefix += ["--hosts", str(self.record.directory / "hosts")]
        return [*prefix, *(["--parent", str(os.getpid())] if tied else []), "--"]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """This process's environment, with what tells gloo and Headway which interface to use, and `extra`."""
        return {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "HEADWAY_INTERFACE": "eth0", **(extra or {})}

    def popen(
        self, host: str | int, argv: Sequence[str], *, env: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL, stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None, cwd: str | Path | None = None,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """Start a command on a host, in a process group of its own; `env` is added to `environment()`."""
        tied = not self.record.detached and threading.current_thread() is threading.main_thread()
        return subprocess.Popen(
            [*self.command_prefix(host, tied=tied), *argv], env=self.environment(env), cwd=cwd, stdin=stdin,
            stdout=stdout, stderr=stderr, start_new_session=True,
        )  # fmt: skip

    def run_ranks(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None,
        on_line: Callable[[str, str], None] | None = None, on_tick: Callable[[], None] | None = None,
        echo: bool = False, limit_s: float | None = None,
    ) -> RunResult:  # fmt: skip
        """Run a command once per host, as `torchrun` would with one process per node; the first failure ends all.

        Args:
            on_line: called with (host, line) for every line of output, on this thread.
            on_tick: called ten times a second or oftener, on this thread.
            echo: print every line, with its host before it.
            limit_s: end all after this long; that counts as a failure.
        """

        return self.run_processes(
            one_on_each(self.hosts, argv, env), on_line=on_line, on_tick=on_tick, echo=echo, limit_s=limit_s
        )

    def run_processes(
        self, processes: Sequence[RankProcess], *, on_line: Callable[[str, str], None] | None = None,
        on_tick: Callable[[], None] | None = None, echo: bool = False, limit_s: float | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> RunResult:  # fmt: skip
        """Run processes, as many on a host as are wanted there; the first failure ends all.

        Args:
            on_line, on_tick, echo, limit_s: as in `run_ranks`; a process's label stands for the host.
            enough: asked after each tick; when it says so, the rest is ended, and that is no failure.
        """

        def tick() -> None:
            self.check()
            if on_tick is not None:
                on_tick()

        return run_processes(self, processes, on_line=on_line, on_tick=tick, echo=echo, limit_s=limit_s, enough=enough)

    def apply(self, event: Event) -> None:
        """Put an event in force on all its targets, until `undo`; its times and its pattern are not looked at.

        Raises UsageError for an unknown target, for an id that is in force, or for `delay` and `loss` on a link that
        was not built for it (`impair_all`).
        """
        targets = self._targets(event)
        self.begin(event.id, effects_of(event, targets))

    def undo(self, event: Event | str) -> None:
        """Take back what `apply` did. UsageError when the event is not in force."""
        self.end(event if isinstance(event, str) else event.id)

    def _targets(self, event: Event) -> tuple[str, ...]:
        try:
            return self.scenario.targets_of(event)
        except ValueError as error:
            raise UsageError(str(error)) from None

    def begin(self, key: str, effects: tuple[Effect, ...]) -> None:
        """Put effects in force under a key. As `apply`, for a part of an event."""
        with self._lock:
            if key in self._effects:
                raise UsageError(f"event {key!r} is in force already")
            legs = [leg for effect in effects for leg in load_legs(self.topology, self.record.prefix, effect)]
            self._require_impairable(effects)
            self._effects[key] = effects
            try:
                self._update()
                if legs:
                    self._loader().start(key, legs)
            except BaseException:
                del self._effects[key]
                raise

    def end(self, key: str) -> None:
        """Take back what `begin` did."""
        with self._lock:
            if key not in self._effects:
                raise UsageError(f"event {key!r} is not in force")
            effects = self._effects.pop(key)
            self._update()
            if self._load is not None and any(effect.is_load for effect in effects):
                self._load.stop(key)

    def _require_impairable(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            for link in self.topology.links:
                if effect.impairs and effect.concerns(link.id) and not link.relayed:
                    raise UsageError(
                        f"the {link.id} was not built for delay or loss",
                        hint="give it an event or some latency in the scenario, or build with impair_all",
                    )

    def _update(self) -> None:
        """Make every link as the effects in force say."""
        for link, settings in link_settings(self.topology, tuple(self._effects.values())).items():
            if self._settings[link] != settings:
                self._set(link, settings)
                self._settings[link] = settings

    def _set(self, link: LinkId, settings: LinkSettings) -> None:
        shaped = self.topology.link(link)
        self._fabric.set_link(shaped, settings)
        if self._relay is not None and shaped.relayed:
            self._relay.set_link(link, settings)

    def check(self) -> None:
        """LabError when a program that the lab needs has ended: its links would be dead, or its load missing."""
        for daemon in (self._load, self._relay):
            if daemon is not None:
                daemon.check()

    def _loader(self) -> LoadDaemon:
        if self._load is None:
            self._load = LoadDaemon(self.record.prefix, self.topology.outs[0][0])
        return self._load

    def warm_up(self) -> None:
        """Start what background load needs now, so that later events begin at once."""
        with self._lock:
            self._loader()

    def counters(self) -> dict[LinkId, LinkCounters]:
        """What each shaped link did since the lab was built."""
        with self._lock:
            return self._fabric.counters()

    def cluster(self, *, with_events: bool = False) -> Cluster:
        """The lab as planners see it, one rank per host; `with_events`: capacities as the events in force leave them.

        Capacities are rates on the wire, of which TCP's payload is at most 1448/1514. Background load takes its UDP
        rate, or for n TCP flows n/(n+1) of the link.
        """
        with self._lock:
            return cluster(self.scenario, self.topology, tuple(self._effects.values()) if with_events else ())

    def close(self) -> None:
        """Remove the lab with everything that runs in it. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for daemon in (self._load, self._relay):
                if daemon is not None:
                    daemon.close()
            self._fabric.close()
            state.remove(self.record)

    def leave_up(self) -> None:
        """Let go of a detached lab without removing it."""
        with self._lock:
            self._closed = True
            self._fabric.close()
            if self._relay is not None:
                self._relay.let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _addresses(host: LabHost) -> tuple[str, ...]:
    """All that may be looked up, with the form in which a dual-stack socket sees an IPv4 peer."""
    return host.address, host.address6, f"::ffff:{host.address}"


def require_privileges() -> None:
    """LabError that says what is missing, when this process may not build labs."""
    if not kernel.privileged():
        raise LabError(
            "a lab needs root, or a user namespace in which this process is root (`headway lab run` makes one itself)"
        )
