"""What was looked at before work begins, and what was found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from chronotile.errors import InvalidInputError

Level = Literal["ok", "unseen", "warning", "refused"]


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    level: Level
    """``refused`` keeps the work from beginning; ``unseen`` says that it could not be looked at."""
    what: str
    """What was checked, for example ``clocks``."""
    text: str
    """What was found, and for what is not in order, what to do."""

    def __str__(self) -> str:
        return f"{self.level:<8} {self.what}: {self.text}"


def require(findings: Iterable[Finding], work: str) -> None:
    """Refuse `work` where a finding says so.

    Raises
    ------
    InvalidInputError
        Kind ``refused``; the message has every reason.
    """
    reasons = [finding for finding in findings if finding.level == "refused"]
    if reasons:
        text = "".join(f"\n  {reason.what}: {reason.text}" for reason in reasons)
        raise InvalidInputError(f"{work} is refused, and nothing was changed:{text}", kind="refused")
