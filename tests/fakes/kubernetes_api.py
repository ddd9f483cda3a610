"""An API server that knows enough for server-side apply: the real client talks to it over HTTP."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

Json = dict[str, Any]
PLURALS = (
    *("deployments", "services", "resourceclaims", "resourceclaimtemplates"),
    *("serviceaccounts", "roles", "rolebindings", "configmaps"),
)


class ApiServer:
    """Its state.

    Attributes:
        objects: by path.
        labels: of nodes, by name.
        unknown: beginnings of paths that it has never heard of.
        refuse: names of objects whose apply meets a conflict.
        forbidden: plurals that the account may neither read nor write.
        calls: (method, path, query) of all, in order.
        kubeconfig: a file that leads here.
    """

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, Json] = {}
        self.labels: dict[str, dict[str, str]] = {}
        self.unknown: list[str] = []
        self.refuse: set[str] = set()
        self.forbidden: set[str] = set()
        self.calls: list[tuple[str, str, dict[str, str]]] = []
        self.kubeconfig = folder / "kubeconfig"
        self._lock = threading.Lock()

    def names(self, plural: str) -> list[str]:
        """Of the objects of a kind."""
        return sorted(path.rsplit("/", 1)[1] for path in self.objects if path.rsplit("/", 2)[1] == plural)

    def written(self) -> list[tuple[str, str, dict[str, str]]]:
        """Calls that changed something."""
        return [call for call in self.calls if call[0] in ("PATCH", "DELETE") and "dryRun" not in call[2]]

    def answer(self, method: str, path: str, query: dict[str, str], content_type: str, body: bytes) -> tuple[int, Json]:
        """One call."""
        with self._lock:
            self.calls.append((method, path, query))
            if any(path.startswith(each) for each in self.unknown):
                return 404, {
                    "kind": "Status",
                    "message": "the server could not find the requested resource",
                    "code": 404,
                }
            if self.forbidden & set(path.split("/")):
                return 403, {"kind": "Status", "message": f"{path} is forbidden", "code": 403}
            if path == "/api/v1/nodes":
                items = [{"metadata": {"name": name, "labels": own}} for name, own in self.labels.items()]
                return 200, {"kind": "NodeList", "apiVersion": "v1", "items": items}
            if method == "PATCH":
                return self._apply(path, query, content_type, body)
            found = self.objects.get(path)
            if method == "GET" and path.rsplit("/", 1)[1] in PLURALS:
                return 200, {
                    "kind": "List",
                    "apiVersion": "v1",
                    "items": self._listed(path, query.get("labelSelector", "")),
                }
            if found is None:
                return 404, {"kind": "Status", "message": f"{path} not found", "code": 404}
            if method == "DELETE":
                del self.objects[path]
            return 200, found

    def _listed(self, path: str, selector: str) -> list[Json]:
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        return [
            each
            for name, each in self.objects.items()
            if name.rsplit("/", 1)[0] == path and wanted.items() <= each["metadata"].get("labels", {}).items()
        ]

    def _apply(self, path: str, query: dict[str, str], content_type: str, body: bytes) -> tuple[int, Json]:
        if content_type != "application/apply-patch+yaml" or not query.get("fieldManager"):
            return 415, {"kind": "Status", "message": "only server-side apply is known here", "code": 415}
        given = yaml.safe_load(body)
        if given["metadata"]["name"] in self.refuse:
            return 409, {"kind": "Status", "message": "conflict with helm: .spec.replicas", "code": 409}
        before = self.objects.get(path)
        made = copy.deepcopy(given)
        made["metadata"] |= {"uid": "u", "resourceVersion": str(len(self.calls)), "managedFields": []}
        if made["kind"] == "Service":
            made["spec"].setdefault("type", "ClusterIP")  # a default that the server fills in
        if "dryRun" not in query:
            self.objects[path] = made
        return (201 if before is None else 200), made


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # one packet for an answer: two would wait for each other's acknowledgement
    api: ApiServer

    def _any(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, answer = self.api.answer(self.command, url.path, query, self.headers.get("Content-Type", ""), body)
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PATCH = do_DELETE = do_POST = _any

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """One that listens, with a kubeconfig in `folder`."""
    api = ApiServer(folder)
    handler = type("Handler", (_Handler,), {"api": api})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        api.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
                    "users": [{"name": "u", "user": {"token": "secret"}}],
                    "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "serving"}}],
                }
            )
        )
        try:
            yield api
        finally:
            server.shutdown()
            thread.join(5)
