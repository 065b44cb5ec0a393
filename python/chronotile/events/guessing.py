"""Guess the format of rejected lines: the settings with which they can be read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from chronotile.events import syslog
from chronotile.events.parsing import ReadOptions, Reject

__all__ = ["Guess", "guess"]

_LINES_MAX = 50
"""Most lines to examine."""
_LINE_BYTES_MAX = 64 << 10
"""Longer lines are skipped."""
_TIMES = (
    "time",
    "timestamp",
    "@timestamp",
    "ts",
    "datetime",
    "date",
    "eventTime",
    "event_time",
    "created",
    "created_at",
)
"""Common names of time fields, most likely first."""


@dataclass(frozen=True)
class Guess:
    """The likely format of lines."""

    what: str
    """``"syslog"``, or ``"JSON with the time in 'ts'"``."""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of :meth:`chronotile.events.Events.options` for this format."""

    @property
    def options(self) -> str:
        """The settings as options of the command line."""
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.settings.items())


def guess(rejects: Iterable[Reject], options: ReadOptions) -> Guess | None:
    """Guess the format of rejected lines; None if the guess equals the format that was used.

    Parameters
    ----------
    rejects : iterable of Reject
        The lines; a few dozen are examined.
    options : ReadOptions
        Settings that were used.
    """
    sample = [reject.record for reject, _ in zip(rejects, range(_LINES_MAX), strict=False)]
    lines = [line.decode(errors="replace").rstrip("\r") for line in sample if len(line) <= _LINE_BYTES_MAX]
    if not lines:
        return None
    if options.format != "syslog":
        times, _, sound = syslog.parts(pa.array(lines, pa.utf8()), options.year)
        if 2 * (pc.sum(pc.and_(sound, pc.is_valid(times))).as_py() or 0) > len(lines):
            return Guess("syslog", {"format": "syslog"})
    objects = [found for line in lines if (found := _object(line)) is not None]
    if 2 * len(objects) <= len(lines):
        return None
    settings = {} if options.format == "ndjson" else {"format": "ndjson"}
    name = next((name for name in _TIMES if all(name in found for found in objects)), None)
    form = None if name is None else _time_format(objects[0][name])
    if name is None or form is None:
        return Guess("JSON", settings) if settings else None
    if options.format != "ndjson" or (name, form) != (options.time_field, options.time_format):
        if name != "time":
            settings["time_field"] = name
        if form != "iso8601":
            settings["time_format"] = form
    return Guess(f"JSON with the time in {name!r}", settings) if settings else None


def _object(line: str) -> dict[str, object] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _time_format(value: object) -> str | None:
    """Time format of a value; None if it is not a time."""
    if isinstance(value, str):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            return None
        return "iso8601"
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Present times have ten digits in seconds, thirteen in milliseconds.
        units = {"epoch_s": 1e8, "epoch_ms": 1e11, "epoch_us": 1e14, "epoch_ns": 1e17}
        return next((name for name, least in reversed(units.items()) if value >= least), None)
    return None
