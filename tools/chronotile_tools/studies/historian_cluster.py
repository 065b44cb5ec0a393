"""A historian's cluster of one to four nodes: requests, overload, an outage and a fourth node, measured on nodes."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from chronotile_tools import published
from chronotile_tools.load.experiments import expansion, outage, overload, reads, requests
from chronotile_tools.load.simulation import hint_delivery_s
from chronotile_tools.load.statistics import Difference, compare_values
from chronotile_tools.load.targets import History
from chronotile_tools.studies import charts, markdown
from chronotile_tools.studies.base import Page, Part, Study
from chronotile_tools.studies.measured import (
    Echo,
    agreement,
    comparisons,
    control_text,
    difference_of,
    harness,
    latencies,
    latency_of,
    ratio_text,
    times_text,
    verdict,
)
from chronotile_tools.studies.record import Record, Values

__all__ = ["STUDY"]

_WHOLE = "3 nodes"
"""The set-up with which the others are compared."""
_SLOW_WRITES = 5.0
"""Writes count as slow if their 99th percentile is at least this multiple of that in a ramp's first step."""
_MIB = 2**20
_THROTTLES = published.HINTS.bytes_per_s / _MIB
"""Published speed of a delivery, as a multiple of a thread's throttle, 1 MiB per second by default."""


def _parts(parameters: Values) -> Iterator[Part]:
    for name, compute in (
        ("requests", _requests), ("starved", _starved), ("growing", _growing), ("outage", _outage),
        ("expansion", _expansion),
    ):  # fmt: skip
        yield Part(name, partial(compute, parameters), reports=True)


# ---------------------------------------------------------------------- measurements


def _requests(parameters: Values, echo: Echo) -> Values:
    given = parameters["requests"]
    load = requests.RateLoad(**{**given, "nodes": tuple(given["nodes"])}, written=parameters["written"])
    with harness(parameters, echo) as ready:
        found = requests.rates(ready, load)
    return {
        "per_s": {
            name: {setup: [round(rate, 4) for rate in rates] for setup, rates in each.items()}
            for name, each in found.items()
        }
    }


def _starved(parameters: Values, echo: Echo) -> Values:
    load = reads.Load(**parameters["starved"], written=parameters["written"], count_timeouts=True)
    with harness(parameters, echo) as ready:
        found = overload.measure(ready, load)
    arms = overload.ARMS
    return {
        "latency_ms": latencies(found.runs, arms),
        "comparisons": comparisons(found.runs, arms, ["mean", 99.0]),
        "timeouts": {arm: found.timeouts.get(arm, 0) for arm in arms},
    }


def _growing(parameters: Values, echo: Echo) -> Values:
    """Ramps until the cluster falls behind, each followed by its first step again."""
    given = parameters["growing"]
    load = reads.Load(given["rate"], given["seconds"], parameters["written"], count_timeouts=True)
    fresh = itertools.count()
    ramps, back = [], []
    with harness(parameters, echo) as ready, ready.cluster(3) as cluster:
        history = History(cluster.url("bench"), given["tags"], days=11, step_s=given["step_s"])
        echo(f"storing {history.values:,} values")
        history.store()
        for number in range(given["ramps"]):
            ramps.append([_step(each) for each in reads.ramp(ready, cluster, history, load, fresh, number)])
            again = reads.measure_step(ready, cluster, history, load, reads.DAYS[0], load.rate, fresh, number)
            back.append(_step(again))
    return {"ramps": ramps, "back": back}


def _step(step: reads.Step) -> Values:
    return {
        "days": step.days, "rate": step.rate, "dropped": step.dropped, "timeouts": step.timeouts,
        **{stream: latency_of([found]) for stream, found in step.run.items()},
    }  # fmt: skip


