"""Names that Kubernetes takes (RFC 1123, and its labels' values). Pure."""

from __future__ import annotations

import re

from headway.errors import UsageError

_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_PART = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9][-A-Za-z0-9.]*(?::[0-9]+)?/)?"  # a registry
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?(?:@[a-z0-9]+:[0-9a-fA-F]{32,})?"
)
_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def check_name(name: str, *, where: str) -> str:
    """A plan's or a namespace's name. UsageError where it is none."""
    if _LABEL.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} is no name", where=where, hint="1 to 63 small letters, digits and -, no - at either end"
        )
    return name


def check_node(name: str, *, where: str = "") -> str:
    """A node's name, which is the value of a label, too. UsageError where it is none."""
    if len(name) > 63 or any(_PART.fullmatch(part) is None for part in name.split(".")):
        raise UsageError(
            f"{name!r} is no name of a node in Kubernetes",
            where=where,
            hint="63 small letters, digits, - and . at most, as kubectl get nodes or hostname prints it",
        )
    return name


def check_value(value: str, *, what: str) -> str:
    """The value of a label. UsageError where it is none."""
    if _VALUE.fullmatch(value) is None:
        raise UsageError(
            f"{what} {value!r} can be no label", hint="1 to 63 letters, digits and -_., a letter or digit at either end"
        )
    return value


def check_image(image: str, *, where: str) -> str:
    """A container image's name, as registries and runtimes take it. UsageError where it is none."""
    if _IMAGE.fullmatch(image) is None:
        raise UsageError(f"{image!r} is no name of an image", where=where, hint="like vllm/vllm-openai:v0.26.0")
    return image


def check_object(name: str, *, where: str) -> str:
    """The name of an object that others made. UsageError where it is none."""
    if len(name) > 253 or any(_PART.fullmatch(part) is None for part in name.split(".")):
        raise UsageError(f"{name!r} is no name of an object", where=where, hint="as kubectl get prints it")
    return name
