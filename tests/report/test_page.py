"""The page needs nothing but itself, shows every part that the journal has, and trusts nothing in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headway.bench.results import Results, Row
from headway.cli.report import report
from headway.collectives.plan import Collective
from headway.decide.journal import (
    DecisionRecord,
    EventRecord,
    FailureRecord,
    FindingRecord,
    OperationRecord,
    Record,
    StartRecord,
)
from headway.errors import UsageError
from headway.report.page import chart_of, render_page, shades_of, slow_ranks
from headway.report.runs import runs_of

Write = Callable[[str, list[Record]], Path]
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Outline(HTMLParser):
    """Checks that tags balance, and keeps headings, attributes and tag names."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)
    return parser


def page_of(*journals: tuple[str, list[Record]]) -> str:
    return render_page(runs_of(journals))


def test_the_page_has_every_part(records: list[Record], untuned: list[Record]) -> None:
    failure = FailureRecord(t_s=records[-1].t_s, rank=0, blamed_rank=3, operation="all_reduce #90", what="reset")
    page = page_of(("gloo", untuned), ("headway", [*records, failure]))
    seen = outline(page)
    assert seen.headings == [
        "Headway report",
        "algbw over time",
        "What happened in headway", "Failures", "Decisions", "Plan",
        "Before: ring", "After: chains over 7, host 3 last",
        "Load of each link", "Speed of each link",
        "What happened in gloo", "Plan", "In force: ring", "Load of each link", "Speed of each link",
    ]  # fmt: skip
    tiles = re.findall(r'<div class="value">(.*?)</div>', page)
    assert len(tiles) == 7
    assert all(tile.strip() for tile in tiles)
    assert "rank 3 (host 3)" in page


