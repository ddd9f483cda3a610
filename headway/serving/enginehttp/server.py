"""An engine on a port: its life, and the faults that concern its connections."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from headway.errors import UsageError
from headway.serving.engine.types import EngineProfile
from headway.serving.enginehttp.answering import Answering, ServingSettings
from headway.serving.enginehttp.api import Api, OnRequest
from headway.serving.enginehttp.faults import Faults, changed

MOST_STOP_S = 5.0
"""How long open answers may go on when an engine stops, seconds. Ours."""


class Engine:
    """An engine model that answers over HTTP, as an async context manager.

    Args:
        profile: how fast it is and what it holds.
        settings: how it serves its model.
        host, port: where it listens; port 0: any that is free.
        faults_path: whether `/admin/faults` is there.
        on_request: sees each call of the API with its body.

    Attributes:
        answering: the engine without its HTTP; there once it has started.
        faults: what is wrong with it now; change it by `set_faults`.
    """

    answering: Answering

    def __init__(
        self,
        profile: EngineProfile,
        settings: ServingSettings | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        faults_path: bool = False,
        on_request: OnRequest | None = None,
    ) -> None:
        self._profile = profile
        self._settings = settings or ServingSettings()
        self._host = host
        self.port = port
        self._faults_path = faults_path
        self._on_request = on_request
        self.faults = Faults()
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._refusal: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it answers, without a path."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Listen. UsageError where the port is taken."""
        self.answering = Answering(self._profile, self._settings)
        change = self._change if self._faults_path else None
        api = Api(self.answering, lambda: self.faults, change, self._on_request)
        self._runner = web.AppRunner(
            api.app(), handler_cancellation=True, access_log=None, shutdown_timeout=MOST_STOP_S
        )
        await self._runner.setup()
        try:
            await self._listen()
        except UsageError:
            await self._runner.cleanup()
            raise

    async def stop(self) -> None:
        """Take no more requests, let open ones end for up to `MOST_STOP_S`, and close."""
        await self._end(abrupt=False)

    async def kill(self) -> None:
        """As if the process had been killed: the port is closed and all connections end at once."""
        await self._end(abrupt=True)

    def set_faults(self, **wanted: Any) -> None:
        """Change some of the faults. ValueError says what is wrong with them."""
        self._change(wanted)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.kill()

    def _change(self, wanted: dict[str, Any]) -> None:
        self.faults = changed(self.faults, wanted)
        self.answering.pace.stall(self.faults.stall)
        self.answering.pace.slow_down(self.faults.slowdown)
        if self.faults.refuse_s and (self._refusal is None or self._refusal.done()):
            self._refusal = asyncio.get_running_loop().create_task(self._refuse(self.faults.refuse_s))

    async def _refuse(self, for_s: float) -> None:
        assert self._site is not None
        assert self._runner is not None
        await asyncio.sleep(0.05)  # the answer to whoever asked for it goes out first
        await self._site.stop()
        _drop_connections(self._runner)
        await asyncio.sleep(for_s)
        await self._listen()

    async def _listen(self) -> None:
        assert self._runner is not None
        self._site = web.TCPSite(self._runner, self._host, self.port, backlog=4096, reuse_address=True)
        try:
            await self._site.start()
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self._host}:{self.port}: {error.strerror or error}", hint="another --port"
            ) from error
        self.port = self._runner.addresses[-1][1]

    async def _end(self, *, abrupt: bool) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if self._refusal is not None:
            self._refusal.cancel()
            await asyncio.wait([self._refusal])
        for site in list(runner.sites):
            await site.stop()
        if abrupt:
            self.answering.close()
            _drop_connections(runner)
        await runner.cleanup()
        self.answering.close()
        if self._refusal is not None and not self._refusal.cancelled():
            self._refusal.result()  # raises what went wrong when it was to listen again


def _drop_connections(runner: web.AppRunner) -> None:
    server = runner.server
    for connection in list(server.connections) if server is not None else []:
        if connection.transport is not None:
            connection.transport.abort()
