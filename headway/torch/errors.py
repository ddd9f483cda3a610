"""The engine's errors as torch users catch them: each is also a torch.distributed.DistBackendError (a RuntimeError)."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed import DistBackendError

from headway.errors import DeadlineError, MismatchError, PeerLostError, TransportError


class CollectiveError(TransportError, DistBackendError):
    """A collective of the backend "headway" failed. `rank` is the rank in the group that is to blame, or None."""


class CollectiveDeadlineError(CollectiveError, DeadlineError):
    """A collective ran past its limit."""


class CollectivePeerLostError(CollectiveError, PeerLostError):
    """A rank that takes part in a collective is gone."""


class CollectiveMismatchError(CollectiveError, MismatchError):
    """The ranks called different collectives, or with other types, sizes or reductions."""


def for_torch(error: Exception, *, label: str, global_ranks: Sequence[int]) -> CollectiveError:
    """`error` of an operation as the error that `Work.wait` raises.

    Args:
        error: what the engine reported; its ranks are ranks in the group.
        label: the operation, for an error that does not name it.
        global_ranks: rank in the job of each rank in the group; where the blamed rank differs, both are named.
    """
    if isinstance(error, CollectiveError):
        return error
    if not isinstance(error, TransportError):
        return CollectiveError(f"{type(error).__name__}: {error}", operation=label)
    what = error.what
    if error.rank is not None and error.rank < len(global_ranks) and global_ranks[error.rank] != error.rank:
        what = f"{what} (rank {error.rank} of this group is rank {global_ranks[error.rank]} of the job)"
    kind: type[CollectiveError] = CollectiveError
    if isinstance(error, DeadlineError):
        kind = CollectiveDeadlineError
    elif isinstance(error, PeerLostError):
        kind = CollectivePeerLostError
    elif isinstance(error, MismatchError):
        kind = CollectiveMismatchError
    return kind(what, rank=error.rank, operation=error.operation or label)
