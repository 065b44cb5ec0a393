"""Measure on laboratory nodes for a study, and say what the figures allow to be said."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Literal

from chronotile_tools.load.arms import Comparison, Runs
from chronotile_tools.load.experiments import Harness, Settings
from chronotile_tools.load.generator import Generator
from chronotile_tools.load.recording import FAILED, TIMED_OUT, UNSERVED, Latency, Recording, merged
from chronotile_tools.load.statistics import Difference
from chronotile_tools.studies.record import Values

__all__ = [
    "Echo",
    "agreement",
    "comparisons",
    "control_words",
    "difference_of",
    "harness",
    "judge",
    "latencies",
    "latency_of",
    "ratio_words",
]

Echo = Callable[[str], object]
Judgement = Literal["agrees", "differs", "open"]

_FACTOR_MAX = 10.0
_ALIKE = 1.05
_DECIDES = 0.25


@contextmanager
def harness(parameters: Values, echo: Echo) -> Iterator[Harness]:
    """What runs the loads of a part."""
    with Generator(processes=2) as generator:
        yield Harness(Settings(seed=parameters["seed"], heap=parameters["heap"]), generator, echo)


def latency_of(parts: Sequence[Recording]) -> Values:
    """Response times of runs that belong together, milliseconds, and how their operations ended."""
    found = asdict(Latency.of(merged(each.histogram() for each in parts)))
    return {
        **{name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()},
        "timed_out": sum(each.count(TIMED_OUT) for each in parts), "failed": sum(each.count(FAILED) for each in parts),
        "unserved": sum(each.count(UNSERVED) for each in parts), "saturated": sum(each.saturated for each in parts),
        "runs": len(parts),
    }  # fmt: skip


def latencies(runs: Runs, arms: Sequence[str]) -> Values:
    """Response times by arm and stream."""
    return {arm: {stream: latency_of([run[stream] for run in runs[arm]]) for stream in runs[arm][0]} for arm in arms}


def comparisons(runs: Runs, arms: Sequence[str], whats: Sequence[float | str]) -> list[Values]:
    """Every arm over the first, and the control, as plain values."""
    return [asdict(each) for each in Comparison.all_of(runs, arms, whats=whats)]


def difference_of(found: Sequence[Values], arm: str, stream: str, what: float | str) -> Difference:
    """The difference of an arm from the first."""
    (one,) = (
        each
        for each in found
        if (each["arm"], each["stream"], each["what"], each["is_control"]) == (arm, stream, what, False)
    )
    return Difference(**one["difference"])


def control_words(found: Sequence[Values]) -> str:
    """What the control found, where there is no difference."""
    controls = [Difference(**each["difference"]) for each in found if each["is_control"]]
    wrong = sum(each.verdict == "yes" for each in controls)
    return (
        f"The control, the first of them against itself, showed a difference in {wrong} of {len(controls)} comparisons."
    )


def ratio_words(found: Difference) -> str:
    """A ratio with its interval, or the smallest difference that would have shown."""
    if found.verdict == "yes":
        return f"{found.ratio:.2f} ({found.low:.2f} to {found.high:.2f})"
    factor = 1 + found.detectable
    if factor >= _FACTOR_MAX:
        return f"cannot be told apart; not even a factor of {_FACTOR_MAX:g} would have shown"
    shown = f"{found.detectable:.0%}" if factor < 2 else f"a factor of {factor:.1f}"
    return f"cannot be told apart; {shown} would have shown"


def judge(then: float, found: Difference) -> Judgement:
    """Compare a published ratio with ours.

    A published ratio within a twentieth of 1 is no difference. Ours agrees with it if ours cannot be told from 1, and a
    difference of a quarter would have shown. Any other one agrees with ours on the same side of 1. Where ours cannot be
    told from 1, the published one differs if it would have shown; otherwise nothing is decided.
    """
    size = abs(math.log(then))
    alike = size < math.log(_ALIKE)
    if found.verdict == "yes":
        return "agrees" if not alike and (found.ratio > 1) == (then > 1) else "differs"
    if alike:
        return "agrees" if found.detectable <= _DECIDES else "open"
    return "differs" if size >= math.log1p(found.detectable) else "open"


def agreement(then: Mapping[str, float], found: Mapping[str, Difference]) -> str:
    """Count the published ratios that ours agree with, in a phrase."""
    judged = [judge(ratio, found[name]) for name, ratio in then.items()]
    inside = sum(
        each == "agrees" and found[name].low <= ratio <= found[name].high
        for each, (name, ratio) in zip(judged, then.items(), strict=True)
    )
    agree, differ, left = (judged.count(word) for word in ("agrees", "differs", "open"))
    if left == len(judged):
        return "not decided: our runs scatter too much"
    word = "agrees" if agree == len(judged) else "differs" if differ >= agree else "agrees in part"
    if len(judged) == 1:
        return word + (", within our interval" if inside else "")
    parts = [f"{agree} of {len(judged)} agree" + (f", {inside} of them within our intervals" if inside else "")]
    parts += [f"{differ} differ{'s' if differ == 1 else ''}"] if differ else []
    parts += [f"{left} not decided"] if left else []
    return f"{word}: {'; '.join(parts)}"
