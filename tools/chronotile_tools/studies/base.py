"""Run a study part by part, and write its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from chronotile.errors import DataFileError, InvalidInputError
from chronotile_tools.studies.record import Record, Values, this_run

__all__ = ["Page", "Part", "Study", "run", "write_page"]


@dataclass(frozen=True)
class Part:
    """A part of a study. Its name is stable between runs.

    Attributes
    ----------
    compute : callable
        Returns the values; called without arguments, or with `echo` if the part reports its progress.
    reports : bool
        Whether the part reports its progress.
    """

    name: str
    compute: Callable[..., Values]
    reports: bool = False


@dataclass(frozen=True)
class Page:
    """A page in Markdown, and its figures as SVG by name, to which the text refers with
    :func:`~chronotile_tools.studies.markdown.figure`.
    """

    text: str
    figures: Mapping[str, str]


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes
    ----------
    name : str
        Name on the command line and of its files.
    title : str
        Title of the page.
    repeats : str
        The published study that it repeats or extends.
    scales : dict of str to dict
        Parameters by scale; the first is the default.
    parts : callable
        Returns the parts for given parameters, in the order in which they run.
    page : callable
        Returns the page for complete results.
    """

    name: str
    title: str
    repeats: str
    scales: Mapping[str, Values]
    parts: Callable[[Values], Iterator[Part]]
    page: Callable[[Record], Page]


def run(study: Study, folder: Path, scale: str, echo: Callable[[str], object], *, overwrite: bool = False) -> Record:
    """Compute the parts that are missing in ``folder/data/NAME.json``.

    Raises
    ------
    InvalidInputError
        The file has results for other parameters. It was not changed.
    """
    parameters = study.scales[scale]
    path = _data(study, folder)
    record = Record(study.name, dict(parameters))
    if path.exists() and not overwrite:
        record = Record.read(path)
        if record.parameters != parameters:
            raise InvalidInputError(
                f"{path} has results for other parameters than those of scale {scale!r}: replace them (--overwrite), "
                "or give another folder (--out)",
                kind="invalid-setting",
            )
    left = [part for part in study.parts(record.parameters) if part.name not in record.parts]
    if left:
        record.runs.append(this_run())
    for number, part in enumerate(left, 1):
        values = part.compute(echo) if part.reports else part.compute()
        record.parts[part.name] = {"run": len(record.runs) - 1, **values}
        record.write(path)
        echo(f"{part.name}: done, {len(left) - number} of {len(left)} parts left")
    return record


def write_page(study: Study, folder: Path) -> Path:
    """Write ``folder/NAME.md`` and its figures from ``folder/data/NAME.json`` alone.

    Raises
    ------
    DataFileError
        Results, or parts of them, are missing.
    """
    path = _data(study, folder)
    if not path.exists():
        raise DataFileError(
            f"{path} does not exist: run `chronotile study run {study.name}` first", kind="file-not-found"
        )
    record = Record.read(path)
    missing = [part.name for part in study.parts(record.parameters) if part.name not in record.parts]
    if missing:
        raise DataFileError(
            f"{path} lacks {len(missing)} parts, the first of them {missing[0]}: continue with `chronotile study run "
            f"{study.name}`",
            kind="file-content",
        )
    made = study.page(record)
    images = folder / "images"
    images.mkdir(exist_ok=True)
    for name, svg in made.figures.items():
        (images / f"{study.name}-{name}.svg").write_text(svg + "\n", encoding="utf-8")
    target = folder / f"{study.name}.md"
    target.write_text(made.text, encoding="utf-8")
    return target


def _data(study: Study, folder: Path) -> Path:
    return folder / "data" / f"{study.name}.json"
