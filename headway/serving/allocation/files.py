"""Aggregates, profiles, plans and nodes as YAML or JSON files. Pure but for reading and writing them.

Every file is a mapping of `kind`, `version` and a list or a body of that kind, so that a wrong file is told apart from
a broken one. Figures carry their units in their names, as in the types. A file whose name ends in .json is JSON, any
other YAML; JSON has no infinity, so infinite figures are written "inf" there, and read from either.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from headway.errors import UsageError
from headway.serving.allocation import types
from headway.serving.allocation.file_models import Aggregates, Nodes, Part, PlanFile, Profiles
from headway.serving.allocation.topology_types import Node
from headway.serving.workflows import aggregate_types

VERSION = 1
AGGREGATES, PLAN, NODES = "headway-aggregates", "headway-plan", "headway-nodes"
"""Kinds of files."""
_TOLD = 3
"""Problems that one error tells of."""
_WORDS = {
    "extra_forbidden": "there is no such field",
    "missing": "is missing",
    "model_type": "must be a mapping of fields",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "string_type": "must be text (quotes help)",
}
"""Instead of pydantic's words for some types of error, which name Python's types."""

_Model = TypeVar("_Model", bound=Part)


def read_aggregates(path: Path) -> list[aggregate_types.Aggregate]:
    """UsageError names file and field of what is wrong, here and below."""
    return parse_aggregates(_read(path), where=str(path))


def parse_aggregates(text: str, *, where: str) -> list[aggregate_types.Aggregate]:
    """Of a file's text, YAML or JSON."""
    found = []
    for each in _parsed(text, Aggregates, where).aggregates:
        body = each.model_dump()
        body["uses"] = tuple(aggregate_types.ModelUse(**use) for use in body["uses"])
        found.append(aggregate_types.Aggregate(**body))
    return found


def write_aggregates(path: Path, aggregates: Sequence[aggregate_types.Aggregate]) -> None:
    """One file for all."""
    listed = [
        {
            "workflow": each.workflow,
            "runs": each.runs,
            "latency_s": each.latency_s,
            "latency_cv": each.latency_cv,
            "other_s": each.other_s,
            "uses": [_fields(use) for use in each.uses],
        }
        for each in aggregates
    ]
    _write(path, {"kind": AGGREGATES, "version": VERSION, "aggregates": listed})


def read_profiles(path: Path) -> tuple[int, dict[str, types.ModelProfile]]:
    """f, and the profiles by model."""
    return parse_profiles(_read(path), where=str(path))


def parse_profiles(text: str, *, where: str) -> tuple[int, dict[str, types.ModelProfile]]:
    """Of a file's text, YAML or JSON."""
    file = _parsed(text, Profiles, where)
    found: dict[str, types.ModelProfile] = {}
    for at, each in enumerate(file.profiles):
        if each.model in found:
            raise UsageError(f"model {each.model!r} is there twice", where=f"{where}: profiles.{at}.model")
        curves: dict[int, dict[types.Shape, types.Curve]] = {}
        for number, curve in enumerate(each.curves):
            shape = types.Shape(curve.tensor_parallel, curve.slices)
            at_curve = f"{where}: profiles.{at}.curves.{number}"
            if not shape.fits(file.slices_per_gpu):
                raise UsageError(
                    f"{curve.tensor_parallel} x {curve.slices} slices is no shape where a GPU has "
                    f"{file.slices_per_gpu}",
                    where=at_curve,
                )
            if shape in curves.setdefault(curve.spread, {}):
                raise UsageError("this shape is there twice", where=at_curve)
            curves[curve.spread][shape] = types.Curve(
                tuple(curve.rates), tuple(curve.latencies_s), tuple(curve.p99_s), curve.saturation
            )
        alone = curves.pop(1, {})
        for spread, others in curves.items():
            if others.keys() != alone.keys():
                raise UsageError(
                    f"other shapes with spread {spread} than without", where=f"{where}: profiles.{at}.curves"
                )
        found[each.model] = types.ModelProfile(each.model, alone, each.memory_bytes, each.source, curves, each.device)
    return file.slices_per_gpu, found


def write_profiles(path: Path, profiles: Sequence[types.ModelProfile], *, slices_per_gpu: int) -> None:
    """One file for all."""
    listed = []
    for profile in profiles:
        curves = [
            {
                "tensor_parallel": shape.tensor_parallel,
                "slices": shape.slices,
                **({"spread": spread} if spread > 1 else {}),
                "saturation": curve.saturation,
                "rates": list(curve.rates),
                "latencies_s": list(curve.latencies_s),
                "p99_s": list(curve.p99_s),
            }
            for spread, by_shape in sorted({1: profile.curves, **profile.spread_curves}.items())
            for shape, curve in sorted(by_shape.items(), key=lambda item: item[0])
        ]
        listed.append(
            {
                "model": profile.model,
                "source": profile.source,
                **({"device": profile.device} if profile.device else {}),
                "memory_bytes": dict(sorted(profile.memory_bytes.items())),
                "curves": curves,
            }
        )
    body = {"kind": "headway-profiles", "version": VERSION, "slices_per_gpu": slices_per_gpu, "profiles": listed}
    _write(path, body)


