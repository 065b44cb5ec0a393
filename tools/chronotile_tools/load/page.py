"""Report of an experiment: tables and plots, as a self-contained page and as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from chronotile.pages import markup, plot
from chronotile_tools.load.arms import CONTROL, Comparison

__all__ = ["Report", "duration", "lines", "percentiles", "ratios"]

_LEFT, _RIGHT, _TOP = 80.0, 1060.0, 48.0
_SHAPES = ("circle", "square", "triangle")


@dataclass
class Report:
    """Sections in order; each is a table or a plot with a description."""

    title: str
    notes: list[str] = field(default_factory=list)
    _sections: list[tuple[str, str, str]] = field(default_factory=list)
    _tables: list[tuple[str, list[list[str]]]] = field(default_factory=list)

    def table(self, title: str, words: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table."""
        self._sections.append((title, words, markup.table(header, rows)))
        self._tables.append((f"{title}\n{words}", [list(header), *map(list, rows)]))

    def drawing(self, title: str, words: str, svg: str) -> None:
        """Add a plot; it is not part of the text version."""
        self._sections.append((title, words, svg))

    def html(self) -> str:
        """The page."""
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        sections = f"\n{markup.GAP}".join(markup.section(*each) for each in self._sections)
        return markup.document(self.title, f"<h1>{escape(self.title)}</h1>{notes}{markup.GAP}{sections}")

    def text(self, table: Callable[[list[str], list[list[str]], frozenset[int]], str]) -> str:
        """Format the tables for a terminal. `table` formats header and rows, with the given columns aligned right."""
        parts = [
            f"{words}\n\n{table(rows[0], rows[1:], frozenset(range(1, len(rows[0]))))}" for words, rows in self._tables
        ]
        return "\n\n".join([self.title, *parts, *self.notes])


def duration(milliseconds: float) -> str:
    """Format a duration in a suitable unit."""
    if milliseconds >= 1_000:
        return f"{milliseconds / 1e3:.2f} s"
    return f"{milliseconds:.1f} ms" if milliseconds >= 10 else f"{milliseconds:.2f} ms"


def percentiles(title: str, histograms: Mapping[str, Any]) -> str:
    """Curves of times by percentile, up to the highest percentile that the samples support; `histograms` are in
    microseconds. Empty if none has two samples.
    """
    curves = {}
    for name, histogram in histograms.items():
        count = histogram.get_total_count()
        if count < 2:
            continue
        nines = np.linspace(0, math.log10(count), 80)
        shares = (100 * (1 - 10**-nines)).tolist()
        at = histogram.get_percentile_to_value_dict(shares)
        curves[name] = (nines, np.array([max(at.get(share, 0), 1) for share in shares]) / 1e3)
    if not curves:
        return ""
    far = max(x[-1] for x, _ in curves.values())
    ticks = [(0.0, "0 %"), (math.log10(2), "50 %"), (1.0, "90 %"), (2.0, "99 %"), (3.0, "99.9 %"), (4.0, "99.99 %")]
    return _curves(title, "share of operations below", "milliseconds", curves, [t for t in ticks if t[0] <= far], far)


def lines(title: str, x_label: str, y_label: str, series: Mapping[str, tuple[Any, Any]]) -> str:
    """Lines through points, on a logarithmic y axis."""
    far = max(float(np.max(x)) for x, _ in series.values())
    ticks = sorted({float(value) for x, _ in series.values() for value in x})
    return _curves(title, x_label, y_label, series, [(t, f"{t:g}") for t in ticks], far, marks=True)


def _curves(
    title: str, x_label: str, y_label: str, series: Mapping[str, tuple[Any, Any]], ticks: Sequence[tuple[float, str]],
    far: float, *, marks: bool = False,
) -> str:  # fmt: skip
    every = np.concatenate([np.asarray(y, float) for _, y in series.values()])
    low, high = float(every[every > 0].min()) / 1.3, float(every.max()) * 1.3
    bottom = 320.0
    x_axis = plot.linear(x_label, 0, far or 1.0, _LEFT, _RIGHT, ticks)
    y_axis = plot.log(y_label, low, high, bottom, _TOP)
    parts = [plot.Panel(_LEFT, _TOP, _RIGHT, bottom, x_axis, y_axis).frame(grid_x=True)]
    for number, (name, (x, y)) in enumerate(series.items()):
        hue, shape = number % 4, _SHAPES[number // 4 % 3]
        at_x, at_y = x_axis.place(np.asarray(x)), y_axis.place(np.maximum(np.asarray(y, float), low))
        parts.append(plot.path(at_x, at_y, f"s{hue}"))
        each = range(len(at_x)) if marks else range(hue, len(at_x), 12)
        parts += [plot.marker(shape, float(at_x[k]), float(at_y[k]), f"f{hue}", 3.5) for k in each]
        parts.append(plot.marker(shape, 200 + 210 * (number % 4), 12 + 18 * (number // 4), f"f{hue}"))
        parts.append(plot.text(212 + 210 * (number % 4), 16 + 18 * (number // 4), name, "label"))
    return plot.svg(1080, bottom + 60, title, *parts)


def ratios(title: str, found: Sequence[Comparison], base: str) -> str:
    """Plot confidence intervals of ratios, one line each, and a line at "no difference"."""
    ends = [found_.difference.low for found_ in found] + [found_.difference.high for found_ in found] + [1.0]
    low, high = min(ends) / 1.05, max(ends) * 1.05
    bottom = _TOP + 26 * len(found) + 10
    step = 10 ** math.floor(math.log10(max(high - low, 1e-3) / 2))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 9)
    ticks = [(float(v), f"{v:g}") for v in np.round(np.arange(math.ceil(low / step) * step, high, step), 6)]
    x_axis = plot.linear(f"time over that of {base}", low, high, 330, _RIGHT, ticks)
    y_axis = plot.linear("", 0, 1, bottom, _TOP, [])
    parts = [plot.Panel(330, _TOP, _RIGHT, bottom, x_axis, y_axis).frame(grid_x=True)]
    one = float(x_axis.place(np.array(1.0)))
    parts.append(plot.line(one, _TOP, one, bottom, "axis"))
    for number, each in enumerate(found):
        y = _TOP + 20 + 26 * number
        what = each.what if isinstance(each.what, str) else f"p{each.what:g}"
        name = f"{CONTROL if each.is_control else each.arm}, {each.stream}, {what}"
        hue = 3 if each.is_control else 0
        left, middle, right = (
            float(x_axis.place(np.array(v))) for v in (each.difference.low, each.difference.ratio, each.difference.high)
        )
        parts.append(plot.text(320, y + 4, name, "tick", "end"))
        parts.append(plot.line(left, y, right, y, f"s{hue} trend"))
        parts.append(plot.marker("square" if each.is_control else "circle", middle, y, f"f{hue}"))
    return plot.svg(1080, bottom + 60, title, *parts)
