"""Read points from files with any column names and time zones, and draw a text chart of points."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from chronotile import _native, inputs, optional
from chronotile.errors import ChronotileError, DataFileError, InvalidInputError
from chronotile.hints import name_hint
from chronotile.historian import GOOD, status_code

_OWN = ("tag", "time", "value", "status")
_ZONE = r"[T ].*(?:[Zz]|[+-]\d\d(?::?\d\d)?)$"


@dataclass(frozen=True)
class PointFiles:
    """Settings for reading files of points."""

    format: str | None
    delimiter: str | None
    columns: dict[str, str]
    """The file's column names, by our column names, where they differ."""
    tag: str | None
    """Tag of all points, if the files have no tag column."""
    zone: str | None
    """Time zone of times without one; None for UTC."""
    later: bool
    """Which instant to take for local times that occur twice at a clock change."""

    def table(self, file: str) -> Any:
        """Read the points of a file; ``-`` is standard input."""
        names = {own: self.columns.get(own, own) for own in _OWN}
        time_type = "utf8" if self.zone else "timestamp[ns]"
        types = [(names["time"], time_type), *([] if self.tag is not None else [(names["tag"], "utf8")])]
        constants = [] if self.tag is None else [("tag", inputs.values_column([self.tag], "utf8", "--tag"))]
        try:
            given = _native.RecordFile.open(
                "/dev/stdin" if file == "-" else file, format=self.format or ("csv" if file == "-" else None),
                types=types, delimiter=self.delimiter, constants=constants,
            )  # fmt: skip
        except ChronotileError as error:
            lacking = [own for own, theirs in names.items() if f'has no column "{theirs}"' in str(error)]
            if not lacking:
                raise
            raise click.UsageError(f"{error}. {self._other_name(lacking[0])}") from None
        self._check_columns(given, names, file)
        has_words = {name: type_ for name, type_, _ in given.schema().columns()}.get(names["status"]) == "utf8"
        try:
            if not self.columns and self.zone is None and not has_words:
                return _native.read_table(given)
            return self._translated(given, names, file)
        except DataFileError as error:
            raise DataFileError(_with_own_advice(str(error)), kind=error.kind, **error.details) from None

    def _check_columns(self, given: Any, names: dict[str, str], file: str) -> None:
        there = [name for name, _, _ in given.schema().columns()]
        for own, theirs in names.items():
            if theirs in there or (own == "status" and not theirs):
                continue
            if own == "status" and own not in self.columns:
                other = next((name for name in there if name.strip().lower() == own), None)
                if other is not None:
                    raise click.UsageError(
                        f'{file} has a column "{other}": give --status-column "{other}" if it holds qualities, or '
                        '--status-column "" to leave it out.'
                    )
                continue
            raise click.UsageError(
                f'{file} has no column "{theirs}"{name_hint(theirs, there)}. {self._other_name(own)}'
            )

    def _other_name(self, own: str) -> str:
        alone = ", or set one tag for all points with --tag" if own == "tag" and self.tag is None else ""
        return f"Name another column with --{own}-column{alone}."

    def _translated(self, given: Any, names: dict[str, str], file: str) -> _native.Table:
        pa = optional.module(
            "pyarrow", "reading points with renamed columns, a time zone or qualities in words", "arrow"
        )
        table = pa.table(given)
        if self.tag is not None:
            names = {**names, "tag": "tag"}
        chosen = {own: table[theirs] for own, theirs in names.items() if theirs in table.column_names}
        if self.zone is not None and "time" in chosen:
            chosen["time"] = _utc(pa, chosen["time"], self.zone, later=self.later)
        if "status" in chosen and pa.types.is_string(chosen["status"].type):
            chosen["status"] = _codes(pa, chosen["status"], file)
        return _native.read_table(pa.table(chosen))


