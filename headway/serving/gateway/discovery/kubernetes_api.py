"""Listing and watching EndpointSlices with the official client. Blocking: for a thread of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headway.errors import UsageError
from headway.serving.gateway.discovery.endpoint_slices import Slice
from headway.serving.gateway.discovery.options import KubernetesOptions

if TYPE_CHECKING:
    from kubernetes import client
    from urllib3 import BaseHTTPResponse

ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
SERVICE_LABEL = "kubernetes.io/service-name"  # which Service a slice belongs to, by the API's definition
WATCH_SLACK_S = 30.0  # the server ends a watch; one that is silent for so long past that is dead


class UnreachableError(Exception):
    """The API did not do what was asked; the text says why."""


class ExpiredError(Exception):
    """The version to watch from is gone (410): list again."""


class SliceApi:
    """The EndpointSlices of one Service.

    Attributes:
        namespace: of the Service.

    Raises:
        UsageError: in the constructor: the client is not installed, or there is no usable kubeconfig.
    """

    def __init__(self, options: KubernetesOptions) -> None:
        try:
            from kubernetes import client
        except ModuleNotFoundError:
            raise UsageError(
                "discovery by Kubernetes needs its client", hint="pip install 'headway[kubernetes]'"
            ) from None
        self._options = options
        configuration = client.Configuration()
        self.namespace = configure(configuration, options)
        configuration.retries = False  # trying again is the caller's business, who says so
        self._client = client.ApiClient(configuration)
        self._slices = client.DiscoveryV1Api(self._client)
        self._nodes = client.CoreV1Api(self._client)
        self._lock = threading.Lock()
        self._stream: BaseHTTPResponse | None = None
        self._closed = False

    def list(self) -> tuple[dict[str, Slice], str]:
        """All slices by name, and the version from which to watch. UnreachableError where the API fails."""
        response = self._request()
        try:
            listed = _json(self._read(response))
        finally:
            response.release_conn()
        try:
            return {each["metadata"]["name"]: each for each in listed["items"]}, listed["metadata"]["resourceVersion"]
        except (KeyError, TypeError):
            raise UnreachableError("answers with something that is no list of EndpointSlices") from None

    def watch(self, version: str) -> Iterator[tuple[str, Slice]]:
        """Changes since `version`, as (ADDED, MODIFIED, DELETED or BOOKMARK, slice), until the server ends it.

        Raises:
            ExpiredError: `version` is too old.
            UnreachableError: the API fails, or the connection breaks.
        """
        response = self._request(version)
        try:
            with self._lock:
                self._stream = response
                if self._closed:
                    return
            for line in _lines(response):
                event = _json(line)
                kind, found = event.get("type"), event.get("object") or {}
                if kind == "ERROR":
                    if found.get("code") == 410:
                        raise ExpiredError
                    raise UnreachableError(f"the watch failed: {found.get('message') or found}")
                if kind in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK") and isinstance(found, dict):
                    yield kind, found
        finally:
            with self._lock:
                self._stream = None
            response.close()

    def node_label(self, node: str, label: str) -> str:
        """A label of a node, empty where it has none. UnreachableError where the API fails."""
        from urllib3.exceptions import HTTPError

        try:
            response = cast(
                "BaseHTTPResponse",
                self._nodes.read_node(node, _preload_content=False, _request_timeout=self._options.timeout_s),
            )
        except (HTTPError, OSError) as error:
            raise UnreachableError(_why(error)) from None
        try:
            found = _json(self._read(response))
        finally:
            response.release_conn()
        return str(((found.get("metadata") or {}).get("labels") or {}).get(label, ""))

    def cut(self) -> None:
        """End a watch that another thread waits in, now; later ones end at once."""
        with self._lock:
            self._closed = True
            if self._stream is not None:
                try:
                    self._stream.shutdown()
                except (ValueError, RuntimeError, OSError):
                    return  # it has just ended by itself

    def close(self) -> None:
        """Give the connections back. After the last call."""
        self._client.rest_client.pool_manager.clear()

    def _request(self, version: str | None = None) -> BaseHTTPResponse:
        from urllib3.exceptions import HTTPError

        options = self._options
        watch: dict[str, Any] = {}
        limit_s: float | tuple[float, float] = options.timeout_s
        if version is not None:
            watch = {
                "watch": True,
                "resource_version": version,
                "allow_watch_bookmarks": True,
                "timeout_seconds": options.watch_s,
            }
            limit_s = (options.timeout_s, options.watch_s + WATCH_SLACK_S)
        try:
            response = cast(
                "BaseHTTPResponse",
                self._slices.list_namespaced_endpoint_slice(
                    self.namespace,
                    label_selector=f"{SERVICE_LABEL}={options.service}",
                    _preload_content=False,
                    _request_timeout=limit_s,
                    **watch,
                ),
            )
        except (HTTPError, OSError) as error:
            raise UnreachableError(_why(error)) from None
        except _api_exception() as error:  # clients before 36 raise it also for a response that is not read yet
            if error.status == 410:
                raise ExpiredError from None
            raise UnreachableError(_refusal(error.status, error.body)) from None
        if response.status != 200:
            body = self._read(response, any_status=True)
            response.release_conn()
            if response.status == 410:
                raise ExpiredError
            raise UnreachableError(_refusal(response.status, body))
        return response

    def _read(self, response: BaseHTTPResponse, *, any_status: bool = False) -> bytes:
        from urllib3.exceptions import HTTPError

        try:
            body = response.read()
        except (HTTPError, OSError) as error:
            raise UnreachableError(_why(error)) from None
        if response.status != 200 and not any_status:
            raise UnreachableError(_refusal(response.status, body))
        return body


def configure(configuration: client.Configuration, options: KubernetesOptions) -> str:
    """Fill in where the API is and who asks; the namespace to look in."""
    config: Any = import_module("kubernetes.config")  # without types of its own
    where = f"kubernetes {options.service}"
    if options.kubeconfig is None and not options.context:
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            pass  # not in a pod: the kubeconfig it is
        else:
            try:
                return options.namespace or ACCOUNT_NAMESPACE.read_text().strip() or "default"
            except OSError:
                return "default"
    file = None if options.kubeconfig is None else str(options.kubeconfig)
    try:
        config.load_kube_config(file, context=options.context or None, client_configuration=configuration)
        contexts, current = config.list_kube_config_contexts(file)
    except (config.ConfigException, OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"no usable kubeconfig: {error}", where=where, hint="set kubeconfig:, or run in a pod"
        ) from None
    if options.context:
        current = next(each for each in contexts if each["name"] == options.context)
    return options.namespace or current["context"].get("namespace") or "default"


def _api_exception() -> type[client.ApiException]:
    from kubernetes import client

    return client.ApiException


def _lines(response: BaseHTTPResponse) -> Iterator[bytes]:
    from urllib3.exceptions import HTTPError

    rest = b""
    try:
        for part in response.stream(amt=None, decode_content=True):
            *whole, rest = (rest + part).split(b"\n")
            yield from (line for line in whole if line.strip())
    except (HTTPError, OSError) as error:
        raise UnreachableError(f"the watch broke: {_why(error)}") from None


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        raise UnreachableError("answers with something that is no JSON") from None
    if not isinstance(found, dict):
        raise UnreachableError("answers with something that is no object")
    return found


def _refusal(status: int, body: object) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        text = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        text = text[:200]
    return f"answers {status}: {text}"


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