def _outage(parameters: Values, echo: Echo) -> Values:
    given = parameters["outage"]
    load = outage.Load(**{**given, "away_s": tuple(given["away_s"])}, written=parameters["written"])
    with harness(parameters, echo) as ready:
        runs, outages = outage.measure(ready, load)
    return {"latency_ms": latencies(runs, outage.PHASES), "outages": [asdict(each) for each in outages]}


def _expansion(parameters: Values, echo: Echo) -> Values:
    with harness(parameters, echo) as ready:
        return asdict(expansion.measure(ready, expansion.Load(**parameters["expansion"])))


# ---------------------------------------------------------------------- the page


def _page(record: Record) -> Page:
    figures = {
        "requests": _requests_figure(record),
        "reads": _starved_figure(record, "read", published.CPU_BURNT, ""),
        "writes": _starved_figure(record, "write", published.CPU_BURNT_WRITES, " write"),
        "growing": _growing_figure(record),
    }
    text = markdown.page(
        record,
        STUDY.title,
        "How does a historian on a small cluster respond while nodes are down, while their processors are busy with "
        "other work, while reads grow, and while a node is added? The study repeats measurements of "
        f"{published.HISTORIAN_2023}: each part runs the published kind of load on Cassandra nodes of the "
        "[laboratory](../lab.md), with Chronotile's historian as the client.",
        "**All nodes and clients share one machine.** Compare ratios between arms, not milliseconds with those of "
        "other machines; more nodes do not add processors here. Arms take turns, so that a drift of the machine "
        "affects all of them. Intervals are 95 % confidence intervals over pairs of neighbouring runs. Where a "
        "difference is not significant, the page gives the smallest one that would have been.",
        *_requests_section(record),
        *_starved_section(record),
        *_growing_section(record),
        *_outage_section(record),
        *_expansion_section(record),
        "## Beside the published study",
        _compared(record),
        markdown.made_by(record),
    )  # fmt: skip
    return Page(text, figures)


def _requests_section(record: Record) -> list[str]:
    given = record.parameters
    load = record.parameters["requests"]
    return [
        "## Requests a second",
        f"Hourly averages of a day of one tag (A) and of ten tags (B), six-hour averages of a week (C) and daily "
        f"averages of a month (D), requested by {requests.CLIENTS} clients that never wait, while "
        f"{given['written']:,.0f} values per second are written. Here: {load['tags']} tags with a value every "
        f"{load['step_s']} s for {load['days']} days. Published: 1,000 tags with a value every second. The table gives "
        f"published / here, as medians of {load['rounds']} runs of {load['seconds']:g} s, computed from values as in "
        "the published study.",
        _requests_table(record),
        markdown.figure(record, "requests", "Requests a second by set-up, published and here"),
        f"Ratios to {_WHOLE}, published; here:",
        _ratios_table(record),
        "Chronotile keeps hourly statistics, with which it answers these requests where possible. Requests per second "
        "with hourly statistics:",
        _statistics_table(record),
    ]


def _starved_section(record: Record) -> list[str]:
    given = record.parameters
    return [
        "## Nodes whose processors are taken",
        f"In the published study, other processes kept the processors of none to three nodes busy. Here, nodes are "
        f"suspended for {overload.TAKEN:.0%} of their time. The load is {given['starved']['rate']:g} reads per second "
        f"of up to a day at each node, and writes of {overload.VALUES_A_BATCH} values; each client uses one node. Mean "
        "milliseconds, published / here, and ratios to the first line, published; here:",
        _starved_table(record, "reads", published.CPU_BURNT, ""),
        _starved_table(record, "writes", published.CPU_BURNT_WRITES, " write"),
        control_text(record.parts["starved"]["comparisons"]),
        "99th percentiles here, and internode requests that timed out, published / here:",
        _starved_tails(record),
        markdown.figure(record, "reads", "Mean milliseconds of a read by starved nodes, published and here"),
        markdown.figure(record, "writes", "Mean milliseconds of a write by starved nodes, published and here"),
    ]


