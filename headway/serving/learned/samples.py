"""What was measured: rows of features and the TTFT that came of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.serving.learned.features import WIDTH, Rows
from headway.serving.learned.scorer import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Measurements, oldest first.

    Attributes:
        rows: features of the replica that was chosen, at the moment of the decision, [N, WIDTH].
        ttft_s: what was measured, seconds, [N].
    """

    rows: Rows
    ttft_s: Vector

    def __len__(self) -> int:
        return len(self.ttft_s)

    def __getitem__(self, which: slice | np.ndarray) -> Samples:
        return Samples(self.rows[which], self.ttft_s[which])

    @staticmethod
    def none() -> Samples:
        """No measurements."""
        return Samples(np.zeros((0, WIDTH), dtype=np.float32), np.zeros(0, dtype=np.float32))

    @staticmethod
    def joined(*parts: Samples) -> Samples:
        """One after the other."""
        return Samples(np.concatenate([part.rows for part in parts]), np.concatenate([part.ttft_s for part in parts]))
