"""Reading scenarios: from a file, or from those that come with Headway."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path

import yaml
from pydantic import ValidationError

from headway.errors import UsageError
from headway.lab.quantities import FROM_TEXT
from headway.lab.scenario import BwEvent, DelayEvent, Event, LoadEvent, LossEvent, Scenario

SHIPPED = Path(__file__).parent / "scenarios"
_EVENT_TYPES: dict[str, type[Event]] = {"bw": BwEvent, "delay": DelayEvent, "loss": LossEvent, "load": LoadEvent}
_DEEPEST = 8
_TOLD = 4
"""Problems that one error tells of; a file of another kind has hundreds."""
_WORDS = {
    "extra_forbidden": "there is no such field",
    "missing": "is missing",
    "model_type": "must be a mapping of fields",
    "tuple_type": "must be a list",
    "string_type": "must be a word",
}
"""Instead of pydantic's words for some types of error, which name Python's types and our classes."""


class _Loader(yaml.SafeLoader):
    """YAML where `on` and `off` are words, as in YAML 1.2 (they are names of fields here), and a key stands once."""

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


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or letter in "tTfF"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def shipped() -> tuple[str, ...]:
    """Names of the scenarios that come with Headway."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def load_scenario(name: str | Path) -> Scenario:
    """A scenario by path, or by the name of a shipped one. UsageError names file and field of what is wrong."""
    path = _locate(str(name), Path.cwd())
    return parse_scenario(_merged(path, ()), where=str(path))


def scenario_mapping(source: str | Mapping[str, object], *, base: Path, where: str) -> dict[str, object]:
    """The mapping of a scenario with all that it extends, not checked yet: for those who change fields of it.

    Args:
        source: a path or the name of a shipped scenario, or what a scenario's file holds.
        base: folder that paths start from.
        where: file and field of a mapping, for errors.
    """
    if isinstance(source, str):
        return _merged(_locate(source, base), ())
    own = dict(source)
    parent = own.pop("extends", None)
    if parent is None:
        return own
    if not isinstance(parent, str):
        raise UsageError("must be a scenario's name or path", where=f"{where}.extends")
    return _overlay(_merged(_locate(parent, base), ()), own)


def read_yaml(path: Path) -> dict[str, object]:
    """A YAML file that holds a mapping of names. UsageError names the file, and the line where YAML has one."""
    try:
        data: object = yaml.load(path.read_text(), _Loader)
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror}", where=str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(" ".join(str(error).split()), where=str(path)) from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise UsageError("must be a mapping of fields", where=str(path))
    return dict(data)


def parse_scenario(data: Mapping[str, object], *, where: str) -> Scenario:
    """A scenario from the mapping that a file holds."""
    try:
        return Scenario.model_validate(data, context=FROM_TEXT)
    except ValidationError as error:
        raise _usage_error(error, where) from None


def parse_event(data: Mapping[str, object], *, where: str = "event") -> Event:
    """One event as a file would hold it, e.g. {"id": "x", "type": "load", "target": "host3", "udp": "50%"}."""
    kind = _EVENT_TYPES.get(str(data.get("type")))
    if kind is None:
        raise UsageError(
            f"{data.get('type')!r} is no type of event",
            where=f"{where}: type",
            hint=f"one of {', '.join(_EVENT_TYPES)}",
        )
    try:
        return kind.model_validate(data, context=FROM_TEXT)
    except ValidationError as error:
        raise _usage_error(error, where) from None


def _usage_error(error: ValidationError, where: str) -> UsageError:
    """One line of all that pydantic found; of the forms that a field may have only the deepest, which was meant."""
    problems: dict[tuple[str, ...], str] = {}
    for problem in error.errors():
        message = _WORDS.get(problem["type"], problem["msg"].removeprefix("Value error, "))
        problems.setdefault(_field(problem["loc"]), message)
    meant = {
        parts: message
        for parts, message in problems.items()
        if not any(other[: len(parts)] == parts and len(other) > len(parts) for other in problems)
    }
    (parts, first), *others = meant.items()
    told = [first, *(f"{'.'.join(field)}: {message}" for field, message in others[: _TOLD - 1])]
    if len(meant) > _TOLD:
        told.append(f"and {len(meant) - _TOLD} more")
    return UsageError(
        "; ".join(told),
        where=f"{where}: {'.'.join(parts)}" if parts else where,
        hint="see docs/lab.md for the fields",
    )


def _field(location: tuple[int | str, ...]) -> tuple[str, ...]:
    """A field's path as the file has it, without the names that pydantic gives to the forms of a choice."""
    named = [
        part
        for before, part in zip((None, *location), location, strict=False)
        if not (isinstance(before, int) and part in _EVENT_TYPES) and part != "constrained-int" and "[" not in str(part)
    ]
    return tuple(str(part) for part in named)


def _locate(name: str, base: Path) -> Path:
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        path = SHIPPED / f"{name}.yaml"
        if path.is_file():
            return path
        raise UsageError(f"there is no scenario {name!r}", hint=f"a path, or one of {', '.join(shipped())}")
    path = base / name
    if path.is_dir():
        raise UsageError("is a folder", where=str(path), hint="name the scenario's file")
    if not path.exists():
        raise UsageError("there is no such file", where=str(path))
    return path


def _merged(path: Path, children: tuple[Path, ...]) -> dict[str, object]:
    """The file's mapping laid over that of the scenario it extends."""
    if path in children or len(children) > _DEEPEST:
        raise UsageError("a scenario extends itself", where=f"{path}: extends")
    own = read_yaml(path)
    parent = own.pop("extends", None)
    own.setdefault("name", path.stem)
    if parent is None:
        return own
    if not isinstance(parent, str):
        raise UsageError("must be a scenario's name or path", where=f"{path}: extends")
    return _overlay(_merged(_locate(parent, path.parent), (*children, path)), own)


def _overlay(below: dict[str, object], above: Mapping[str, object]) -> dict[str, object]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, str) and isinstance(value, dict) and value.keys() <= {"up", "down"}:
            old = {"up": old, "down": old}
        result[key] = _overlay(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
