"""Parts of a study's page in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from chronotile_tools.studies.record import Record

__all__ = ["figure", "made_by", "page", "table"]


def page(record: Record, title: str, *blocks: str) -> str:
    """A page of blocks, headed by where it comes from."""
    source = f"<!-- Made from data/{record.study}.json by `chronotile study page {record.study}`. Do not edit. -->"
    return "\n\n".join([f"# {title}", source, *blocks]) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table; the first `words` columns are words, the others numbers."""
    marks = ["---"] * words + ["---:"] * (len(header) - words)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, marks, *rows])


def figure(record: Record, name: str, words: str) -> str:
    """A figure; `words` describe it for those who do not see it."""
    return f"![{words}](images/{record.study}-{name}.svg)"


def made_by(record: Record) -> str:
    """Commands and runs behind the page."""
    lines = [
        "## Repeat it",
        "",
        f"    chronotile study run {record.study}",
        "",
        f"`run` computes what `data/{record.study}.json` lacks and writes the page; `chronotile study page "
        f"{record.study}` only writes the page. Results on this page:",
        "",
    ]
    for number, each in enumerate(record.runs):
        parts = sum(part["run"] == number for part in record.parts.values())
        versions = ", ".join(f"{name} {version}" for name, version in each["versions"].items())
        commit = f"commit {each['commit']}, " if each["commit"] else ""
        lines.append(
            f"- {each['date']}: {parts} of {len(record.parts)} parts; {commit}{versions}; {each['machine']}; load "
            f"average {each['load_average']:g}"
        )
    return "\n".join(lines)
