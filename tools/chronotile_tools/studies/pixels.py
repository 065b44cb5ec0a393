"""Detectors on sky pixels: the spatial study of an alert production database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from chronotile_tools.studies import charts, markdown
from chronotile_tools.studies.base import Page, Part, Study
from chronotile_tools.studies.measured import verdict
from chronotile_tools.studies.record import Record, Values
from chronotile_tools.survey import pixels
from chronotile_tools.survey.simulate.universe import DETECTOR_DEG, PADDING_DEG

__all__ = ["STUDY"]

_COMPARED = ("mq3c", "htm")
"""The pixelizations of the published study."""
_CHOSEN = 10
"""The level that the published study chose; its distributions are assumed to be of this level."""


def _parts(parameters: Values) -> Iterator[Part]:
    for scheme in pixels.SCHEMES:
        for level in range(parameters["level_min"], parameters["level_max"] + 1):
            yield Part(f"{scheme}-{level}", partial(_measure, parameters, scheme, level, 0.0))
    for level in range(parameters["level_min"], parameters["level_max"] + 1):
        yield Part(f"mq3c-{level}-padded", partial(_measure, parameters, "mq3c", level, PADDING_DEG))


def _measure(parameters: Values, scheme: str, level: int, padding_deg: float) -> Values:
    seed = parameters["seed"]
    (found,) = pixels.throw(DETECTOR_DEG, padding_deg, parameters["detectors"], [level], seed, [scheme])
    clients = pixels.clients_of_pixels(scheme, level, parameters["cameras"], seed, padding_deg)
    return {**asdict(found), "clients": clients}


def _page(record: Record) -> Page:
    levels = list(range(record.parameters["level_min"], record.parameters["level_max"] + 1))
    figures = {
        "averages": _by_level(record, levels, "Pixels that a detector touches", "pixels", "pixels"),
        "clients": _by_level(record, levels, "Detectors of a camera that touch the same pixel", "detectors", None),
        "histogram": _histogram(record),
        "area": _by_level(record, levels, "Area of these pixels, ratio to the detector's", "ratio", "area_ratio"),
    }
    text = markdown.page(
        record,
        STUDY.title,
        "An alert production database reads, for each of the 189 detectors of a camera, the pixels that the detector "
        "touches. More pixels mean more requests; larger pixels contain more rows outside the detector; and if several "
        "detectors touch the same pixel, several clients request it. The study places square detectors at random "
        "positions on the sphere, with random rotations, and counts pixels. It repeats the spatial study of the "
        "technote [DMTN-156](https://dmtn-156.lsst.io/), and adds two pixelizations.",
        f"Detectors have sides of {DETECTOR_DEG:g} degrees; {record.parameters['detectors']:,} detectors and "
        f"{record.parameters['cameras']:,} whole cameras were placed for each line. The published figures have no "
        "padding around a detector; reads have a padding of 52 arc seconds, as in the last table.",
        "## Averages by level",
        _averages(record, levels),
        markdown.figure(record, "averages", "Pixels that a detector touches, by level"),
        markdown.figure(record, "clients", "Detectors of a camera that touch the same pixel, by level"),
        f"## Distribution at level {_CHOSEN}",
        markdown.figure(record, "histogram", f"Share of detectors by the pixels that they touch, level {_CHOSEN}"),
        "## Area of the pixels",
        markdown.figure(record, "area", "Ratio of the area of the touched pixels to the detector's, by level"),
        f"Ratio of the area of the touched pixels to the detector's, by share of detectors, level {_CHOSEN}:",
        _areas(record),
        "## With the padding of a read",
        _padded(record, levels),
        "## Beside the published study",
        _compared(record),
        markdown.made_by(record),
    )
    return Page(text, figures)


def _part(record: Record, scheme: str, level: int, *, padded: bool = False) -> Values:
    return record.parts[f"{scheme}-{level}{'-padded' if padded else ''}"]


def _clients(values: Values) -> float:
    """Mean number of a camera's detectors that touch a pixel, over the pixels that at least one touches."""
    counts = values["clients"]
    return float(sum(detectors * count for detectors, count in enumerate(counts, 1)) / sum(counts))


def _by_level(record: Record, levels: Sequence[int], title: str, unit: str, field: str | None) -> str:
    def value(scheme: str, level: int) -> float:
        part = _part(record, scheme, level)
        return _clients(part) if field is None else float(part[field])

    series = {scheme: (levels, [value(scheme, level) for level in levels]) for scheme in pixels.SCHEMES}
    return charts.lines(title, "level", unit, series, x_ticks=[(float(level), str(level)) for level in levels])


