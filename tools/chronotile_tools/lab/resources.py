"""Resources of a cluster: memory, ports, downloads."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from chronotile.errors import InvalidInputError
from chronotile.terminal import count_text
from chronotile_tools.lab import software, state, versions
from chronotile_tools.lab.errors import LabError
from chronotile_tools.lab.launching import Echo, quiet
from chronotile_tools.lab.state import ClusterState

HEAP_MB_DEFAULT, HEAP_MB_MIN = 512, 200
OFF_HEAP_MB = 450
"""Memory of a node outside the heap, in MiB: code, threads, buffers, mapped files."""

_HEAP = re.compile(r"(\d+)\s*([mMgG])?(?:i?[bB])?")


def prepare(release: versions.Release, echo: Echo = quiet) -> None:
    """Download everything that a release needs, so that a later start works offline."""
    if software.must_fetch(release):
        echo(f"fetching Cassandra {release.version}")
    software.server(release)
    software.java(17)
    software.java(release.java)


def read_heap(heap: str | int) -> int:
    """Parse a heap size: a number of MiB, or text such as ``512m`` or ``1g``."""
    match = _HEAP.fullmatch(str(heap).strip())
    if match is None:
        raise InvalidInputError(f"invalid heap {heap!r}: write a size such as 512m or 1g", kind="invalid-request")
    megabytes = int(match[1]) * (1024 if (match[2] or "m") in "gG" else 1)
    if megabytes < HEAP_MB_MIN:
        raise InvalidInputError(
            f"a heap of {megabytes} MiB is too small: use {HEAP_MB_MIN} or more", kind="invalid-request"
        )
    return megabytes


def check_memory(nodes: int, heap_mb: int) -> None:
    """Raise an error if the available memory is too small; the message says what would fit.

    Raises
    ------
    LabError
        Kind ``lab-memory``.
    """
    available = available_mb()
    each = heap_mb + OFF_HEAP_MB
    if nodes * each <= available:
        return
    fitting = available // each
    smaller = available // nodes - OFF_HEAP_MB
    ways = [f"{fitting} of them" if fitting else "", f"a heap of {smaller}m" if smaller >= HEAP_MB_MIN else ""]
    fits = " or ".join(filter(None, ways))
    raise LabError(
        f"too little memory for {count_text(nodes, 'more node')} with a heap of {heap_mb} MiB: "
        f"{nodes * each:,} MiB required ({OFF_HEAP_MB} MiB each besides the heap), {available:,} MiB available: "
        + (f"{fits} would fit" if fits else "not even one would fit"),
        kind="lab-memory",
    )


def available_mb() -> int:
    """Memory available to new processes, in MiB: the machine's, or less if a control group limits it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) // 1024
    for limit_file in _control_group_limits():
        try:
            limit = int(limit_file.read_text())
            used = int(limit_file.with_name("memory.current").read_text())
        except (OSError, ValueError):
            continue
        available = min(available, (limit - used) // 2**20)
    return max(0, available)


def _control_group_limits() -> list[Path]:
    """Files ``memory.max`` of this process's control group and its parents; ``max`` means no limit."""
    root = Path("/sys/fs/cgroup")
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()[-1].partition("::")[2].strip("/")
    except (OSError, IndexError):
        return []
    inner = root / own
    return [folder / "memory.max" for folder in [inner, *inner.parents] if folder.is_relative_to(root)]


def ports_taken() -> list[int]:
    """JMX ports of all nodes of this home, running or not."""
    return [node.jmx_port for cluster in all_states() for node in cluster.nodes]


def all_states() -> list[ClusterState]:
    """States of all clusters of this home, except unreadable ones."""
    found = []
    for name in state.names():
        with contextlib.suppress(LabError):
            found.append(state.load(name))
    return found
