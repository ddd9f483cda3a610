"""The model: its gradients, what it learns, what it knows of its own range."""

from __future__ import annotations

import numpy as np
import pytest

from headway.serving.learned.features import WIDTH
from headway.serving.learned.samples import Samples
from headway.serving.learned.training import Fit, Network, fit


def made(count: int, *, seed: int = 0) -> Samples:
    """Rows with a TTFT that depends on three of their features, not linearly."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(0, 4000, (count, WIDTH)).astype(np.float32)
    seconds = 0.02 + rows[:, 1] * 2e-4 + np.maximum(rows[:, 5], rows[:, 3]) * 1e-4
    return Samples(rows, seconds.astype(np.float32))


def test_the_gradient_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(3)
    network = Network.fresh(rng, (5, 7, 6, 4, 1), dtype=np.float64)
    network.flat += 0.1 * rng.standard_normal(len(network.flat))
    x, y = rng.standard_normal((9, 5)), rng.standard_normal(9)
    network.step_gradient(x, y)
    found = network.gradient.copy()
    step = 1e-6
    for place in range(len(network.flat)):
        before = network.flat[place]
        network.flat[place] = before + step
        above = network.step_gradient(x, y)
        network.flat[place] = before - step
        below = network.step_gradient(x, y)
        network.flat[place] = before
        assert found[place] == pytest.approx((above - below) / (2 * step), abs=1e-6)


def test_it_learns_a_function_that_it_has_not_been_told() -> None:
    scorer = fit(made(4000), Fit(), seed=1)
    unseen = made(500, seed=9)
    wrong = np.abs(np.log(scorer.predict_s(unseen.rows) / unseen.ttft_s))
    assert np.median(wrong) < 0.08
    assert scorer.samples == 4000


def test_the_same_seed_gives_the_same_model() -> None:
    rows = made(10, seed=4).rows
    one, same, other = (fit(made(600), Fit(epochs=2), seed=seed).predict_s(rows) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_ttfts_beyond_the_limit_count_as_the_limit() -> None:
    rows = np.zeros((400, WIDTH), dtype=np.float32)
    samples = Samples(rows, np.full(400, 1e6, dtype=np.float32))
    assert fit(samples, Fit(limit_s=60.0), seed=1).predict_s(rows[:1])[0] == pytest.approx(60.0, rel=0.1)


def test_a_prediction_stays_a_number_however_far_out_the_row_is() -> None:
    scorer = fit(made(600), Fit(epochs=2), seed=1)
    for factor in (1e12, -1e12):
        assert np.isfinite(scorer.predict_s(np.full((1, WIDTH), factor, dtype=np.float32))).all()


@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_range_is_checked_in_every_row_and_on_both_sides(row: int, sign: int) -> None:
    scorer = fit(made(600), Fit(epochs=1), seed=1)
    rows = made(3, seed=2).rows
    assert scorer.outside(rows, 0.25) is None
    width = scorer.high[4] - scorer.low[4]
    edge = scorer.high[4] if sign > 0 else scorer.low[4]
    rows[row, 4] = edge + sign * 0.2 * width
    assert scorer.outside(rows, 0.25) is None
    assert scorer.outside(rows, 0.0) == 4
    rows[row, 4] = edge + sign * 0.3 * width
    assert scorer.outside(rows, 0.25) == 4


def test_a_feature_that_never_changed_has_no_room_around_it() -> None:
    samples = made(300)
    samples.rows[:, 7] = 5.0
    scorer = fit(samples, Fit(epochs=1), seed=1)
    rows = made(2, seed=2).rows
    rows[:, 7] = 5.0
    assert scorer.outside(rows, 0.5) is None
    rows[1, 7] = 6.0
    assert scorer.outside(rows, 0.5) == 7
