"""The settings of a node across an upgrade: old defaults, ours and new defaults brought together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chronotile.errors import DataFileError, InvalidInputError

Kind = Literal["kept", "taken", "conflict", "gone", "dropped"]
"""``kept``: ours differs from a default that stayed. ``taken``: the new default, where ours was the old one.
``conflict``: ours, where the default changed too. ``gone``: ours, which the new defaults no longer name. ``dropped``:
an old default that the new ones no longer name."""
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """A setting in which old defaults, ours and new defaults are not all the same."""

    kind: Kind
    name: str
    """With dots into nested settings."""
    old: Any
    ours: Any
    new: Any

    def __str__(self) -> str:
        old, ours, new = map(_text, (self.old, self.ours, self.new))
        said = {
            "kept": f"ours {ours} stays (default {new})",
            "taken": f"new default {new} (was {old})",
            "conflict": f"ours {ours} stays, and the default changed: {old} -> {new}",
            "gone": f"ours {ours} stays, and the new defaults do not name it: look it up in NEWS.txt",
            "dropped": f"left out: the new defaults no longer name it (was {old})",
        }
        return f"{self.kind:<8}  {self.name}: {said[self.kind]}"


@dataclass
class Merged:
    """Settings for the new release, and how they came about."""

    settings: dict[str, Any]
    differences: list[Difference] = field(default_factory=list)

    @property
    def conflicts(self) -> list[Difference]:
        """What an operator must look at."""
        return [one for one in self.differences if one.kind in ("conflict", "gone")]


def merge(old: Mapping[str, Any], ours: Mapping[str, Any], new: Mapping[str, Any]) -> Merged:
    """Bring together settings of an old release's defaults, ours, and a new release's defaults.

    What we never changed follows the new defaults; what we changed stays. Maps are merged setting by setting, lists are
    taken whole.
    """
    merged = Merged({})
    _merge(old, ours, new, "", merged.settings, merged.differences)
    return merged


def _merge(
    old: Mapping[str, Any],
    ours: Mapping[str, Any],
    new: Mapping[str, Any],
    above: str,
    result: dict[str, Any],
    found: list[Difference],
) -> None:
    # In the order of the new release's file, then what only ours has.
    for name in dict.fromkeys([*new, *ours, *old]):
        before, mine, after = (one.get(name, _ABSENT) for one in (old, ours, new))
        if isinstance(mine, Mapping) and isinstance(after, Mapping):
            inner: dict[str, Any] = {}
            _merge(before if isinstance(before, Mapping) else {}, mine, after, f"{above}{name}.", inner, found)
            result[name] = inner
            continue
        kind, value = _decided(before, mine, after)
        if value is not _ABSENT:
            result[name] = value
        if kind is not None:
            found.append(Difference(kind, above + name, *(None if v is _ABSENT else v for v in (before, mine, after))))


def _decided(before: Any, mine: Any, after: Any) -> tuple[Kind | None, Any]:
    if mine == after:
        return None, after
    if mine == before:
        # Never changed by us, or taken out of the file: as the new release has it.
        return ("taken", after) if after is not _ABSENT else ("dropped", _ABSENT)
    if mine is _ABSENT:
        return ("taken", after) if before != after else (None, _ABSENT)
    if after is _ABSENT:
        return "gone", mine
    return ("kept", mine) if before == after else ("conflict", mine)


def _text(value: Any) -> str:
    return "none" if value is None else repr(value)


def read(path: Path) -> dict[str, Any]:
    """The settings of a cassandra.yaml.

    Raises
    ------
    DataFileError
        The file cannot be read, or is no YAML.
    InvalidInputError
        It holds something else than settings by name, or PyYAML is missing.
    """
    yaml = _yaml()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataFileError(f"{path}: {error.strerror}", kind="file-not-found") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataFileError(f"{path} is no YAML: {' '.join(str(error).split())}", kind="file-format") from None
    if not isinstance(content, dict):
        raise InvalidInputError(f"{path} holds no settings by name", kind="invalid-setting")
    return content


def write(path: Path, merged: Merged) -> None:
    """Write settings as YAML into a new file.

    Raises
    ------
    DataFileError
        There is such a file, or it cannot be written.
    """
    text = _yaml().safe_dump(merged.settings, sort_keys=False, width=120)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise DataFileError(f"{path} is there already: take another name", kind="file-exists") from None
    except OSError as error:
        raise DataFileError(f"{path}: {error.strerror}", kind="file-access") from None


def _yaml() -> Any:
    import yaml

    return yaml
