"""Redact URLs for messages."""

from __future__ import annotations

import re

__all__ = ["without_password"]


def without_password(url: str) -> str:
    """Replace possible passwords in `url` by ``***``: between user and last ``@``, and in password parameters."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    user, colon, _ = rest.partition(":")
    at = rest.rfind("@")
    if colon and len(user) < at:
        rest = f"{user}:***{rest[at:]}"
    return scheme + mark + re.sub(r"(?i)([?&;][^=&;]*(?:password|passwd|secret|token)=)[^&;]*", r"\1***", rest)
