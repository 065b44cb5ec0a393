"""Parts of a study's page in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from chronotile_tools.studies.record import Record

__all__ = ["figure", "made_by", "page", "table"]


def page(record: Record, title: str, *blocks: str) -> str:
    """A page of blocks, with a comment that names its source."""
    source = f"<!-- Made from data/{record.study}.json by `chronotile study page {record.study}`. Do not edit. -->"
    return "\n\n".join([f"# {title}", source, *blocks]) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table. The first `words` columns are text, the others numbers, aligned right."""
    marks = ["---"] * words + ["---:"] * (len(header) - words)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, marks, *rows])


def figure(record: Record, name: str, words: str) -> str:
    """A figure, with `words` as alternative text."""
    return f"![{words}](images/{record.study}-{name}.svg)"


def made_by(record: Record) -> str:
    """Commands and runs behind the page."""
    lines = [
        "## Repeat it",
        "",
        f"    chronotile study run {record.study}",
        "",
        f"`run` computes the parts that are missing in `data/{record.study}.json` and writes the page; `chronotile "
        f"study page {record.study}` only writes the page. Results on this page:",
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
