"""The HTML of pages: a document with the style sheet, sections and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from chronotile.pages.style import STYLE

__all__ = ["GAP", "document", "section", "table"]

GAP = '<div style="height:16px"></div>'
"""Space between two sections."""


def document(title: str, body: str, *, style: str = "") -> str:
    """A self-contained page; `body` is HTML, `style` is more CSS."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head><body><main>{body}</main></body></html>\n"
    )


def section(title: str, words: str, body: str) -> str:
    """A section with a heading, a paragraph unless `words` is empty, and HTML."""
    paragraph = f"<p>{escape(words)}</p>" if words else ""
    return f"<section><h2>{escape(title)}</h2>{paragraph}{body}</section>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], css: str = "") -> str:
    """A table of texts that scrolls if it is wider than the page."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table class="{css}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
