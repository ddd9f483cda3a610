"""Replicas from Kubernetes: the ready endpoints of a Service, followed while they change."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable

from headway.serving.gateway.discovery.endpoint_slices import Endpoint, Slice, endpoints, replicas
from headway.serving.gateway.discovery.kubernetes_api import ExpiredError, SliceApi, UnreachableError
from headway.serving.gateway.discovery.options import KubernetesOptions
from headway.serving.gateway.discovery.source import Replicas

_LOG = logging.getLogger(__name__)
FIRST_RETRY_S = 0.5
SHORT_WATCH_S = 1.0  # a watch that ended sooner, without news, is a failure as far as trying again goes
END_S = 5.0


class KubernetesSource:
    """Lists the EndpointSlices, then watches from that version on, in a thread of its own.

    A watch that the server ends is begun anew where it ended. When that version has gone (410) everything is listed
    again. While the API cannot be reached the last set stays, as it does in the cluster itself; what is wrong is said
    once, and tried again with growing waits.

    Raises:
        UsageError: in the constructor, as `SliceApi`.
    """

    def __init__(self, options: KubernetesOptions) -> None:
        self._options = options
        self._api = SliceApi(options)
        self.name = f"kubernetes {self._api.namespace}/{options.service}"

    async def watch(self) -> AsyncGenerator[Replicas, None]:
        """As `Source.watch`. To be called once."""
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[Replicas | Exception] = asyncio.Queue()

        def give(what: Replicas | Exception) -> None:
            try:
                loop.call_soon_threadsafe(news.put_nowait, what)
            except RuntimeError:  # the loop has been closed without closing this generator
                follower.stop()

        follower = _Follower(self._api, self._options, self.name, give)
        thread = threading.Thread(target=follower.run, name=self.name, daemon=True)
        thread.start()
        try:
            given: Replicas | None = None
            while True:
                what = await news.get()
                if isinstance(what, Exception):
                    raise what
                if what != given:
                    given = what
                    yield what
        finally:
            follower.stop()
            await asyncio.to_thread(thread.join, END_S)
            self._api.close()


class _Follower:
    """What the thread does."""

    def __init__(
        self, api: SliceApi, options: KubernetesOptions, name: str, give: Callable[[Replicas | Exception], None]
    ) -> None:
        self._api = api
        self._options = options
        self._name = name
        self._give = give
        self._stopped = threading.Event()
        self._slices: dict[str, Slice] = {}
        self._devices: dict[str, str] = {}
        self._ailment = ""
        self._said: set[str] = set()

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stopped.set()
        self._api.cut()

    def run(self) -> None:
        """Follow the Service until `stop`."""
        try:
            self._follow()
        except Exception as error:  # a mistake of ours: the gateway must hear of it, not only this thread
            self._give(error)

    def _follow(self) -> None:
        version: str | None = None
        wait_s = FIRST_RETRY_S
        while not self._stopped.is_set():
            begun_s = time.monotonic()
            heard = failed = False
            try:
                if version is None:
                    self._slices, version = self._api.list()
                    self._tell()
                for kind, found in self._api.watch(version):
                    heard = True
                    self._well()
                    version = self._apply(kind, found) or version
                self._well()
            except ExpiredError:
                version = None
            except UnreachableError as error:
                failed = True
                self._ail(str(error))
            lasted = heard or time.monotonic() - begun_s >= SHORT_WATCH_S
            if lasted:
                wait_s = FIRST_RETRY_S
            if failed or not lasted:
                self._stopped.wait(wait_s)
                wait_s = min(2 * wait_s, self._options.retry_at_most_s)

    def _ail(self, error: str) -> None:
        if error != self._ailment and not self._stopped.is_set():
            self._ailment = error
            _LOG.warning("%s: %s; the replicas stay as they are", self._name, error)

    def _well(self) -> None:
        if self._ailment and not self._stopped.is_set():
            self._ailment = ""
            _LOG.warning("%s: answers again", self._name)

    def _apply(self, kind: str, found: Slice) -> str | None:
        """Take in one event; the version after it."""
        metadata = found.get("metadata") or {}
        if kind != "BOOKMARK":
            if kind == "DELETED":
                self._slices.pop(metadata.get("name", ""), None)
            else:
                self._slices[metadata.get("name", "")] = found
            self._tell()
        version: str | None = metadata.get("resourceVersion")
        return version

    def _tell(self) -> None:
        found = endpoints(self._slices.values(), self._options)
        for each in found:
            if each.port is None:
                wanted = f"no port {self._options.port!r}" if self._options.port else "several ports, none named http"
                self._say(f"{self._name}: {each.name or each.address} has {wanted}: say which one with port:")
        if self._options.device_node_label:
            self._ask_nodes(found)
        self._give(replicas(found, self._options, self._devices))

    def _ask_nodes(self, found: list[Endpoint]) -> None:
        for node in {each.node for each in found if each.node and not each.device} - set(self._devices):
            try:
                self._devices[node] = self._api.node_label(node, self._options.device_node_label)
            except UnreachableError as error:
                self._say(f"{self._name}: cannot ask which device node {node} has: {error}")

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            _LOG.warning("%s", what)
