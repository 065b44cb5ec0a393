"""Clients while the network of one node after another is cut: delays, failures, and recovery without intervention."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

from chronotile_tools import published
from chronotile_tools.load.experiments import recovery
from chronotile_tools.studies import charts, markdown
from chronotile_tools.studies.base import Page, Part, Study
from chronotile_tools.studies.measured import Echo, harness
from chronotile_tools.studies.record import Record, Values

__all__ = ["RECOVERED_S", "STUDY", "restored_s", "usual_ms"]

RECOVERED_S = 10.0
"""Promised recovery time: seconds from the return of a node's network until operations take their usual time."""
_USUAL = 3.0
"""A second is as usual if no operation failed and its median is at most this multiple of the usual one..."""
_LEAST_MS = 50.0
"""...or at most this many milliseconds."""
_SHARE_LEAST = 0.15
"""Smallest share of all operations for a node to count as coordinating again; an even share is a third."""
_STREAMS = tuple(f"{front_end} {kind}" for front_end in recovery.FRONT_ENDS for kind in ("write", "read"))


def _parts(parameters: Values) -> Iterator[Part]:
    for cut_s in parameters["cuts_s"]:
        yield Part(_part_name(cut_s), partial(_measure, parameters, cut_s), reports=True)


def _part_name(cut_s: float) -> str:
    return f"cut of {cut_s:g} s"


def _measure(parameters: Values, cut_s: float, echo: Echo) -> Values:
    with harness(parameters, echo) as ready:
        found, cuts = recovery.measure(ready, recovery.Load(**parameters["load"]), cut_s)
    return {"seconds": {name: asdict(each) for name, each in found.items()}, "cuts": [asdict(each) for each in cuts]}


# ---------------------------------------------------------------------- analysis of timelines


def usual_ms(stream: Values, quiet_s: float) -> float:
    """The usual median of a second, before the first cut."""
    seconds = range(int(quiet_s))
    medians: list[float] = [stream["p50_ms"][second] for second in seconds if stream["due"][second]]
    return statistics.median(medians)


def restored_s(stream: Values, usual: float, start_s: float, end_s: float) -> float | None:
    """Seconds from `start_s` after which every second until `end_s` is as usual; None if the last one is not."""
    limit = max(_USUAL * usual, _LEAST_MS)
    last, until = None, min(int(end_s), len(stream["due"]))
    for second in range(int(start_s), until):
        if stream["failed"][second] or stream["p50_ms"][second] > limit:
            last = second
    if last is None:
        return 0.0
    return None if last == until - 1 else last + 1 - start_s


def _cuts(record: Record, part: Values) -> Iterator[tuple[Values, float]]:
    """All cuts, each with the end of the quiet time after it."""
    for cut in part["cuts"]:
        yield cut, cut["end_s"] + record.parameters["load"]["quiet_s"] - 1


def _restored(record: Record, part: Values, name: str) -> list[float | None]:
    """Seconds from the end of each cut until operations were as usual."""
    stream = part["seconds"][name]
    usual = usual_ms(stream, record.parameters["load"]["quiet_s"])
    return [restored_s(stream, usual, cut["end_s"], end_s) for cut, end_s in _cuts(record, part)]


def _adapted(record: Record, part: Values, name: str) -> list[float | None]:
    """Seconds from the start of each cut until operations were as usual, while the node was cut off."""
    stream = part["seconds"][name]
    usual = usual_ms(stream, record.parameters["load"]["quiet_s"])
    return [restored_s(stream, usual, cut["start_s"], cut["end_s"]) for cut in part["cuts"]]


def _shares(part: Values, front_end: str) -> list[float]:
    """Share of all operations that each node coordinates after its return."""
    found = []
    for place, cut in enumerate(part["cuts"]):
        counts = cut["coordinated"][front_end]
        found.append(counts[place] / max(sum(counts), 1))
    return found


# ---------------------------------------------------------------------- the page


