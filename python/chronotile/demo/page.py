"""The demo's page: one self-contained HTML file with plots of the sky, a star, times and tiles."""

from __future__ import annotations

import os
import platform
from html import escape

import numpy as np

import chronotile as ct
from chronotile import _native
from chronotile.apdb.names import MAIN_TABLES
from chronotile.demo.measure import MAINTAINED, READ, STORE, WHOLE, Outcome, date_text, table_lines, time_lines
from chronotile.demo.stars import BANDS, FIELD, SCHEMA, galactic_latitude
from chronotile.pages import plot
from chronotile.pages.markup import GAP, document, section, table
from chronotile.sky import pixel_area, pixel_index, pixel_vertices
from chronotile.terminal import bytes_text

__all__ = ["html"]

_MARKS = dict(zip(BANDS, ("circle", "square", "triangle"), strict=True))


def html(outcome: Outcome) -> str:
    """The page as HTML text."""
    o = outcome
    nights = "one night" if o.survey.nights == 1 else f"{o.survey.nights} nights"
    sections = [
        '<div class="row">',
        section(
            "What is stored where",
            f"Stored sources in each pixel ({o.layout.scheme.upper()} level {o.layout.level}, "
            f"{_pixel_arcminutes(o):.0f} arcminutes a side). Outlined: the footprints of the last visits.",
            _sky_map(o),
        ),
        section(
            "One star's light curve",
            f"Object {o.curve.object_id} at RA {o.curve.ra:.3f}°, Dec {o.curve.dec:+.3f}°, read back by place and id: "
            f"flux on the difference images; below, folded with its period of {o.curve.period:.3f} days. Open marks "
            "are forced sources, where it was not detected. Bars are one standard error.",
            _light_curve(o),
        ),
        "</div>",
        section(
            "Store and read times, visit by visit",
            "Each dot is one detector of one visit, each line a running median. A store is durable when it ends. "
            "A read takes all columns of all three tables in the detector's footprint: before each store, and all of "
            "the footprints again in the end, before and after maintenance.",
            _times(o),
        ),
        f'{GAP}<div class="row">',
        section(
            "How full tiles are",
            f"Sources in a tile: one pixel in a window of {o.layout.window}. {len(o.tile_rows):,} tiles.",
            _tile_sizes(o),
        ),
        section(
            "What maintenance does",
            "Each visit leaves a chunk in every tile it touches; maintenance makes one of them.",
            _chunks(o),
        ),
        "</div>",
        section(
            "Tables",
            "Rows stored, and the bytes and the number of their chunks, before and after maintenance.",
            table(*table_lines(o), css="names total"),
        ),
        GAP,
        section(
            "Times",
            "Milliseconds for one detector of one visit, and the median of its rows in all three tables.",
            table(*time_lines(o), css="names"),
        ),
    ]
    title = f"{nights[0].upper() + nights[1:]} of a small sky survey"
    body = f"<p>{_introduction(o)}</p>{_figures(o)}{''.join(sections)}<footer>{_colophon(o)}</footer>"
    return document(f"Chronotile: {nights} of a small sky survey", f"<h1>{title}</h1>{body}")


def _introduction(o: Outcome) -> str:
    first = date_text(o.survey.exposures[0].mjd)
    columns = [f"{len(SCHEMA[name].columns)} a {name}" for name in MAIN_TABLES]
    return (
        f"From {first} on, a simulated camera of four detectors looked at {len(o.survey.sky.ra):,} stars near the "
        "galactic plane. Each detector read what is known of its footprint, and stored what it detected and measured, "
        f"as a survey's alert pipeline does, with <code>chronotile.apdb</code> (columns: {', '.join(columns)}). "
        f"All {o.reads:,} reads returned exactly what was stored."
    )