def _growing_section(record: Record) -> list[str]:
    given = record.parameters
    return [
        "## Reads that grow",
        f"{reads.CLIENTS} clients read 0.1 to 10 days of a tag, then at a growing rate, until the cluster falls "
        f"behind; meanwhile, {given['written']:,.0f} values per second are written. Published: {published.GROWING}. "
        "One of the ramps:",
        _growing_table(record),
        markdown.figure(record, "growing", "99th percentile of reads and writes by step of the ramps"),
        "First step of each sign of overload. Writes are slow if their 99th percentile is at least "
        f"{_SLOW_WRITES:g} times that of the first step.",
        _signs_table(record),
        _return_text(record),
    ]


def _outage_section(record: Record) -> list[str]:
    throttle = f"{record.parameters['outage']['throttle_kib']} KiB"
    return [
        "## A node away",
        "One of three nodes was stopped and started again, while reads and writes continued at QUORUM. Published: two "
        "hours. Response times:",
        _outage_table(record),
        "Hints, and seconds from the time when the node served clients until the others had delivered them. The "
        "expected time is that at twice the throttle of a thread; it does not include that nodes look for hints to "
        f"deliver only every ten seconds. The throttle is {throttle} per second here, to prolong short deliveries; "
        "published: 1 MiB, the default.",
        _hints_table(record),
        _hints_text(record),
    ]


def _expansion_section(record: Record) -> list[str]:
    given = record.parameters
    return [
        "## A fourth node",
        f"{given['expansion']['tags']} tags with a value of 15 decimals every {given['expansion']['step_s']} s, with "
        "replication factor 3. MiB of compacted tables on each node:",
        _expansion_table(record),
        _expansion_text(record),
    ]


def _setups(record: Record) -> list[str]:
    """Measured set-ups in the published order."""
    measured = record.parts["requests"]["per_s"]["A"]
    return [setup for setup in published.SETUPS if setup in measured]


def _rates(record: Record, name: str, setup: str) -> list[float]:
    rates: list[float] = record.parts["requests"]["per_s"][name][setup]
    return rates


def _then(kind: str, setup: str) -> float:
    return published.REQUESTS[kind][published.SETUPS.index(setup)]


def _requests_table(record: Record) -> str:
    setups = _setups(record)
    rows = [
        [kind, *(
            f"{_then(kind, setup):g} / {statistics.median(_rates(record, f'{kind} from values', setup)):,.2f}"
            for setup in setups
        )]
        for kind in published.REQUESTS
    ]  # fmt: skip
    return markdown.table(["", *setups], rows)


_RATE = ("more", "fewer")
"""Comparatives of a ratio of requests per second."""


def _gain(record: Record, kind: str, setup: str) -> Difference:
    """Ratio of requests per second to those with three live nodes."""
    name = f"{kind} from values"
    return compare_values(_rates(record, name, _WHOLE), _rates(record, name, setup))


def _gains(record: Record) -> tuple[dict[str, float], dict[str, Difference]]:
    then, found = {}, {}
    for kind, setup in itertools.product(published.REQUESTS, _setups(record)):
        if setup != _WHOLE:
            then[f"{kind}, {setup}"] = _then(kind, setup) / _then(kind, _WHOLE)
            found[f"{kind}, {setup}"] = _gain(record, kind, setup)
    return then, found


def _ratios_table(record: Record) -> str:
    then, found = _gains(record)
    setups = [setup for setup in _setups(record) if setup != _WHOLE]
    rows = []
    for kind in published.REQUESTS:
        names = [f"{kind}, {setup}" for setup in setups]
        rows.append([kind, *(f"{times_text(then[name], *_RATE)}; {ratio_text(found[name], *_RATE)}" for name in names)])
    return markdown.table(["", *setups], rows)


