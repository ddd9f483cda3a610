"""Reading the gateway's file: errors name file, line and field."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from headway.errors import UsageError
from headway.serving.gateway import config as models
from headway.serving.gateway.config import Config, Key
from headway.serving.gateway.discovery import options as discovery

T = TypeVar("T")
_TOLD = 3
"""Problems that one error tells of."""
_WORDS = {
    "extra_forbidden": "there is no such field",
    "missing": "is missing",
    "model_type": "must be a mapping of fields",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "string_type": "must be text (quotes help)",
    "union_tag_invalid": "kind must be one of static, file, dns and kubernetes",
    "union_tag_not_found": "kind is missing: static, file, dns or kubernetes",
}
"""Instead of pydantic's words for some types of error, which name Python's types."""
_KINDS = ("static", "file", "dns", "kubernetes")


def load_config(path: Path) -> Config:
    """A gateway's configuration. UsageError names file, line and field of what is wrong."""
    return parse_config(_text(path), where=str(path))


def parse_config(text: str, *, where: str) -> Config:
    """As `load_config`, of the file's text. Relative paths in it are relative to the working directory."""
    return _parsed(text, TypeAdapter(Config), where)


def load_keys(config: Config, environment: Mapping[str, str]) -> tuple[Key, ...]:
    """All keys, those of `keys_file` after those of the file itself, each as its SHA-256.

    Raises:
        UsageError: a variable or file isn't there or is empty, a name or a key is there twice.
    """
    keys = list(config.keys)
    if config.keys_file is not None:
        keys += _parsed(_text(config.keys_file), TypeAdapter(tuple[Key, ...]), str(config.keys_file))
    hashed = [_hashed(key, environment) for key in keys]
    for what, values in (("name", [key.name for key in hashed]), ("key", [key.sha256 or "" for key in hashed])):
        for number, value in enumerate(values):
            if value in values[:number]:
                raise UsageError(f"the {what} of {hashed[number].name!r} is there twice", where="keys")
    return tuple(hashed)


def secret(name: str, environment: Mapping[str, str], *, where: str) -> str:
    """A variable that holds a secret. UsageError where it isn't set."""
    value = environment.get(name, "").strip()
    if not value:
        raise UsageError(f"the environment variable {name} is not set", where=where, hint=f"export {name}=...")
    return value


def _hashed(key: Key, environment: Mapping[str, str]) -> Key:
    if key.sha256 is not None:
        return key
    where = f"keys: {key.name}"
    if key.env is not None:
        plain = secret(key.env, environment, where=where)
    else:
        assert key.file is not None  # `Key` has seen to it
        plain = _text(key.file).strip()
        if not plain:
            raise UsageError("holds no key", where=f"{where}: {key.file}")
    return key.model_copy(update={"env": None, "file": None, "sha256": sha256(plain.encode()).hexdigest()})


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise UsageError("is not text", where=str(path), hint="a YAML file in UTF-8") from None


class _Loader(yaml.SafeLoader):
    """YAML in which a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        """The mapping; MarkedYAMLError where a key is there twice: YAML would silently take the last."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                problem = f"{key.value!r} in line {line} is there already in line {lines[key.value]}"
                raise yaml.MarkedYAMLError(problem=problem)
            lines[key.value] = line
        return super().construct_mapping(node, deep)


def _parsed(text: str, adapter: TypeAdapter[T], where: str) -> T:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        data: object = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        at = f":{error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise UsageError(" ".join(str(error.problem or error).split()), where=f"{where}{at}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(" ".join(str(error).split()), where=where) from None
    finally:
        loader.dispose()
    if node is None:
        raise UsageError("is empty", where=where, hint="see docs/gateway.md for the fields")
    try:
        return adapter.validate_python(data)
    except ValidationError as error:
        raise _usage_error(error, node, where) from None


def _usage_error(error: ValidationError, node: yaml.Node, where: str) -> UsageError:
    """One line of what pydantic found, with the line of the first."""
    problems: dict[tuple[str, ...], str] = {}
    first_loc: tuple[int | str, ...] = ()
    first_type = ""
    found = [(tuple(part for part in each["loc"] if part not in _KINDS), each) for each in error.errors()]
    for loc, problem in found:
        if any(other[: len(loc)] == loc and len(other) > len(loc) for other, _ in found):
            continue  # a list that is short because what it should hold is wrong
        message = _WORDS.get(problem["type"], problem["msg"].removeprefix("Value error, "))
        if not problems:
            first_loc, first_type = loc, problem["type"]
        problems.setdefault(tuple(str(part) for part in loc), message)
    (parts, first), *others = problems.items()
    told = [first, *(f"{'.'.join(field)}: {message}" for field, message in others[: _TOLD - 1])]
    if len(problems) > _TOLD:
        told.append(f"and {len(problems) - _TOLD} more")
    hint = "see docs/gateway.md for the fields"
    if first_type == "extra_forbidden":
        close = difflib.get_close_matches(parts[-1], _known_fields(), n=1)
        hint = f"did you mean {close[0]}?" if close else hint
    field = f": {'.'.join(parts)}" if parts else ""
    return UsageError("; ".join(told), where=f"{where}:{_line(node, first_loc)}{field}", hint=hint)


def _line(node: yaml.Node, location: tuple[int | str, ...]) -> int:
    """The line of a field, or of the innermost thing around it that the file has."""
    line = node.start_mark.line + 1
    for part in location:
        below: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                    below, line = value, key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            below = node.value[part]
            line = below.start_mark.line + 1
        if below is None:
            return line
        node = below
    return line


def _known_fields() -> list[str]:
    parts = [each for module in (models, discovery) for each in vars(module).values()]
    return sorted(
        {name for part in parts if isinstance(part, type) and issubclass(part, BaseModel) for name in part.model_fields}
    )
