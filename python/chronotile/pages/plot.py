"""Draw axes, ticks and marks as SVG. Colours are CSS variables of the page, so a plot follows its theme."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape

import numpy as np

__all__ = [
    "Axis",
    "Panel",
    "circle",
    "colour",
    "line",
    "linear",
    "log",
    "marker",
    "path",
    "round_values",
    "svg",
    "text",
]

# Cividis (Nunez, Anderton & Renslow 2018) looks nearly the same with colour-deficient vision.
_CIVIDIS = np.array(
    [[0, 32, 76], [0, 50, 110], [49, 68, 108], [79, 87, 108], [103, 105, 112], [125, 124, 120], [150, 143, 118]]
    + [[176, 164, 111], [203, 186, 99], [231, 210, 78], [255, 234, 70]]
)


def colour(share: np.ndarray) -> list[str]:
    """Colours of the scale for values from 0 to 1."""
    steps = np.linspace(0, 1, len(_CIVIDIS))
    parts = [np.interp(share, steps, _CIVIDIS[:, channel]).round().astype(int) for channel in range(3)]
    return [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in zip(*parts, strict=True)]


@dataclass(frozen=True)
class Axis:
    """One axis: a map from values to pixels, and where its ticks are."""

    label: str
    place: Callable[[np.ndarray], np.ndarray]
    ticks: list[tuple[float, str]]


def linear(label: str, low: float, high: float, start: float, end: float, ticks: Iterable[tuple[float, str]]) -> Axis:
    """An axis from `low` at pixel `start` to `high` at pixel `end`."""
    return Axis(label, lambda v: start + (np.asarray(v) - low) / (high - low) * (end - start), list(ticks))


def log(label: str, low: float, high: float, start: float, end: float) -> Axis:
    """A logarithmic axis with ticks at 1, 2 and 5 times powers of ten, or only at powers of ten over a wide range."""
    a, b = np.log10(low), np.log10(high)
    steps = (1, 2, 5) if b - a < 2.6 else (1,)
    values = [m * 10.0**p for p in range(int(np.floor(a)), int(np.ceil(b)) + 1) for m in steps]
    ticks = [(v, f"{v:,.0f}" if v >= 1 else f"{v:g}") for v in values if low <= v <= high]
    return Axis(label, lambda v: start + (np.log10(np.asarray(v)) - a) / (b - a) * (end - start), ticks)


def round_values(low: float, high: float, about: int) -> list[float]:
    """Round numbers from `low` to `high` for ticks, about `about` of them."""
    raw = max(high - low, 1e-9) / about
    power = 10.0 ** np.floor(np.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    return [float(v) for v in np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step]


@dataclass(frozen=True)
class Panel:
    """A plotting area with its two axes."""

    left: float
    top: float
    right: float
    bottom: float
    x: Axis
    y: Axis

    def frame(self, *, grid_x: bool = False, grid_y: bool = True) -> str:
        """Grid lines, ticks with their labels, and axis labels."""
        parts = []
        for value, label in self.x.ticks:
            at = float(self.x.place(np.array(value)))
            if grid_x:
                parts.append(line(at, self.top, at, self.bottom, "grid"))
            parts.append(line(at, self.bottom, at, self.bottom + 5, "axis"))
            parts.append(text(at, self.bottom + 20, label, "tick", "middle"))
        for value, label in self.y.ticks:
            at = float(self.y.place(np.array(value)))
            if grid_y:
                parts.append(line(self.left, at, self.right, at, "grid"))
            parts.append(text(self.left - 9, at + 4, label, "tick", "end"))
        parts.append(line(self.left, self.bottom, self.right, self.bottom, "axis"))
        parts.append(text((self.left + self.right) / 2, self.bottom + 42, self.x.label, "label", "middle"))
        # Put the y label above its axis, so that it is horizontal.
        parts.append(text(self.left - 9, self.top - 14, self.y.label, "label", "start"))
        return "".join(parts)


def svg(width: float, height: float, title: str, *parts: str) -> str:
    """Wrap parts in an SVG element; `title` is its text for screen readers."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def text(x: float, y: float, words: str, css: str, anchor: str = "start") -> str:
    """A piece of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x0: float, y0: float, x1: float, y1: float, css: str) -> str:
    """A straight line."""
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" class="{css}"/>'


def circle(x: float, y: float, radius: float, css: str) -> str:
    """A circle."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{css}"/>'


def path(x: np.ndarray, y: np.ndarray, css: str, *, closed: bool = False) -> str:
    """A polyline, or a polygon."""
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))
    return f'<{"polygon" if closed else "polyline"} points="{points}" class="{css}"/>'


def marker(shape: str, x: float, y: float, css: str, size: float = 4.0) -> str:
    """A circle, square or triangle of about the same weight."""
    if shape == "circle":
        return circle(x, y, size, css)
    if shape == "square":
        s = size * 0.9
        return f'<rect x="{x - s:.1f}" y="{y - s:.1f}" width="{2 * s:.1f}" height="{2 * s:.1f}" class="{css}"/>'
    s = size * 1.2
    return path(np.array([x - s, x + s, x]), np.array([y + 0.75 * s, y + 0.75 * s, y - 1.1 * s]), css, closed=True)