def _statistics_table(record: Record) -> str:
    setups = _setups(record)
    rows = [
        [kind, *(f"{statistics.median(_rates(record, kind, setup)):,.1f}" for setup in setups)]
        for kind in published.REQUESTS
    ]
    return markdown.table(["", *setups], rows)


def _requests_figure(record: Record) -> str:
    setups = _setups(record)
    places = [float(place) for place in range(len(setups))]
    series: dict[str, charts.Points] = {
        f"{kind}, published": (places, [_then(kind, setup) for setup in setups]) for kind in published.REQUESTS
    }
    for kind in published.REQUESTS:
        medians = [max(statistics.median(_rates(record, f"{kind} from values", setup)), 1e-3) for setup in setups]
        series[f"{kind}, here"] = (places, medians)
    ticks = list(zip(places, setups, strict=True))
    return charts.lines("Requests a second", "set-up", "requests a second", series, x_ticks=ticks)


def _starved_part(record: Record, count: int, node: int, suffix: str) -> Values:
    values: Values = record.parts["starved"]["latency_ms"][overload.ARMS[count]][f"node{node}{suffix}"]
    return values


def _slowdown(record: Record, count: int, node: int, suffix: str) -> Difference:
    found = record.parts["starved"]["comparisons"]
    return difference_of(found, overload.ARMS[count], f"node{node}{suffix}", "mean")


def _slowdowns(
    record: Record, then: Mapping[int, tuple[float, ...]], suffix: str
) -> tuple[dict[str, float], dict[str, Difference]]:
    cases = [(count, node) for count in then if count for node in range(1, overload.NODES + 1)]
    names = {f"{count}, {node}": then[count][node - 1] / then[0][node - 1] for count, node in cases}
    return names, {f"{count}, {node}": _slowdown(record, count, node, suffix) for count, node in cases}


def _starved_table(record: Record, what: str, then: Mapping[int, tuple[float, ...]], suffix: str) -> str:
    rows = []
    for count, means in then.items():
        cells = []
        for node, mean in enumerate(means, 1):
            now = _starved_part(record, count, node, suffix)["mean"]
            cell = f"{mean:.1f} / {now:.1f}"
            if count:
                slowdown = ratio_text(_slowdown(record, count, node, suffix))
                cell += f"; {times_text(mean / then[0][node - 1])}; {slowdown}"
            cells.append(cell)
        rows.append([overload.ARMS[count], *cells])
    return markdown.table([f"{what}; starved", *(f"node {node}" for node in range(1, overload.NODES + 1))], rows)


def _starved_tails(record: Record) -> str:
    rows = []
    for count, arm in enumerate(overload.ARMS):
        cells = [
            " / ".join(
                f"{_starved_part(record, count, node, suffix)['p99']:,.0f}" for node in range(1, overload.NODES + 1)
            )
            for suffix in ("", " write")
        ]
        late = record.parts["starved"]["timeouts"][arm]
        rows.append([arm, *cells, f"{published.CPU_BURNT_TIMEOUTS[count]} / {late:,}", f"{_failed(record, arm):,}"])
    header = ["starved", "reads, p99 at node 1 / 2 / 3", "writes, p99", "time-outs between nodes", "failed here"]
    return markdown.table(header, rows)


def _failed(record: Record, arm: str) -> int:
    """Number of client operations that failed or timed out."""
    streams = record.parts["starved"]["latency_ms"][arm].values()
    return sum(each["failed"] + each["timed_out"] for each in streams)


def _starved_figure(record: Record, what: str, then: Mapping[int, tuple[float, ...]], suffix: str) -> str:
    counts = [float(count) for count in then]
    series: dict[str, charts.Points] = {}
    for node in range(1, overload.NODES + 1):
        series[f"node {node}, published"] = (counts, [means[node - 1] for means in then.values()])
    for node in range(1, overload.NODES + 1):
        means = [_starved_part(record, count, node, suffix)["mean"] for count in then]
        series[f"node {node}, here"] = (counts, means)
    ticks = [(count, f"{count:g}") for count in counts]
    title = f"Mean time of a {what}"
    return charts.lines(title, "starved nodes", "milliseconds", series, x_ticks=ticks, hues=overload.NODES)


