"""Shared parts of the commands: the archive argument, parsing of times and conditions, and text output."""

from __future__ import annotations

import dataclasses
import json
import os
import string
import sys
import time
from collections.abc import Callable, Iterable
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronotile import _native, conditions, loading, scanning, times
from chronotile.archive import Archive, open  # noqa: A004
from chronotile.cli.completion import completer
from chronotile.conditions import unquoted
from chronotile.dataset import Dataset
from chronotile.errors import ChronotileError, InvalidInputError
from chronotile.predicates import Condition
from chronotile.terminal import ReportedProgress, bar, bytes_text

ENVIRONMENT = "CHRONOTILE_ARCHIVE"

Command = Callable[..., Any]

if TYPE_CHECKING:
    from click import ParamType as ParamType
else:

    class ParamType(click.ParamType):
        """`click.ParamType` that accepts a type argument (``ParamType[int]``), which click supports from 8.4 on."""

        def __class_getitem__(cls, values):
            return cls


_MADE: list[str] = []
"""Archive files that did not exist when the command started."""


def note_file(url: str) -> None:
    """Record that the command may create the file of this archive."""
    path = url.removeprefix("sqlite:")
    if ":" not in path and not os.path.exists(path):
        _MADE.append(path)


_DEFINITIONS: set[str] = set()
"""Datasets of definitions that the command itself writes: their rows do not keep a new archive from removal."""


def note_definitions() -> None:
    """Record that the command defines tags before it stores points."""
    _DEFINITIONS.update(["historian_tags", "historian_names"])


def remove_empty_files() -> None:
    """Remove archives that a failed command created and stored nothing in."""
    for path in _MADE:
        try:
            with open(path, create=False, read_only=True, timeout_s=1) as archive:
                if any(archive[name].info().rows for name in archive if name not in _DEFINITIONS):
                    continue
        except ChronotileError:
            continue
        for name in (path, f"{path}-wal", f"{path}-shm"):
            Path(name).unlink(missing_ok=True)


def _may_be_dataset(word: str) -> bool:
    """Whether a word is a valid dataset name."""
    return len(word) <= 48 and word[:1] in _LETTERS and set(word) <= _NAME_CHARACTERS


_LETTERS = frozenset(string.ascii_lowercase)
_NAME_CHARACTERS = _LETTERS | set(string.digits) | {"_"}


class Target:
    """Positional arguments of a command: archive, dataset, and the rest."""

    def __init__(
        self, given: tuple[str, ...], archive: str | None, *, dataset: bool, optional: bool, rest: str | None,
    ) -> None:  # fmt: skip
        words = list(given)
        fallback = archive or os.environ.get(ENVIRONMENT)
        # If an option or the environment sets the archive, the first word names another archive only if it is not a
        # valid dataset name. A command that requires a word keeps its only one: a tag name may contain a dot.
        alone = len(words) == 1 and not dataset and rest is not None and not rest.startswith("[")
        if fallback and (not words or archive or alone or _may_be_dataset(words[0])):
            self.url = fallback
        elif words:
            self.url = words.pop(0)
        else:
            raise click.UsageError(
                f"Missing argument 'ARCHIVE': a path such as survey.db, a URL, or set {ENVIRONMENT}."
            )
        self.dataset = ""
        if dataset:
            if not words and not optional:
                raise click.UsageError("Missing argument 'DATASET'.")
            self.dataset = words.pop(0) if words else ""
        self.rest = words
        if rest is None and words:
            raise click.UsageError(f"Got unexpected extra argument ({' '.join(words)}).")
        if rest is not None and not words and not rest.startswith("["):
            raise click.UsageError(f"Missing argument '{rest}'.")

    def open(self, *, create: bool = False, read_only: bool = False, timeout_s: int = 60) -> Archive:
        """Open the archive."""
        if create:
            note_file(self.url)
        return open(self.url, create=create, read_only=read_only, timeout_s=timeout_s)