def _page(record: Record) -> Page:
    load = record.parameters["load"]
    lengths = [_part_name(cut_s) for cut_s in record.parameters["cuts_s"]]
    text = markdown.page(
        record,
        STUDY.title,
        f"In a published study, of {published.HISTORIAN_2023}, the middleware stayed broken after a node had vanished, "
        "until it was restarted. How do Chronotile's clients behave? Networks are cut and connections are not closed, "
        "so clients are not notified that a node is unreachable.",
        "Three laboratory nodes with replication factor 3 at QUORUM. Each front end (an archive in a Python program, a "
        f"historian in one, and a historian behind `chronotile serve`) gets {load['rate']:g} writes and "
        f"{load['rate']:g} reads per second, which become due whether or not earlier ones have ended. The network of "
        f"each node is cut once, one node after the other, with {load['quiet_s']:g} s between them. Clients and the "
        "service are not restarted. Response times count from the time at which an operation is due.",
        "A second is as usual if no operation due in it failed, and the median response time is at most "
        f"{_USUAL:g} times that before the first cut, or {_LEAST_MS:g} ms. **Promised: within {RECOVERED_S:g} s after "
        "the network is back, every second is as usual, and the node coordinates operations again.**",
        "## Found",
        _verdict(record),
        _table(record),
        *[
            block
            for name in lengths
            for block in (
                f"## {name[0].upper()}{name[1:]}",
                markdown.figure(record, _figure_name(name), f"Longest response by second, {name}"),
                _part_text(record.parts[name]),
            )
        ],
        markdown.made_by(record),
    )
    return Page(text, {_figure_name(name): _figure(record, name) for name in lengths})


def _verdict(record: Record) -> str:
    """Whether the promised recovery time was met."""
    late = broken = 0
    for part in record.parts.values():
        for name in _STREAMS:
            restored = _restored(record, part, name)
            broken += restored.count(None)
            late += sum(each is not None and each > RECOVERED_S for each in restored)
    away = [
        f"{front_end} on node {number + 1} after a {name}"
        for name, part in record.parts.items()
        for front_end in recovery.FRONT_ENDS
        for number, share in enumerate(_shares(part, front_end))
        if share < _SHARE_LEAST
    ]
    count = len(_STREAMS) * sum(len(part["cuts"]) for part in record.parts.values())
    words = [
        f"Of {count} recoveries, one per stream and cut, {count - late - broken} took at most {RECOVERED_S:g} s, "
        f"{late} longer, and {broken} had not ended at the next cut."
    ]
    words.append(
        f"Nodes that came back and coordinated less than {_SHARE_LEAST:.0%} of operations: {'; '.join(away)}."
        if away
        else f"Every node that came back coordinated at least {_SHARE_LEAST:.0%} of each front end's operations again."
    )
    return " ".join(words)


def _table(record: Record) -> str:
    rows = []
    for name, part in record.parts.items():
        for stream in _STREAMS:
            seconds = part["seconds"][stream]
            front_end = stream.split()[0]
            rows.append(
                [f"{stream}, {name}", f"{sum(seconds['failed']):,} of {sum(seconds['due']):,}",
                 f"{usual_ms(seconds, record.parameters['load']['quiet_s']):,.0f}",
                 f"{max(seconds['max_ms']) / 1e3:,.1f}", _seconds_text(_adapted(record, part, stream)),
                 _seconds_text(_restored(record, part, stream)),
                 ", ".join(f"{share:.0%}" for share in _shares(part, front_end))]
            )  # fmt: skip
    header = ["stream", "failed", "usual median, ms", "longest, s", "as usual after the cut, s",
              "as usual after the network is back, s", "share of the node after its return"]  # fmt: skip
    return markdown.table(header, rows)


def _seconds_text(seconds: Sequence[float | None]) -> str:
    return ", ".join("not" if each is None else f"{each:.0f}" for each in seconds)


def _part_text(part: Values) -> str:
    errors = {text for stream in part["seconds"].values() for text in stream["errors"].values()}
    if not errors:
        return "No operation failed."
    return "Errors of failed operations: " + "; ".join(f"`{text}`" for text in sorted(errors)) + "."


def _figure_name(part: str) -> str:
    return part.replace(" ", "-")


def _figure(record: Record, name: str) -> str:
    part = record.parts[name]
    series = {}
    for stream in (
        "archive write",
        "historian write",
        "service write",
        "archive read",
        "historian read",
        "service read",
    ):
        longest = [max(each, 1.0) for each in part["seconds"][stream]["max_ms"]]
        series[stream] = (list(range(len(longest))), longest)
    ticks = [(cut["start_s"], f"cut {number}") for number, cut in enumerate(part["cuts"], 1)]
    ticks += [(cut["end_s"], "back") for cut in part["cuts"]]
    return charts.lines(
        f"Longest response of the operations due in a second, {name}", "seconds; a node is cut off, and is back",
        "ms", series, x_ticks=sorted(ticks), hues=3,
    )  # fmt: skip


STUDY = Study(
    name="client-recovery",
    title="Clients while networks are cut",
    repeats="the middleware of a historian's cluster after a node vanished, 2023",
    scales={
        "full": {"heap": "400m", "seed": 1, "cuts_s": [5.0, 60.0], "load": {"rate": 10.0, "quiet_s": 40.0}},
        "quick": {"heap": "300m", "seed": 1, "cuts_s": [3.0], "load": {"rate": 4.0, "quiet_s": 8.0}},
    },
    parts=_parts,
    page=_page,
)
