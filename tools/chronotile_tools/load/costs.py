"""Measured costs of operations, each with its unit and its source, for capacity models."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronotile import _native
from chronotile.errors import DataFileError

__all__ = ["Cost", "Costs"]

_SHIPPED = Path(__file__).with_name("costs.toml")


@dataclass(frozen=True)
class Cost:
    """One cost.

    Attributes
    ----------
    value : float
        The cost; above 0.
    unit, source : str
        Unit of the value, and the measurement that it comes from.
    """

    value: float
    unit: str
    source: str


@dataclass(frozen=True)
class Costs:
    """Costs by name, such as ``chronotile.read``."""

    by_name: Mapping[str, Cost]

    @classmethod
    def read(cls, path: Path | None = None) -> Costs:
        """The costs of this release, overridden by those of a TOML file.

        Raises
        ------
        DataFileError
            The file does not exist, is not TOML, names an unknown cost, or has a value that is not above 0.
        """
        found = dict(_entries(_SHIPPED))
        if path is not None:
            for name, cost in _entries(path):
                if name not in found:
                    near = " or ".join(_native.nearest_names(name, list(found)))
                    hint = f"did you mean {near}?" if near else f"the costs are {', '.join(found)}"
                    raise DataFileError(f"{path}: no cost {name!r}: {hint}", kind="file-content")
                found[name] = cost
        return cls(found)

    def __getitem__(self, name: str) -> float:
        return self.by_name[name].value


def _entries(path: Path) -> Iterator[tuple[str, Cost]]:
    try:
        groups = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataFileError(f"no such file: {path}", kind="file-not-found") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataFileError(f"{path} is not TOML: {error}", kind="file-content") from error
    for group, entries in groups.items():
        if not isinstance(entries, dict):
            raise DataFileError(f"{path}: {group} is not a table such as [{group}.read]", kind="file-content")
        for name, given in entries.items():
            yield f"{group}.{name}", _cost(f"{path}: {group}.{name}", given)


def _cost(where: str, given: Any) -> Cost:
    try:
        cost = Cost(float(given["value"]), str(given["unit"]), str(given["source"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise DataFileError(f"{where} lacks a number `value`, a `unit` or a `source`", kind="file-content") from None
    if not (math.isfinite(cost.value) and cost.value > 0):
        raise DataFileError(f"{where}: value {cost.value:g} is not above 0", kind="file-content")
    return cost
