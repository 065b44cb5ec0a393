"""Settings of an archive of events: how documents are read, their TTL, and the limits of streams."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from chronotile import cells
from chronotile.archive import Archive
from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError

__all__ = ["Limits", "Settings", "SettingsStore"]


@dataclass(frozen=True)
class Limits:
    """Rate limits of a stream. Each ingesting process counts separately."""

    documents_per_s: float | None = None
    """Documents per second, on average over the period; None for no limit."""
    bytes_per_s: float | None = None
    """Bytes per second, on average over the period; None for no limit."""
    period_s: float = 10.0
    """Counting period in seconds: a stream may send the allowance of a period in one burst."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 < value < float("inf"):
                raise InvalidInputError(f"invalid {name}={value}: give a positive number", kind="invalid-setting")


@dataclass(frozen=True)
class Settings:
    """Settings of an archive of events."""

    paths: dict[str, str] = field(default_factory=dict)
    """Path of each field whose column has another name."""
    time_field: str = "time"
    time_format: str = "iso8601"
    stream_field: str | None = None
    ttl_s: int | None = None
    """TTL of documents without one of their own; None for forever."""
    limits: Limits = field(default_factory=Limits)
    expired_us: int | None = None
    """Documents without a TTL of their own that are older than this time stay expired, whatever the present TTL."""
    ttl_own_max_s: int | None = None
    """The longest TTL that any write has set; None if none."""


class SettingsStore:
    """The dataset ``NAME_settings``: one value per key; the newest wins.

    Settings that only grow (the longest TTL of a write, and the time before which everything has expired) use one key
    per value, so that two concurrent writers cannot overwrite each other.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    @classmethod
    def create(cls, archive: Archive, name: str) -> SettingsStore:
        """Create or open the dataset."""
        columns = {"key": "utf8", "value": "utf8", "updated": "timestamp[us, UTC]"}
        dataset = archive.create(
            name, schema=columns, cell=cells.single(), time="updated", window="3650d", id=["key"], merge="latest",
            exist_ok=True,
        )  # fmt: skip
        return cls(dataset)

    def read(self) -> Settings:
        """Read the current settings."""
        rows = self._dataset.read(columns=["key", "value"]).to_arrow()
        texts = dict(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
        known = json.loads(texts.get("settings", "{}"))
        found = Settings(**{**known, "limits": Limits(**known.get("limits", {}))})
        return replace(found, expired_us=_greatest(texts, "expired"), ttl_own_max_s=_greatest(texts, "ttl"))

    def write(self, settings: Settings) -> None:
        """Write all settings except those that only grow."""
        plain = asdict(settings)
        del plain["expired_us"], plain["ttl_own_max_s"]
        self._put("settings", json.dumps(plain))

    def raise_expired(self, time_us: int) -> None:
        """Mark documents without a TTL of their own from before this time as permanently expired."""
        self._put(f"expired:{time_us}", "")

    def raise_ttl_own(self, ttl_s: int) -> None:
        """Record the TTL of a write before its documents are stored."""
        self._put(f"ttl:{ttl_s}", "")

    def _put(self, key: str, value: str) -> None:
        self._dataset.write({"key": [key], "value": [value], "updated": [datetime.now(UTC)]})


def _greatest(texts: dict[str, str], kind: str) -> int | None:
    return max((int(key.partition(":")[2]) for key in texts if key.startswith(f"{kind}:")), default=None)
