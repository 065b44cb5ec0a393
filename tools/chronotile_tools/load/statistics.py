"""Differences between runs, with their uncertainty.

Runs are compared in pairs of neighbours in time, one of each kind. The runs of a resample are merged before the
percentile is computed; percentiles of runs are never averaged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from chronotile.errors import InvalidInputError
from chronotile_tools.load.recording import Part, Recording

__all__ = ["Difference", "Estimate", "block_bootstrap", "block_length", "compare", "compare_values", "student_t"]

RESAMPLES = 4_000
POWER = 0.8
_BATCH = 500
_QUIET_LAGS = 5
"""Number of consecutive insignificant lags after which correlations are assumed to have ended. The formula is max(5,
sqrt(log10(count))), which is 5 for every count that fits in memory.
"""


@dataclass(frozen=True)
class Difference:
    """Ratio of times between two kinds of runs.

    Attributes
    ----------
    ratio, low, high : float
        Time of the second kind divided by that of the first, and its confidence interval.
    detectable : float
        The smallest difference, relative to the first kind, that this number of runs with this spread would detect in
        four of five cases. Smaller differences need more runs.
    pairs : int
        Runs of each kind.
    """

    ratio: float
    low: float
    high: float
    detectable: float
    pairs: int

    @property
    def significant(self) -> bool:
        """Whether the interval excludes "no difference"."""
        return not self.low <= 1 <= self.high

    @property
    def verdict(self) -> str:
        """``"yes"`` for a significant difference; ``"below detectable"`` for one that is smaller than these runs can
        establish; ``"no"`` otherwise.
        """
        if not self.significant:
            return "no"
        return "yes" if abs(math.log(self.ratio)) >= math.log1p(self.detectable) else "below detectable"


@dataclass(frozen=True)
class Estimate:
    """A statistic of autocorrelated samples.

    Attributes
    ----------
    value, low, high : float
        The statistic and its confidence interval.
    block : int
        Samples per block of the bootstrap.
    independent : float
        Effective number of independent samples for the mean.
    """

    value: float
    low: float
    high: float
    block: int
    independent: float


def compare(
    first: Sequence[Recording],
    second: Sequence[Recording],
    what: float | str = "mean",
    *,
    part: Part = "response",
    confidence: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Compare paired runs.

    Parameters
    ----------
    first, second : sequence of Recording
        At least two of each; runs at the same position are neighbours in time.
    what : float or "mean"
        Statistic to compare: a percentile, 0 to 100, or the mean.
    part : {"response", "service", "waiting"}
        Kind of time.
    confidence : float
        Confidence level of the interval: 0.95 for 95 %.
    seed : int
        Random seed of the resampling.

    Raises
    ------
    InvalidInputError
        There are fewer than two pairs, or a run has no such times.

    Notes
    -----
    Each end of the interval is the more distant of two. The first is that of a bootstrap over pairs, which assumes no
    distribution; with few pairs its percentiles are too narrow, so its tails are widened by Student's t as in
    Hesterberg (2015), "What Teachers Should Know About the Bootstrap", section 5.3. The second is that of Student's t
    on the logarithms of the pairs' ratios; without it, five pairs that scatter widely to one side would count as proof.
    """
    count = len(first)
    if count < 2 or len(second) != count:
        raise InvalidInputError(
            f"cannot compare {len(first)} with {len(second)} runs: at least two pairs are required",
            kind="invalid-request",
        )
    values, counts = _common([*first, *second], part)
    if not counts.any(axis=1).all():
        raise InvalidInputError(f"a run has no {part} times: make runs longer", kind="invalid-request")
    ours, theirs = counts[:count], counts[count:]
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    # With few pairs there are few distinct resamples.
    distinct, places = np.unique(drawn, axis=0, return_inverse=True)
    parts = [distinct[at : at + _BATCH].astype(float) for at in range(0, len(distinct), _BATCH)]
    logs = np.concatenate([_log_ratio(values, part @ ours, part @ theirs, what) for part in parts])[places.ravel()]
    t = student_t((1 + confidence) / 2, count - 1)
    tail = NormalDist().cdf(-math.sqrt(count / (count - 1)) * t)
    low, high = np.quantile(logs, [tail, 1 - tail])
    estimate = _log_ratio(values, ours.sum(0, keepdims=True), theirs.sum(0, keepdims=True), what)[0]
    error = _standard_error(_log_ratio(values, ours, theirs, what))
    low, high = min(low, estimate - t * error), max(high, estimate + t * error)
    return Difference(math.exp(estimate), math.exp(low), math.exp(high), _detectable(error, t, count), count)


def compare_values(first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95) -> Difference:
    """Compare paired figures with one number per run, such as requests per second or seconds of a repair.

    Parameters
    ----------
    first, second : sequence of float
        At least two of each, above zero; figures at the same position are neighbours in time.
    confidence : float
        Confidence level of the interval: 0.95 for 95 %.

    Raises
    ------
    InvalidInputError
        There are fewer than two pairs, or a figure is not above zero.

    Notes
    -----
    The ratio is the geometric mean of the pairs' ratios, its interval Student's t on their logarithms.
    """
    count = len(first)
    if count < 2 or len(second) != count:
        raise InvalidInputError(
            f"cannot compare {len(first)} with {len(second)} figures: at least two pairs are required",
            kind="invalid-request",
        )
    if min(*first, *second) <= 0:
        raise InvalidInputError("figures must be above zero: their ratios are compared", kind="invalid-request")
    logs = np.log(np.asarray(second, float)) - np.log(np.asarray(first, float))
    estimate, error = float(logs.mean()), _standard_error(logs)
    t = student_t((1 + confidence) / 2, count - 1)
    low, high = math.exp(estimate - t * error), math.exp(estimate + t * error)
    return Difference(math.exp(estimate), low, high, _detectable(error, t, count), count)


