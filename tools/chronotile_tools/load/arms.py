"""Interleaved runs of several systems, and their comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chronotile.errors import InvalidInputError
from chronotile_tools.load.generator import Generator, Stream
from chronotile_tools.load.recording import Part, Recording
from chronotile_tools.load.statistics import Difference, compare

__all__ = ["CONTROL", "RUNS_MIN", "Arm", "Comparison", "Runs", "interleaved", "run_arms"]

RUNS_MIN = 5
CONTROL = "the same again"
"""Name of the second A of an A/A control."""

Run = dict[str, Recording]
Runs = dict[str, list[Run]]
"""Runs by arm, in order; each run is a recording by stream."""


@dataclass(frozen=True)
class Arm:
    """A system under comparison.

    Attributes
    ----------
    name : str
        Name of the arm.
    streams : callable
        Returns the load of a run by number, from 0; the same number gives the same operations for all arms.
    before : callable
        Prepares the system before each run; not measured.
    server : str
        Name of the servers that run the load, if arms use different ones. Newly started servers compile their code
        while they run, so all must have run the same load before they are compared.
    """

    name: str
    streams: Callable[[int], Sequence[Stream]]
    before: Callable[[], object] = field(default=lambda: None)
    server: str = ""


def interleaved(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Order of runs: A B C, C B A, A B C, ..., so that a drift of the machine affects all arms alike."""
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            yield number, name


def run_arms(
    generator: Generator,
    arms: Sequence[Arm],
    rounds: int = RUNS_MIN,
    *,
    drain_s: float = 30.0,
    warm_up: int = 0,
    done: Callable[[str, int, Run], Any] = lambda arm, number, run: None,
) -> Runs:
    """Run arms interleaved, with an A/A control: the first arm against itself, with as many runs, interleaved in the
    same way. During the control, all other servers run the same load, which is not measured.

    Parameters
    ----------
    generator : Generator
        Load generator.
    arms : sequence of Arm
        Arms; the others are compared with the first.
    rounds : int
        Runs per arm; at least five.
    warm_up : int
        Unmeasured runs on each server before the others.
    done : callable
        Called after each run with its arm's name, number and recordings.

    Returns
    -------
    dict
        Runs by arm; those of the control under the first arm's name followed by ``(A)``, and under :data:`CONTROL`.
    """
    if rounds < RUNS_MIN:
        raise InvalidInputError(f"{rounds} runs are too few: at least {RUNS_MIN} are required", kind="invalid-setting")
    first = arms[0]
    control = [replace(first, name=name) for name in (control_name(first.name), CONTROL)]
    servers = {arm.server: arm for arm in reversed(arms)}
    others = [arm for server, arm in servers.items() if server != first.server]
    runs: Runs = {}

    def one(arm: Arm, number: int) -> Run:
        arm.before()
        return generator.run(arm.streams(number), drain_s=drain_s)

    for number in range(warm_up):
        for arm in servers.values():
            one(arm, number)
    for part in (control, arms):
        by_name = {arm.name: arm for arm in part}
        for number, name in interleaved([arm.name for arm in part], rounds):
            run = one(by_name[name], number)
            runs.setdefault(name, []).append(run)
            done(name, number, run)
            if part is control:
                for arm in others:
                    one(arm, number)
    return runs


def control_name(arm: str) -> str:
    """Name of the first A of a control."""
    return f"{arm} (A)"


@dataclass(frozen=True)
class Comparison:
    """Comparison of an arm with the first one."""

    arm: str
    stream: str
    what: float | str
    difference: Difference
    is_control: bool = False

    @classmethod
    def all_of(
        cls, runs: Runs, arms: Sequence[str], *, whats: Sequence[float | str] = ("mean", 50.0, 99.0),
        part: Part = "response",
    ) -> list[Comparison]:  # fmt: skip
        """Compare the control, then every arm, with the first arm, for every stream and statistic."""
        pairs = [(control_name(arms[0]), CONTROL, True)] if CONTROL in runs else []
        pairs += [(arms[0], arm, False) for arm in arms[1:]]
        found = []
        for stream in runs[arms[0]][0]:
            for first, second, is_control in pairs:
                sides = [[run[stream] for run in runs[name]] for name in (first, second)]
                found += [
                    cls(second, stream, what, compare(sides[0], sides[1], what, part=part), is_control)
                    for what in whats
                ]
        return found
