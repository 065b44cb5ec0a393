"""Commands and hooks of other distributions, found through entry points.

``chronotile.commands``: click commands by name; ``GROUP.NAME`` adds one to a group. ``chronotile.hooks``: objects that
the command line looks up by name; each has a protocol in this module.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any, Protocol

import click

from chronotile import _native, optional
from chronotile.archive import Archive
from chronotile.errors import ChronotileError

__all__ = [
    "LateGroup",
    "NodeDiagnostics",
    "PluginGroup",
    "command",
    "commands",
    "missing_module_text",
    "node_diagnostics",
]

_TOOLS = {"": ("bench", "lab", "ops", "study"), "apdb": ("pixels", "report", "simulate")}
"""Commands of the distribution chronotile-tools, by group."""


class NodeDiagnostics(Protocol):
    """The hook ``node_diagnostics``: metrics of a cluster's nodes that the service stores beside its own."""

    def options(self, command: Callable[..., Any]) -> Callable[..., Any]:
        """Add options that select nodes; the command gets `nodes`, or None if none are given."""

    def recording(
        self, archive: Archive, nodes: Any, every_s: float, failed: Callable[[ChronotileError], None]
    ) -> AbstractContextManager[None]:
        """Store the metrics of `nodes` while the context lasts; call `failed` with each error."""


@functools.cache
def _found(group: str) -> dict[str, metadata.EntryPoint]:
    return {found.name: found for found in metadata.entry_points(group=f"chronotile.{group}")}


def commands(group: str = "") -> list[str]:
    """Names of the commands that other distributions add to a group; top level by default."""
    names = (name.rpartition(".") for name in _found("commands"))
    return [own for parent, _, own in names if parent == group]


def command(name: str, group: str = "") -> click.Command | None:
    """Load a command of another distribution; raises an error if that is chronotile-tools and not installed."""
    found = _found("commands").get(f"{group}.{name}" if group else name)
    if found is None and name in _TOOLS.get(group, ()):
        words = f"{group} {name}".strip()
        raise click.UsageError(
            f"'{words}' is a command of chronotile-tools: build its wheel with `./dev wheel native`, "
            "then pip install dist/chronotile_tools-*.whl"
        )
    loaded: click.Command | None = None if found is None else found.load()
    return loaded


class LateGroup(click.Group):
    """A group that loads commands on demand and suggests the nearest name for an unknown command.

    click itself suggests only commands that are already loaded, and none before version 8.4.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            near = " or ".join(repr(each) for each in _native.nearest_names(name, self.list_commands(ctx)))
            hint = f"Did you mean {near}?" if near else f"{ctx.command_path} --help lists the commands."
            raise click.UsageError(f"No such command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


class PluginGroup(LateGroup):
    """A group to which other distributions may add commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *commands(str(self.name))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or command(cmd_name, str(self.name))


def node_diagnostics() -> NodeDiagnostics | None:
    """The hook, if a distribution provides it."""
    found = _found("hooks").get("node_diagnostics")
    hook: NodeDiagnostics | None = None if found is None else found.load()
    return hook


def missing_module_text(error: ModuleNotFoundError) -> str | None:
    """Installation advice for a missing module; None if the module belongs to the distribution itself."""
    name = error.name or ""
    root = name.partition(".")[0]
    packages = {"chronotile": "chronotile[all]"}
    for found in (*_found("commands").values(), *_found("hooks").values()):
        packages[found.module.partition(".")[0]] = "chronotile-tools" if found.dist is None else found.dist.name
    if not root or root in packages:
        return None
    if root in sys.stdlib_module_names:
        return f"this command needs {name}, which this Python lacks: install a Python with its whole standard library"
    what = optional.DISTRIBUTIONS.get(name, f"the module {name}")
    importer, trace = "chronotile", error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        importer = package if package in packages else importer
        trace = trace.tb_next
    return f"this command needs {what}, which is not installed: pip install '{packages[importer]}'"
