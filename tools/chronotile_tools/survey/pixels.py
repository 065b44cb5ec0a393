"""Find sky pixels that suit a detector: a Monte Carlo study of square detectors on pixelizations at several levels.

For each pixelization and level: the number of pixels that a detector touches, the ratio of their area to the
detector's, the number of detectors that fit in a pixel, and the number of a camera's detectors that touch the same
pixel (as in the spatial study of the technote DMTN-156 of the Rubin Observatory).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from chronotile import sky
from chronotile.apdb.density import sky_pixels
from chronotile.apdb.simulation import Exposure
from chronotile.errors import InvalidInputError
from chronotile.pages import plot
from chronotile.pages.markup import GAP, document, section
from chronotile.sky import Region
from chronotile.terminal import table_text
from chronotile_tools.survey.simulate.universe import DETECTOR_DEG, PLACES

__all__ = ["PERCENTILES", "SCHEMES", "Level", "clients_of_pixels", "page", "recommended", "text", "throw"]

SCHEMES = ("mq3c", "q3c", "healpix", "htm")
PERCENTILES = (5, 25, 50, 75, 95)
PIXELS_BEST, PIXELS_MAX = 4.0, 9.0


@dataclass(frozen=True)
class Level:
    """Statistics of detectors at one level of a pixelization.

    Attributes
    ----------
    scheme, level : str, int
        The pixelization.
    pixels : float
        Mean pixels that a detector touches.
    pixels_max : int
        Most pixels that a detector touches.
    area_ratio : float
        Ratio of the mean area of those pixels to the detector's area.
    area_ratios : tuple of float
        The same at each of :data:`PERCENTILES` of the detectors.
    detectors_a_pixel : float
        Ratio of a pixel's mean area to the detector's area.
    histogram : tuple of int
        Number of detectors that touched 1, 2, 3, ... pixels; the last of forty numbers counts all that touched more.
    """

    scheme: str
    level: int
    pixels: float
    pixels_max: int
    area_ratio: float
    area_ratios: tuple[float, ...]
    detectors_a_pixel: float
    histogram: tuple[int, ...]


def throw(
    detector_deg: float, padding_deg: float, count: int, levels: Iterable[int], seed: int = 1,
    schemes: Iterable[str] = SCHEMES,
) -> list[Level]:  # fmt: skip
    """Place square detectors at random, uniformly on the sphere and with random rotations.

    Parameters
    ----------
    detector_deg, padding_deg : float
        Side of a detector, and the padding on each side, degrees.
    count : int
        Number of detectors.
    levels : iterable of int
        Levels, 0 to 20.
    seed : int
        Random seed.
    schemes : iterable of str
        Pixelizations.
    """
    wanted = sorted(set(levels))
    if not 0 < detector_deg <= 10 or padding_deg < 0 or count < 1:
        raise InvalidInputError(
            "a detector must be at most 10 degrees wide, and count at least 1", kind="invalid-setting"
        )
    if not wanted or wanted[0] < 0 or wanted[-1] > 20:
        raise InvalidInputError("levels must be 0 to 20", kind="invalid-setting")
    thrown = [Exposure(0, 0, 0.0, ra, dec, detector_deg, angle=angle) for ra, dec, angle in _pointings(count, seed)]
    detectors = [each.footprint(padding_deg) for each in thrown]
    own = np.array([each.area for each in detectors])
    return [_level(scheme, level, detectors, own) for scheme in schemes for level in wanted]


def _pointings(count: int, seed: int) -> list[tuple[float, float, float]]:
    """Positions and rotations, degrees."""
    rng = np.random.default_rng(seed)
    ra, turn = rng.uniform(0, 360, count), rng.uniform(0, np.pi / 2, count)
    dec = np.degrees(np.arcsin(rng.uniform(-1, 1, count)))
    return list(zip(ra.tolist(), dec.tolist(), np.degrees(turn).tolist(), strict=True))


def clients_of_pixels(scheme: str, level: int, cameras: int, seed: int = 1, padding_deg: float = 0.0) -> list[int]:
    """Place whole cameras of 189 detectors at random, and count the pixels that are touched by 1, 2, 3, ... detectors
    of the same camera. Each detector is a client, which requests the pixel separately.
    """
    counts: Counter[int] = Counter()
    for ra, dec, angle in _pointings(cameras, seed):
        touched: Counter[int] = Counter()
        for offset in PLACES:
            detector = Exposure(0, 0, 0.0, ra, dec, DETECTOR_DEG, offset, angle).footprint(padding_deg)
            touched.update(pixel for low, high in detector.cover(scheme, level) for pixel in range(low, high))
        counts.update(touched.values())
    return [counts[detectors] for detectors in range(1, max(counts) + 1)]


def _level(scheme: str, level: int, detectors: Sequence[Region], own: Any) -> Level:
    counts = np.empty(len(detectors), np.int64)
    areas = np.empty(len(detectors))
    whole = 4 * np.pi / sky_pixels(scheme, level)
    for number, each in enumerate(detectors):
        ranges = each.cover(scheme, level)
        pixels = [pixel for low, high in ranges for pixel in range(low, high)]
        counts[number] = len(pixels)
        # For many pixels, use the mean area; for few, compute each.
        areas[number] = (
            sum(sky.pixel_area(scheme, level, pixel) for pixel in pixels) if len(pixels) <= 64 else whole * len(pixels)
        )
    histogram = tuple(np.bincount(np.minimum(counts, 40), minlength=2)[1:].tolist())
    return Level(
        scheme, level, float(counts.mean()), int(counts.max()), float((areas / own).mean()),
        tuple(np.percentile(areas / own, PERCENTILES).tolist()), float(whole / own.mean()), histogram,
    )  # fmt: skip


def recommended(found: Sequence[Level]) -> Level:
    """Recommend a level with few pixels per detector, because each is a request, and little excess area: among levels
    with at most nine pixels, the one with the smallest area and the fewest pixels.
    """
    fit = [each for each in found if each.pixels <= PIXELS_MAX] or list(found)
    return min(fit, key=lambda each: each.area_ratio * max(each.pixels / PIXELS_BEST, 1.0))


def text(found: Sequence[Level]) -> str:
    """The figures as a table, and the recommendation."""
    lines = [
        [
            each.scheme, str(each.level), f"{each.pixels:.2f}", str(each.pixels_max), f"{each.area_ratio:.2f}",
            f"{each.detectors_a_pixel:.3g}",
        ]
        for each in found
    ]  # fmt: skip
    header = ["pixels", "level", "a detector touches", "at most", "area ratio", "detectors a pixel"]
    return table_text(header, lines, frozenset({1, 2, 3, 4, 5})) + "\n" + advice(found)


def advice(found: Sequence[Level]) -> str:
    """The recommendation in words."""
    best = recommended(found)
    return (
        f"recommended: {best.scheme} level {best.level}: a detector touches {best.pixels:.1f} pixels, which cover "
        f"{best.area_ratio:.1f} times its area"
    )


def page(found: Sequence[Level], detector_deg: float, padding_arcsec: float, more: Sequence[str] = ()) -> str:
    """A self-contained page with the three figures of the study, and `more` sections."""
    figures = [
        ("Pixels that a detector touches", "pixels", [(e.scheme, e.level, e.pixels) for e in found]),
        ("Area of those pixels against the detector's", "ratio", [(e.scheme, e.level, e.area_ratio) for e in found]),
        ("Detectors in a pixel", "by area", [(e.scheme, e.level, e.detectors_a_pixel) for e in found]),
    ]
    body = GAP.join([*(section(title, "", _plot(title, unit, points)) for title, unit, points in figures), *more])
    words = (
        f"Square detectors of {detector_deg:g} degrees, read with {padding_arcsec:g} arc seconds around them, at "
        f"random positions on the sphere; {advice(found)}."
    )
    title = "Pixels and detectors"
    return document(title, f"<h1>{title}</h1><p>{escape(words)}</p>{GAP}{body}")


def _plot(title: str, unit: str, points: Sequence[tuple[str, int, float]]) -> str:
    left, right, top, bottom = 80.0, 1060.0, 40.0, 280.0
    levels = sorted({level for _, level, _ in points})
    values = [value for _, _, value in points]
    edge = 0.5 if len(levels) == 1 else 0.0
    x = plot.linear("level", levels[0] - edge, levels[-1] + edge, left, right, [(v, str(v)) for v in levels])
    y = plot.log(unit, min(values) / 1.3, max(values) * 1.3, bottom, top)
    parts = [plot.Panel(left, top, right, bottom, x, y).frame()]
    for number, scheme in enumerate(SCHEMES):
        mine = [(level, value) for each, level, value in points if each == scheme]
        xs, ys = x.place(np.array([m[0] for m in mine])), y.place(np.array([m[1] for m in mine]))
        shape = ("circle", "square", "triangle", "circle")[number]
        parts.append(plot.path(xs, ys, f"s{number}"))
        parts += [plot.marker(shape, a, b, f"f{number}") for a, b in zip(xs.tolist(), ys.tolist(), strict=True)]
        parts.append(plot.marker(shape, left + 104 + 120 * number, 16, f"f{number}"))
        parts.append(plot.text(left + 116 + 120 * number, 20, scheme, "label"))
    return plot.svg(1080, 340, title, *parts)