def _growing_table(record: Record) -> str:
    rows = []
    for step in record.parts["growing"]["ramps"][0]:
        read, write = step["read"], step["write"]
        failed = sum(each["failed"] + each["timed_out"] for each in (read, write))
        rows.append(
            [_step_name(step), *(f"{read[share]:,.0f}" for share in ("p50", "p99")),
             *(f"{write[share]:,.0f}" for share in ("p50", "p99")), f"{step['timeouts']:,}", f"{step['dropped']:,}",
             f"{failed:,}", "yes" if read["saturated"] or read["unserved"] else ""]
        )  # fmt: skip
    header = ["reads", "reads p50, ms", "p99", "writes p50, ms", "p99", "time-outs between nodes", "dropped messages",
              "failed", "fell behind"]  # fmt: skip
    return markdown.table(header, rows)


def _step_name(step: Values) -> str:
    return f"{step['days']:g} days, {step['rate']:g} a second"


_FAILURES = ("failed", "timed_out")
_SIGNS: dict[str, Callable[[Values, Values], bool]] = {
    "time-outs between nodes": lambda step, first: step["timeouts"] > 0,
    "slow writes": lambda step, first: step["write"]["p99"] > _SLOW_WRITES * first["write"]["p99"],
    "failures": lambda step, first: any(step[stream][how] for stream in ("read", "write") for how in _FAILURES),
    "clients fall behind": lambda step, first: bool(step["read"]["saturated"] or step["read"]["unserved"]),
}


def _first_steps(ramp: Sequence[Values]) -> dict[str, int | None]:
    """Number of the step in which each sign first appeared."""
    return {
        sign: next((place for place, step in enumerate(ramp) if came(step, ramp[0])), None)
        for sign, came in _SIGNS.items()
    }


def _signs_table(record: Record) -> str:
    ramps = record.parts["growing"]["ramps"]
    rows = []
    for sign in _SIGNS:
        order = published.GROWING_SIGNS
        cells = [f"{order.index(sign) + 1} of {len(order)}" if sign in order else "not published"]
        for ramp in ramps:
            place = _first_steps(ramp)[sign]
            cells.append("never" if place is None else f"step {place + 1}: {_step_name(ramp[place])}")
        rows.append([sign, *cells])
    header = ["sign", "published order", *(f"ramp {number}" for number in range(1, len(ramps) + 1))]
    return markdown.table(header, rows, words=len(header))


def _return_text(record: Record) -> str:
    part = record.parts["growing"]
    before = [ramp[0]["read"]["p50"] for ramp in part["ramps"]]
    after = [step["read"]["p50"] for step in part["back"]]
    return (
        "When the first step was repeated after each ramp, the median read took "
        f"{', '.join(f'{value:,.0f}' for value in after)} ms; before the ramps it took "
        f"{', '.join(f'{v:,.0f}' for v in before)} ms."
    )


def _growing_figure(record: Record) -> str:
    series: dict[str, charts.Points] = {}
    for number, ramp in enumerate(record.parts["growing"]["ramps"], 1):
        places = [float(place) for place in range(1, len(ramp) + 1)]
        for stream in ("read", "write"):
            series[f"{stream}s, ramp {number}"] = (places, [step[stream]["p99"] for step in ramp])
    steps = max(len(ramp) for ramp in record.parts["growing"]["ramps"])
    ticks = [(float(step), str(step)) for step in range(1, steps + 1)]
    title = "99th percentile while reads grow"
    return charts.lines(title, "step of the ramp", "milliseconds", series, x_ticks=ticks)


