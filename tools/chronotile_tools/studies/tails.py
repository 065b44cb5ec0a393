"""Tail latency of reads on a hundred nodes, by a simulation that is checked against clusters of three and four."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from chronotile_tools import published
from chronotile_tools.load.simulation import Clients, Nodes, Outcome, Policy, hint_delivery_s, simulate
from chronotile_tools.studies import charts, markdown
from chronotile_tools.studies.base import Page, Part, Study
from chronotile_tools.studies.record import Record, Values

__all__ = ["STUDY"]

_SLOW = (0, 1, 5, 10)
_POLICIES = {
    "any replica": Policy(fastest=False),
    "fastest replicas": Policy(),
    "server": Policy(server_ms=10.0),
    "client": Policy(client_ms=20.0),
    "both": Policy(server_ms=10.0, client_ms=20.0),
}
_SHARES = (50.0, 95.0, 99.0, 99.9)
_NOTICED_S = 3.75
"""Seconds after which laboratory nodes detected a hung node, from the reads in decision 012."""
_HUNG_LAB = {
    ("99p", "never"): (3_750, 3_224, 5_785), ("NONE", "never"): (3_739, 3_556, 3_745),
    ("99p", "500 ms"): (1_012, 511, 2_015), ("NONE", "500 ms"): (1_012, 509, 1_520),
}  # fmt: skip
"""Milliseconds of a read while a node hangs, by the server's `speculative_retry` and the client's `speculative_ms`:
median, smallest, largest; from decision 012."""
_SATURATING = 256
"""Number of clients that never wait, in simulations of throughput."""
_FOOTPRINT = (2, 24)
"""Concurrent requests of a footprint's read in each of its two turns: see docs/cluster-figures.md."""


def _parts(parameters: Values) -> Iterator[Part]:
    yield Part("requests", partial(_requests, parameters))
    yield Part("burnt", partial(_burnt, parameters))
    yield Part("hung", partial(_hung, parameters))
    yield Part("hints", _hints)
    for slow in _SLOW:
        for policy in _POLICIES:
            yield Part(f"{slow}-slow-{policy.replace(' ', '-')}", partial(_slow, parameters, slow, policy))
    for policy in _POLICIES:
        yield Part(f"hung-{policy.replace(' ', '-')}", partial(_hung_large, parameters, policy))
    yield Part("down", partial(_large, parameters, Nodes(**_size(parameters), down=frozenset({7}))))
    replayed = {7: parameters["replays_per_s"]}
    yield Part("replay", partial(_large, parameters, Nodes(**_size(parameters), replays_per_s=replayed)))


# ---------------------------------------------------------------------- computations


def _size(parameters: Values) -> Values:
    return {"count": parameters["nodes"], "cores": parameters["cores"]}


def _large(parameters: Values, nodes: Nodes, policy: Policy | None = None) -> Values:
    clients = Clients(parameters["clients"], parameters["think_ms"])
    found = simulate(nodes, clients, requests=parameters["requests"], policy=policy, seed=parameters["seed"])
    return _values(found)


def _values(found: Outcome) -> Values:
    latency = {f"{share:g}": round(found.percentile(share), 3) for share in _SHARES}
    return {
        "latency_ms": latency, "per_s": round(found.per_s, 1), "busy": round(found.busy, 4),
        "extra": round(found.extra, 4),
    }  # fmt: skip


def _slow(parameters: Values, count: int, policy: str) -> Values:
    every = parameters["nodes"] // max(count, 1)
    slow = {number * every: parameters["slower"] for number in range(count)}
    return _large(parameters, Nodes(**_size(parameters), slow=slow), _POLICIES[policy])


def _hung_large(parameters: Values, policy: str) -> Values:
    """Simulate requests from the time at which a node hangs until well after the others have detected it."""
    noticed_s = parameters["noticed_s"]
    nodes = Nodes(**_size(parameters), hung={7: noticed_s})
    # 1.5 times the largest number of requests that can be answered before the node is detected.
    requests = int(1.5 * noticed_s * parameters["clients"] / parameters["think_ms"] * 1e3)
    clients = Clients(parameters["clients"], parameters["think_ms"])
    found = simulate(
        nodes, clients, requests=requests, policy=_POLICIES[policy], warm_up=0.0, seed=parameters["seed"]
    )  # fmt: skip
    early = found.latency_ms[found.sent_ms < noticed_s * 1e3]
    latency = {f"{share:g}": round(float(np.percentile(early, share)), 3) for share in _SHARES}
    return {"latency_ms": latency, "late": round(float((early > 100).mean()), 5), "extra": round(found.extra, 4)}


