"""Checks of report pages: well-formed HTML without external resources."""

from __future__ import annotations

import re
from html.parser import HTMLParser

SVG_NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'


def check_page(text: str, *, drawings: int) -> None:
    """Assert that a page is well-formed, loads nothing, shows no NaN or infinity, and has at least `drawings` SVGs."""
    opened: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag not in ("script", "link", "img", "iframe")
            assert not [value for name, value in attrs if name in ("src", "href", "onload", "onclick")]
            if tag not in ("meta", "br"):
                opened.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            """Nothing to close."""

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Checker().feed(text)
    assert opened == []
    assert "http" not in text.replace(SVG_NAMESPACE, "")
    assert text.count("<svg") >= drawings
    assert not re.search(r"\b(nan|inf)\b", text, re.IGNORECASE)
