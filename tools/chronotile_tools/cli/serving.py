"""The service's hook for metrics of a cluster's nodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from chronotile.archive import Archive
from chronotile.cli.common import Command
from chronotile.errors import ChronotileError
from chronotile_tools.cli.access import nodes_options
from chronotile_tools.ops import Access

__all__ = ["options", "recording"]


def options(command: Command) -> Command:
    """Add options that select nodes; the command gets `nodes`, or None if none are given."""
    return nodes_options(command)


def recording(
    archive: Archive, nodes: Access, every_s: float, failed: Callable[[ChronotileError], None]
) -> AbstractContextManager[None]:
    """Store metrics of the nodes in the archive while the context lasts."""
    from chronotile_tools import ops
    from chronotile_tools.ops.recording import Recorder
    from chronotile_tools.ops.recording import recording as recorded

    return recorded(Recorder(archive), lambda: ops.observe(nodes), every_s, failed)