def _requests(parameters: Values) -> Values:
    """Requests per second by number of nodes. The share of a request's work that each replica does is derived from the
    rates on one node and on three; the other set-ups are predictions.
    """
    found = {}
    for kind, rates in published.REQUESTS.items():
        one, three = rates[0], rates[2]
        share = 3 * one / three - 1
        nodes = partial(Nodes, coordinate_ms=10 * (1 - share), read_ms=10 * share, network_ms=0.0, cores=2)
        setups = [
            nodes(1, replication=1, answers=1), nodes(3, down=frozenset({2})), nodes(3),
            nodes(4, down=frozenset({3})), nodes(4),
        ]  # fmt: skip
        done = [
            simulate(setup, Clients(_SATURATING, 0.0), requests=parameters["requests_check"], seed=parameters["seed"])
            for setup in setups
        ]
        found[kind] = {"share": share, "per_s": [round(each.per_s * one / done[0].per_s, 3) for each in done]}
    return found


def _burnt(parameters: Values) -> Values:
    """Latency by coordinator while processors of nodes are busy with other work. The waits for a processor are derived
    from two of the published figures; the others are predictions.
    """
    usual = float(np.mean(published.CPU_BURNT[0]))
    own, other = published.CPU_BURNT[1][0] - usual, published.CPU_BURNT[2][2] - usual
    coordinate_ms, network_ms = 0.5, 0.1
    # A request waits for the slower of two replicas, 1.5 times their mean.
    read_ms = (usual - coordinate_ms - 3 * network_ms) / 1.5
    found = {}
    for count in published.CPU_BURNT:
        means = []
        for at in range(3):
            nodes = Nodes(
                3, coordinate_ms=coordinate_ms, read_ms=read_ms, network_ms=network_ms, cores=8,
                delay_ms=dict.fromkeys(range(count), (own, other)),
            )  # fmt: skip
            clients = Clients(40, 200.0, at=at)
            ran = simulate(nodes, clients, requests=parameters["requests_check"], seed=parameters["seed"])
            means.append(round(float(ran.latency_ms.mean()), 2))
        found[str(count)] = means
    return {"own_ms": own, "other_ms": other, "mean_ms": found}


def _hung(parameters: Values) -> Values:
    """Milliseconds of a footprint's read that begins in the two seconds after a node hung."""
    rng = np.random.default_rng(parameters["seed"])
    found = {}
    for server, client in _HUNG_LAB:
        policy = Policy(server_ms=10.0 if server == "99p" else None, client_ms=500.0 if client == "500 ms" else None)
        nodes = Nodes(3, hung={2: _NOTICED_S})
        ran = simulate(
            nodes, Clients(400, 200.0), requests=parameters["requests_check"] * 2, warm_up=0.0,
            policy=policy, seed=parameters["seed"],
        )  # fmt: skip
        early = ran.latency_ms[ran.sent_ms < 2_000]
        usual = ran.latency_ms[ran.sent_ms > _NOTICED_S * 1e3]
        reads = []
        for _ in range(400):
            first = rng.choice(early, _FOOTPRINT[0]).max()
            # The second turn begins when the first has ended, possibly after the hung node was detected.
            second = rng.choice(early if first < 1_500 else usual, _FOOTPRINT[1]).max()
            reads.append(first + second)
        found[f"{server}, {client}"] = [round(float(np.percentile(reads, share)), 0) for share in (50, 5, 95)]
    return found