def _outage_table(record: Record) -> str:
    rows = []
    for phase in outage.PHASES:
        streams = record.parts["outage"]["latency_ms"][phase]
        cells = [f"{streams[stream][share]:,.1f}" for stream in ("read", "write") for share in ("p50", "p95", "p99")]
        failed = sum(each["failed"] + each["timed_out"] for each in streams.values())
        rows.append([phase, *cells, f"{failed:,}"])
    header = ["", "reads p50, ms", "p95", "p99", "writes p50, ms", "p95", "p99", "failed"]
    return markdown.table(header, rows)


def _hints_table(record: Record) -> str:
    then = published.HINTS
    missed = then.bytes_per_s * then.delivery_s
    rows = [
        ["published", f"{then.away_s:,.0f} s", f"{then.hints:,.0f}", f"{missed / _MIB:,.0f}",
         f"{then.delivery_s:,.0f}", f"{hint_delivery_s(missed):,.0f}"]
    ]  # fmt: skip
    for number, each in enumerate(record.parts["outage"]["outages"], 1):
        rows.append(
            [f"outage {number}", f"{each['away_s']:g} s", f"{each['hints']:,}", f"{each['bytes'] / _MIB:,.1f}",
             f"{each['delivery_s']:,.1f}",
             f"{hint_delivery_s(each['bytes'], throttle_bytes_per_s=_throttle(record)):,.1f}"]
        )  # fmt: skip
    return markdown.table(["", "down", "hints", "MiB", "delivery, s", "expected, s"], rows)


def _lengths(record: Record) -> tuple[list[Values], list[Values]]:
    """The short and the long outages."""
    outages = record.parts["outage"]["outages"]
    shortest, longest = (pick(each["away_s"] for each in outages) for pick in (min, max))
    return [each for each in outages if each["away_s"] == shortest], [
        each for each in outages if each["away_s"] == longest
    ]


def _delivery(record: Record) -> tuple[float, float]:
    """Bytes per second of the delivery, from the difference between long and short outages, and the seconds before it
    began; the speed is 0 if delivery did not take longer after long outages.
    """
    short, long = _lengths(record)
    size = [statistics.mean(each["bytes"] for each in some) for some in (short, long)]
    took = [statistics.mean(each["delivery_s"] for each in some) for some in (short, long)]
    speed = (size[1] - size[0]) / (took[1] - took[0]) if took[1] > took[0] and size[1] > size[0] else 0.0
    return speed, took[0] - size[0] / speed if speed else took[0]


def _hints_text(record: Record) -> str:
    speed, delay_s = _delivery(record)
    if not speed:
        return "Delivery times after long and short outages differ only by chance, so the speed is unknown."
    return (
        f"From the difference between long and short outages, hints arrived at {speed / _MIB:.2f} MiB per second, "
        f"{speed / _throttle(record):.1f} times the throttle, after {delay_s:.0f} s. Published: "
        f"{published.HINTS.bytes_per_s / _MIB:.2f} MiB per second reached the node, including concurrent writes of "
        f"clients, {_THROTTLES:.1f} times the throttle."
    )


def _throttle(record: Record) -> float:
    """Throttle of a delivery thread, in bytes per second."""
    return float(record.parameters["outage"]["throttle_kib"] * 1_024)


def _expansion_table(record: Record) -> str:
    part = record.parts["expansion"]
    rows = [
        [what, *(f"{count / _MIB:,.1f}" for count in part[name]), *([""] * (4 - len(part[name])))]
        for what, name in (
            ("three nodes", "before"), ("a fourth joined", "joined"), ("cleaned up", "cleaned"),
            ("new values, three nodes", "growth_before"), ("new values, four nodes", "growth_after"),
        )
    ]  # fmt: skip
    return markdown.table(["", "node 1", "node 2", "node 3", "node 4"], rows)


