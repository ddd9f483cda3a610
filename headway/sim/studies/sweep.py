"""A sweep: one scenario with some of its fields varied, as a product of axes. Pure.

`docs/sim-sweep.md` documents the file. A field's path is its keys from the top, with points between; an item of a list
is called by its place, or by its `id` or `name`: `access`, `jobs.0.policy`, `events.busy.udp`. Three axes are no
fields but arguments of the simulator: `seed`, `execution`, `until`.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from headway.cluster.units import parse_time
from headway.collectives.plan_book import PINNABLE
from headway.errors import UsageError
from headway.lab.files import parse_scenario, read_yaml, scenario_mapping
from headway.lab.scenario import Scenario
from headway.sim.execution.collective import Execution
from headway.sim.run import Simulation
from headway.sim.studies.cells import Cell, Json

ARGUMENTS: dict[str, JsonValue] = {"seed": 0, "execution": Execution.PIECES.value, "until": None}
"""Axes that are arguments of `simulate`, and what they are without an axis."""
_FIELDS = ("name", "scenario", "axes", "exclude", *ARGUMENTS)
_RANGE = re.compile(r"\s*(-?\d+)\s*\.\.\s*(-?\d+)\s*")
MOST_CELLS = 100_000


@dataclass(frozen=True)
class Axis:
    """What is varied.

    Attributes:
        name: as the file has it: one field's path, or several with commas between, which move together.
        paths: those.
        values: one for each place on the axis; with several paths and a list of as many, each field has its own.
    """

    name: str
    paths: tuple[str, ...]
    values: tuple[JsonValue, ...]

    def settings(self, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
        """(path, value) of each field."""
        each = value if isinstance(value, list) and len(self.paths) > 1 else [value] * len(self.paths)
        return zip(self.paths, each, strict=True)


@dataclass(frozen=True)
class Sweep:
    """A sweep's file, checked: every cell's scenario is valid.

    Attributes:
        name: for people.
        axes: in the order of the file.
        cells: the product of the axes without what is excluded, the last axis fastest.
    """

    name: str
    axes: tuple[Axis, ...]
    cells: tuple[Cell, ...]


def load_sweep(path: Path) -> Sweep:
    """Read and check a sweep's file. UsageError names the file and the field of what is wrong."""
    return parse_sweep(read_yaml(path), base=path.parent, where=str(path), name=path.stem)


def parse_sweep(data: Mapping[str, object], *, base: Path, where: str, name: str) -> Sweep:
    """A sweep from the mapping that a file holds; `base` is the folder that scenario paths start from."""
    unknown = sorted(set(data) - set(_FIELDS))
    if unknown:
        hint = f"one of {', '.join(_FIELDS)}"
        raise UsageError("there is no such field", where=f"{where}: {unknown[0]}", hint=hint)
    source = data.get("scenario")
    if not isinstance(source, (str, dict)):
        raise UsageError("name a scenario, or give one's fields", where=f"{where}: scenario")
    scenario = _json(_scenario(source, base, f"{where}: scenario"), f"{where}: scenario")
    assert isinstance(scenario, dict)
    scenario.setdefault("name", name)
    fixed = {key: _json(data.get(key, default), f"{where}: {key}") for key, default in ARGUMENTS.items()}
    axes = _axes(data.get("axes"), where)
    for key in ARGUMENTS:
        if key in data and any(key in axis.paths for axis in axes):
            raise UsageError("is an axis too", where=f"{where}: {key}")
    maker = _Maker(scenario, fixed, axes, where)
    cells = maker.cells(_excluded(data.get("exclude", []), axes, where))
    if not cells:
        raise UsageError("nothing is left", where=f"{where}: exclude")
    return Sweep(str(data.get("name", name)), axes, tuple(cells))


def _scenario(source: str | dict[str, object], base: Path, where: str) -> dict[str, object]:
    try:
        return scenario_mapping(source, base=base, where=where)
    except UsageError as error:
        raise error if error.where else UsageError(error.what, where=where, hint=error.hint) from None


def scenario_of(work: Json) -> Scenario:
    """The scenario of a cell's work."""
    mapping = work["scenario"]
    assert isinstance(mapping, dict)
    return parse_scenario(mapping, where=str(mapping["name"]))


def arguments_of(work: Json) -> tuple[Execution, int, float]:
    """(execution, seed, until in seconds) of a cell's work."""
    until = work["until"]
    return Execution(work["execution"]), int(str(work["seed"])), float("inf") if until is None else float(str(until))


