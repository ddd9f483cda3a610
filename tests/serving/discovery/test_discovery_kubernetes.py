"""Replicas from Kubernetes: the real client against a server that speaks the EndpointSlices' list and watch."""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from headway.errors import UsageError
from headway.serving.gateway.discovery import kubernetes_api
from headway.serving.gateway.discovery.endpoint_slices import endpoints, replicas
from headway.serving.gateway.discovery.kubernetes import KubernetesSource
from headway.serving.gateway.discovery.options import KubernetesOptions
from headway.serving.gateway.discovery.source import Replicas

LIMIT_S = 10.0
Json = dict[str, Any]


def slice_of(name: str, *entries: Json, version: int = 1, family: str = "IPv4", **more: Any) -> Json:
    return {
        "metadata": {"name": name, "resourceVersion": str(version), **more},
        "addressType": family,
        "endpoints": list(entries),
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}, {"name": "metrics", "port": 9000}],
    }


def pod(name: str, address: str, *, ready: bool | None = True, node: str = "n1") -> Json:
    conditions = {} if ready is None else {"ready": ready}
    target = {"kind": "Pod", "name": name}
    return {"addresses": [address], "conditions": conditions, "targetRef": target, "nodeName": node}


class Cluster:
    """The state of the API server, and its open watches.

    Attributes:
        slices: by name.
        version: of the list.
        oldest: watches from a version before this one get 410.
        mood: `well`, or `refuse` (403 for everything).
        lists, watches: how often each was asked, with the version of each watch.
    """

    def __init__(self) -> None:
        self.slices: dict[str, Json] = {}
        self.version = 1
        self.oldest = 0
        self.mood = "well"
        self.lists = 0
        self.watches: list[str] = []
        self.node_asked: list[str] = []
        self.authorization: set[str] = set()
        self.selectors: set[str] = set()
        self.connections: list[socket.socket] = []
        self._open: list[queue.Queue[Json | None]] = []
        self._lock = threading.Lock()

    def put(self, found: Json, kind: str = "MODIFIED") -> None:
        """Change one slice and tell who watches."""
        with self._lock:
            self.version += 1
            found["metadata"]["resourceVersion"] = str(self.version)
            self.slices[found["metadata"]["name"]] = found
            if kind == "DELETED":
                del self.slices[found["metadata"]["name"]]
            for each in self._open:
                each.put({"type": kind, "object": found})

    def event(self, event: Json | None) -> None:
        """Send this to who watches; None: end the watches."""
        with self._lock:
            for each in self._open:
                each.put(event)

    def opened(self) -> queue.Queue[Json | None]:
        events: queue.Queue[Json | None] = queue.Queue()
        with self._lock:
            self._open.append(events)
        return events

    def closed(self, events: queue.Queue[Json | None]) -> None:
        with self._lock:
            self._open.remove(events)

    @property
    def open_watches(self) -> int:
        with self._lock:
            return len(self._open)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def setup(self) -> None:
        super().setup()
        self.cluster.connections.append(self.connection)

    def do_GET(self) -> None:
        cluster = self.cluster
        path = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(path.query).items()}
        cluster.authorization.add(self.headers.get("Authorization", ""))
        if cluster.mood == "refuse":
            self._answer(403, {"message": "endpointslices is forbidden", "code": 403})
        elif path.path.startswith("/api/v1/nodes/"):
            node = path.path.rsplit("/", 1)[1]
            cluster.node_asked.append(node)
            self._answer(200, {"metadata": {"labels": {"nvidia.com/gpu.product": f"gpu-of-{node}"}}})
        elif path.path != "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices":
            self._answer(404, {"message": f"no {path.path}", "code": 404})
        elif query.get("watch", "").lower() == "true":
            self._watch(query["resourceVersion"])
        else:
            cluster.lists += 1
            cluster.selectors.add(query.get("labelSelector", ""))
            items = list(cluster.slices.values())
            self._answer(200, {"metadata": {"resourceVersion": str(cluster.version)}, "items": items})

    def _watch(self, version: str) -> None:
        cluster = self.cluster
        cluster.watches.append(version)
        if int(version) < cluster.oldest:
            self._answer(410, {"message": "too old resource version", "code": 410})
            return
        events = cluster.opened()
        try:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while (event := events.get(timeout=LIMIT_S)) is not None:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, queue.Empty):
            self.close_connection = True  # the client went away
        finally:
            cluster.closed(events)

    def _answer(self, status: int, body: Json) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Silent: the test asks the cluster what came."""


@contextmanager
def serving(tmp_path: Path) -> Iterator[tuple[Cluster, Path]]:
    """A cluster, and a kubeconfig for it."""
    cluster = Cluster()
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
                    "users": [{"name": "u", "user": {"token": "secret"}}],
                    "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "serving"}}],
                }
            )
        )
        try:
            yield cluster, kubeconfig
        finally:
            cluster.event(None)
            server.shutdown()
            thread.join(LIMIT_S)
            for connection in cluster.connections:  # those that are kept alive would go on answering
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def _options(kubeconfig: Path, **more: object) -> KubernetesOptions:
    given = {"kind": "kubernetes", "service": "engines", "kubeconfig": kubeconfig, "retry_at_most_s": 0.5, **more}
    return KubernetesOptions.model_validate(given)


async def _next(updates: AsyncGenerator[Replicas, None]) -> list[str]:
    return [spec.name for spec in await asyncio.wait_for(anext(updates), LIMIT_S)]


async def _until_watched(cluster: Cluster, count: int = 1) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not (cluster.open_watches and len(cluster.watches) >= count):
            await asyncio.sleep(0.01)


def test_endpoints_are_listed_and_followed(tmp_path: Path) -> None:
    with serving(tmp_path) as (cluster, kubeconfig):
        cluster.slices["s1"] = slice_of("s1", pod("a", "10.0.0.1"), pod("b", "10.0.0.2", ready=False))

        async def follow() -> None:
            async with aclosing(KubernetesSource(_options(kubeconfig)).watch()) as updates:
                (first,) = await asyncio.wait_for(anext(updates), LIMIT_S)
                assert (first.name, first.url) == ("a", "http://10.0.0.1:8000")
                await _until_watched(cluster)
                cluster.put(slice_of("s1", pod("a", "10.0.0.1"), pod("b", "10.0.0.2")))
                assert await _next(updates) == ["a", "b"]
                cluster.put(slice_of("s2", pod("c", "10.0.0.3")), "ADDED")
                assert await _next(updates) == ["a", "b", "c"]
                cluster.put(cluster.slices["s1"], "DELETED")
                assert await _next(updates) == ["c"]
            assert not [thread for thread in threading.enumerate() if thread.name.startswith("kubernetes ")]

        asyncio.run(follow())
        assert cluster.lists == 1
        assert cluster.watches == ["1"]
        assert cluster.authorization == {"Bearer secret"}
        assert cluster.selectors == {"kubernetes.io/service-name=engines"}


def test_a_watch_that_ends_goes_on_where_it_ended(tmp_path: Path) -> None:
    with serving(tmp_path) as (cluster, kubeconfig):
        cluster.slices["s1"] = slice_of("s1", pod("a", "10.0.0.1"))

        async def follow() -> None:
            async with aclosing(KubernetesSource(_options(kubeconfig)).watch()) as updates:
                await _next(updates)
                await _until_watched(cluster)
                cluster.event({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "77"}}})
                cluster.event(None)
                waiting = asyncio.create_task(_next(updates))
                await _until_watched(cluster, 2)
                cluster.put(slice_of("s1", pod("b", "10.0.0.2")))
                assert await waiting == ["b"]

        asyncio.run(follow())
        assert cluster.watches == ["1", "77"]
        assert cluster.lists == 1


@pytest.mark.parametrize("as_event", [True, False])
def test_a_version_that_is_gone_is_listed_again(tmp_path: Path, as_event: bool) -> None:
    with serving(tmp_path) as (cluster, kubeconfig):
        cluster.slices["s1"] = slice_of("s1", pod("a", "10.0.0.1"))

        async def follow() -> None:
            async with aclosing(KubernetesSource(_options(kubeconfig)).watch()) as updates:
                await _next(updates)
                await _until_watched(cluster)
                cluster.slices["s1"] = slice_of("s1", pod("b", "10.0.0.2"))  # an event that nobody saw
                cluster.version = cluster.oldest = 500
                if as_event:
                    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                    cluster.event({"type": "ERROR", "object": gone})
                else:
                    cluster.event(None)
                assert await _next(updates) == ["b"]

        asyncio.run(follow())
        assert cluster.lists == 2


def test_a_refusal_is_said_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path) as (cluster, kubeconfig):
        cluster.mood = "refuse"
        cluster.slices["s1"] = slice_of("s1", pod("a", "10.0.0.1"))

        async def follow() -> None:
            async with aclosing(KubernetesSource(_options(kubeconfig)).watch()) as updates:
                waiting = asyncio.create_task(_next(updates))
                await asyncio.sleep(1.2)  # the first try and at least one more
                assert not waiting.done()
                cluster.mood = "well"
                assert await waiting == ["a"]

        with caplog.at_level(logging.WARNING):
            asyncio.run(follow())
    told = [record.getMessage() for record in caplog.records if "headway" in record.name]
    assert told == [
        "kubernetes serving/engines: answers 403: endpointslices is forbidden; the replicas stay as they are"
    ]


def test_a_server_that_is_gone_leaves_the_set_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def follow() -> None:
        with serving(tmp_path) as (cluster, kubeconfig):
            cluster.slices["s1"] = slice_of("s1", pod("a", "10.0.0.1"))
            updates = KubernetesSource(_options(kubeconfig)).watch()
            assert await _next(updates) == ["a"]
            await _until_watched(cluster)
        async with aclosing(updates):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(updates), 1.0)

    with caplog.at_level(logging.WARNING):
        asyncio.run(follow())
    told = [record.getMessage() for record in caplog.records if "headway" in record.name]
    assert len(told) == 1
    assert "the replicas stay as they are" in told[0]


def test_the_accelerator_is_the_nodes_label(tmp_path: Path) -> None:
    with serving(tmp_path) as (cluster, kubeconfig):
        cluster.slices["s1"] = slice_of(
            "s1", pod("a", "10.0.0.1"), pod("b", "10.0.0.2", node="n2"), pod("c", "10.0.0.3")
        )

        async def follow() -> None:
            options = _options(kubeconfig, device_node_label="nvidia.com/gpu.product")
            async with aclosing(KubernetesSource(options).watch()) as updates:
                found = await asyncio.wait_for(anext(updates), LIMIT_S)
                assert [spec.device for spec in found] == ["gpu-of-n1", "gpu-of-n2", "gpu-of-n1"]

        asyncio.run(follow())
        assert sorted(cluster.node_asked) == ["n1", "n2"]


def test_no_kubeconfig_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no usable kubeconfig"):
        KubernetesSource(_options(tmp_path / "none"))


def test_a_context_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, kubeconfig), pytest.raises(UsageError, match=r"no usable kubeconfig.*elsewhere"):
        KubernetesSource(_options(kubeconfig, context="elsewhere"))


def test_without_the_client_it_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kubernetes", None)
    with pytest.raises(UsageError, match="pip install 'headway\\[kubernetes\\]'"):
        kubernetes_api.SliceApi(_options(tmp_path / "any"))


def test_of_a_dual_stack_pod_the_ipv4_address_counts() -> None:
    options = KubernetesOptions(kind="kubernetes", service="s")
    four, six = slice_of("z", pod("a", "10.0.0.1")), slice_of("a", pod("a", "fd00::1"), family="IPv6")
    assert [each.address for each in endpoints([six, four], options)] == ["10.0.0.1"]
    found = endpoints([six], options)
    assert [spec.url for spec in replicas(found, options, {})] == ["http://[fd00::1]:8000"]


def test_which_port_is_meant() -> None:
    one = {"addressType": "IPv4", "endpoints": [pod("a", "10.0.0.1", ready=None)], "metadata": {"name": "s"}}

    def port(ports: list[Json], wanted: int | str) -> int | None:
        options = KubernetesOptions(kind="kubernetes", service="s", port=wanted)
        return endpoints([{**one, "ports": ports}], options)[0].port

    several = [{"name": "http", "port": 8000}, {"name": "api", "port": 8001}]
    assert port(several, "") == 8000
    assert port(several, "api") == 8001
    assert port(several, 9) == 9
    assert port(several, "grpc") is None
    assert port([{"name": "x", "port": 80}, {"name": "y", "port": 81}], "") is None
    assert port([{"port": 80}], "") == 80


def test_a_label_of_the_slice_names_the_accelerator() -> None:
    options = KubernetesOptions(kind="kubernetes", service="s", device="a30")
    labelled = slice_of("s1", pod("a", "10.0.0.1"), labels={"headway.dev/device": "l20"})
    noted = slice_of("s2", pod("b", "10.0.0.2"), annotations={"headway.dev/device": "h200"})
    plain = slice_of("s3", pod("c", "10.0.0.3"))
    found = replicas(endpoints([labelled, noted, plain], options), options, {})
    assert [spec.device for spec in found] == ["l20", "h200", "a30"]