def _shares(record: Record) -> tuple[float, float, float]:
    """Ratios to three nodes: mean load of an old node after the cleanup, mean load of all nodes, growth per node."""
    part = record.parts["expansion"]
    kept = statistics.mean(part["cleaned"][:3]) / statistics.mean(part["before"])
    every = statistics.mean(part["cleaned"]) / statistics.mean(part["before"])
    growth = statistics.mean(part["growth_after"]) / statistics.mean(part["growth_before"])
    return kept, every, growth


def _expansion_text(record: Record) -> str:
    part = record.parts["expansion"]
    kept, every, growth = _shares(record)
    then = published.FOURTH_NODE
    cleanup = [seconds / 3_600 for seconds in then.cleanup_s]
    return (
        f"The new node joined in {part['join_s']:.0f} s. Cleanup took "
        f"{', '.join(f'{seconds:.1f}' for seconds in part['cleanup_s'])} s on the old nodes (published: "
        f"{', '.join(f'{hours:.1f}' for hours in cleanup)} h for {then.before_gib:g} GiB each). After it, an old node "
        f"has {kept:.0%} of its former bytes, the mean of all four {every:.0%} (published: "
        f"{then.after_gib / then.before_gib:.0%}); new values add {growth:.0%} of the bytes per node that they added "
        f"before (published: {published.HISTORIAN_GROWTH[4] / published.HISTORIAN_GROWTH[3]:.0%})."
    )


def _compared(record: Record) -> str:
    then_growth = published.HISTORIAN_GROWTH[4] / published.HISTORIAN_GROWTH[3]
    then_kept = published.FOURTH_NODE.after_gib / published.FOURTH_NODE.before_gib
    kept, every, growth = _shares(record)
    arms = overload.ARMS
    failed = sum(_failed(record, arm) for arm in arms)
    late = record.parts["starved"]["timeouts"]
    counts = ", ".join(f"{late[arm]:,}" for arm in arms)
    throttles = _delivery(record)[0] / _throttle(record)
    speeds = f"{throttles:.1f} times the throttle, published {_THROTTLES:.1f}"
    hint = sum(each["bytes"] for each in record.parts["outage"]["outages"]) / max(
        sum(each["hints"] for each in record.parts["outage"]["outages"]), 1
    )
    rows = [
        ["Table: requests A to D a second on one to four nodes", agreement(*_gains(record)),
         f"Ratios to {_WHOLE}. Separate machines add processors with each node; nodes here share them, so ratios here "
         "show the cost or gain of coordination and of a missing node."],
        ["Table: client reads by starved nodes", agreement(*_slowdowns(record, published.CPU_BURNT, "")),
         "Ratios to none starved. Here, nodes are suspended four fifths of the time; there, busy processors delayed "
         "them continuously."],
        ["Table: client writes by starved nodes", agreement(*_slowdowns(record, published.CPU_BURNT_WRITES, " write")),
         "The same. A batch here also includes a lightweight transaction for its record."],
        ["Table: 99th percentile of messages between nodes", "not measured",
         "Nodes measure it over minutes; runs here take seconds and are interleaved."],
        ["Text: no failed request", verdict(failed == 0, f"{failed:,} failed"), "In all arms."],
        ["Text: time-outs between nodes 0, 0, 1, 12",
         verdict(late[arms[3]] > late[arms[0]], counts) if any(late.values()) else f"not decided: {counts}",
         "Runs here take seconds; published runs took 30 minutes."],
        ["Figure: reads of 0.1 to 10 days and back, 44 h", "above, as steps", "Steps of seconds, until clients fall "
         "behind, instead of hours."],
        ["Text: first time-outs between nodes, then slow writes, then failures", _order(record),
         f"Published: 99th percentile of writes up to {published.GROWING_WRITE_P99_MS:,.0f} ms. Reads here start at a "
         "fixed rate, whether or not earlier ones have ended."],
        ["Table: hints after two hours without a node",
         verdict(_within(throttles, _THROTTLES, 2.0), speeds) if throttles else "not decided: no speed",
         f"Shortened to less than a minute. A hint has {hint:,.0f} bytes here."],
        ["Procedure: 48 hours without a node, repair by table", "not repeated",
         "It needs hundreds of GiB; [Work on a cluster](../work-on-a-cluster.md) has the procedure."],
        ["Procedure: one node to three, two orders", "not repeated here",
         "`chronotile ops grow` does it, and tests run it on nodes."],
        ["Procedure: rolling upgrade 4.0.2 to 4.1.0; change of operating system", "not repeated here",
         "Procedures with tests on nodes: [Work on a cluster](../work-on-a-cluster.md)."],
        ["Table: load of a node with four instead of three", verdict(_within(kept, then_kept, 1.15),
                                                                     f"{kept:.0%}, published {then_kept:.0%}"),
         f"An even share is three quarters; the mean of all four is {every:.0%}."],
        ["Table: daily growth with four instead of three", verdict(_within(growth, then_growth, 1.15),
                                                                   f"{growth:.0%}, published {then_growth:.0%}"),
         "The same share."],
        ["Text: cleanup of 8 h 15, 4 h 33, 7 h 35", "above, seconds",
         "Cleanup rewrites a node's data, so its time is proportional to bytes."],
    ]  # fmt: skip
    return markdown.table(["published", "here", "why"], rows, words=3)


