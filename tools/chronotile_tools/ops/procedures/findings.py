"""Findings of the checks before a procedure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from chronotile.errors import InvalidInputError

Level = Literal["ok", "unknown", "warning", "refused"]


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    level: Level
    """``refused`` blocks the procedure; ``unknown`` means that the check was not possible."""
    what: str
    """What was checked, for example ``clocks``."""
    text: str
    """The result, and what to do about a problem."""

    def __str__(self) -> str:
        return f"{self.level:<8} {self.what}: {self.text}"


def require(findings: Iterable[Finding], work: str) -> None:
    """Raise an error if a finding refuses `work`.

    Raises
    ------
    InvalidInputError
        Kind ``refused``; the message gives all reasons.
    """
    reasons = [finding for finding in findings if finding.level == "refused"]
    if reasons:
        text = "".join(f"\n  {reason.what}: {reason.text}" for reason in reasons)
        raise InvalidInputError(f"{work} is refused, and nothing was changed:{text}", kind="refused")