class _Maker:
    """Makes cells out of places on the axes, and blames the axis when a cell cannot be."""

    def __init__(self, scenario: dict[str, JsonValue], fixed: Json, axes: Sequence[Axis], where: str) -> None:
        self._scenario, self._fixed, self._axes, self._where = scenario, fixed, axes, where

    def cells(self, excluded: Sequence[Mapping[str, Sequence[JsonValue]]]) -> list[Cell]:
        cells: list[Cell] = []
        scenarios: dict[str, Scenario] = {}
        used = [False] * len(excluded)
        for place in itertools.product(*(axis.values for axis in self._axes)):
            parameters = dict(zip((axis.name for axis in self._axes), place, strict=True))
            matching = [n for n, rule in enumerate(excluded) if all(parameters[k] in rule[k] for k in rule)]
            for n in matching:
                used[n] = True
            if matching:
                continue
            cell = self._cell(parameters)
            text = json.dumps(cell.work["scenario"], sort_keys=True)
            if text not in scenarios:
                scenarios[text] = self._checked(cell, first=not scenarios)
            cells.append(cell)
        if not all(used):
            raise UsageError("fits no cell", where=f"{self._where}: exclude.{used.index(False)}")
        return cells

    def _cell(self, parameters: Json) -> Cell:
        scenario, arguments = copy.deepcopy(self._scenario), dict(self._fixed)
        for axis in self._axes:
            for path, value in axis.settings(parameters[axis.name]):
                if path in ARGUMENTS:
                    arguments[path] = value
                else:
                    put(scenario, path, copy.deepcopy(value), where=f"{self._where}: axes.{axis.name}")
        for key, value in arguments.items():
            arguments[key] = _argument(key, value, self._place(key))
        return Cell(parameters, {"scenario": scenario, **arguments})

    def _place(self, argument: str) -> str:
        axis = next((axis.name for axis in self._axes if argument in axis.paths), None)
        return f"{self._where}: {argument if axis is None else f'axes.{axis}'}"

    def _checked(self, cell: Cell, *, first: bool) -> Scenario:
        mapping = cell.work["scenario"]
        assert isinstance(mapping, dict)
        try:
            scenario = parse_scenario(mapping, where="")
            check_jobs(scenario)
            if first:
                Simulation(scenario)  # what only a network can tell, told before hours are spent
        except UsageError as error:
            raise self._blamed(error, cell) from None
        return scenario

    def _blamed(self, error: UsageError, cell: Cell) -> UsageError:
        """The error with the axis whose value is at fault, or with the whole cell where that cannot be told."""
        field = error.where.removeprefix(": ")
        mapping = cell.work["scenario"]
        for axis in self._axes:
            for path, _ in axis.settings(cell.parameters[axis.name]):
                at = ".".join(str(step) for step in steps_to(mapping, path))
                if field and (f"{field}.".startswith(f"{at}.") or f"{at}.".startswith(f"{field}.")):
                    shown = label(cell.parameters[axis.name])
                    return UsageError(f"{shown}: {error.what}", where=f"{self._where}: axes.{axis.name}")
        varied = ", ".join(f"{name} {label(value)}" for name, value in cell.parameters.items())
        what = f"{field}: {error.what}" if field else error.what
        return UsageError(what, where=f"{self._where}: {f'the cell with {varied}' if varied else 'scenario'}")


def check_jobs(scenario: Scenario) -> None:
    """UsageError where a job asks for what no simulation has, or there is none."""
    if not scenario.jobs:
        raise UsageError("has no jobs, so there is nothing to simulate", where="jobs")
    for index, job in enumerate(scenario.jobs):
        if job.plan and job.plan not in PINNABLE:
            raise UsageError(f"{job.plan!r} is no plan (one of {', '.join(PINNABLE)})", where=f"jobs.{index}.plan")


def put(mapping: dict[str, JsonValue], path: str, value: JsonValue, *, where: str) -> None:
    """Set the field at `path`. Mappings on the way that are not there are made; UsageError for a list's item."""
    keys = path.split(".")
    at: JsonValue = mapping
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        if isinstance(at, dict):
            if last:
                at[key] = value
                return
            below = at.setdefault(key, {})
            if not isinstance(below, (dict, list)):
                # `200Mbit` alone stands for both directions.
                below = {"up": below, "down": below} if keys[depth + 1] in ("up", "down") else {}
                at[key] = below
            at = below
        elif isinstance(at, list):
            index = _item(at, key)
            if index is None:
                known = [
                    str(item.get("id", item.get("name", n))) for n, item in enumerate(at) if isinstance(item, dict)
                ]
                inside = ".".join(keys[:depth])
                hint = f"there are {', '.join(known)}" if known else f"there are {len(at)}"
                raise UsageError(f"there is no {key!r} in {inside}", where=where, hint=hint)
            if last:
                at[index] = value
                return
            at = at[index]
        else:
            raise UsageError(f"{'.'.join(keys[:depth])} has no fields", where=where)