def read_plan(path: Path) -> types.Plan:
    """A plan, placed or not."""
    return parse_plan(_read(path), where=str(path))


def parse_plan(text: str, *, where: str) -> types.Plan:
    """Of a file's text, YAML or JSON."""
    file = _parsed(text, PlanFile, where)
    return types.Plan(
        slices_per_gpu=file.slices_per_gpu,
        shares=tuple(
            types.Share(each.model, types.Shape(each.tensor_parallel, each.slices), each.replicas)
            for each in file.shares
        ),
        instances=tuple(
            types.Instance(
                each.model, each.number, types.Shape(each.tensor_parallel, each.slices), each.node, tuple(each.gpus)
            )
            for each in file.instances
        ),
        forecasts=tuple(types.Forecast(**each.model_dump()) for each in file.forecasts),
        rejected=tuple(types.Rejected(**each.model_dump()) for each in file.rejected),
    )


def write_plan(path: Path, plan: types.Plan) -> None:
    """A plan, placed or not."""
    _write(
        path,
        {
            "kind": PLAN,
            "version": VERSION,
            "slices_per_gpu": plan.slices_per_gpu,
            "shares": [{"model": each.model, **_fields(each.shape), "replicas": each.replicas} for each in plan.shares],
            "instances": [
                {
                    "model": each.model,
                    "number": each.number,
                    **_fields(each.shape),
                    "node": each.node,
                    "gpus": list(each.gpus),
                }
                for each in plan.instances
            ],
            "forecasts": [_fields(each) for each in plan.forecasts],
            "rejected": [_fields(each) for each in plan.rejected],
        },
    )


def read_nodes(path: Path) -> list[Node]:
    """Machines and their GPUs."""
    return parse_nodes(_read(path), where=str(path))


def parse_nodes(text: str, *, where: str) -> list[Node]:
    """Of a file's text, YAML or JSON."""
    found = []
    for at, each in enumerate(_parsed(text, Nodes, where).nodes):
        if not each.name.strip():
            raise UsageError("is no name of a machine", where=f"{where}: nodes.{at}.name")
        found.append(Node(each.name, each.device, tuple(tuple(domain) for domain in each.domains)))
    return found


def write_nodes(path: Path, nodes: Sequence[Node]) -> None:
    """Machines and their GPUs."""
    listed = [
        {"name": node.name, "device": node.device, "domains": [list(domain) for domain in node.domains]}
        for node in nodes
    ]
    _write(path, {"kind": NODES, "version": VERSION, "nodes": listed})


def _fields(value: object) -> dict[str, object]:
    """A flat dataclass as a mapping."""
    return {
        name: dict(part) if isinstance(part, Mapping) else part
        for name in value.__dataclass_fields__  # type: ignore[attr-defined]
        for part in (getattr(value, name),)
    }


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise UsageError("is not text", where=str(path), hint="a YAML or JSON file in UTF-8") from None


def _write(path: Path, body: Mapping[str, object]) -> None:
    if path.suffix == ".json":
        text = json.dumps(_finite(body), indent=1, allow_nan=False) + "\n"
    else:
        text = yaml.safe_dump(dict(body), sort_keys=False, width=120, default_flow_style=None, allow_unicode=True)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write it: {error.strerror}", where=str(path)) from None


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _parsed(text: str, model: type[_Model], where: str) -> _Model:
    try:
        data: object = yaml.safe_load(text)  # JSON is YAML
    except yaml.MarkedYAMLError as error:
        at = f":{error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise UsageError(" ".join(str(error.problem or error).split()), where=f"{where}{at}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(" ".join(str(error).split()), where=where) from None
    (kind,) = model.model_fields["kind"].annotation.__args__  # type: ignore[union-attr]
    if not isinstance(data, Mapping):
        raise UsageError(f"is not a file of kind {kind}", where=where)
    if data.get("kind") != kind:
        raise UsageError(f"is {data.get('kind')!r}, not {kind!r}", where=f"{where}: kind")
    if data.get("version") != VERSION:
        raise UsageError(
            f"is {data.get('version')!r}, and only {VERSION} is known", where=f"{where}: version", hint="write it anew"
        )
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _usage_error(error, where) from None


def _usage_error(error: ValidationError, where: str) -> UsageError:
    """One line of what pydantic found."""
    told = []
    for problem in error.errors():
        message = _WORDS.get(problem["type"], problem["msg"].removeprefix("Value error, "))
        told.append((".".join(str(part) for part in problem["loc"]), message))
    (field, first), *others = told
    lines = [first, *(f"{name}: {message}" for name, message in others[: _TOLD - 1])]
    if len(told) > _TOLD:
        lines.append(f"and {len(told) - _TOLD} more")
    return UsageError("; ".join(lines), where=f"{where}: {field}" if field else where)
