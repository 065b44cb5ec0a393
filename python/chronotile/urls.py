"""URLs as they may be shown."""

from __future__ import annotations

import re

__all__ = ["without_password"]


def without_password(url: str) -> str:
    """`url` with ``***`` for what may be a password: between a user and the last ``@``, and in settings so named."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    user, colon, _ = rest.partition(":")
    at = rest.rfind("@")
    if colon and len(user) < at:
        rest = f"{user}:***{rest[at:]}"
    return scheme + mark + re.sub(r"(?i)([?&;][^=&;]*(?:password|passwd|secret|token)=)[^&;]*", r"\1***", rest)
