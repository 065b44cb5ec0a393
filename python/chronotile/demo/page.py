"""The page: one self-contained HTML file with drawings of the sky, a star, the times and the tiles."""

from __future__ import annotations

import os
import platform
from html import escape

import numpy as np

import chronotile as ct
from chronotile.cli.common import bytes_text
from chronotile.demo import plot
from chronotile.demo.measure import LEVEL, SCHEME, NightRow, Outcome, date_text, median_ms
from chronotile.demo.simulate import BANDS, FIELD, OBJECT_COLUMNS, SOURCE_COLUMNS, galactic_latitude
from chronotile.demo.style import STYLE
from chronotile.sky import pixel_area, pixel_index, pixel_vertices

__all__ = ["html"]

_MARKS = dict(zip(BANDS, ("circle", "square", "triangle"), strict=True))


def html(outcome: Outcome) -> str:
    """The page's text."""
    o = outcome
    nights = "one night" if o.survey.nights == 1 else f"{o.survey.nights} nights"
    sections = [
        '<div class="row">',
        _section(
            "What is stored where",
            f"Stored sources in each pixel ({SCHEME.upper()} level {LEVEL}, {_pixel_arcminutes():.0f} arcminutes a "
            "side). Outlined: the last night's detector footprints.",
            _sky_map(o),
        ),
        _section(
            "One star's light curve",
            f"Object {o.curve.object_id} at RA {o.curve.ra:.3f}°, Dec {o.curve.dec:+.3f}°, read back by place and id; "
            f"below, folded with its period of {o.curve.period:.4f} days. Bars are one standard error.",
            _light_curve(o),
        ),
        "</div>",
        _section(
            "Store and read times, visit by visit",
            "Each dot is one detector of one visit, each line a running median. A store is durable when it ends. "
            "A read takes all columns of the footprint's last twelve months (both datasets) before each store; in "
            "the end, one footprint of each visit is read in whole, before and after consolidation.",
            _times(o),
        ),
        '<div style="height:16px"></div><div class="row">',
        _section(
            "How full tiles are",
            f"Sources in a tile: one pixel in a window of 30 days. {len(o.tile_rows):,} tiles.",
            _tile_sizes(o),
        ),
        _section(
            "What consolidation does",
            "Each visit leaves a chunk in every tile it touches; consolidation makes one of them.",
            _chunks(o),
        ),
        "</div>",
        _section(
            "Night by night",
            "Medians for one detector-visit; rows and bytes count sources and objects. Read: the history before each "
            "store. All: what the footprint holds in the end, before and after consolidation.",
            _table(o),
        ),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Chronotile: {nights} of a small sky survey</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{nights[0].upper() + nights[1:]} of a small sky survey</h1>"
        f"<p>{_introduction(o)}</p>{_figures(o)}{''.join(sections)}<footer>{_colophon(o)}</footer></main></body></html>\n"
    )


