"""Found by torch through the `torch.backends` entry point: makes "headway" a backend without an import.

torch calls this at the end of its own import, when `torch.distributed` is already loaded, so the registration costs
microseconds. Everything else is imported when the first process group is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.torch.backend import BackendOptions
    from headway.torch.process_group import HeadwayProcessGroup


def register() -> None:
    """Called once by `import torch`. Must stay cheap and must never raise: it runs in every torch program."""
    try:
        from torch.distributed import is_available

        if not is_available():
            return
        from torch.distributed.distributed_c10d import Backend

        Backend.register_backend("headway", create, extended_api=True, devices=["cpu"])
    except Exception as error:
        import logging

        logging.getLogger("headway").warning('backend "headway" could not be registered: %s', error)


def create(options: BackendOptions, backend_options: object = None) -> HeadwayProcessGroup:
    """What torch calls for each new group that has the backend "headway"."""
    from headway.torch.backend import create_process_group

    return create_process_group(options, backend_options)