def _figures(o: Outcome) -> str:
    stored = sum(info.bytes for info in o.after.values())
    median = {kind: f"{np.median(times.ms):.1f} ms" for kind, times in o.times.items()}
    figures = [
        (f"{o.rows:,}", "rows stored"),
        (f"{len(o.survey.exposures):,}", "detector-visits"),
        (f"{stored / o.rows:.0f} bytes", "a row, after maintenance"),
        (median[STORE], "to store one of them"),
        (median[READ], "to read what is known"),
        (median[MAINTAINED], "to read it all back"),
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
    build = " · development build" if _native.DEVELOPMENT_BUILD else ""
    return (
        f"Chronotile {ct.__version__}{build} · embedded engine, one process · {machine} · numpy {np.__version__}<br>"
        f"Archive: {escape(o.archive.name)}, {bytes_text(o.archive_bytes)} · whole run {o.seconds:.0f} s. "
        "The stars are made up; the times are measured."
    )


def _pixel_arcminutes(o: Outcome) -> float:
    grid = (o.layout.scheme, o.layout.level)
    middle = pixel_index(*grid, (FIELD[0] + FIELD[1]) / 2, (FIELD[2] + FIELD[3]) / 2)
    return float(np.degrees(np.sqrt(pixel_area(*grid, middle))) * 60)


# ---------------------------------------------------------------- the drawings


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
        outline(pixel_vertices(o.layout.scheme, o.layout.level, pixel), "").replace(
            'class=""', f'fill="{shade}" stroke="{shade}" stroke-width="0.6"'
        )
        for pixel, shade in zip(o.pixels["pixel"].tolist(), shades, strict=True)
    )
    last = o.survey.exposures[-48:]
    feet = "".join(outline(e.corners(), "foot") for e in last)
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
        bands.append((number, band, points["mjd"], points["flux"] / 1e3, points["error"] / 1e3, points["forced"]))
    every = np.concatenate([flux for _, _, _, flux, _, _ in bands])
    margin = 0.08 * max(float(np.ptp(every)), 1.0)
    low, high = float(every.min()) - margin, float(every.max()) + margin
    ticks = [(v, _plain(v)) for v in plot.round_values(low, high, 4)]
    unit, scale = ("hours", 24.0) if o.survey.nights == 1 else ("days", 1.0)
    first = o.survey.exposures[0].mjd if o.survey.nights == 1 else float(np.floor(o.survey.exposures[0].mjd))
    span = (o.survey.exposures[-1].mjd - first) * scale
    span_ticks = [(v, _plain(v)) for v in plot.round_values(0, span, 6)]
    since = f"{unit} since {'the first visit' if o.survey.nights == 1 else date_text(first)}"
    whole = plot.Panel(
        56, 30, 474, 186,
        plot.linear(since, -0.03 * span, 1.03 * span, 56, 474, span_ticks),
        plot.linear("difference flux, µJy", low, high, 186, 30, ticks),
    )  # fmt: skip
    folded = plot.Panel(
        56, 274, 474, 430,
        plot.linear("phase (two periods)", 0, 2, 56, 474, [(v, _plain(v)) for v in (0, 0.5, 1, 1.5, 2)]),
        plot.linear("difference flux, µJy", low, high, 430, 274, ticks),
    )  # fmt: skip
    parts = [whole.frame(), folded.frame(grid_x=True)]
    for number, band, mjd, flux, error, forced in bands:
        phase = mjd / o.curve.period % 1
        parts.append(_points(whole, band, number, (mjd - first) * scale, flux, error, forced))
        twice = [np.tile(each, 2) for each in (flux, error, forced)]
        parts.append(_points(folded, band, number, np.concatenate([phase, phase + 1]), *twice))
        parts.append(plot.marker(_MARKS[band], 348 + 46 * number, 12, f"f{number}", 4.4))
        parts.append(plot.text(358 + 46 * number, 16, band, "label"))
    return plot.svg(479, 478, "Light curve by band, over time and folded with the period", *parts)


def _points(
    panel: plot.Panel, band: str, number: int, x: np.ndarray, y: np.ndarray, error: np.ndarray, forced: np.ndarray
) -> str:
    at_x, at_y = panel.x.place(x).tolist(), panel.y.place(y).tolist()
    ends = zip(at_x, panel.y.place(y - error).tolist(), panel.y.place(y + error).tolist(), strict=True)
    bars = "".join(plot.line(a, b, a, c, f"s{number}") for a, b, c in ends)
    kinds = [f"s{number} open" if each else f"f{number}" for each in forced.tolist()]
    marks = zip(at_x, at_y, kinds, strict=True)
    return bars + "".join(plot.marker(_MARKS[band], a, b, css, 3.0) for a, b, css in marks)