def steps_to(mapping: JsonValue, path: str) -> Iterator[str | int]:
    """The keys and places of a path that is there, with places for ids and names."""
    at = mapping
    for key in path.split("."):
        if isinstance(at, list):
            index = _item(at, key)
            if index is None:
                return
            yield index
            at = at[index]
        else:
            yield key
            at = at.get(key) if isinstance(at, dict) else None


def _item(items: list[JsonValue], key: str) -> int | None:
    for index, item in enumerate(items):
        if isinstance(item, dict) and key in (item.get("id"), item.get("name")):
            return index
    return int(key) if key.isdigit() and int(key) < len(items) else None


def label(value: JsonValue) -> str:
    """A value as people read it, in one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False).replace('"', "")


def _axes(given: object, where: str) -> tuple[Axis, ...]:
    if not isinstance(given, dict) or not given:
        raise UsageError("name at least one field and its values", where=f"{where}: axes")
    axes: list[Axis] = []
    cells = 1
    for name, values in given.items():
        at = f"{where}: axes.{name}"
        paths = tuple(part.strip() for part in str(name).split(","))
        if not all(paths) or not all(all(path.split(".")) for path in paths):
            raise UsageError("is no field's path", where=at, hint="write for example jobs.0.policy")
        taken = [path for axis in axes for path in axis.paths if path in paths]
        if taken or len(set(paths)) < len(paths):
            raise UsageError(f"{(taken or paths)[0]} is there twice", where=at)
        spread = _values(values, at)
        if any(isinstance(value, list) and len(value) != len(paths) for value in spread) and len(paths) > 1:
            raise UsageError(f"a list of values needs one for each of the {len(paths)} fields", where=at)
        texts = [json.dumps(value, sort_keys=True) for value in spread]
        if len(set(texts)) < len(texts):
            twice = next(value for value, text in zip(spread, texts, strict=True) if texts.count(text) > 1)
            raise UsageError(f"{label(twice)} is there twice", where=at)
        axes.append(Axis(str(name), paths, spread))
        cells *= len(spread)
    if cells > MOST_CELLS:
        raise UsageError(f"{cells} cells are too many", where=f"{where}: axes", hint=f"at most {MOST_CELLS}")
    return tuple(axes)


def _values(given: object, where: str) -> tuple[JsonValue, ...]:
    values: list[JsonValue] = []
    for each in given if isinstance(given, list) else [given]:
        limits = _RANGE.fullmatch(each) if isinstance(each, str) else None
        if limits is None:
            values.append(_json(each, where))
            continue
        first, last = int(limits.group(1)), int(limits.group(2))
        if not first <= last < first + MOST_CELLS:
            raise UsageError(f"{each} is no range", where=where, hint="write for example 1..10")
        values += range(first, last + 1)
    if not values:
        raise UsageError("has no values", where=where)
    return tuple(values)


def _excluded(given: object, axes: Sequence[Axis], where: str) -> list[dict[str, tuple[JsonValue, ...]]]:
    if not isinstance(given, list):
        raise UsageError("is a list of mappings from axes to values", where=f"{where}: exclude")
    rules = []
    names = {axis.name: axis for axis in axes}
    for number, rule in enumerate(given):
        at = f"{where}: exclude.{number}"
        if not isinstance(rule, dict) or not rule:
            raise UsageError("is a mapping from axes to values", where=at)
        wanted: dict[str, tuple[JsonValue, ...]] = {}
        for name, values in rule.items():
            if name not in names:
                raise UsageError("there is no such axis", where=f"{at}.{name}", hint=f"one of {', '.join(names)}")
            wanted[name] = _values(values, f"{at}.{name}")
            for value in wanted[name]:
                if value not in names[name].values:
                    raise UsageError(f"{label(value)} is not on that axis", where=f"{at}.{name}")
        rules.append(wanted)
    return rules


def _argument(key: str, value: JsonValue, where: str) -> JsonValue:
    """An argument as a cell's work has it. UsageError where it cannot be."""
    match key:
        case "seed" if isinstance(value, int) and not isinstance(value, bool):
            return value
        case "seed":
            raise UsageError(f"{label(value)} is no whole number", where=where)
        case "execution":
            known = [each.value for each in Execution]
            if value not in known:
                raise UsageError(f"{label(value)} is no execution", where=where, hint=f"one of {', '.join(known)}")
            return value
        case _:
            return None if value is None else parse_time(str(value), where=where)


def _json(value: object, where: str) -> JsonValue:
    """The value, if JSON has it. UsageError for a date, which YAML has and scenarios do not."""
    try:
        copied: JsonValue = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        raise UsageError(f"{value} is neither text nor a number", where=where) from None
    return copied