def _hints() -> Values:
    then = published.HINTS
    missed = then.bytes_per_s * then.delivery_s
    rates = [0.25e6, 1e6, 4e6]
    return {
        "bytes_a_hint": missed / then.hints,
        "values_a_hint": then.away_s * then.values_per_s / then.hints,
        "delivery_s": hint_delivery_s(missed),
        "rates": rates,
        "away_s": [600, 3_600, 10_800],
        "minutes": [[hint_delivery_s(rate * away) / 60 for away in (600, 3_600, 10_800)] for rate in rates],
    }


# ---------------------------------------------------------------------- the page


def _page(record: Record) -> Page:
    given = record.parameters
    figures = {
        "slow": charts.lines(
            f"99th percentile on {given['nodes']} nodes, by how many of them are {given['slower']:g} times slower",
            "slow nodes", "milliseconds",
            {
                name: (_SLOW, [_slow_part(record, count, name)["latency_ms"]["99"] for count in _SLOW])
                for name in ("any replica", "fastest replicas", "both")
            },
            x_ticks=[(float(count), str(count)) for count in _SLOW],
        ),
        "requests": charts.dots(
            "Requests a second: published, and simulated from the set-ups with one node and with three", "requests/s",
            [
                (f"{kind}, {setup}", (then, ours))
                for kind, rates in published.REQUESTS.items()
                for setup, then, ours in zip(
                    published.SETUPS, rates, record.parts["requests"][kind]["per_s"], strict=True
                )
            ],
            ["published", "simulated"],
        ),
    }  # fmt: skip
    text = markdown.page(
        record,
        STUDY.title,
        f"How long do the slowest reads take on {given['nodes']} nodes with {given['clients']:,} clients, when some of "
        "the nodes are slow, hang or return? A hundred nodes are not available, so reads are simulated: requests "
        "queue for cores, coordinators wait for a majority of three replicas, and both clients and coordinators may "
        "send speculative requests. The simulation is first checked against clusters of three and four nodes.",
        "## Checked: requests a second",
        f"Figures of {published.HISTORIAN_2023}. The work of a request at its coordinator and at each replica is "
        "derived from the rates on one node and on three. The other three columns are predictions.",
        _requests_table(record),
        markdown.figure(record, "requests", "Published and simulated requests a second"),
        _requests_error(record),
        "## Checked: nodes whose processors are burnt",
        _burnt_table(record),
        "## Checked: a node that hangs",
        _hung_table(record),
        "## A hundred nodes, some of them slow",
        f"{given['nodes']} nodes with {given['cores']} cores, {given['clients']:,} clients that wait "
        f"{given['think_ms']:g} ms between requests, replication factor 3, QUORUM. A request is assumed to take 0.5 ms "
        f"of its coordinator and 1 ms of each of two replicas. Slow nodes take {given['slower']:g} times as long for "
        "everything, and no two of them are neighbours on the ring. Either *any* replicas answer, or the *fastest* "
        "ones by the coordinator's recent latencies, as Cassandra's dynamic snitch chooses. With *server*, "
        "coordinators ask a third replica after 10 ms; with *client*, clients ask a second coordinator after 20 ms; "
        "both also choose the fastest replicas.",
        _slow_table(record),
        markdown.figure(record, "slow", "99th percentile by slow nodes and policy"),
        _slow_text(record),
        f"## One of {given['nodes']} nodes hangs",
        _hung_large_table(record),
        "## An outage, and hints",
        _outage(record),
        "## Not simulated",
        "Disks, garbage collection, network congestion, repairs and compaction; writes; time-outs. Speculation after a "
        "percentile is simulated with a fixed time. The published latencies of writes while processors were busy (7 to "
        "58 ms at nodes that were not busy) are not reproduced: they need a model of the writing client.",
        markdown.made_by(record),
    )
    return Page(text, figures)


def _requests_table(record: Record) -> str:
    rows = []
    for kind, rates in published.REQUESTS.items():
        ours = record.parts["requests"][kind]
        cells = [f"{then:g} / {now:.2f}" for then, now in zip(rates, ours["per_s"], strict=True)]
        rows.append([kind, f"{ours['share']:.0%}", *cells])
    return markdown.table(
        ["published / simulated", "work of a replica", *published.SETUPS], rows
    )  # fmt: skip


def _request_errors(record: Record) -> list[float]:
    return [
        record.parts["requests"][kind]["per_s"][place] / rates[place] - 1
        for kind, rates in published.REQUESTS.items()
        for place in (1, 3, 4)
    ]


