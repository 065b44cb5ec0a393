"""Distinguish URLs from paths, and redact URLs for messages."""

from __future__ import annotations

__all__ = ["has_scheme", "without_password"]

_SECRETS = ("password", "passwd", "secret", "token")


def has_scheme(text: str) -> bool:
    """Whether a text begins with a URL's scheme of two or more characters: ``sqlite:survey.db``."""
    scheme, colon, _ = text.partition(":")
    plain = scheme.replace("+", "").replace(".", "").replace("-", "")
    return bool(colon) and len(scheme) > 1 and scheme.isascii() and scheme[0].isalpha() and plain.isalnum()


def without_password(url: str) -> str:
    """Replace possible passwords in `url` by ``***``: between user and last ``@``, and in password parameters."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    user, colon, _ = rest.partition(":")
    at = rest.rfind("@")
    if colon and len(user) < at:
        rest = f"{user}:***{rest[at:]}"
    groups = [group.split(";") for group in rest.split("&")]
    masked = [
        ";".join(_without_secret(part, named=bool(outer or inner)) for inner, part in enumerate(group))
        for outer, group in enumerate(groups)
    ]
    return scheme + mark + "&".join(masked)


def _without_secret(part: str, *, named: bool) -> str:
    """Replace what follows a secret's name and ``=``. A name begins after ``?``; with `named`, also at the start."""
    words = part.split("=")
    for place, name in enumerate(words[:-1]):
        if place or not named:
            name = name.partition("?")[2]
        if name.casefold().endswith(_SECRETS):
            return f"{'='.join(words[: place + 1])}=***"
    return part
