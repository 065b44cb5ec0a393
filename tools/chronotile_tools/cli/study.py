"""``chronotile study``: published tables and figures, repeated with Chronotile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from chronotile.cli.common import json_option
from chronotile.cli.plugins import LateGroup
from chronotile.terminal import table_text

_OUT = click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default="studies", show_default=True, metavar="FOLDER",
    help="Folder of the pages; its folder data/ contains the results, images/ the figures.",
)  # fmt: skip


@click.group(cls=LateGroup, short_help="Repeat published measurements.")
def study() -> None:
    """Repeat published tables and figures, and write a page that compares them with ours.

    \b
    Examples:
        chronotile study list
        chronotile study run pixels --out studies
        chronotile study page pixels --out studies
    """


@study.command("list", short_help="List the studies.")
@json_option
def list_(as_json: bool) -> None:
    """List the studies, what they repeat, and their scales; the first scale is the default."""
    from chronotile_tools.studies import STUDIES

    found: list[dict[str, Any]] = [
        {"name": each.name, "title": each.title, "repeats": each.repeats, "scales": dict(each.scales)}
        for each in STUDIES.values()
    ]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    rows = [[each["name"], each["repeats"], ", ".join(each["scales"]), each["title"]] for each in found]
    click.echo(table_text(["study", "repeats", "scales", "title"], rows))


@study.command(short_help="Compute the results of a study, and write its page.")
@click.argument("name")
@click.option("--scale", metavar="SCALE", help="Amount of work; `study list` shows the scales.  [default: the first]")
@click.option("--overwrite", is_flag=True, help="Replace results of other parameters instead of refusing.")
@_OUT
def run(name: str, scale: str | None, overwrite: bool, out: Path) -> None:
    """Compute the results of a study, and write its page.

    Results are stored after each part. Run the command again after an interruption: it computes only the missing parts.

    \b
    Examples:
        chronotile study run pixels
        chronotile study run pixels --scale quick --out tried
    """
    from chronotile_tools import studies

    found = studies.find(name)
    chosen = scale or next(iter(found.scales))
    if chosen not in found.scales:
        raise click.BadParameter(f"{chosen!r} is not one of {', '.join(found.scales)}", param_hint="--scale")
    studies.run(found, out, chosen, lambda line: click.echo(line, err=True), overwrite=overwrite)
    click.echo(f"page: {studies.write_page(found, out)}")


@study.command(short_help="Write the page of a study from its results.")
@click.argument("name")
@_OUT
def page(name: str, out: Path) -> None:
    """Write the page and the figures of a study from its stored results.

    \b
    Example:
        chronotile study page pixels --out studies
    """
    from chronotile_tools import studies

    click.echo(f"page: {studies.write_page(studies.find(name), out)}")