def _standard_error(logs: Any) -> float:
    return float(np.std(logs, ddof=1)) / math.sqrt(len(logs))


def _detectable(error: float, t: float, count: int) -> float:
    """The smallest difference that `count` pairs with this error detect in four of five cases."""
    return math.exp((t + student_t(POWER, count - 1)) * error) - 1


def _common(recordings: Sequence[Recording], part: Part) -> tuple[Any, Any]:
    """Distinct values of all histograms, in microseconds, and their counts per run."""
    histograms = [recording.histogram(part) for recording in recordings]
    dense = np.stack([np.ctypeslib.as_array(histogram.counts)[: histogram.counts_len] for histogram in histograms])
    used = np.flatnonzero(dense.any(axis=0))
    model = histograms[0]
    lowest = [model.get_value_from_index(int(index)) for index in used]
    values = np.array([model.get_highest_equivalent_value(value) for value in lowest], float)
    return values, dense[:, used].astype(float)


def _log_ratio(values: Any, ours: Any, theirs: Any, what: float | str) -> Any:
    return np.log(_statistic(values, theirs, what)) - np.log(_statistic(values, ours, what))


def _statistic(values: Any, counts: Any, what: float | str) -> Any:
    """The statistic of each row of counts."""
    if what == "mean":
        return counts @ values / counts.sum(1)
    if isinstance(what, str) or not 0 < what <= 100:
        raise InvalidInputError(
            f'unknown statistic {what!r}: use "mean" or a percentile up to 100', kind="invalid-request"
        )
    wanted = counts.sum(1, keepdims=True) * what / 100
    return values[(counts.cumsum(1) >= wanted - 1e-9).argmax(1)]


def block_bootstrap(
    samples: Any, what: float | str = "mean", *, confidence: float = 0.95, resamples: int = 1_000, seed: int = 0
) -> Estimate:
    """Estimate a statistic of autocorrelated samples, in the order they were taken.

    Circular block bootstrap (Politis & Romano 1992); blocks have the length :func:`block_length`.

    Parameters
    ----------
    samples : array of float
        At least ten samples.
    what : float or "mean"
        Statistic to estimate: a percentile, 0 to 100, or the mean.
    """
    values = np.asarray(samples, float)
    count = len(values)
    block, longrun = block_length(values)
    rng = np.random.default_rng(seed)
    blocks = -(-count // block)
    offsets = np.arange(block)
    found = np.empty(resamples)
    for place in range(resamples):
        starts = rng.integers(0, count, (blocks, 1))
        found[place] = _plain_statistic(values[((starts + offsets) % count).ravel()[:count]], what)
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    variance = float(values.var())
    independent = float(count * min(1.0, variance / longrun)) if longrun > 0 else float(count)
    return Estimate(float(_plain_statistic(values, what)), float(low), float(high), block, independent)


def _plain_statistic(values: Any, what: float | str) -> float:
    return float(values.mean() if what == "mean" else np.percentile(values, float(what)))


def block_length(samples: Any) -> tuple[int, float]:
    """Optimal block length for samples, and their long-run variance.

    The automatic choice for the circular bootstrap of Politis & White (2004), corrected by Patton, Politis & White
    (2009): autocovariances up to twice the lag past which correlations are no longer significant, in a flat-top window.
    """
    values = np.asarray(samples, float)
    count = len(values)
    if count < 10:
        raise InvalidInputError(f"{count} samples are too few: at least 10 are required", kind="invalid-request")
    centred = values - values.mean()
    lag_max = math.ceil(math.sqrt(count)) + _QUIET_LAGS
    covariance = np.array([centred[: count - lag] @ centred[lag:] for lag in range(lag_max + 1)]) / count
    if covariance[0] <= 0:
        return 1, 0.0
    quiet = np.abs(covariance[1:] / covariance[0]) < 2 * math.sqrt(math.log10(count) / count)
    last = next((lag for lag in range(lag_max - _QUIET_LAGS + 1) if quiet[lag : lag + _QUIET_LAGS].all()), lag_max)
    reach = min(2 * last, lag_max)
    lags = np.arange(1, reach + 1)
    window = np.minimum(2 * (1 - lags / reach), 1)
    longrun = covariance[0] + 2 * float(window @ covariance[1 : reach + 1])
    slope = 2 * float(window @ (lags * covariance[1 : reach + 1]))
    if longrun <= 0:
        return 1, 0.0
    best = (2 * slope**2 / (4 / 3 * longrun**2) * count) ** (1 / 3)
    return max(1, min(round(best), math.ceil(min(3 * math.sqrt(count), count / 3)))), longrun


@lru_cache
def student_t(probability: float, freedom: int) -> float:
    """Quantile of Student's t distribution with `freedom` degrees of freedom, to five digits."""
    # With t = sqrt(n) tan(a), the density is proportional to cos(a)^(n - 1).
    angle = np.linspace(-np.pi / 2, np.pi / 2, 400_001)
    density = np.cos(angle) ** (freedom - 1)
    area = np.cumsum(density[1:] + density[:-1])
    return float(np.tan(np.interp(probability * area[-1], area, angle[1:])) * math.sqrt(freedom))