def _requests_error(record: Record) -> str:
    errors = _request_errors(record)
    size = float(np.sqrt(np.mean(np.square(errors))))
    return (
        f"**Error** of the twelve predictions: {size:.0%} (root mean square), {min(errors):+.0%} to "
        f"{max(errors):+.0%}. "
        "The largest errors are those of C, whose long reads gained less from more nodes, and lost less with fewer, "
        "than reads that are limited by processors only."
    )


def _burnt_table(record: Record) -> str:
    part = record.parts["burnt"]
    rows, errors = [], []
    for count, then in published.CPU_BURNT.items():
        ours = part["mean_ms"][str(count)]
        rows.append([str(count), *(f"{one:.1f} / {other:.1f}" for one, other in zip(then, ours, strict=True))])
        errors += [other / one - 1 for one, other in zip(then, ours, strict=True)]
    return (
        f"Figures of {published.HISTORIAN_2023}: mean milliseconds of a read at each of three nodes. Two of them "
        f"determine how long a request waits for a processor of a busy node: {part['own_ms']:.0f} ms at its "
        f"coordinator (one node busy, node 1) and {part['other_ms']:.0f} ms at a replica that another node asks (two "
        "busy, node 3). Coordinators choose the replicas with the lowest recent latencies.\n\n"
        + markdown.table(["busy nodes", "node 1, published / simulated", "node 2", "node 3"], rows)
        + f"\n\n**Error**: {float(np.sqrt(np.mean(np.square(errors)))):.0%} (root mean square of all twelve), "
        f"{min(errors):+.0%} to {max(errors):+.0%}. One busy node slows only the reads that it coordinates; a second "
        "one slows all reads, because every majority then includes a slow node. The published table shows both."
    )


def _hung_table(record: Record) -> str:
    part = record.parts["hung"]
    rows = [
        [*case, _spread(then), _spread(part[", ".join(case)])]
        for case, then in _HUNG_LAB.items()
    ]  # fmt: skip
    header = ["server asks again", "client asks again after", "measured: median (least to largest)",
              "simulated: median (5 to 95 %)"]  # fmt: skip
    return (
        "Three laboratory nodes ([decision 012](../decisions/012-table-options.md)): milliseconds of a footprint's "
        "read, which has two turns of requests, in the two seconds after one node hung. The others detect this after "
        f"{_NOTICED_S:g} s, which is an input of the simulation. Few reads were measured: 3 or 7 per line.\n\n"
        + markdown.table(header, rows, words=2)
        + "\n\nThe last line differs, because simulated coordinators do not learn from missing answers and keep asking "
        "the hung node; those of Cassandra do learn."
    )


def _spread(values: Sequence[float]) -> str:
    middle, least, largest = values
    return f"{middle:,.0f} ({least:,.0f} to {largest:,.0f})"


def _slow_part(record: Record, count: int, policy: str) -> Values:
    return record.parts[f"{count}-slow-{policy.replace(' ', '-')}"]


def _cells(part: Values) -> list[str]:
    return [f"{part['latency_ms'][f'{share:g}']:,.1f}" for share in _SHARES]


def _slow_table(record: Record) -> str:
    rows = []
    for count in _SLOW:
        for policy in _POLICIES:
            part = _slow_part(record, count, policy)
            rows.append(
                [str(count), policy, *_cells(part), f"{part['per_s']:,.0f}", f"{part['busy']:.0%}",
                 f"{part['extra']:.1%}"]
            )  # fmt: skip
    header = ["slow nodes", "policy", *(f"{share:g} %, ms" for share in _SHARES), "requests/s", "cores busy",
              "extra requests"]  # fmt: skip
    return markdown.table(header, rows, words=2)