def _running_median(values: np.ndarray, width: int) -> np.ndarray:
    """Running median over `width` values."""
    width = min(width, len(values)) | 1
    padded = np.pad(values, width // 2, mode="reflect" if len(values) > width // 2 else "edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1))


def _times(o: Outcome) -> str:
    names = {STORE: "store", READ: "read, before", MAINTAINED: "read back, maintained", WHOLE: "read back"}
    series = [(label, np.array(o.times[kind].ms)) for kind, label in names.items()]
    every = np.concatenate([values for _, values in series])
    low, high = np.percentile(every, [0.3, 99.7]) * [0.8, 1.25]
    count, nights = len(o.survey.exposures), o.survey.nights
    places = np.arange(count)
    left, top, right, bottom = 46, 34, 890, 292
    starts = [next(i for i, e in enumerate(o.survey.exposures) if e.night == night) for night in range(nights)]
    if nights == 1:
        label, ticks = "visit", [(4 * v, _plain(v)) for v in plot.round_values(0, count / 4, 8)]
    else:
        middles = [(a + b) / 2 for a, b in zip(starts, starts[1:] + [count], strict=True)]
        step = max(1, -(-nights // 16))
        label, ticks = "night", [(m, str(number + 1)) for number, m in enumerate(middles) if number % step == 0]
    panel = plot.Panel(
        left, top, right, bottom,
        plot.linear(label, 0, count, left, right, ticks),
        plot.log("milliseconds for one detector of one visit", float(low), float(high), bottom, top),
    )  # fmt: skip
    parts = [panel.frame()]
    parts += [plot.line(x, top, x, bottom, "night") for x in (float(panel.x.place(np.array(s))) for s in starts[1:])]
    ends = []
    for number, (_, values) in enumerate(series):
        x, y = panel.x.place(places + 0.5), panel.y.place(values.clip(low, high))
        dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(x.tolist(), y.tolist(), strict=True))
        parts.append(f'<path d="{dots}" class="s{number} dot" style="stroke-width:4;stroke-linecap:round"/>')
    for number, (_, values) in enumerate(series):
        # The window is one night, or a tenth of a single night.
        width = count // nights if nights > 1 else count // 10
        y = panel.y.place(_running_median(values, width).clip(low, high))
        parts.append(plot.path(panel.x.place(places + 0.5), y, f"s{number} trend"))
        ends.append(float(y[-1]))
    for number, ((name, values), at_y) in enumerate(zip(series, _apart(ends, 36), strict=True)):
        parts.append(plot.marker("circle", right + 14, at_y, f"f{number}", 4.5))
        parts.append(plot.text(right + 24, at_y + 1, name, "note"))
        parts.append(plot.text(right + 24, at_y + 16, f"median {np.median(values):.1f} ms", "tick"))
    return plot.svg(1078, 338, "Store and read times by detector-visit", *parts)


def _apart(places: list[float], least: float) -> list[float]:
    """Shift positions until any two are at least `least` apart."""
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
        plot.linear("tiles", 0, top, bottom, ceiling, [(v, f"{v:,.0f}") for v in plot.round_values(0, top, 4)]),
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
    sizes = [sum(info.bytes for info in found.values()) for found in (o.before, o.after)]
    lines.append(("all: bytes", sizes[0], sizes[1], bytes_text(sizes[0]), bytes_text(sizes[1])))
    parts = [
        plot.marker("square", 166, 12, "f1", 5), plot.text(177, 16, "as visits left it", "label"),
        plot.marker("square", 306, 12, "f2", 5), plot.text(317, 16, "after maintenance", "label"),
    ]  # fmt: skip
    for place, (name, before_size, after_size, before_text, after_text) in enumerate(lines):
        y = 40 + place * 60
        parts.append(plot.text(152, y + 21, name, "label", "end"))
        for offset, css, size, words in ((0, "f1", before_size, before_text), (18, "f2", after_size, after_text)):
            width = max(220 * size / max(before_size, after_size, 1), 2)
            parts.append(f'<rect x="162" y="{y + offset}" width="{width:.1f}" height="15" rx="2" class="{css}"/>')
            parts.append(plot.text(162 + width + 8, y + offset + 12, words, "tick"))
    return plot.svg(479, 280, "Chunks and bytes before and after maintenance", *parts)
