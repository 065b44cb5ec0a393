"""Measure on laboratory nodes for a study, and compare results with published figures."""

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
"""Largest detectable factor that a page names."""
_ALIKE = 1.05
"""Published ratios below this, either way, count as no difference."""
_DECIDES = 0.25
"""Largest detectable difference with which a run can confirm that there is no difference."""


@contextmanager
def harness(parameters: Values, echo: Echo) -> Iterator[Harness]:
    """The harness that runs the loads of a part."""
    with Generator(processes=2) as generator:
        yield Harness(Settings(seed=parameters["seed"], heap=parameters["heap"]), generator, echo)


def latency_of(parts: Sequence[Recording]) -> Values:
    """Response times of merged runs in milliseconds, and outcomes of their operations."""
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
    """Comparisons of the control and of every arm with the first, as plain values."""
    return [asdict(each) for each in Comparison.all_of(runs, arms, whats=whats)]


def difference_of(found: Sequence[Values], arm: str, stream: str, what: float | str) -> Difference:
    """The difference between an arm and the first one."""
    (one,) = (
        each
        for each in found
        if (each["arm"], each["stream"], each["what"], each["is_control"]) == (arm, stream, what, False)
    )
    return Difference(**one["difference"])


def control_words(found: Sequence[Values]) -> str:
    """Describe how often the control showed a difference, although there is none."""
    controls = [Difference(**each["difference"]) for each in found if each["is_control"]]
    wrong = sum(each.verdict == "yes" for each in controls)
    return f"The control, the first arm against itself, showed a difference in {wrong} of {len(controls)} comparisons."


def ratio_words(found: Difference) -> str:
    """A ratio with its interval, or, without a significant difference, the smallest detectable one."""
    if found.verdict == "yes":
        return f"{found.ratio:.2f} ({found.low:.2f} to {found.high:.2f})"
    factor = 1 + found.detectable
    if factor >= _FACTOR_MAX:
        return f"cannot be told apart; not even a factor of {_FACTOR_MAX:g} would have shown"
    shown = f"{found.detectable:.0%}" if factor < 2 else f"a factor of {factor:.1f}"
    return f"cannot be told apart; {shown} would have shown"


def judge(then: float, found: Difference) -> Judgement:
    """Compare a published ratio with ours.

    A published ratio within a twentieth of 1 means no difference. Ours agrees with it if ours does not differ
    significantly from 1 and a difference of a quarter would have been detected. Any other published ratio agrees with a
    significant one of ours on the same side of 1. If ours is not significant, the published one differs if it would
    have been detected; otherwise the comparison is open.
    """
    size = abs(math.log(then))
    alike = size < math.log(_ALIKE)
    if found.verdict == "yes":
        return "agrees" if not alike and (found.ratio > 1) == (then > 1) else "differs"
    if alike:
        return "agrees" if found.detectable <= _DECIDES else "open"
    return "differs" if size >= math.log1p(found.detectable) else "open"


def agreement(then: Mapping[str, float], found: Mapping[str, Difference]) -> str:
    """Describe how many published ratios agree with ours."""
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
