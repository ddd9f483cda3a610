"""YAML as people write it: without anchors. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """Each part is written where it stands."""
        return True


def documents(bodies: Sequence[object]) -> str:
    """One file with a document for each."""
    return yaml.dump_all(bodies, Dumper=_Dumper, sort_keys=False, width=120)