def _with_own_advice(message: str) -> str:
    """Replace the advice of the file reader, which names options that commands of points do not have."""
    what, found, _ = message.partition("; correct the value or give the column a type")
    if not found:
        return message
    if "is not timestamp" in what:
        return f"{what}; write times as ISO 8601, such as 2026-01-31T12:00:00Z"
    return f"{what}; correct the value"


def _codes(pa: Any, statuses: Any, file: str) -> Any:
    """Convert qualities in words to status codes; an empty one is Good."""
    texts = statuses.to_pylist()
    try:
        codes = {text: status_code(text) if text else GOOD for text in dict.fromkeys(texts)}
    except InvalidInputError as error:
        raise InvalidInputError(f"{file}: {error}", kind=error.kind) from None
    return pa.array([codes[text] for text in texts], pa.uint32())


def _utc(pa: Any, times: Any, zone: str, *, later: bool) -> Any:
    """Convert times without a zone from `zone` to UTC."""
    import pyarrow.compute as pc

    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise click.BadParameter(f"unknown time zone {zone!r}", param_hint="--zone") from None
    moment = pa.timestamp("ns", "UTC")
    if pa.types.is_timestamp(times.type) and times.type.tz:
        return times.cast(moment)
    nothing = pa.scalar(None, pa.utf8())
    local, zoned = times, None
    try:
        if not pa.types.is_timestamp(times.type):
            texts = times.cast(pa.utf8())
            has_zone = pc.match_substring_regex(texts, _ZONE)
            zoned = pc.if_else(has_zone, texts, nothing).cast(moment)
            local = pc.if_else(has_zone, nothing, texts).cast(pa.timestamp("ns"))
        local = local.cast(pa.timestamp("ns"))
        found = pc.assume_timezone(local, zone, ambiguous="latest" if later else "earliest").cast(moment)
    except pa.ArrowInvalid as error:
        raise click.UsageError(f"Cannot read a time in {zone}: {str(error).splitlines()[0]}") from None
    return found if zoned is None else pc.coalesce(zoned, found)


def chart(points: Any, title: str, width: int, height: int = 16) -> str:
    """Draw points as a text chart: each column of the terminal shows the range of its values."""
    pa = optional.module("pyarrow", "a chart", "arrow")
    table = pa.table(points)
    rows = [
        (moment.value if hasattr(moment, "value") else int(moment.timestamp() * 1e9), value)
        for moment, value in zip(table["time"].cast(pa.timestamp("us", "UTC")).to_pylist(), table["value"].to_pylist(),
                                 strict=True)
        if isinstance(value, int | float) and value == value
    ]  # fmt: skip
    if not rows:
        return f"{title}: no values in the period"
    low, high = min(value for _, value in rows), max(value for _, value in rows)
    first, last = rows[0][0], rows[-1][0]
    labels = [f"{high:.6g}", f"{low:.6g}"]
    left = max(map(len, labels))
    columns = max(width - left - 2, 10)
    grid = [[" "] * columns for _ in range(height)]

    def row_of(value: float) -> int:
        return 0 if high == low else round((high - value) / (high - low) * (height - 1))

    spans: dict[int, tuple[float, float]] = {}
    for moment, value in rows:
        column = 0 if last == first else round((moment - first) / (last - first) * (columns - 1))
        least, most = spans.get(column, (value, value))
        spans[column] = (min(least, value), max(most, value))
    for column, (least, most) in spans.items():
        top, bottom = row_of(most), row_of(least)
        for row in range(top, bottom + 1):
            grid[row][column] = "•" if top == bottom else "│"
    lines = [title]
    for place, line in enumerate(grid):
        label = labels[0] if place == 0 else labels[1] if place == height - 1 else ""
        lines.append(f"{label.rjust(left)} ┤{''.join(line).rstrip()}")
    begin, end = (f"{datetime.fromtimestamp(ns / 1e9, tz=ZoneInfo('UTC')):%Y-%m-%dT%H:%M:%SZ}" for ns in (first, last))
    lines.append(" " * (left + 2) + begin + end.rjust(max(columns - len(begin), len(end) + 1)))
    return "\n".join(lines)
