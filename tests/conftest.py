"""Shared fixtures: archives, and the command line as users run it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from support_commands import run_command
from support_lab import cluster, lab_home, one_node, secure_cluster, shared_cluster, single_node
from support_shell import Shell

import chronotile as ct

__all__ = ["cluster", "lab_home", "one_node", "secure_cluster", "shared_cluster", "single_node"]

# No deadline: the time of an example depends more on the load of the machine than on the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

Run = Callable[..., subprocess.CompletedProcess[str]]


def pytest_configure() -> None:
    """Handle SIGINT even in the background, where shells make a process and its children ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start Cassandra nodes: `./dev test all` runs them in parallel with the others."""
    for item in items:
        if "lab_home" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture
def memory() -> Iterator[ct.Archive]:
    """An archive in memory."""
    with ct.open("memory:") as archive:
        yield archive


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path for an archive file, which does not exist yet."""
    return tmp_path / "archive.db"


@pytest.fixture
def sqlite(path: Path) -> Iterator[ct.Archive]:
    """An archive in a file."""
    with ct.open(path) as archive:
        yield archive


@pytest.fixture(scope="session")
def chronotile() -> Run:
    """Runs the command line in a separate process: `chronotile("read", ..., stdin="...", env={...})`."""
    return run_command


@pytest.fixture
def shell(chronotile: Run, tmp_path: Path) -> Shell:
    """Runs commands in an empty folder: `shell("count", "a.db", "d", code=3)`."""
    folder = tmp_path / "here"
    folder.mkdir()
    return Shell(chronotile, folder)


@pytest.fixture
def detections() -> pa.Table:
    """500 detections in a small field, over ninety days."""
    rng = np.random.default_rng(20260131)
    count = 500
    return pa.table(
        {
            "candid": pa.array(np.arange(count), pa.int64()),
            "jd": 2461041.5 + np.sort(rng.uniform(0, 90, count)),
            "ra": 150 + rng.uniform(-1, 1, count),
            "dec": 2 + rng.uniform(-1, 1, count),
            "mag": pa.array(rng.normal(19, 1, count).astype("float32"), mask=np.arange(count) % 50 == 0),
            "band": pa.array([["g", "r", "i"][k % 3] for k in range(count)]),
        }
    )


@pytest.fixture
def survey(sqlite: ct.Archive, detections: pa.Table) -> ct.Dataset:
    """A dataset with these detections, stored in ten named batches."""
    dataset = sqlite.create(
        "detections", schema=detections.schema, cell=ct.sky("ra", "dec"), time="jd", window="30d", id=["candid"]
    )
    for start in range(0, detections.num_rows, 50):
        dataset.write(detections.slice(start, 50), batch=f"visit-{start // 50}")
    return dataset
