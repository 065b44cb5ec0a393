"""Experiments on clusters: each puts a stated load on nodes of the laboratory and writes what it found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chronotile.errors import InvalidInputError
from chronotile_tools.load.experiments import consistency, overload, reads, requests, scaling, versions, windows
from chronotile_tools.load.experiments.base import Bench, Settings
from chronotile_tools.load.generator import Generator

__all__ = ["EXPERIMENTS", "Bench", "Settings", "run"]

EXPERIMENTS: dict[str, Callable[[Bench], None]] = {
    "consistency": consistency.run,
    "growing-reads": reads.run,
    "overload": overload.run,
    "requests": requests.run,
    "scaling": scaling.run,
    "versions": versions.run,
    "windows": windows.run,
}
"""By name; the first line of each function says what it finds out."""

ON_ANY_CLUSTER = frozenset({"consistency", "growing-reads"})
"""Those that can be run on a cluster that exists: they disturb no node and need no second one."""


def run(name: str, out: Path, settings: Settings | None = None, echo: Callable[[str], object] = print) -> Bench:
    """Run an experiment; returns it with its report and results, which are also in files in `out`.

    Nodes that it started end with it, also when it is interrupted or killed.

    Raises
    ------
    InvalidInputError
        There is no such experiment, or it cannot be run on a cluster that exists.
    DataFileError
        The folder holds one already.
    """
    chosen = settings or Settings()
    if name not in EXPERIMENTS:
        raise InvalidInputError(f"there is no experiment {name!r}: {', '.join(EXPERIMENTS)}", kind="invalid-request")
    if chosen.url is not None and name not in ON_ANY_CLUSTER:
        able = ", ".join(sorted(ON_ANY_CLUSTER))
        raise InvalidInputError(
            f"{name} starts and disturbs nodes of its own: leave out the URL, which serves {able}",
            kind="invalid-request",
        )
    with Generator(processes=2) as generator:
        bench = Bench(name, out, chosen, generator, echo)
        EXPERIMENTS[name](bench)
        bench.finish()
    return bench