def target(*, dataset: bool = True, optional: bool = False, rest: str | None = None) -> Callable[[Command], Command]:
    """Add the arguments ``[ARCHIVE] DATASET ...`` and the common options; the command gets a `target`. A `rest` in
    brackets is optional.
    """

    def decorate(command: Command) -> Command:
        place = "" if not dataset else "[DATASET]" if optional else "DATASET"
        metavar = " ".join(filter(None, ["[ARCHIVE]", place, rest]))

        def run(words: tuple[str, ...], archive: str | None, debug: bool, **options: Any) -> Any:
            found = Target(words, archive, dataset=dataset, optional=optional, rest=rest)
            return command(target=found, **options)

        return in_place_of(
            command,
            run,
            click.argument("words", nargs=-1, metavar=metavar, shell_complete=completer(dataset=dataset, rest=rest)),
            click.option("-a", "--archive", metavar="URL",
                         help=f"The archive, instead of the first argument. [env: {ENVIRONMENT}]"),
            debug_option,
        )  # fmt: skip

    return decorate


class Size(ParamType[int]):
    """A number of bytes, such as 64MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        for unit, power in (("KiB", 10), ("MiB", 20), ("GiB", 30), ("", 0)):
            number = value.removesuffix(unit).strip()
            if value.endswith(unit) and number.isdigit() and int(number) > 0:
                return int(number) << power
        raise click.BadParameter(f"invalid size {value!r}: give a number of bytes, or a size such as 64MiB", ctx, param)


class Shard(ParamType[tuple[int, int]]):
    """One of several processes that share work, such as 2/8."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        number, _, of = value.partition("/")
        if number.isdecimal() and of.isdecimal() and len(value) <= 20 and 1 <= int(number) <= int(of):
            return int(number), int(of)
        raise click.BadParameter(
            f"invalid shard {value!r}: give the number of this process and that of all, such as 2/8", ctx, param
        )


def sharing_options(command: Command) -> Command:
    """Options for sharing the work among processes, and for limiting its rate."""
    return with_options(
        click.option(
            "--shard", type=Shard(), metavar="K/N", help="Do the part of the K-th of N processes that share the work."
        ),
        click.option(
            "--tiles-per-second", type=click.FloatRange(0, min_open=True), metavar="N",
            help="Rewrite at most this many tiles per second.",
        ),
    )(command)  # fmt: skip


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Add options, in this order in the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def in_place_of(command: Command, run: Command, *options: Callable[[Command], Command]) -> Command:
    """Let `run` replace `command`: same name and help; parameters are `options`, those of `run`, those of `command`."""
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    both = [*getattr(run, "__click_params__", []), *getattr(command, "__click_params__", [])]
    run.__click_params__ = both  # type: ignore[attr-defined]
    return with_options(*options)(run)


timeout_option = click.option(
    "--timeout", "timeout_s", type=click.IntRange(0, 86_400), default=60, show_default=True, metavar="SECONDS",
    help="How long to wait for other writers.",
)  # fmt: skip


debug_option = click.option("--debug", is_flag=True, help="Show the traceback of an error.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation before a deletion, unless `yes` is given. Without a terminal, raise an error."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"Nothing done. {question} Pass --yes to confirm.")
    click.confirm(question, abort=True, err=True)


def tell_wait(archive: Archive) -> None:
    """Explain the wait before slices of a cluster are dropped."""
    if archive.engine == "cassandra":
        click.echo("waiting 12 s, until all writers on the cluster know that the slices will be dropped", err=True)


def numbers(text: str, counts: tuple[int, ...], option: str, form: str) -> list[float]:
    """Parse numbers separated by commas or blanks."""
    words = text.replace(",", " ").split()
    if len(words) not in counts or not all(scanning.is_number(word) for word in words):
        raise click.BadParameter(f"{text!r} is not {form}", param_hint=option)
    return [float(word) for word in words]