def _histogram(record: Record) -> str:
    series = {}
    for scheme in pixels.SCHEMES:
        counts = np.array(_part(record, scheme, _CHOSEN)["histogram"], float)
        touched = np.flatnonzero(counts)
        places = np.arange(touched[0], touched[-1] + 1)
        series[scheme] = ((places + 1).tolist(), (100 * counts[places] / counts.sum()).tolist())
    return charts.lines(
        f"Pixels that a detector touches, level {_CHOSEN}", "pixels", "percent of detectors", series, y_log=False
    )


def _averages(record: Record, levels: Sequence[int]) -> str:
    kinds: list[tuple[str, Any]] = [
        ("pixels a detector touches, mean (most)", lambda part: f"{part['pixels']:.1f} ({part['pixels_max']})"),
        ("area of these, ratio to the detector's", lambda part: f"{part['area_ratio']:.2f}"),
        ("detectors that touch the same pixel", lambda part: f"{_clients(part):.2f}"),
        ("detectors in a pixel, by area", lambda part: f"{part['detectors_a_pixel']:.3g}"),
    ]
    rows = [
        [what, scheme, *(show(_part(record, scheme, level)) for level in levels)]
        for what, show in kinds
        for scheme in pixels.SCHEMES
    ]
    return markdown.table(["", "", *(f"level {level}" for level in levels)], rows, words=2)


def _areas(record: Record) -> str:
    rows = [
        [scheme, *(f"{value:.2f}" for value in _part(record, scheme, _CHOSEN)["area_ratios"])]
        for scheme in pixels.SCHEMES
    ]
    return markdown.table(["", *(f"{share} %" for share in pixels.PERCENTILES)], rows)


def _padded(record: Record, levels: Sequence[int]) -> str:
    rows = []
    for level in levels:
        part = _part(record, "mq3c", level, padded=True)
        rows.append(
            [f"mq3c {level}", f"{part['pixels']:.1f} ({part['pixels_max']})", f"{part['area_ratio']:.2f}",
             f"{_clients(part):.2f}"]
        )  # fmt: skip
    header = ["", "pixels a detector touches, mean (most)", "area, ratio to the padded detector's",
              "detectors per pixel"]  # fmt: skip
    return markdown.table(header, rows)


def _compared(record: Record) -> str:
    ours, other = (_part(record, scheme, _CHOSEN) for scheme in _COMPARED)
    nine = _part(record, "mq3c", 9, padded=True)
    ten = _part(record, "mq3c", 10, padded=True)
    fewer = 1 - ours["pixels"] / other["pixels"]
    alike = abs(_clients(ours) / _clients(other) - 1) < 0.1
    rows = [
        ["Figure: average pixel/tile connections by level", "above", "Published as a picture, without values."],
        [
            'Text: MQ3C is "significantly better" than HTM in pixels per detector',
            verdict(fewer > 0.1, f"{fewer:.0%} fewer"),
            f"At level {_CHOSEN}, {ours['pixels']:.1f} and {other['pixels']:.1f}. HTM has a third more pixels per "
            "level.",
        ],
        [
            "Text: both alike in detectors per pixel", "agrees" if alike else "differs",
            f"{_clients(ours):.2f} and {_clients(other):.2f} detectors of a camera for each pixel that any touches.",
        ],
        ["Figure: distribution of connections at a level", "above", "The published level is not named; ours is 10."],
        ["Figure: distributions of pixels per detector and of their area", "above, the area as percentiles", ""],
        [
            "Choice: MQ3C level 10", "differs: Chronotile's default is level 9",
            f"A partition there is a pixel and a month, here sixteen pixels and 120 days. With padding, a read at "
            f"level 9 touches {nine['pixels']:.1f} pixels instead of {ten['pixels']:.1f}, with "
            f"{nine['area_ratio']:.1f} times the area instead of {ten['area_ratio']:.1f}. "
            "[Decision 014](../decisions/014-windows-of-a-survey.md) gives the measured costs.",
        ],
    ]  # fmt: skip
    return markdown.table(["published", "here", "why"], rows, words=3)


STUDY = Study(
    name="pixels",
    title="Detectors on sky pixels",
    repeats="spatial study of DMTN-156",
    scales={
        "full": {"detectors": 5_000, "cameras": 50, "level_min": 6, "level_max": 12, "seed": 1},
        "quick": {"detectors": 100, "cameras": 2, "level_min": 8, "level_max": 11, "seed": 1},
    },
    parts=_parts,
    page=_page,
)