def _slow_text(record: Record) -> str:
    def p99(count: int, policy: str) -> float:
        return float(_slow_part(record, count, policy)["latency_ms"]["99"])

    return (
        f"- If any replicas answer, one slow node in {record.parameters['nodes']} raises the 99th percentile from "
        f"{p99(0, 'any replica'):.1f} to {p99(1, 'any replica'):,.0f} ms, ten to {p99(10, 'any replica'):,.0f}: a slow "
        "node has more work than it can do, and its queue grows throughout the simulation.\n"
        f"- If the fastest replicas answer, it is {p99(1, 'fastest replicas'):.1f} and "
        f"{p99(10, 'fastest replicas'):.1f} ms. Slow nodes then only coordinate, and have enough time for it.\n"
        f"- With speculation, it is {p99(10, 'server'):.1f} ms (server), {p99(10, 'client'):.1f} (client) and "
        f"{p99(10, 'both'):.1f} (both) with ten slow nodes. Speculation helps with nodes that do not answer, below."
    )


def _hung_large_table(record: Record) -> str:
    rows = []
    for policy in _POLICIES:
        part = record.parts[f"hung-{policy.replace(' ', '-')}"]
        rows.append([policy, *_cells(part), f"{part['late']:.2%}", f"{part['extra']:.1%}"])
    header = ["policy", *(f"{share:g} %, ms" for share in _SHARES), "over 100 ms", "extra requests"]
    return (
        f"A node stops answering; all others detect it after {record.parameters['noticed_s']:g} s. Requests that were "
        "sent before that:\n\n"
        + markdown.table(header, rows)
        + "\n\nIf a coordinator hangs, only a client that asks another node gets an answer; if a replica hangs, only a "
        "coordinator that asks another replica gets one. Both are needed here. In the laboratory, speculation of the "
        "client was sufficient (last line of the check above): the simulation overestimates the effect of "
        "coordinators. Chronotile uses both by default (`speculative_retry=99p`, `speculative_ms=500`)."
    )


def _outage(record: Record) -> str:
    part, then = record.parts["hints"], published.HINTS
    rows = [
        [name, *_cells(values), f"{values['per_s']:,.0f}"]
        for name, values in (
            ("all up", _slow_part(record, 0, "fastest replicas")), ("one known to be down", record.parts["down"]),
            (f"one takes {record.parameters['replays_per_s']:,} hints a second", record.parts["replay"]),
        )
    ]  # fmt: skip
    minutes = [
        [f"{rate / 1e6:g}", *(f"{each:,.0f}" for each in line)]
        for rate, line in zip(part["rates"], part["minutes"], strict=True)
    ]
    error = part["delivery_s"] / then.delivery_s - 1
    return (
        "Milliseconds of reads on all nodes; a hint is assumed to take 0.1 ms:\n\n"
        + markdown.table(["", *(f"{share:g} %" for share in _SHARES), "requests/s"], rows)
        + "\n\nHints reach a returned node at twice the throttle of a thread (1 MiB/s by default, two threads), "
        "divided among the senders: more nodes do not deliver faster. Check: "
        f"{then.hints / 1e6:g} million hints of {part['bytes_a_hint']:,.0f} bytes ({part['values_a_hint']:.0f} values "
        f"each) took {then.delivery_s / 60:.0f} minutes; this rule predicts {part['delivery_s'] / 60:.0f} "
        f"({error:+.0%}). Minutes to deliver, by the megabytes per second that the node missed and by its downtime:\n\n"
        + markdown.table(["missed, MB/s", *(f"down {away // 60} min" for away in part["away_s"])], minutes)
        + "\n\nA node that receives more than 2 MB per second needs longer for its hints than it was down: raise "
        "`hinted_handoff_throttle`, or repair instead."
    )


STUDY = Study(
    name="tails",
    title="A hundred nodes, simulated",
    repeats="requests and overload of a historian's cluster, 2023",
    scales={
        "full": {
            "nodes": 100, "cores": 4, "clients": 10_000, "think_ms": 175.0, "slower": 5.0, "requests": 150_000,
            "requests_check": 10_000, "replays_per_s": 2_000, "noticed_s": 2.0, "seed": 1,
        },
        "quick": {
            "nodes": 20, "cores": 2, "clients": 500, "think_ms": 100.0, "slower": 5.0, "requests": 5_000,
            "requests_check": 2_000, "replays_per_s": 500, "noticed_s": 1.0, "seed": 1,
        },
    },
    parts=_parts,
    page=_page,
)  # fmt: skip
