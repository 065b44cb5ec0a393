"""Which nodes a cluster has: data centres, racks, and the tokens of nodes that start together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from chronotile.errors import InvalidInputError
from chronotile_tools import ring

NODES_MAX = 60
TOKENS_A_NODE = 16

_SHORT = re.compile(r"([1-9]\d?)x([1-9]\d?)")
_NAMED = re.compile(r"([A-Za-z][\w-]{0,31}):([1-9]\d?)")


@dataclass(frozen=True)
class Place:
    """Where a node stands."""

    dc: str
    rack: str


def places(nodes: int | None, dc: str | None, racks: int) -> list[Place]:
    """The places of a cluster's nodes.

    Parameters
    ----------
    nodes : int, optional
        Nodes in one data centre, dc1. 3 when `dc` is not given either.
    dc : str, optional
        Data centres: ``2x3`` (two of three nodes each, dc1 and dc2) or ``east:3,west:2``.
    racks : int
        Racks in each data centre; its nodes take them in turn.

    Raises
    ------
    InvalidInputError
        When the text cannot be read, both are given, or there are too many nodes.
    """
    if nodes is not None and dc is not None:
        raise InvalidInputError("give the nodes or the data centres, not both", kind="invalid-request")
    counts = _data_centres(dc) if dc is not None else {"dc1": 3 if nodes is None else nodes}
    total = sum(counts.values())
    if not 1 <= total <= NODES_MAX or min(counts.values()) < 1:
        raise InvalidInputError(f"{total} nodes cannot be started: use 1 to {NODES_MAX}", kind="invalid-request")
    if not 1 <= racks <= NODES_MAX:
        raise InvalidInputError(f"{racks} racks cannot be: use 1 to {NODES_MAX}", kind="invalid-request")
    return [Place(name, f"rack{k % racks + 1}") for name, count in counts.items() for k in range(count)]


def _data_centres(text: str) -> dict[str, int]:
    short = _SHORT.fullmatch(text)
    if short:
        return {f"dc{k}": int(short[2]) for k in range(1, int(short[1]) + 1)}
    counts: dict[str, int] = {}
    for part in text.split(","):
        named = _NAMED.fullmatch(part.strip())
        if named is None or named[1] in counts:
            raise InvalidInputError(
                f"data centres {text!r} cannot be read: write 2x3 for two of three nodes each, or east:3,west:2",
                kind="invalid-request",
            )
        counts[named[1]] = int(named[2])
    return counts


def tokens(standing: Sequence[Place]) -> list[list[int]]:
    """Tokens for nodes that start together, in the order of `standing`.

    Those of a data centre divide the ring evenly and in turn, so its nodes own equal shares at any replication factor,
    and as its racks take turns too, each rack does. With tokens given, a new node need not wait for the others.
    """
    centres = list(dict.fromkeys(place.dc for place in standing))
    result: list[list[int]] = []
    turn = dict.fromkeys(centres, 0)
    for place in standing:
        count = sum(other.dc == place.dc for other in standing)
        step = ring.SIZE // (count * TOKENS_A_NODE)
        # No two nodes may own the same token, of different data centres neither.
        offset = ring.TOKEN_MIN + 1 + centres.index(place.dc) * 997
        result.append([offset + (turn[place.dc] + k * count) * step for k in range(TOKENS_A_NODE)])
        turn[place.dc] += 1
    return result
