"""The gateway as a whole: its parts put together from a configuration, run, reloaded, stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping

import aiohttp

from headway.decide.journal import Record, ServingRecord
from headway.decide.journal_file import FileJournal
from headway.errors import UsageError
from headway.serving.gateway.admission import Admission
from headway.serving.gateway.config import Config, Listen, Pool
from headway.serving.gateway.config_file import load_keys, secret
from headway.serving.gateway.connection import Answer
from headway.serving.gateway.health import Health
from headway.serving.gateway.limits import KeyRing
from headway.serving.gateway.pages import Pages
from headway.serving.gateway.policy_maker import PolicyMaker, check_policy
from headway.serving.gateway.pools import RELOADED, Clock, Notes, RunningPool
from headway.serving.gateway.proxy import Proxy
from headway.serving.gateway.server import SPARE_FILES, Front, Listening, drained, many_files
from headway.serving.gateway.telemetry import Telemetry
from headway.serving.gateway.tracing import Tracing
from headway.serving.gateway.upstream import session
from headway.serving.words import counted

SAID_EVERY_S = 10.0
"""Between two lines that say that connections are turned away."""
_LIVE = ("limits", "timeouts", "retries", "keys", "keys_file")
"""Parts of the configuration that may change while the gateway runs, beside some of each pool's fields."""


