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
    "control_text",
    "difference_of",
    "harness",
    "judge",
    "latencies",
    "latency_of",
    "ratio_text",
    "times_text",
    "verdict",
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


def control_text(found: Sequence[Values]) -> str:
    """Describe how often the control showed a difference, although there is none."""
    controls = [Difference(**each["difference"]) for each in found if each["is_control"]]
    wrong = sum(each.verdict == "yes" for each in controls)
    return f"The control, the first arm against itself, showed a difference in {wrong} of {len(controls)} comparisons."


def times_text(ratio: float, greater: str = "slower", less: str = "faster") -> str:
    """Describe a ratio, by default of times, as ``2.5x slower`` or ``2.5x faster``."""
    factor = _factor_text(max(ratio, 1 / ratio))
    return "no difference" if factor == "1x" else f"{factor} {greater if ratio > 1 else less}"


def ratio_text(found: Difference, greater: str = "slower", less: str = "faster") -> str:
    """Describe a ratio with its interval or, without a significant difference, the smallest detectable one."""
    if found.verdict == "yes":
        ends = sorted(max(end, 1 / end) for end in (found.low, found.high))
        return f"{times_text(found.ratio, greater, less)} ({' to '.join(map(_factor_text, ends))})"
    factor = 1 + found.detectable
    if factor >= _FACTOR_MAX:
        detectable = f"not even a factor of {_FACTOR_MAX:g}"
    else:
        detectable = f"{100 * found.detectable:.0f} %" if factor < 2 else f"a factor of {factor:.1f}"
    return f"no significant difference ({detectable} would have been detected)"


def _factor_text(factor: float) -> str:
    return f"{factor:,.0f}x" if factor >= 100 else f"{factor:.3g}x"


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
    count, agree, undecided = len(judged), judged.count("agrees"), judged.count("open")
    if undecided == count:
        return "not decided: our runs scatter too much"
    if count == 1:
        ((name, ratio),) = then.items()
        inside = judged[0] == "agrees" and found[name].low <= ratio <= found[name].high
        return judged[0] + (", within our interval" if inside else "")
    if agree == count:
        return "both ratios agree" if count == 2 else f"all {_number_text(count)} ratios agree"
    text = f"{_number_text(agree)} of {_number_text(count)} ratios agree{'s' if agree == 1 else ''}"
    return text + (f"; {_number_text(undecided)} not decided" if undecided else "")


def verdict(agrees: bool, words: str) -> str:
    """Whether a result agrees with the published one, and why."""
    return f"{'agrees' if agrees else 'differs'}: {words}"


def _number_text(count: int) -> str:
    words = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return words[count] if count < len(words) else f"{count:,}"
