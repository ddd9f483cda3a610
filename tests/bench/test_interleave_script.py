"""The measurements of jobs that take turns: trials, scenarios, files and tables, and one lab for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.interleave import (
    SECTIONS,
    Options,
    Section,
    batches,
    estimate_s,
    group_trials,
    read,
    run_batch,
    sender_trials,
)
from bench.interleave_cases import (
    ALONE,
    DDP_WAYS,
    DOWNLOAD_BYTES,
    HARM,
    MAIN,
    REACT_WAYS,
    WAYS,
    Case,
    GroupTrial,
    Sender,
    Trial,
    central,
    equal,
    scenario_of,
    variety,
)
from bench.interleave_tables import TABLES, Times, Told, isolated_s
from headway.errors import HeadwayError, UsageError
from headway.lab.job_runs import check_runnable
from headway.lab.lab import require_privileges

FULL = Options(repeat=3, iterations=40, at_once=4, quick=False)
SENDERS = ("main", "shifts", "variety", "harm")


class TestTrials:
    def test_side_by_side_share_no_host_and_can_all_run(self) -> None:
        trials = [Trial("main", MAIN[0], way, 0, 5) for way in WAYS.values()]
        scenario = scenario_of(trials)
        check_runnable(scenario)
        hosts = [set(job.hosts) for job in scenario.jobs if not isinstance(job.hosts, int)]
        for one, two in zip(hosts[0::2], hosts[1::2], strict=True):
            assert len(one & two) == 1
        assert len(set.union(*hosts)) == len(scenario.host_names) == 3 * len(trials)

    def test_each_way_says_something_else_of_the_jobs(self) -> None:
        told = set()
        for way in WAYS.values():
            job = scenario_of([Trial("main", MAIN[0], way, 0, 5)]).jobs[0]
            told.add(str((job.interleave, job.congestion_control, job.weight, job.period)))
        assert len(told) == len(WAYS)

    def test_a_repeat_has_another_start_and_other_noise(self) -> None:
        case = Case("noisy", equal(2, 0.4, 0.05))
        one, two = (scenario_of([Trial("variety", case, WAYS["cubic"], r, 5)]).jobs[1] for r in (0, 1))
        assert 0.01 <= one.start < two.start <= 0.03
        assert one.seed != two.seed

    def test_those_alone_come_one_after_the_other_without_noise(self) -> None:
        trial = Trial("variety", Case("noisy", equal(2, 0.4, 0.05)), ALONE, 0, 4)
        first, second = scenario_of([trial]).jobs
        assert second.start > first.start + 4 * 1.1
        assert not any(phase.noise for job in (first, second) for phase in job.loop)

    def test_a_download_has_no_end_and_is_plain(self) -> None:
        *jobs, download = scenario_of([Trial("harm", HARM, WAYS["bpf-reno"], 0, 5)]).jobs
        assert all(job.interleave is not None and job.iterations == 5 for job in jobs)
        assert download.interleave is None
        assert download.iterations is None
        assert [phase.size_bytes for phase in download.loop] == [DOWNLOAD_BYTES]

    def test_a_job_that_arrives_late_ends_with_the_others(self) -> None:
        case = next(case for case in variety(10) if case.since_s)
        jobs = scenario_of([Trial("variety", case, WAYS["cubic"], 0, 20)]).jobs
        assert jobs[-1].start == pytest.approx(10.01)
        assert [job.iterations for job in jobs] == [20, 20, 10]

    @pytest.mark.parametrize("section", SENDERS)
    def test_batches_hold_all_trials_and_no_mixture(self, section: str) -> None:
        trials = sender_trials(section, FULL)
        made = batches(trials, 4)
        assert [trial for batch in made for trial in batch] == trials
        assert max(map(len, made)) == 4
        assert all(len({trial.way == ALONE for trial in batch}) == 1 for batch in made)
        assert len(batches(trials, 1)) == len(trials)

    def test_groups_can_all_run_and_hold_their_ways(self) -> None:
        for way in (*DDP_WAYS, *REACT_WAYS):
            scenario = GroupTrial("ddp", way, 0.6, 5).scenario()
            check_runnable(scenario)
            assert bool(scenario.events) == way.loaded
            assert all((job.interleave is not None) == bool(way.actuator) for job in scenario.jobs)
            assert all((job.period is not None) == way.central for job in scenario.jobs)
            assert all(job.policy == way.policy for job in scenario.jobs)

    def test_every_section_has_ways_to_run_and_a_table(self) -> None:
        assert set(TABLES) == set(SECTIONS)
        quick = Options(repeat=1, iterations=12, at_once=4, quick=True)
        for section in SECTIONS:
            assert 0 < estimate_s(section, quick) < estimate_s(section, FULL)
        assert len(group_trials("react", quick)) == len(REACT_WAYS)


def test_the_limit_is_one_where_jobs_fit() -> None:
    assert central(MAIN[0]).limit == pytest.approx(1.0)
    assert central(Case("too much", equal(2, 0.6))).limit == pytest.approx(1.2, abs=1e-3)


def _steady(period_s: float, start_s: float, count: int = 20) -> Times:
    begins = [start_s + period_s * index for index in range(count)]
    return Times(begins, [begin + period_s for begin in begins])


def _told(case: Case, way: str, period_s: float) -> Told:
    times = [_steady(period_s, sender.start_s) for sender in case.senders]
    return Told(case.name, way, 0, times, times)


class TestTables:
    def test_isolated_times_leave_the_first_iteration_out(self) -> None:
        assert isolated_s([Times([0.0, 5.0, 6.0, 7.0], [])]) == [1.0]

    def test_main_has_times_gains_and_settling(self) -> None:
        case = MAIN[0]
        told = [_told(case, "alone", 1.0), _told(case, "cubic", 1.43), _told(case, "bpf-reno", 1.0)]
        text = "\n".join(TABLES["main"](told))
        assert "largest possible gain over cubic 1.43" in text
        cubic, bpf = (
            next(line for line in text.splitlines() if line.startswith(f"| {n} ")) for n in ("cubic", "bpf-reno")
        )
        assert "1.430" in cubic
        assert "never" in cubic
        assert "| 1.43 | 1.43 | 0 | 100% |" in bpf

    def test_what_failed_is_left_out(self) -> None:
        case = MAIN[0]
        told = [_told(case, "alone", 1.0), Told(case.name, "cubic", 0, error="no"), _told(case, "bpf-reno", 1.0)]
        assert "| bpf-reno | 1.000 |" in "\n".join(TABLES["main"](told))
        for section in SECTIONS:
            TABLES[section]([])

    def test_a_download_counts_while_all_jobs_go_on(self) -> None:
        jobs = [_steady(1.0, 0.0), _steady(1.25, 0.0)]
        begins = [2.0 * index for index in range(50)]
        download = Times(begins, [begin + (2.0 if begin < 20 else 1.0) for begin in begins])
        alone = Told(HARM.name, "alone", 0, jobs, jobs)
        run = Told(HARM.name, "cubic", 0, [*jobs, download], [*jobs, download])
        assert "| cubic | 10.00 | 0.42 |" in "\n".join(TABLES["harm"]([alone, run]))

    def test_a_file_holds_what_is_needed_to_tell_it_again(self, tmp_path: Path) -> None:
        told = [_told(MAIN[0], "alone", 1.0), Told("ddp", "headway", 0, switches=[(2, 1)])]
        Section("main", {"repeat": 1}, told).save(tmp_path)
        again = read(tmp_path / "main.json")
        assert again.told[0].lab == told[0].lab
        assert again.told[1].switches == [(2, 1)]
        (tmp_path / "main.json").write_text("{}")
        with pytest.raises(UsageError, match="no trials"):
            read(tmp_path / "main.json")


@pytest.mark.lab
def test_trials_run_side_by_side_in_the_lab_and_in_the_simulator() -> None:
    try:
        require_privileges()
    except HeadwayError as error:
        pytest.skip(str(error))
    case = Case("short", (Sender(0.0, 0.3, 0.2), Sender(0.01, 0.3, 0.2)))
    told = run_batch([Trial("main", case, WAYS[name], 0, 1) for name in ("cubic", "streams")])
    assert [each.error for each in told] == ["", ""]
    for each in told:
        assert [len(times.ends_s) for times in each.lab] == [len(times.ends_s) for times in each.simulated] == [5, 5]
