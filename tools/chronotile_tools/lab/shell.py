"""Split text into statements, and format their results as tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chronotile_tools.client.wire import Rows

_PIECE = re.compile(
    r"""
    '(?:[^']|'')*'          # a text
    | "(?:[^"]|"")*"        # a quoted name
    | \$\$.*?\$\$           # a text between dollars
    | (?:--|//)[^\n]*       # a comment to the end of its line
    | /\*.*?\*/             # a comment
    | ;
    | .                     # anything else
    """,
    re.VERBOSE | re.DOTALL,
)
_BATCH = re.compile(r"\s*begin\s+(?:(?:un)?logged\s+|counter\s+)?batch\b", re.IGNORECASE)
_BATCH_END = re.compile(r"\bapply\s+batch\s*$", re.IGNORECASE)


def statements(text: str) -> Iterator[tuple[str, bool]]:
    """Split text into statements, each with whether it ends with a semicolon (only the last may not). A batch with its
    inner statements is one statement.
    """
    current = ""
    for match in _PIECE.finditer(text):
        piece = match[0]
        if piece.startswith(("--", "//", "/*")):
            current += " "
        elif piece == ";" and not (_BATCH.match(current) and not _BATCH_END.search(current)):
            if current.strip():
                yield current.strip(), True
            current = ""
        else:
            current += piece
    if current.strip():
        yield current.strip(), False


def table(rows: Rows) -> str:
    """Format rows as a right-aligned table; empty for a statement without results."""
    if not rows.columns:
        return ""
    lines = [rows.columns, *rows.rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(rows.columns))]
    texts = [" | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    texts.insert(1, "-+-".join("-" * width for width in widths))
    count = len(rows.rows)
    return "\n".join(f" {line}".rstrip() for line in texts) + f"\n\n({count} row{'' if count == 1 else 's'})"
