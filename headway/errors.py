"""The errors that Headway raises on purpose. Each says what was wrong, where, and what to do."""

from __future__ import annotations


class HeadwayError(Exception):
    """Base of every error that Headway raises on purpose. The CLI turns one into exit code 1."""


class UsageError(HeadwayError):
    """A command line, a file or a setting is wrong. The CLI prints the one line and exits with 2.

    Args:
        what: what is wrong, in words of the user's own input.
        where: file, line, field, flag or variable; empty when `what` already says it.
        hint: what to do about it.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        line = f"{where}: {what}" if where else what
        super().__init__(f"{line} ({hint})" if hint else line)


class TransportError(HeadwayError):
    """A transfer between two ranks failed.

    Args:
        what: what happened.
        rank: the rank blamed for it (not necessarily the direct peer), or None when unknown.
        operation: the operation that was waiting, e.g. "all_reduce #17 of group default".
    """

    def __init__(self, what: str, *, rank: int | None = None, operation: str = "") -> None:
        self.what, self.rank, self.operation = what, rank, operation
        super().__init__(f"{operation}: {what}" if operation else what)


class PeerLostError(TransportError):
    """A peer closed or reset its connection: the process ended, or its host did."""


class MismatchError(TransportError):
    """The ranks called different things where all must call the same.

    Args:
        what: who called what.
        rank: the one rank that differs from all others, or None.
        operation: as in `TransportError`.
        number: of the operation in its group; -1 when unknown.
    """

    def __init__(self, what: str, *, rank: int | None = None, operation: str = "", number: int = -1) -> None:
        super().__init__(what, rank=rank, operation=operation)
        self.number = number


class DeadlineError(TransportError):
    """A wait on another rank ran past its limit; names the rank and the operation waited for."""
