"""How eager the tuner is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TunerSettings:
    """How eager the tuner is. Values without another source are ours.

    Attributes:
        gain: least gain, predicted and measured, for a change (1). REACT: 5 %.
        restore_ratio: the idle plan's time over the tuned plan's, up to which the idle plan is taken back (1): at a
            tie the idle plan is preferred, and a restored plan can be left again.
        rounds: trials without success in a row before a pause (count). REACT caps them without giving the number.
        ask_again_s: while the same findings have led to nothing better, ask for plans only this often (s).
        large_share: below this share of the time in large operations nothing is decided (1): flow statistics say
            little about small ones.
        watch_s: time in operations that an epoch aims at (s): short enough to react in about two, long enough that
            the reports cost below 1 %.
        trial_s: the same during a trial (s).
        round_trip_s: time to report, decide and rule, that a lead hides where operations are short (s).
        recur_share: an intermittent finding acts when it was there in this part of the latest epochs (1).
        memory_epochs: how many epochs that looks back (count).
        reroutes: new connections for one slow path per incident (count): with two paths and one of them slow, 15 of 16
            flows are well placed after four. Only then other plans are tried for it.
        restore_operations: operations under a tuned plan before the idle plan is tried again, at the least (count): a
            look costs about one of them.
        restore_s, restore_most_s: first and longest wait before the idle plan is tried again (s).
        doubt_factor: wait this many times longer while congestion still seems to be there (1).
        calm_s: time after which one failed return is forgiven (s).
        soon_s: congestion found within this time of a return makes that return a failed one (s).
        pause_s, pause_most_s: first and longest pause after an incident's trials all failed (s).
    """

    gain: float = 0.05
    restore_ratio: float = 1.03
    rounds: int = 4
    ask_again_s: float = 10.0
    large_share: float = 0.3
    watch_s: float = 0.75
    trial_s: float = 0.1
    round_trip_s: float = 0.005
    recur_share: float = 0.5
    memory_epochs: int = 8
    reroutes: int = 4
    restore_s: float = 3.0
    restore_operations: int = 4
    restore_most_s: float = 300.0
    doubt_factor: float = 10.0
    calm_s: float = 600.0
    soon_s: float = 60.0
    pause_s: float = 20.0
    pause_most_s: float = 600.0
