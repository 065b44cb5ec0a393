"""Experiments on clusters: each runs a defined load on laboratory nodes and writes a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chronotile.errors import InvalidInputError
from chronotile_tools.load.experiments import (
    consistency,
    expansion,
    outage,
    overload,
    reads,
    requests,
    scaling,
    versions,
    windows,
)
from chronotile_tools.load.experiments.base import Bench, Harness, Settings
from chronotile_tools.load.generator import Generator

__all__ = ["EXPERIMENTS", "Bench", "Harness", "Settings", "run"]

EXPERIMENTS: dict[str, Callable[[Bench], None]] = {
    "consistency": consistency.run,
    "expansion": expansion.run,
    "growing-reads": reads.run,
    "outage": outage.run,
    "overload": overload.run,
    "requests": requests.run,
    "scaling": scaling.run,
    "versions": versions.run,
    "windows": windows.run,
}
"""Experiments by name; the first docstring line of each function describes it."""

ON_ANY_CLUSTER = frozenset({"consistency", "growing-reads"})
"""Experiments that can run on an existing cluster: they disturb no node and need no second cluster."""


def run(name: str, out: Path, settings: Settings | None = None, echo: Callable[[str], object] = print) -> Bench:
    """Run an experiment; return it with its report and results, which are also written to `out`. Nodes that it starts
    are stopped at the end, even if it is interrupted or killed.

    Raises
    ------
    InvalidInputError
        The experiment is unknown, or cannot run on an existing cluster.
    DataFileError
        The folder already contains an experiment.
    """
    chosen = settings or Settings()
    if name not in EXPERIMENTS:
        raise InvalidInputError(
            f"unknown experiment {name!r}: use one of {', '.join(EXPERIMENTS)}", kind="invalid-request"
        )
    if chosen.url is not None and name not in ON_ANY_CLUSTER:
        able = ", ".join(sorted(ON_ANY_CLUSTER))
        raise InvalidInputError(
            f"{name} needs its own nodes: omit the URL, which is only for {able}",
            kind="invalid-request",
        )
    with Generator(processes=2) as generator:
        bench = Bench(chosen, generator, echo, name, out)
        EXPERIMENTS[name](bench)
        bench.finish()
    return bench