def angles(text: str, counts: tuple[int, ...], option: str, form: str, hours: set[int]) -> list[float]:
    """Parse angles separated by commas, or degrees separated by blanks; return degrees. Angles at the positions `hours`
    are right ascensions, for which `10:20:30` is in hours.
    """
    words = text.split(",") if "," in text else text.split()
    if len(words) not in counts:
        raise click.BadParameter(f"{text!r} is not {form}", param_hint=option)
    try:
        return [_native.angle_degrees(word, ra=place in hours) for place, word in enumerate(words)]
    except InvalidInputError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def moment(text: str | None, dataset: Dataset) -> Any:
    """Parse a time: ``now-6h``, a number in the unit of the time column, or ISO 8601."""
    if text is None or not scanning.is_number(text):
        return text
    if dataset.time.format in ("mjd", "jd"):
        return float(text)
    # Read a plain year or a date without dashes as ISO 8601: a tick of the present time has more digits.
    tick = scanning.whole_number(text, 19)
    return tick if tick is not None and len(text) > 8 else text


def typed_conditions(texts: Iterable[str], dataset: Dataset) -> list[Condition]:
    """Parse conditions: ``mag<18``, ``band in g,r``, ``x between 1,2``, ``line contains refused``, ``x exists``.

    Constants for a text column are text, quoted or not.
    """
    return [_condition(text, dataset.column_types) for text in texts]


def _condition(text: str, types: dict[str, str]) -> Condition:
    try:
        return conditions.condition(text, types)
    except InvalidInputError as error:
        raise click.BadParameter(str(error), param_hint="--where") from None


def equalities(words: Iterable[str]) -> list[str]:
    """Parse ``host=web1`` as equality and ``level=error,fatal`` as a list of alternatives."""
    return [_equality(word) for word in words]


def _equality(word: str) -> str:
    column, equals, value = word.partition("=")
    if not equals:
        raise click.UsageError(f"Invalid condition {word!r}: write COLUMN=VALUE, or use --where.")
    return f"{column} in {value}" if "," in value and unquoted(value) == value else word


def echo_count(count: int, as_json: bool) -> None:
    """Print a count, plain or as JSON."""
    click.echo(json.dumps({"count": count}) if as_json else count)


def iso_text(value: Any) -> str:
    """Format a value that JSON lacks: times as ISO 8601, others as text."""
    return str(value.isoformat()) if isinstance(value, date | datetime) else str(value)


def progress_text(state: loading.Progress[Any], count: int, what: str) -> str:
    """Progress line of a load that has stored `count` of `what`."""
    rate = count / max(state.report.seconds, 1e-6)
    done = f"{bar(state.bytes_done, state.bytes_total)}  {bytes_text(state.bytes_done)}"
    return f"{done}  {count:,} {what}  {rate:,.0f}/s"


def pace(report: loading.Report, count: int, what: str) -> str:
    """Duration and rate of a load."""
    return f"in {report.seconds:.1f} s ({count / max(report.seconds, 1e-6):,.0f} {what}/s)"


def first_reject_text(report: loading.Report) -> str:
    """Describe the first record that a load rejected."""
    if report.first_reject is None:
        return "see the report"
    file, line, reason = report.first_reject
    return f"the first is line {line:,} of {'standard input' if file == '-' else file}: {reason}"


def end_load(report: Any, text: str, as_json: bool, what: str, record: str, hint: str = "") -> None:
    """Print the report of a load; raise an error if every record was rejected."""
    click.echo(json.dumps(dataclasses.asdict(report)) if as_json else text)
    if report.all_rejected:
        message = f"no {what} stored: every {record} was rejected; {first_reject_text(report)}{hint}"
        raise InvalidInputError(message, kind="invalid-rows")


class CountProgress(ReportedProgress):
    """Progress line of an operation that counts tiles, windows or other units."""

    def __init__(self, what: str, units: str) -> None:
        began = time.monotonic()

        def describe(done: int, total: int) -> str:
            if not total:
                return what
            rate = done / max(time.monotonic() - began, 1e-3)
            return f"{what}  {bar(done, total)}  {done:,} of {total:,} {units}  {rate:,.1f}/s"

        super().__init__(what, describe)


def axis_text(axis: times.TimeAxis) -> str:
    """Describe a time axis."""
    return f"{axis.column} ({axis.format}, {axis.scale})"
