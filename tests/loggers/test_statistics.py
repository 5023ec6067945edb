"""The middle of several runs and its band: against numpy, scipy, and `rliable`, which defines the interquartile mean."""

from importlib.util import find_spec

import numpy as np
import pytest

from lox.loggers._compare.statistics import BANDS, CENTERS, smooth, summarize


def of(values, center, band, there=None):
    values = np.asarray(values, float)
    return summarize(values, np.ones(values.shape, bool) if there is None else there, center, band)


@pytest.mark.parametrize("runs", range(1, 12))
def test_centers_and_bands_are_those_of_numpy(runs):
    values = np.random.default_rng(runs).normal(size=(runs, 7)) * 10.0 ** np.arange(-3, 4)
    np.testing.assert_allclose(of(values, "mean", "std")[0], values.mean(0))
    np.testing.assert_allclose(of(values, "median", "std")[0], np.median(values, 0))
    np.testing.assert_allclose(of(values, "mean", "std")[2], values.mean(0) + values.std(0))
    np.testing.assert_allclose(of(values, "iqm", "minmax")[1:], [values.min(0), values.max(0)])
    np.testing.assert_allclose(of(values, "iqm", "quartiles")[1:], np.quantile(values, [0.25, 0.75], axis=0))


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 5, 7, 8, 16, 50])
def test_the_interquartile_mean_is_the_trimmed_mean(runs):
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(runs).normal(size=(runs, 5))
    np.testing.assert_allclose(of(values, "iqm", "std")[0], stats.trim_mean(values, 0.25, axis=0))


@pytest.mark.skipif(find_spec("rliable") is None, reason="rliable is not installed: hatch run readers:test")
@pytest.mark.parametrize("center", ["iqm", "mean"])
@pytest.mark.parametrize("runs", [5, 16])
def test_the_interval_is_that_of_rliable(center, runs):
    """Both are drawn at random: they agree as well as two draws of rliable do."""
    from rliable import library, metrics

    scores = np.random.default_rng(3).lognormal(size=(runs, 1))
    aggregate = {"iqm": metrics.aggregate_iqm, "mean": metrics.aggregate_mean}[center]
    points, intervals = library.get_interval_estimates({"a": scores}, lambda x: np.array([aggregate(x)]), reps=4000)
    middle, low, high = of(scores, center, "ci95")
    assert middle.item() == pytest.approx(points["a"].item())
    width = (intervals["a"][1] - intervals["a"][0]).item()
    assert low.item() == pytest.approx(intervals["a"][0].item(), abs=0.08 * width)
    assert high.item() == pytest.approx(intervals["a"][1].item(), abs=0.08 * width)


@pytest.mark.parametrize("center", CENTERS)
def test_the_interval_is_the_percentile_bootstrap(center):
    """The published formula, written out: resample runs, take the center, then the percentiles."""
    values = np.random.default_rng(1).normal(size=41)

    def middle(sample):
        ordered = np.sort(sample)
        return {"mean": ordered.mean(), "median": np.median(ordered), "iqm": ordered[10:-10].mean()}[center]

    rng = np.random.default_rng(2)
    draws = [middle(rng.choice(values, 41)) for _ in range(8000)]
    low, high = np.percentile(draws, [2.5, 97.5])
    found = of(values[:, None], center, "ci95")
    assert [end.item() for end in found[1:]] == pytest.approx([low, high], abs=0.08 * (high - low))


def test_the_same_runs_have_the_same_interval():
    values = np.random.default_rng(0).normal(size=(6, 3))
    np.testing.assert_array_equal(of(values, "iqm", "ci95"), of(values[::-1], "iqm", "ci95"))


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("band", BANDS)
def test_runs_that_are_not_there_do_not_count(center, band):
    values = np.random.default_rng(0).normal(size=(5, 4))
    there = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 1, 1]], bool)
    found = np.array(of(np.where(there, values, 777.0), center, band, there))
    for column in range(4):
        np.testing.assert_allclose(
            found[:, column, None], of(values[there[:, column], column, None], center, band), atol=1e-12
        )


@pytest.mark.parametrize("band", BANDS)
def test_extreme_numbers(band):
    huge = np.array([[1e308], [1e308], [1.2e308], [-1e308]])
    assert of(huge, "mean", band)[0].item() == pytest.approx(0.55e308)
    assert np.isnan(of([[np.nan], [1.0], [2.0]], "median", band)).all()
    assert of([[np.inf], [1.0], [2.0]], "median", band)[0].item() == 2.0
    assert of([[np.inf], [1.0], [2.0], [-np.inf], [4.0]], "iqm", band)[0].item() == pytest.approx(7 / 3)
    assert of([[np.inf], [1.0]], "mean", band)[0].item() == np.inf
    assert np.isnan(of([[np.inf], [-np.inf]], "mean", band)[0]).all()


def test_many_steps_are_taken_in_parts(monkeypatch):
    values = np.random.default_rng(0).normal(size=(4, 50))
    whole = of(values, "iqm", "ci95")
    monkeypatch.setattr("lox.loggers._compare.statistics._BLOCK", 2000 * 7)
    np.testing.assert_array_equal(whole, of(values, "iqm", "ci95"))


def test_smoothing_begins_at_the_first_value_and_passes_over_what_is_not_finite():
    np.testing.assert_allclose(smooth(np.array([4.0, 4.0, 4.0]), 0.9), 4.0)
    np.testing.assert_allclose(smooth(np.array([0.0, np.nan, 3.0]), 0.5), [0.0, np.nan, 2.0])
