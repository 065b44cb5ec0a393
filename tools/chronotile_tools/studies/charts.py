"""Figures of a study: self-contained SVG files with a white background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from chronotile.pages import plot

__all__ = ["dots", "lines"]

# The categories of chronotile.pages.style (Okabe & Ito), as literal colours: not every viewer of SVG knows variables.
_HUES = ("#0072b2", "#c4500a", "#00805c", "#9c3f7d")
_STYLE = (
    "text{font-family:'DejaVu Sans',sans-serif;fill:#17202a;font-size:12px}.tick{fill:#5b6673}.title{font-weight:bold}"
    ".grid{stroke:#e9ecf0}.axis{stroke:#5b6673}polyline{fill:none;stroke-width:1.8}"
    + "".join(f".s{number}{{stroke:{hue}}}.f{number}{{fill:{hue}}}" for number, hue in enumerate(_HUES))
)
_SHAPES = ("circle", "square", "triangle")
_WIDTH, _LEFT, _RIGHT = 900.0, 70.0, 870.0

Points = tuple[Sequence[float], Sequence[float]]


def lines(
    title: str, x_label: str, y_label: str, series: Mapping[str, Points], *, x_log: bool = False, y_log: bool = True,
    x_ticks: Sequence[tuple[float, str]] | None = None, hues: int = 4,
) -> str:  # fmt: skip
    """Plot lines through points. After the first `hues` series (three or four), colours repeat with other markers, for
    up to twice as many series.
    """
    top, bottom = 66.0 + 18 * ((len(series) - 1) // hues), 340.0
    every_x = np.concatenate([np.asarray(x, float) for x, _ in series.values()])
    every_y = np.concatenate([np.asarray(y, float) for _, y in series.values()])
    x_axis = _axis(x_label, every_x, _LEFT, _RIGHT, log=x_log, ticks=x_ticks)
    y_axis = _axis(y_label, every_y, bottom, top, log=y_log, from_zero=not y_log)
    parts = [plot.Panel(_LEFT, top, _RIGHT, bottom, x_axis, y_axis).frame()]
    for number, (x, y) in enumerate(series.values()):
        at_x, at_y = x_axis.place(np.asarray(x, float)), y_axis.place(np.asarray(y, float))
        hue, shape = number % hues, _SHAPES[(number + number // hues) % 3]
        parts.append(plot.path(at_x, at_y, f"s{hue}"))
        parts += [plot.marker(shape, a, b, f"f{hue}", 3.5) for a, b in zip(at_x.tolist(), at_y.tolist(), strict=True)]
    return _svg(title, bottom + 56, list(series), parts, hues)


def dots(title: str, x_label: str, rows: Sequence[tuple[str, Sequence[float | None]]], names: Sequence[str]) -> str:
    """Plot one line per row with a mark for each of `names`, on a logarithmic axis; None omits a mark."""
    left, top = 30 + 7.2 * max(len(label) for label, _ in rows), 60.0
    bottom = top + 24 * len(rows) + 8
    values = np.array([value for _, given in rows for value in given if value is not None], float)
    x_axis = _axis(x_label, values, left, _RIGHT, log=True)
    y_axis = plot.linear("", 0, 1, bottom, top, [])
    parts = [plot.Panel(left, top, _RIGHT, bottom, x_axis, y_axis).frame(grid_x=True)]
    for place, (label, given) in enumerate(rows):
        y = top + 16 + 24 * place
        parts += [plot.text(left - 12, y + 4, label, "label", "end"), plot.line(left, y, _RIGHT, y, "grid")]
        for number, value in enumerate(given):
            if value is not None:
                at = float(x_axis.place(np.array(value)))
                parts.append(plot.marker(_SHAPES[number % 3], at, y, f"f{number % 4}", 5.0))
    return _svg(title, bottom + 56, names, parts)


def _axis(
    label: str, values: np.ndarray, start: float, end: float, *, log: bool = False, from_zero: bool = False,
    ticks: Sequence[tuple[float, str]] | None = None,
) -> plot.Axis:  # fmt: skip
    if log:
        axis = plot.log(label, float(values.min()) / 1.25, float(values.max()) * 1.25, start, end)
        return plot.Axis(axis.label, axis.place, list(ticks)) if ticks is not None else axis
    low, high = (0.0 if from_zero else float(values.min())), float(values.max())
    found = ticks if ticks is not None else [(v, f"{v:,g}") for v in plot.round_values(low, high, 8)]
    return plot.linear(label, low, high * 1.05 if from_zero else high, start, end, found)


def _svg(title: str, height: float, names: Sequence[str], parts: list[str], hues: int = 4) -> str:
    legend = []
    for number, name in enumerate(names):
        x, y = _LEFT + 14 + 205 * (number % hues), 36 + 18 * (number // hues)
        shape = _SHAPES[(number + number // hues) % 3]
        legend += [plot.marker(shape, x, y - 4, f"f{number % hues}"), plot.text(x + 10, y, name, "label")]
    ground = f"<style>{_STYLE}</style>" + f'<rect width="{_WIDTH:g}" height="{height:g}" fill="#ffffff"/>'
    heading = plot.text(_LEFT - 58, 18, title, "title")
    return plot.svg(_WIDTH, height, title, ground, heading, *legend, *parts)