class Gateway:
    """A gateway in this process's event loop: `async with Gateway(config, os.environ) as gateway: ...`.

    Attributes:
        url: where it listens, once it does.
        metrics_url: where its metrics are.
        admission: what it is doing.

    Args:
        config: what to run.
        environment: variables, for the secrets that the configuration names.
        told: called with each line worth reading: replicas that come and go, a policy that falls back.

    Raises:
        UsageError: in the constructor: a secret is missing, a policy or a file is wrong; on entering: an address can't
            be listened on.
    """

    def __init__(
        self, config: Config, environment: Mapping[str, str], *, told: Callable[[str], None] = lambda line: None
    ) -> None:
        self.url = self.metrics_url = ""
        self._config, self._environment, self._told = config, environment, told
        self._telemetry = Telemetry()
        self._policies = PolicyMaker(told, self._telemetry)
        self._tracing = (
            Tracing(config.tracing.endpoint, share=config.tracing.sample) if config.tracing is not None else None
        )
        self._journal = _journal(config, told)
        for pool in config.pools:
            check_policy(pool)
        clock = Clock()
        heard = [self._telemetry.record, self._tell]
        if self._tracing is not None:
            heard.append(self._tracing.record)
        self._notes = Notes(self._journal, heard)
        pools = [
            RunningPool(
                pool,
                clock=clock,
                journal=self._notes,
                record_blocks=config.journal is not None and config.journal.prefix_blocks,
                most_open=config.limits.requests_per_replica,
                authorization=engine_key(pool, environment),
                policy_of=self._policies.policy,
            )
            for pool in config.pools
        ]
        self.admission = Admission(
            config=config,
            pools=pools,
            keys=KeyRing(load_keys(config, environment), config.limits.per_key),
            telemetry=self._telemetry,
            clock=clock,
            tracing=self._tracing,
        )
        self._admin_token = admin_token(config, environment)
        self._listening: list[Listening] = []
        self._following: list[asyncio.Task[None]] = []
        self._said_full_s = float("-inf")
        self._signals: tuple[signal.Signals, ...] = ()
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._connections: aiohttp.ClientSession | None = None
        self._asking: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Gateway:
        config = self._config
        files = many_files(2 * config.limits.open_requests + SPARE_FILES)
        self.admission.most_open = (files - SPARE_FILES) // 2
        self._connections = session(connect_s=config.timeouts.connect_s)
        self._asking = session(connect_s=config.timeouts.connect_s)
        pages = Pages(self.admission, self._admin_token, self._dropped)
        metrics_here = config.metrics.port is None
        proxy = Proxy(self.admission, self._connections, Health(self._asking))
        front = Front(proxy, pages, metrics_here=metrics_here)
        try:
            self._policies.begin()
            self.url = await self._listen(front.answer, config.listen)
            self.metrics_url = self.url
            if config.metrics.port is not None:
                listen = Listen(host=config.metrics.host or config.listen.host, port=config.metrics.port)
                self.metrics_url = await self._listen(front.metrics, listen)
        except BaseException:
            await self._close()
            raise
        self._following = [
            asyncio.create_task(pool.follow(self._asking), name=f"replicas of pool {pool.pool.name}")
            for pool in self.admission.pools
        ]
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop: take no new requests, let those that are open end, within the limit end them."""
        self.admission.draining = True
        for listening in self._listening:
            await listening.refuse()
        ended = await drained(self.admission, limit_s=self.admission.config.timeouts.drain_s, hurry=self._hurry)
        if ended:
            self._told(f"ended {counted(ended, 'request')} still open")
        await self._close()
        for number in self._signals:
            asyncio.get_running_loop().remove_signal_handler(number)

    async def until_stopped(self, reread: Callable[[], Config] | None = None) -> None:
        """Run until SIGTERM or SIGINT. SIGHUP reads the configuration again.

        A second SIGTERM or SIGINT, while open requests may end, ends them. Leaving the gateway frees the signals.

        Args:
            reread: reads it; None: SIGHUP only makes the journal follow a rotation.

        Raises:
            UsageError: a source of replicas is wrong. (A bad configuration at SIGHUP is said, and the old one stays.)
        """
        if self.admission.most_open < self.admission.config.limits.open_requests:
            self._told(f"takes {self.admission.most_open} open requests, all that the limit on open files allows")
        loop = asyncio.get_running_loop()
        self._signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        loop.add_signal_handler(signal.SIGTERM, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGINT, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up, reread)
        stopping = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait([stopping, *self._following], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stopping.cancel()
        count = self.admission.open_requests
        drain_s = self.admission.config.timeouts.drain_s
        rest = f" open, with {drain_s:g} s to end; a second signal ends all at once" if count else " open"
        self._told(f"stops; {counted(count, 'request')}{rest}")

    def reload(self, config: Config) -> list[str]:
        """Take over what may change while it runs; returns the parts that differ but need a new start. UsageError:
        something in it is wrong; then nothing has changed."""
        for pool in config.pools:
            check_policy(pool)
        keys = load_keys(config, self._environment)
        old = self._config
        live = {name: getattr(config, name) for name in _LIVE}
        by_name = {pool.name: pool for pool in config.pools}
        self.admission.keys.replace(keys, config.limits.per_key)
        for running in self.admission.pools:
            running.most_open = config.limits.requests_per_replica
            if running.pool.name in by_name:
                running.set_policy(by_name[running.pool.name])
        fixed = [name for name in type(config).model_fields if name not in _LIVE and name != "pools"]
        waiting = [name for name in fixed if getattr(config, name) != getattr(old, name)]
        if _fixed_pools(config) != _fixed_pools(old):
            waiting.append("pools")
        self._config = self.admission.config = old.model_copy(update=live)
        return waiting

    def _asked_to_stop(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
        elif not self._hurry.is_set():
            self._told("ends all open requests now")
            self._hurry.set()

    def _hung_up(self, reread: Callable[[], Config] | None) -> None:
        if self._journal is not None:
            self._journal.look()  # it may have been rotated
        if reread is None or self._stop.is_set():
            return
        try:
            waiting = self.reload(reread())
        except UsageError as error:
            self._told(f"keeps its configuration: {error}")
        else:
            rest = f"; needs a new start: {', '.join(waiting)}" if waiting else ""
            self._told(f"has read its configuration again{rest}")

    def _tell(self, record: Record) -> None:
        if isinstance(record, ServingRecord):
            if record.event in ("join", "leave"):
                self._telemetry.know(self.admission.models())
            self._told(record.what)

    def _dropped(self) -> tuple[int, int]:
        unheard = sum(pool.journal_errors for pool in self.admission.pools)
        return self._notes.dropped + unheard, self._tracing.dropped if self._tracing is not None else 0

    async def _listen(self, answer: Answer, listen: Listen) -> str:
        most = self.admission.most_open + SPARE_FILES // 2  # so that the answer to one too many is an error, with words
        listening = Listening(
            answer, listen, most=min(most, max(1024, 2 * self._config.limits.open_requests)), full=self._is_full
        )
        self._listening.append(listening)
        return await listening.start()

    def _is_full(self) -> None:
        self._telemetry.refused("connections")
        now_s = self.admission.clock.now_s()
        if now_s - self._said_full_s > SAID_EVERY_S:
            self._said_full_s = now_s
            self._told("has as many connections as it takes; more are turned away")

    async def _close(self) -> None:
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        for listening in self._listening:
            await listening.close()
        self.admission.close()
        for connections in (self._connections, self._asking):
            if connections is not None:
                await connections.close()
        await asyncio.to_thread(self._policies.close)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
        if self._journal is not None:
            self._journal.close()


def engine_key(pool: Pool, environment: Mapping[str, str]) -> str:
    """The Authorization header for a pool's replicas; empty: none of ours. UsageError: the variable isn't set."""
    if not pool.engine_key_env:
        return ""
    return f"Bearer {secret(pool.engine_key_env, environment, where=f'pool {pool.name}: engine_key_env')}"


def admin_token(config: Config, environment: Mapping[str, str]) -> str:
    """The token of the state page; empty: none. UsageError: the variable isn't set."""
    if not config.admin_token_env:
        return ""
    return secret(config.admin_token_env, environment, where="admin_token_env")


def _journal(config: Config, told: Callable[[str], None]) -> FileJournal | None:
    if config.journal is None:
        return None
    try:
        return FileJournal(config.journal.path, max_bytes=config.journal.max_bytes, on_trouble=told)
    except UsageError as error:
        raise UsageError(error.what, where=f"journal.path: {error.where}") from None


def _fixed_pools(config: Config) -> list[dict[str, object]]:
    """What of the pools can't change while the gateway runs."""
    return [pool.model_dump(exclude=set(RELOADED)) for pool in config.pools]