def _section(title: str, words: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2><p>{escape(words)}</p>{body}</section>"


def _introduction(o: Outcome) -> str:
    return (
        f"A simulated camera of four detectors looked at {len(o.survey.sky.ra):,} stars near the galactic plane. What "
        f"it detected was stored detector by detector with Chronotile ({len(SOURCE_COLUMNS)} columns a source, "
        f"{len(OBJECT_COLUMNS)} an object), after the history of the footprint was read back, as a survey's alert "
        "pipeline does. "
        f"All {o.reads:,} reads returned exactly what was stored."
    )


def _figures(o: Outcome) -> str:
    t = o.timings
    stored = sum(info.bytes for info in o.after.values())
    figures = [
        (f"{o.rows:,}", "rows stored"),
        (f"{len(t.store_ms):,}", "detector-visits"),
        (f"{stored / o.rows:.0f} bytes", "a row, consolidated"),
        (f"{np.median(t.store_ms):.1f} ms", "to store one of them"),
        (f"{median_ms(t.whole_ms):.1f} ms", "to read its year"),
        (f"{median_ms(t.consolidated_ms):.1f} ms", "once consolidated"),
    ]
    return (
        '<div class="figures">'
        + "".join(f'<div class="figure"><b>{value}</b><span>{what}</span></div>' for value, what in figures)
        + "</div>"
    )


def _colophon(o: Outcome) -> str:
    machine = (
        f"{os.cpu_count()} processors, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    )
    return (
        f"Chronotile {ct.__version__} · embedded engine, one process · {machine} · numpy {np.__version__}<br>"
        f"Archive: {escape(o.archive.name)}, {bytes_text(o.archive_bytes)} · whole run {o.seconds:.0f} s. "
        "The stars are made up; the times are measured."
    )


def _pixel_arcminutes() -> float:
    middle = pixel_index(SCHEME, LEVEL, (FIELD[0] + FIELD[1]) / 2, (FIELD[2] + FIELD[3]) / 2)
    return float(np.degrees(np.sqrt(pixel_area(SCHEME, LEVEL, middle))) * 60)


# ---------------------------------------------------------------- the drawings


def _nice_ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from `low` to `high`, some `about` of them."""
    raw = max(high - low, 1e-9) / about
    power = 10.0 ** np.floor(np.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    return [float(v) for v in np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step]


def _plain(value: float) -> str:
    return f"{round(value, 6):g}"


def _sky_map(o: Outcome) -> str:
    left, top, right, bottom = 46, 30, 536, 378
    ra0, ra1, dec0, dec1 = FIELD[0] - 0.25, FIELD[1] + 0.25, FIELD[2] - 0.2, FIELD[3] + 0.2
    ra_axis = plot.linear(
        "RA (degrees, J2000)", ra1, ra0, left, right, [(v, _plain(v)) for v in range(284, 290) if ra0 < v < ra1]
    )
    dec_axis = plot.linear("Dec (degrees)", dec0, dec1, bottom, top, [(v, _plain(v)) for v in range(5, 9)])
    panel = plot.Panel(left, top, right, bottom, ra_axis, dec_axis)

    def outline(corners: list[tuple[float, float]], css: str) -> str:
        ra, dec = np.array(corners).T
        return plot.path(ra_axis.place(ra), dec_axis.place(dec), css, closed=True)

    rows = o.pixels["rows"]
    low = max(float(np.percentile(rows, 8)), 1.0)
    high = max(float(np.percentile(rows, 99.7)), 2 * low)
    shades = plot.colour((np.log(rows / low) / np.log(high / low)).clip(0, 1))
    # A thin stroke of the same colour closes the seams between neighbours.
    pixels = "".join(
        outline(pixel_vertices(SCHEME, LEVEL, pixel), "").replace(
            'class=""', f'fill="{shade}" stroke="{shade}" stroke-width="0.6"'
        )
        for pixel, shade in zip(o.pixels["pixel"].tolist(), shades, strict=True)
    )
    last = [e for e in o.survey.exposures if e.night == o.survey.nights - 1]
    feet = "".join(outline(e.corners, "foot") for e in last)
    ra = np.linspace(ra0, ra1, 40)
    dec = np.linspace(dec0 - 4, dec1 + 4, 3000)
    # Galactic latitude falls with RA and rises with Dec here, so each RA has one Dec on the plane.
    latitude = galactic_latitude(ra[:, None], dec[None, :])
    plane = dec[np.argmin(np.abs(latitude), axis=1)]
    clip = (
        f'<clipPath id="field"><rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"/></clipPath>'
    )
    ground = f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" class="empty"/>'
    notes = [plot.path(ra_axis.place(ra), dec_axis.place(plane), "plane")]
    place = int(np.argmin(np.abs(plane - 6.7)))
    label_x, label_y = float(ra_axis.place(ra[place])), float(dec_axis.place(plane[place]))
    notes.append(plot.text(label_x + 9, label_y + 4, "galactic plane", "onmap"))
    clusters = o.survey.sky.clusters
    for name, x, y in zip(clusters.name, clusters.ra, clusters.dec, strict=True):
        notes.append(
            plot.text(
                float(ra_axis.place(np.array(x))),
                float(dec_axis.place(np.array(y))) - 16,
                f"cluster {name}",
                "onmap",
                "middle",
            )
        )
    x, y = float(ra_axis.place(np.array(o.curve.ra))), float(dec_axis.place(np.array(o.curve.dec)))
    notes += [plot.circle(x, y, 7, "ring"), plot.text(x + 12, y + 18, "the star", "onmap")]
    inside = f'<g clip-path="url(#field)">{ground}{pixels}{feet}{"".join(notes)}</g>'
    return plot.svg(
        541, 478, "Map of stored sources", clip, inside, panel.frame(grid_y=False), _colour_bar(left, right, low, high)
    )


def _colour_bar(left: float, right: float, low: float, high: float) -> str:
    axis = plot.log("stored sources in a pixel", low, high, left + 60, right - 60)
    shades = plot.colour(np.linspace(0, 1, 24))
    stops = "".join(f'<stop offset="{i / 23:.3f}" stop-color="{shade}"/>' for i, shade in enumerate(shades))
    parts = [
        f'<linearGradient id="scale">{stops}</linearGradient>',
        f'<rect x="{left + 60}" y="430" width="{right - left - 120}" height="9" rx="2" fill="url(#scale)"/>',
    ]
    parts += [plot.text(float(axis.place(np.array(v))), 454, words, "tick", "middle") for v, words in axis.ticks]
    return "".join(parts) + plot.text((left + right) / 2, 474, axis.label, "label", "middle")


def _light_curve(o: Outcome) -> str:
    bands = []
    for number, band in enumerate(BANDS):
        points = o.curve.points[band]
        mag = 31.4 - 2.5 * np.log10(points["flux"])
        bands.append((number, band, points["mjd"], mag, 1.0857 * points["error"] / points["flux"]))
    every = np.concatenate([mag for _, _, _, mag, _ in bands])
    bright, faint = float(every.min()) - 0.12, float(every.max()) + 0.12
    ticks = [(v, f"{v:.1f}") for v in _nice_ticks(bright, faint, 4)]
    first = float(np.floor(o.survey.exposures[0].mjd))
    days = max(o.survey.exposures[-1].mjd - first, 0.5)
    day_ticks = [(v, _plain(v)) for v in _nice_ticks(0, days, 6)]
    whole = plot.Panel(
        46, 30, 474, 186,
        plot.linear(f"days since {date_text(first)}", -0.03 * days, 1.03 * days, 46, 474, day_ticks),
        plot.linear("AB magnitude", faint, bright, 186, 30, ticks),
    )  # fmt: skip
    folded = plot.Panel(
        46, 274, 474, 430,
        plot.linear("phase (two turns)", 0, 2, 46, 474, [(v, _plain(v)) for v in (0, 0.5, 1, 1.5, 2)]),
        plot.linear("AB magnitude", faint, bright, 430, 274, ticks),
    )  # fmt: skip
    parts = [whole.frame(), folded.frame(grid_x=True)]
    for number, band, mjd, mag, error in bands:
        phase = mjd / o.curve.period % 1
        parts.append(_points(whole, band, number, mjd - first, mag, error))
        parts.append(
            _points(folded, band, number, np.concatenate([phase, phase + 1]), np.tile(mag, 2), np.tile(error, 2))
        )
        parts.append(plot.marker(_MARKS[band], 348 + 46 * number, 12, f"f{number}", 4.4))
        parts.append(plot.text(358 + 46 * number, 16, band, "label"))
    return plot.svg(479, 478, "Light curve by band, over time and folded with the period", *parts)


def _points(panel: plot.Panel, band: str, number: int, x: np.ndarray, y: np.ndarray, error: np.ndarray) -> str:
    at_x, at_y = panel.x.place(x), panel.y.place(y)
    low, high = panel.y.place(y - error), panel.y.place(y + error)
    bars = "".join(
        plot.line(a, b, a, c, f"s{number}") for a, b, c in zip(at_x.tolist(), low.tolist(), high.tolist(), strict=True)
    )
    return bars + "".join(
        plot.marker(_MARKS[band], a, b, f"f{number}", 2.5) for a, b in zip(at_x.tolist(), at_y.tolist(), strict=True)
    )


def _running_median(values: np.ndarray, width: int) -> np.ndarray:
    """The median of each value's neighbours."""
    width = min(width, len(values)) | 1
    padded = np.pad(values, width // 2, mode="reflect" if len(values) > width // 2 else "edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1))


def _times(o: Outcome) -> str:
    t = o.timings
    places = np.arange(len(t.store_ms))
    whole = np.array(list(t.whole_ms))
    series = [
        ("store", places, np.array(t.store_ms)),
        ("read, history", places, np.array(t.read_ms)),
        ("consolidated", whole, np.array(list(t.consolidated_ms.values()))),
        ("read, all", whole, np.array(list(t.whole_ms.values()))),
    ]
    every = np.concatenate([values for _, _, values in series])
    low, high = np.percentile(every, [0.3, 99.7]) * [0.8, 1.25]
    count, nights = len(t.store_ms), o.survey.nights
    left, top, right, bottom = 46, 34, 930, 292
    starts = [next(i for i, e in enumerate(o.survey.exposures) if e.night == night) for night in range(nights)]
    middles = [(a + b) / 2 for a, b in zip(starts, starts[1:] + [count], strict=True)]
    step = max(1, -(-nights // 16))
    ticks = [(m, str(number + 1)) for number, m in enumerate(middles) if number % step == 0]
    panel = plot.Panel(
        left, top, right, bottom,
        plot.linear("night", 0, count, left, right, ticks),
        plot.log("milliseconds for one detector of one visit", float(low), float(high), bottom, top),
    )  # fmt: skip
    parts = [panel.frame()]
    parts += [plot.line(x, top, x, bottom, "night") for x in (float(panel.x.place(np.array(s))) for s in starts[1:])]
    ends = []
    for number, (_, at, values) in enumerate(series):
        x, y = panel.x.place(at + 0.5), panel.y.place(values.clip(low, high))
        dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(x.tolist(), y.tolist(), strict=True))
        parts.append(f'<path d="{dots}" class="s{number} dot" style="stroke-width:4;stroke-linecap:round"/>')
    for number, (_, at, values) in enumerate(series):
        # About one night's visits, whatever the series' density.
        y = panel.y.place(_running_median(values, len(values) // nights).clip(low, high))
        parts.append(plot.path(panel.x.place(at + 0.5), y, f"s{number} trend"))
        ends.append(float(y[-1]))
    for number, ((name, _, values), at_y) in enumerate(zip(series, _apart(ends, 36), strict=True)):
        parts.append(plot.marker("circle", right + 14, at_y, f"f{number}", 4.5))
        parts.append(plot.text(right + 24, at_y + 1, name, "note"))
        parts.append(plot.text(right + 24, at_y + 16, f"median {np.median(values):.1f} ms", "tick"))
    return plot.svg(1078, 338, "Store and read times by detector-visit", *parts)


def _apart(places: list[float], least: float) -> list[float]:
    """The places, moved so that any two are at least so far from each other."""
    order = np.argsort(places)
    moved = np.array(places)[order]
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + least)
    moved -= (moved - np.array(places)[order]).mean()
    result = np.empty(len(moved))
    result[order] = moved
    return [float(v) for v in result]


def _tile_sizes(o: Outcome) -> str:
    step = np.floor(np.log2(o.tile_rows)).astype(int)
    counts = np.bincount(step)
    top = float(counts.max()) * 1.12
    left, right, ceiling, bottom = 56, 536, 34, 232
    width = (right - left) / len(counts)
    edges = [(float(i), f"{2**i:,}") for i in range(0, len(counts) + 1, 1 + len(counts) // 10)]
    panel = plot.Panel(
        left, ceiling, right, bottom,
        plot.linear("sources in the tile", 0, len(counts), left, right, edges),
        plot.linear("tiles", 0, top, bottom, ceiling, [(v, f"{v:,.0f}") for v in _nice_ticks(0, top, 4)]),
    )  # fmt: skip
    bars = []
    for i, count in enumerate(counts.tolist()):
        y = float(panel.y.place(np.array(float(count))))
        bars.append(
            f'<rect x="{left + i * width + 1.5:.1f}" y="{y:.1f}" width="{width - 3:.1f}" '
            f'height="{bottom - y:.1f}" rx="2" class="bar"/>'
        )
    return plot.svg(541, 280, "Histogram of the number of sources in a tile", panel.frame(), *bars)


def _chunks(o: Outcome) -> str:
    lines = []
    for name, before in o.before.items():
        after = o.after[name]
        lines.append((f"{name}: chunks", before.chunks, after.chunks, f"{before.chunks:,}", f"{after.chunks:,}"))
        lines.append((f"{name}: bytes", before.bytes, after.bytes, bytes_text(before.bytes), bytes_text(after.bytes)))
    parts = [
        plot.marker("square", 116, 12, "f1", 5), plot.text(127, 16, "as visits left it", "label"),
        plot.marker("square", 256, 12, "f2", 5), plot.text(267, 16, "consolidated", "label"),
    ]  # fmt: skip
    for place, (name, before_size, after_size, before_text, after_text) in enumerate(lines):
        y = 40 + place * 60
        parts.append(plot.text(102, y + 21, name, "label", "end"))
        for offset, css, size, words in ((0, "f1", before_size, before_text), (18, "f2", after_size, after_text)):
            width = max(270 * size / max(before_size, after_size, 1), 2)
            parts.append(f'<rect x="112" y="{y + offset}" width="{width:.1f}" height="15" rx="2" class="{css}"/>')
            parts.append(plot.text(112 + width + 8, y + offset + 12, words, "tick"))
    return plot.svg(479, 280, "Chunks and bytes before and after consolidation", *parts)


def _table(o: Outcome) -> str:
    heads = [
        "Night",
        "Date",
        "Detector-visits",
        "Rows stored",
        "Bytes a row",
        "Store, ms",
        "Rows read",
        "Read, ms",
        "All, ms",
        "Consolidated, ms",
    ]
    t = o.timings
    body = []
    for number in range(o.survey.nights):
        n: NightRow = o.night(number)
        body.append(
            [
                str(number + 1),
                date_text(n.mjd),
                f"{n.exposures}",
                f"{n.rows:,}",
                f"{n.row_bytes:.0f}",
                f"{n.store_ms:.1f}",
            ]
            + [f"{n.rows_read:,}", f"{n.read_ms:.1f}", f"{n.whole_ms:.1f}", f"{n.consolidated_ms:.1f}"]
        )
    stored = sum(info.bytes for info in o.after.values())
    body.append(
        ["All", "", f"{len(t.store_ms):,}", f"{o.rows:,}", f"{stored / o.rows:.0f}", f"{np.median(t.store_ms):.1f}"]
        + [
            f"{np.median(t.rows_read):,.0f}",
            f"{np.median(t.read_ms):.1f}",
            f"{median_ms(t.whole_ms):.1f}",
            f"{median_ms(t.consolidated_ms):.1f}",
        ]
    )
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in body)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