def test_it_needs_nothing_else(records: list[Record]) -> None:
    page = page_of(("run", records))
    seen = outline(page)
    assert not seen.tags & {"link", "img", "iframe", "object", "embed", "base"}
    assert not {name for name, _ in seen.attributes} & {"src", "href", "srcset", "xlink:href", "action"}
    assert set(re.findall(r"https?://[^\"' )]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(", page)
    assert "prefers-color-scheme: dark" in page


def test_nothing_in_a_journal_becomes_markup(records: list[Record]) -> None:
    evil = "</script><script>alert('x')</script><b onmouseover=\"alert(1)\">&amp; $title"
    changed: list[Record] = []
    for record in records:
        if isinstance(record, StartRecord):
            update: dict[str, object] = {"hosts": [evil] * 8, "policy": evil, "settings": {evil: evil}, "plan": evil}
        elif isinstance(record, DecisionRecord):
            finding = FindingRecord(link=evil, capacity_Bps=1.0, baseline_Bps=2.0, pattern=evil, samples=1)
            update = {"reason": evil, "plan_before": evil, "plan_after": evil, "findings": [finding]}
        elif isinstance(record, EventRecord):
            update = {"what": evil}
        elif isinstance(record, OperationRecord):
            update = {"plan": evil}
        else:
            update = {}
        changed.append(record.model_copy(update=update))
    changed.append(FailureRecord(t_s=records[-1].t_s, rank=0, operation=evil, what=evil))
    page = render_page(runs_of([(evil, changed)]), title=evil)
    seen = outline(page)
    assert page.count("<script>") == 1
    assert "onmouseover" not in {name for name, _ in seen.attributes}
    assert "$title" in page


def test_a_page_of_little() -> None:
    start = StartRecord(t_s=0.0, world_size=2, hosts=["a", "b"], policy="off")
    outline(page_of(("run", [start])))
    outline(render_page([]))


def test_trees_in_an_unknown_form_leave_the_rest(records: list[Record]) -> None:
    changed: list[Record] = [
        r.model_copy(update={"plan_trees": "hwplan9:later"}) if isinstance(r, DecisionRecord) else r for r in records
    ]
    seen = outline(page_of(("run", changed)))
    assert seen.headings[-4:] == ["What happened", "Decisions", "Load of each link", "Speed of each link"]


def test_events_of_two_runs_are_shaded_once(records: list[Record], untuned: list[Record]) -> None:
    tuned, gloo = runs_of([("a", records), ("b", untuned)])
    (shade,) = shades_of([tuned, gloo])
    assert shade.label == "UDP load of 100 Mbit/s into host 3"
    assert shades_of([tuned]) == [shade]
    longer = replace(gloo, events=(replace(gloo.events[0], end_s=gloo.events[0].end_s + 5),))
    assert {s.label.split(":")[0] for s in shades_of([tuned, longer])} == {"a", "b"}


def test_a_run_without_limits_takes_those_of_the_same_events(records: list[Record], untuned: list[Record]) -> None:
    bare = [r.model_copy(update={"limit_s": None}) for r in records]
    tuned, gloo = runs_of([("a", bare), ("b", untuned)])
    limit = chart_of([tuned, gloo], tuned).limit
    assert {round(rate_Bps / 1e5) for _, rate_Bps in limit} == {143, 125}
    begin_s, end_s = tuned.events[0].begin_s, tuned.events[0].end_s
    for middle_s, rate_Bps in limit:
        assert (rate_Bps < 13e6) == (begin_s < middle_s < end_s)
    assert not chart_of([tuned], tuned).limit


def test_keeps_and_returns_say_what_they_replace_and_reroutes_are_marked(records: list[Record]) -> None:
    changed: list[Record] = [
        r.model_copy(update={"reroutes": ["rank 4 to rank 3"]})
        if isinstance(r, DecisionRecord) and (r.action, r.reason) == ("hold", "no better plan")
        else r
        for r in records
    ]
    page = page_of(("run", changed))
    assert "ring → chains over 7, host 3 last<br>" in page
    assert "chains over 7, host 3 last → ring<br>" in page
    assert "The flow rank 4 to rank 3 gets a new connection" in page
    (run,) = runs_of([("run", changed)])
    assert sum(mark.kind == "reroute" for mark in chart_of([run], run).marks) == 4


def test_the_limit_is_called_an_estimate_wherever_it_is_shown(records: list[Record]) -> None:
    page = page_of(("run", records))
    assert ">limit (estimate)</text>" in page
    assert "of the limit (estimate)</div>" in page
    assert "a little above 100 % can be read" in page
    assert "any plan" not in page


def test_ranks_behind_a_blamed_rack_or_path_are_found(records: list[Record]) -> None:
    start = next(r for r in records if isinstance(r, StartRecord))
    racked = start.model_copy(update={"racks": [f"rack {r // 4}" for r in range(8)]})
    (run,) = runs_of([("run", [racked, *records[1:]])])
    base = next(r for r in records if isinstance(r, DecisionRecord))

    def slow(link: str) -> set[int]:
        finding = FindingRecord(link=link, capacity_Bps=1.0, baseline_Bps=2.0, pattern="steady", samples=1)
        return slow_ranks(run, base.model_copy(update={"findings": [finding]}))

    assert slow("uplink of rack 1") == {4, 5, 6, 7}
    assert slow("path host 1 to host 2") == {1, 2}
    assert slow("downlink of host 3") == {3}
    assert slow_ranks(run, None) == set()


def row(backend: str, time_s: float, *, error: str = "") -> Row:
    return Row(
        backend=backend, collective=Collective.ALL_REDUCE, size_bytes=1 << 24, count=1 << 22, type="float", redop="sum",
        root=-1, ranks=8, iterations_s=[] if error else [time_s, time_s * 1.1], wrong=0, plan="ring", limit_s=1.0,
        bottleneck="downlink of host 3", condition="UDP 50 %", error=error,
    )  # fmt: skip


def test_the_command_writes_page_and_chart(
    records: list[Record], untuned: list[Record], write_journal: Write, tmp_path: Path
) -> None:
    results = tmp_path / "bench.json"
    Results(
        headway="0.1.0",
        where="lab star8",
        command=["headway", "bench"],
        rows=[row("gloo", 2.5), row("headway", 1.4), row("mpich", 0.0, error="not installed")],
    ).save(results)
    page, chart = tmp_path / "page.html", tmp_path / "chart.svg"
    journals = [write_journal("headway.jsonl", records), write_journal("gloo.jsonl", untuned)]
    report(journals, page, [results], chart, "Two runs")
    seen = outline(page.read_text())
    assert seen.headings[0] == "Two runs"
    assert "all_reduce, UDP 50 %" in seen.headings
    assert "not installed" in page.read_text()
    ElementTree.fromstring(chart.read_text())
    report(None, page, [results], None, "Bench alone")
    assert outline(page.read_text()).headings == ["Bench alone", "Bench", "all_reduce, UDP 50 %"]


def test_bad_input_is_one_line(records: list[Record], write_journal: Write, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    journal = write_journal("job.jsonl", records)
    with pytest.raises(UsageError, match="nothing to report on"):
        report(None, page, None, None, "t")
    with pytest.raises(UsageError, match="cannot read the results"):
        report([journal], page, [tmp_path / "missing.json"], None, "t")
    (tmp_path / "bad.json").write_text('{"v": 1}')
    with pytest.raises(UsageError, match=r"bad\.json: headway: Field required"):
        report([journal], page, [tmp_path / "bad.json"], None, "t")
    with pytest.raises(UsageError, match="cannot write it"):
        report([journal], tmp_path / "missing" / "page.html", None, None, "t")
