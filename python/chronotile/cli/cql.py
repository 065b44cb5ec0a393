"""``chronotile cql``."""

from __future__ import annotations

import json
from typing import Any, Literal

import click

from chronotile.cli.query import Output, output_options
from chronotile.cql import CqlSession
from chronotile.cql import cql as connect
from chronotile.result import ReadResult


@click.command(short_help="Read any table of a Cassandra cluster.")
@click.argument("url")
@click.argument("statement", required=False)
@click.option(
    "--param",
    "-p",
    "parameters",
    multiple=True,
    metavar="[NAME=]VALUE",
    help="Value of the next bind marker, or of a named one; repeatable. JSON, else text.",
)
@click.option("--table", metavar="KEYSPACE.TABLE", help="Read this whole table by token ranges.")
@click.option("--where", metavar="CONDITION", help="With --table: a CQL condition on rows.")
@click.option("--concurrency", type=click.IntRange(1, 256), help="With --table: token ranges read concurrently.")
@click.option("--consistency", metavar="LEVEL", help="ONE, QUORUM, LOCAL_QUORUM, ... Default: the URL's.")
@click.option("--decimal", metavar="PRECISION,SCALE", help="Read decimals as numbers instead of text.")
@output_options
def cql(
    url: str,
    statement: str | None,
    parameters: tuple[str, ...],
    table: str | None,
    where: str | None,
    concurrency: int | None,
    consistency: str | None,
    decimal: str | None,
    output: Output,
) -> None:
    """Run a CQL statement and print its rows, or read a whole table. The table may be any table of the cluster, not
    only an archive's. UUIDs, varints, durations and, without --decimal, decimals are written as text.

    \b
    Examples:
        chronotile cql cassandra://h1,h2/survey "SELECT * FROM stars WHERE field = ?" -p 17
        chronotile cql cassandra://h1,h2 --table survey.stars --columns id,mag --out stars.parquet
        chronotile cql cassandra://h1,h2 "CREATE TABLE survey.notes (id int PRIMARY KEY, note text)"
    """
    if (statement is None) == (table is None):
        raise click.UsageError("Give a STATEMENT or --table.")
    if table is None and (where, concurrency, output.columns) != (None, None, None):
        raise click.UsageError("--where, --concurrency and --columns require --table.")
    options: dict[str, Any] = {
        "consistency": consistency,
        "decimal": _decimal(decimal),
        "uuid": "text",
        "duration": "text",
    }
    with connect(url) as session:
        result: ReadResult | None
        if table is not None:
            keyspace, dot, name = table.partition(".")
            if not dot:
                raise click.UsageError(f"{table!r} lacks a keyspace: give KEYSPACE.TABLE.")
            result = session.table(
                keyspace,
                name,
                columns=output.column_names,
                where=where,
                parameters=_parameters(parameters),
                concurrency=concurrency,
                **options,
            )
        else:
            result = _run(session, str(statement), _parameters(parameters), options)
        if result is not None:
            output.write(result)


def _run(session: CqlSession, statement: str, parameters: Any, options: dict[str, Any]) -> ReadResult | None:
    if statement.split(None, 1)[:1] and statement.split(None, 1)[0].lower() == "select":
        return session.query(statement, parameters, **options)
    return session.execute(statement, parameters, consistency=options["consistency"])


def _decimal(text: str | None) -> tuple[int, int] | Literal["text"]:
    if text is None:
        return "text"
    try:
        precision, scale = (int(part) for part in text.split(","))
    except ValueError:
        raise click.UsageError(f"Invalid --decimal {text!r}: give PRECISION,SCALE, such as 10,2.") from None
    return precision, scale


def _parameters(given: tuple[str, ...]) -> list[Any] | dict[str, Any]:
    """Parameter values in order, or by name if the first has a name."""
    if given and _named(given[0]):
        pairs = [text.partition("=") for text in given]
        if not all(equals for _, equals, _ in pairs):
            raise click.UsageError("Name all --param values, or none.")
        return {name: _value(text) for name, _, text in pairs}
    return [_value(text) for text in given]


def _named(text: str) -> bool:
    name, equals, _ = text.partition("=")
    return bool(equals) and name.isidentifier()


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
