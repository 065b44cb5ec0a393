"""Layout of a new cluster: data centres, racks, and initial tokens."""

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
class NodeLocation:
    """Data centre and rack of a node."""

    dc: str
    rack: str


def places(nodes: int | None, dc: str | None, racks: int) -> list[NodeLocation]:
    """Data centre and rack of each node.

    Parameters
    ----------
    nodes : int, optional
        Nodes in one data centre, dc1. 3 when `dc` is not given either.
    dc : str, optional
        Data centres: ``2x3`` (two of three nodes each, dc1 and dc2) or ``east:3,west:2``.
    racks : int
        Racks in each data centre; nodes are assigned round-robin.

    Raises
    ------
    InvalidInputError
        The text is invalid, both are given, or there are too many nodes.
    """
    if nodes is not None and dc is not None:
        raise InvalidInputError("give either nodes or data centres", kind="invalid-request")
    counts = _data_centres(dc) if dc is not None else {"dc1": 3 if nodes is None else nodes}
    total = sum(counts.values())
    if not 1 <= total <= NODES_MAX or min(counts.values()) < 1:
        raise InvalidInputError(f"{total} nodes are out of range: use 1 to {NODES_MAX}", kind="invalid-request")
    if not 1 <= racks <= NODES_MAX:
        raise InvalidInputError(f"{racks} racks are out of range: use 1 to {NODES_MAX}", kind="invalid-request")
    return [NodeLocation(name, f"rack{k % racks + 1}") for name, count in counts.items() for k in range(count)]


def _data_centres(text: str) -> dict[str, int]:
    short = _SHORT.fullmatch(text)
    if short:
        return {f"dc{k}": int(short[2]) for k in range(1, int(short[1]) + 1)}
    counts: dict[str, int] = {}
    for part in text.split(","):
        named = _NAMED.fullmatch(part.strip())
        if named is None or named[1] in counts:
            raise InvalidInputError(
                f"invalid data centres {text!r}: write 2x3 for two of three nodes each, or east:3,west:2",
                kind="invalid-request",
            )
        counts[named[1]] = int(named[2])
    return counts


def tokens(locations: Sequence[NodeLocation]) -> list[list[int]]:
    """Tokens for nodes that start together, in the order of `locations`.

    The tokens of a data centre divide the ring evenly and alternate between nodes and racks, so nodes and racks own
    equal shares at any replication factor. With initial tokens, a new node need not wait for the others.
    """
    centres = list(dict.fromkeys(place.dc for place in locations))
    result: list[list[int]] = []
    turn = dict.fromkeys(centres, 0)
    for place in locations:
        count = sum(other.dc == place.dc for other in locations)
        step = ring.SIZE // (count * TOKENS_A_NODE)
        # No two nodes may own the same token, even in different data centres.
        offset = ring.TOKEN_MIN + 1 + centres.index(place.dc) * 997
        result.append([offset + (turn[place.dc] + k * count) * step for k in range(TOKENS_A_NODE)])
        turn[place.dc] += 1
    return result