def _within(found: float, then: float, factor: float) -> bool:
    return then / factor <= found <= then * factor


def _order(record: Record) -> str:
    """Whether signs appeared in the published order in each ramp; signs of the same step count as in order."""
    ramps = record.parts["growing"]["ramps"]
    ordered = shown = 0
    for ramp in ramps:
        first = _first_steps(ramp)
        steps = [first[sign] for sign in published.GROWING_SIGNS]
        known = [step for step in steps if step is not None]
        shown += bool(known)
        ordered += bool(known) and known == sorted(known) and steps[: len(known)] == known
    if shown < len(ramps):
        return f"not decided: no sign appeared in {len(ramps) - shown} of {len(ramps)} ramps"
    return verdict(ordered == len(ramps), f"in {ordered} of {len(ramps)} ramps")


STUDY = Study(
    name="historian-cluster",
    title="A historian's cluster, measured",
    repeats="requests, overload, outage and growth of a historian's cluster, 2023",
    scales={
        "full": {
            "written": 5_000.0, "heap": "400m", "seed": 1,
            "requests": {"nodes": [1, 3, 4], "tags": 10, "days": 30, "step_s": 1, "seconds": 1.5, "rounds": 5},
            "starved": {"rate": 15.0, "seconds": 5.0},
            "growing": {"rate": 40.0, "seconds": 8.0, "tags": 20, "step_s": 5, "ramps": 2},
            "outage": {"tags": 20, "days": 2, "step_s": 10, "rate": 10.0, "seconds": 5.0, "away_s": [10.0, 40.0],
                       "rounds": 2, "throttle_kib": 256},
            "expansion": {"tags": 200, "days": 5, "step_s": 10, "days_more": 1},
        },
        "quick": {
            "written": 1_000.0, "heap": "300m", "seed": 1,
            "requests": {"nodes": [1, 3], "tags": 10, "days": 30, "step_s": 60, "seconds": 0.4, "rounds": 2},
            "starved": {"rate": 5.0, "seconds": 0.4},
            "growing": {"rate": 20.0, "seconds": 1.5, "tags": 10, "step_s": 30, "ramps": 1},
            "outage": {"tags": 10, "days": 1, "step_s": 30, "rate": 5.0, "seconds": 1.0, "away_s": [2.0, 8.0],
                       "rounds": 1, "throttle_kib": 32},
            "expansion": {"tags": 20, "days": 1, "step_s": 30, "days_more": 1},
        },
    },
    parts=_parts,
    page=_page,
)  # fmt: skip
