"""A plan as a picture: ranks on a circle (by rack where there are racks), edges as wide as the bytes they carry."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headway.collectives.plan import Plan
from headway.report.svg import Svg, shorten, text_width

MOST_RANKS = 128  # beyond this a circle of ranks cannot be read
THINNEST, WIDEST = 0.6, 15.0
PER_VECTOR = 12.0  # width of an edge that carries the whole vector, px: the same in every picture
CROWD = 40  # edges beyond which each is drawn fainter, so that a dense plan is no blot


@dataclass(frozen=True, slots=True)
class Edge:
    """Two ranks that talk: `share` of the vector goes up one way and comes down the other."""

    low: int
    high: int
    share: float


def edges_of(plan: Plan) -> list[Edge]:
    """The pairs of ranks that exchange data, with the summed shares of the trees that join them."""
    shares: dict[tuple[int, int], float] = {}
    for tree in plan.trees:
        for rank, parent in enumerate(tree.parents):
            if parent >= 0:
                pair = (min(rank, parent), max(rank, parent))
                shares[pair] = shares.get(pair, 0.0) + tree.share
    return [Edge(low, high, share) for (low, high), share in sorted(shares.items())]


def rank_loads(plan: Plan) -> list[float]:
    """What each rank sends (and receives) in an all-reduce, in vectors: the summed shares of its tree edges."""
    loads = [0.0] * plan.size
    for edge in edges_of(plan):
        loads[edge.low] += edge.share
        loads[edge.high] += edge.share
    return loads


def root_shares(plan: Plan) -> list[float]:
    """Share of the vector that each rank is the root of."""
    shares = [0.0] * plan.size
    for tree in plan.trees:
        shares[tree.root] += tree.share
    return shares


def draw_plan(
    plan: Plan,
    *,
    hosts: Sequence[str],
    racks: Sequence[str] = (),
    slow: Collection[int] = (),
    width: float = 480,
    height: float = 440,
) -> str:
    """The plan as SVG text.

    Args:
        plan: the plan.
        hosts: host's name per rank.
        racks: rack's name per rank; ranks of one rack stand together. Empty for a single switch.
        slow: ranks to highlight.
        width: px.
        height: px.
    """
    if plan.size > MOST_RANKS:
        return ""
    order = sorted(range(plan.size), key=lambda r: (_rack_order(racks, r), r))
    places, angles = _places(order, racks, width, height)
    svg = Svg(width, height, label=f"plan {plan.name}")
    radius = _node_radius(plan.size, width, height)
    _racks(svg, order, racks, angles, width, height)
    edges = edges_of(plan)
    with svg.inside("g", opacity=max(0.12, min(1.0, (CROWD / max(1, len(edges))) ** 0.5))):
        for edge in edges:
            _edge(svg, edge, hosts, places, slow, (width / 2, height / 2))
    loads, roots = rank_loads(plan), root_shares(plan)
    for rank in order:
        _node(svg, rank, places[rank], radius, hosts, loads, roots, slow)
    _outside(svg, order, angles, loads, radius, width, height)
    return svg.render()


def _rack_order(racks: Sequence[str], rank: int) -> int:
    return list(dict.fromkeys(racks)).index(racks[rank]) if rank < len(racks) else 0


def _ring_radius(width: float, height: float) -> float:
    return min(width, height) / 2 - 78


def _node_radius(size: int, width: float, height: float) -> float:
    return max(5.0, min(17.0, math.pi * _ring_radius(width, height) / max(1, size) * 0.7))


def _places(
    order: Sequence[int], racks: Sequence[str], width: float, height: float
) -> tuple[dict[int, tuple[float, float]], dict[int, float]]:
    """Position and angle of each rank; a wider gap stands between racks."""
    groups = [racks[r] if r < len(racks) else "" for r in order]
    breaks = [a != b for a, b in zip(groups, [*groups[1:], groups[0]], strict=True)] if groups else []
    several = len(set(groups)) > 1
    steps = [1.8 if several and new else 1.0 for new in breaks]
    total = sum(steps) or 1.0
    angle, places, angles = -math.pi / 2, {}, {}
    radius = _ring_radius(width, height)
    for rank, step in zip(order, steps, strict=True):
        angles[rank] = angle
        places[rank] = (width / 2 + radius * math.cos(angle), height / 2 + radius * math.sin(angle))
        angle += step / total * 2 * math.pi
    return places, angles


def _racks(
    svg: Svg, order: Sequence[int], racks: Sequence[str], angles: dict[int, float], width: float, height: float
) -> None:
    names = list(dict.fromkeys(racks))
    if len(names) < 2:
        return
    radius = _ring_radius(width, height) + 60
    for name in names:
        mine = [angles[r] for r in order if racks[r] == name]
        first, last = min(mine) - 0.12, max(mine) + 0.12
        ends = [(width / 2 + radius * math.cos(a), height / 2 + radius * math.sin(a)) for a in (first, last)]
        large = 1 if last - first > math.pi else 0
        (ax, ay), (bx, by) = ends
        with svg.inside("g", class_="tip", data_tip=name):
            svg.add("title", name)
            svg.add(
                "path", class_="rack", d=f"M{ax:.1f} {ay:.1f}A{radius:.1f} {radius:.1f} 0 {large} 1 {bx:.1f} {by:.1f}"
            )
        middle = (first + last) / 2
        x, y = width / 2 + radius * math.cos(middle), height / 2 + radius * math.sin(middle)
        label = shorten(name, 12, 60)
        half = text_width(label, 12) / 2 + 7
        svg.add("rect", class_="rack-label", x=x - half, y=y - 10, width=2 * half, height=20, rx=10)
        svg.text(x, y + 4, label, class_="small", text_anchor="middle")


def _edge(
    svg: Svg,
    edge: Edge,
    hosts: Sequence[str],
    places: dict[int, tuple[float, float]],
    slow: Collection[int],
    centre: tuple[float, float],
) -> None:
    (ax, ay), (bx, by) = places[edge.low], places[edge.high]
    # Long edges are bent a little towards the centre, so that those which cross can be told apart.
    bend = 0.12 * math.hypot(ax - bx, ay - by) / (2 * math.hypot(ax - centre[0], ay - centre[1]) or 1.0)
    mx, my = (ax + bx) / 2, (ay + by) / 2
    qx, qy = mx + (centre[0] - mx) * bend, my + (centre[1] - my) * bend
    kind = " slow" if edge.low in slow or edge.high in slow else ""
    wide = min(WIDEST, max(THINNEST, PER_VECTOR * edge.share))
    tip = (
        f"rank {edge.low} ({_host(hosts, edge.low)}) and rank {edge.high} ({_host(hosts, edge.high)}): "
        f"{edge.share * 100:.1f} % of the vector each way"
    )
    with svg.inside("g", class_="tip", data_tip=tip):
        svg.add("title", tip)
        svg.add(
            "path",
            class_=f"tree-edge{kind}",
            stroke_width=wide,
            d=f"M{ax:.1f} {ay:.1f}Q{qx:.1f} {qy:.1f} {bx:.1f} {by:.1f}",
        )


def _node(
    svg: Svg,
    rank: int,
    place: tuple[float, float],
    radius: float,
    hosts: Sequence[str],
    loads: Sequence[float],
    roots: Sequence[float],
    slow: Collection[int],
) -> None:
    x, y = place
    tip = f"rank {rank} on {_host(hosts, rank)}: sends and receives {loads[rank]:.2f} vectors"
    tip += f", root of {roots[rank] * 100:.0f} %" if roots[rank] > 0 else ", root of nothing"
    with svg.inside("g", class_="tip", tabindex="0", data_tip=tip):
        svg.add("title", tip)
        if rank in slow:
            svg.add("circle", class_="halo", cx=x, cy=y, r=radius + 9)
        kind = "node" + (" root" if roots[rank] > 0 else "") + (" slow" if rank in slow else "")
        svg.add("circle", class_=kind, cx=x, cy=y, r=radius)
        if radius >= 9:
            svg.text(x, y + 4.5, str(rank), class_="node-text")


def _outside(
    svg: Svg,
    order: Sequence[int],
    angles: dict[int, float],
    loads: Sequence[float],
    node_radius: float,
    width: float,
    height: float,
) -> None:
    """Each rank's load beside it, where there is room."""
    if node_radius < 9:
        return
    radius = _ring_radius(width, height) + node_radius + 18
    for rank in order:
        x = width / 2 + radius * math.cos(angles[rank])
        y = height / 2 + radius * math.sin(angles[rank])
        svg.text(x, y + 4, f"{loads[rank]:.2f}", class_="small", text_anchor="middle")


def _host(hosts: Sequence[str], rank: int) -> str:
    return hosts[rank] if rank < len(hosts) else "its host"
