"""Table schemas of a survey: read from Felis YAML, stored in the archive, compared for migration.

Felis is the data model language of the Rubin Observatory: tables of columns with a type, a unit and a description
(https://felis.lsst.io). Any Felis file works that has the columns an alert production database needs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import pyarrow as pa

from chronotile import optional
from chronotile.apdb import names
from chronotile.errors import DataFileError, InvalidInputError
from chronotile.hints import name_hint, name_list

__all__ = ["Column", "Migration", "Schema", "Table"]

_TYPES = {
    "boolean": "bool", "byte": "int8", "short": "int16", "int": "int32", "long": "int64", "float": "float32",
    "double": "float64", "char": "utf8", "string": "utf8", "unicode": "utf8", "text": "utf8", "binary": "binary",
    "timestamp": "timestamp[us]",
}  # fmt: skip
_ARROW = {
    "bool": pa.bool_(), "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "float32": pa.float32(), "float64": pa.float64(), "utf8": pa.string(), "binary": pa.binary(),
    "timestamp[us]": pa.timestamp("us"),
}  # fmt: skip

LSST, SMALL = "lsst", "small"
"""Schema names that :meth:`Schema.read` accepts: the APDB schema of lsst-sdm-schemas, and a small built-in one."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    name : str
        Its name.
    type : str
        Arrow type name: bool, int8 to int64, float32, float64, utf8, binary or timestamp[us].
    nullable : bool
        Whether it may be null.
    unit : str, optional
        Unit, in astropy's notation.
    description, ucd : str, optional
        Meaning in words; and as a Unified Content Descriptor of the IVOA.
    default : optional
        Value for rows without this column.
    """

    name: str
    type: str
    nullable: bool = True
    unit: str | None = None
    description: str | None = None
    ucd: str | None = None
    default: Any = None

    def __post_init__(self) -> None:
        if self.type not in _ARROW:
            raise InvalidInputError(
                f"column {self.name} has unknown type {self.type!r}: use one of {', '.join(_ARROW)}",
                kind="invalid-definition",
            )

    @functools.cached_property
    def arrow(self) -> Any:
        """Convert to a `pyarrow.Field` with unit, description and ucd as metadata."""
        notes = {"unit": self.unit, "description": self.description, "ucd": self.ucd}
        metadata = {key: text for key, text in notes.items() if text}
        return pa.field(self.name, _ARROW[self.type], self.nullable, metadata or None)


@dataclass(frozen=True)
class Table:
    """One table: its columns in order, and the columns that identify a row.

    Attributes
    ----------
    name : str
        Its name, such as ``DiaSource``.
    columns : tuple of Column
        Its columns.
    key : tuple of str
        Columns of its primary key; may be empty.
    description : str, optional
        What it holds.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    description: str | None = None

    def __getitem__(self, name: str) -> Column:
        found = self._by_name.get(name)
        if found is None:
            hint = name_hint(name, list(self._by_name))
            raise InvalidInputError(f"table {self.name} has no column {name!r}{hint}", kind="invalid-request")
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @functools.cached_property
    def plans(self) -> dict[Any, Any]:
        """Cached conversion plans; see :func:`chronotile.apdb.rows.conform`."""
        return {}

    @functools.cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @property
    def column_names(self) -> list[str]:
        """Names of its columns, in order."""
        return [column.name for column in self.columns]

    @functools.cached_property
    def arrow(self) -> Any:
        """Convert to a `pyarrow.Schema`."""
        return pa.schema(
            [column.arrow for column in self.columns], {"description": self.description} if self.description else None
        )


@dataclass(frozen=True)
class Migration:
    """Changes that migrate the stored schema to a wanted one.

    Attributes
    ----------
    tables : tuple of str
        Tables to create.
    columns : dict of str to tuple of str
        Columns to add, by table.
    refused : tuple of str
        Reasons against the migration; empty if it is possible.
    """

    tables: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refused: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.tables and not self.columns and not self.refused


@dataclass(frozen=True)
class Schema:
    """The tables of a survey.

    Attributes
    ----------
    name, version : str
        Name and version from the file; the version has the form ``10.0.0``.
    tables : tuple of Table
        Its tables.
    description : str, optional
        Description of the schema.
    """

    name: str
    version: str
    tables: tuple[Table, ...]
    description: str | None = None

    @staticmethod
    def read(source: str | os.PathLike[str] | Schema | None = None) -> Schema:
        """Read a schema from a Felis file.

        Parameters
        ----------
        source : path, "lsst", "small" or Schema, optional
            A YAML file. ``"lsst"``, the default, is the APDB schema of the installed package lsst-sdm-schemas;
            ``"small"`` is a built-in schema with some twenty columns per table.

        Raises
        ------
        DataFileError
            The file cannot be read, or the package is not installed.
        InvalidInputError
            The file is not a Felis schema, or lacks a required column; the message names it.
        """
        if isinstance(source, Schema):
            return source
        path = _path_of(source)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            kinds = {FileNotFoundError: "file-not-found", IsADirectoryError: "file-format"}
            kind = kinds.get(type(error), "file-access")
            hint = (
                f"; the named schemas are {LSST} and {SMALL}; anything else is a file" if path.parent == Path() else ""
            )
            raise DataFileError(f"cannot read the schema {path}: {error.strerror}{hint}", kind=kind) from error
        except UnicodeDecodeError as error:
            raise DataFileError(
                f"cannot read the schema {path}: invalid UTF-8 at byte {error.start + 1}", kind="file-format"
            ) from None
        return Schema.parse(text, str(path))

    @staticmethod
    def parse(text: str, where: str = "the schema", *, check: bool = True) -> Schema:
        """Parse the text of a Felis file; `where` names it in errors. Without `check`, an incomplete schema is
        accepted.
        """
        yaml = optional.module("yaml", "reading a Felis schema", "apdb")
        try:
            documents = [document for document in yaml.safe_load_all(text) if document]
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            # The parser raises ValueError for text that looks like a date or a number but is not one.
            raise InvalidInputError(f"{where}: invalid YAML: {error}", kind="invalid-definition") from None
        if not documents or not all(isinstance(each, dict) and _mappings(each.get("tables")) for each in documents):
            raise InvalidInputError(f"{where}: not a Felis schema: no tables", kind="invalid-definition")
        tables = tuple(_table(each, where) for document in documents for each in document["tables"])
        first = documents[0]
        version = first.get("version")
        if isinstance(version, dict):
            version = version.get("current")
        schema = Schema(str(first.get("name") or ""), str(version or "0.1.0"), tables, _line(first.get("description")))
        if check:
            schema.check()
        return schema

    def __getitem__(self, name: str) -> Table:
        for table in self.tables:
            if table.name == name:
                return table
        raise InvalidInputError(
            f"the schema has no table {name!r}{name_hint(name, [table.name for table in self.tables])}",
            kind="invalid-request",
        )

    def __contains__(self, name: object) -> bool:
        return any(table.name == name for table in self.tables)

    @property
    def stored_tables(self) -> tuple[Table, ...]:
        """Tables that are stored as datasets. DiaObjectLast and the metadata are not stored as tables."""
        return tuple(t for t in self.tables if t.name not in ("DiaObjectLast", "metadata"))

    def check(self) -> None:
        """Raise an error if a required table or column is missing, or a name is invalid or used twice."""
        for name, columns in names.REQUIRED.items():
            if name not in self:
                raise InvalidInputError(
                    f"schema {self.name} lacks the required table {name}", kind="invalid-definition"
                )
            table = self[name]
            for column, kind in columns.items():
                if column not in table:
                    raise InvalidInputError(
                        f"table {name} of schema {self.name} lacks the required column {column}",
                        kind="invalid-definition",
                    )
                fits = table[column].type == kind if kind else table[column].type.startswith("int")
                if not fits:
                    raise InvalidInputError(
                        f"column {column} of {name} is {table[column].type}, it must be {kind or 'an integer'}",
                        kind="invalid-definition",
                    )
        _refuse_twice([table.name for table in self.tables], "table", f"schema {self.name}")
        for table in self.tables:
            _refuse_twice(table.column_names, "column", f"table {table.name}")
            unknown = [name for name in table.key if name not in table]
            if unknown:
                raise InvalidInputError(
                    f"the key of table {table.name} has no column {name_list(unknown)}", kind="invalid-definition"
                )
            hidden = [column.name for column in table.columns if column.name.startswith("_")]
            if hidden:
                raise InvalidInputError(
                    f"column {hidden[0]} of {table.name}: names that begin with _ are reserved",
                    kind="invalid-definition",
                )

    def subset(
        self, columns: Mapping[str, Iterable[str]] | None = None, *, tables: Iterable[str] | None = None
    ) -> Schema:
        """A copy with fewer columns or tables; required ones stay.

        Parameters
        ----------
        columns : dict of str to iterable of str, optional
            Columns to keep, by table; tables not named keep all columns.
        tables : iterable of str, optional
            Tables to keep beside DiaObject, DiaSource and DiaForcedSource.
        """
        kept = None if tables is None else {*tables, *names.MAIN_TABLES}
        chosen = {name: set(wanted) for name, wanted in (columns or {}).items()}
        for name, wanted in chosen.items():
            unknown = wanted - set(self[name].column_names)
            if unknown:
                raise InvalidInputError(
                    f"table {name} has no column {name_list(sorted(unknown))}", kind="invalid-definition"
                )
        out = []
        for table in self.tables:
            if kept is not None and table.name not in kept:
                continue
            if table.name in chosen:
                needed = chosen[table.name] | set(names.REQUIRED.get(table.name, ())) | set(table.key)
                table = dataclasses.replace(table, columns=tuple(c for c in table.columns if c.name in needed))
            out.append(table)
        return dataclasses.replace(self, tables=tuple(out))

    def with_tables(self, tables: Iterable[Table]) -> Schema:
        """A copy with additional tables."""
        return dataclasses.replace(self, tables=self.tables + tuple(tables))

    def extended(self, columns: Mapping[str, Iterable[Column]]) -> Schema:
        """A copy with additional columns, after the present ones: ``{"DiaSource": [Column("score", "float32")]}``."""
        more = {name: tuple(added) for name, added in columns.items()}
        for name in more:
            self[name]
        tables = tuple(dataclasses.replace(t, columns=t.columns + more.get(t.name, ())) for t in self.tables)
        schema = dataclasses.replace(self, tables=tables)
        schema.check()
        return schema

    def relaxed(self) -> Schema:
        """A copy in which all columns but the required ones are nullable, for data that lack some."""
        tables = []
        for table in self.tables:
            needed = {*names.REQUIRED.get(table.name, ()), *table.key} - {names.VALID_TO}
            if table.name == names.SOURCE:
                needed.discard(names.OBJECT_ID)
            columns = tuple(
                column if column.name in needed else dataclasses.replace(column, nullable=True)
                for column in table.columns
            )
            tables.append(dataclasses.replace(table, columns=columns))
        return dataclasses.replace(self, tables=tuple(tables))

    def migration_to(self, wanted: Schema) -> Migration:
        """Changes that migrate this schema to `wanted`, and the reasons against it, if any."""
        new = tuple(table.name for table in wanted.stored_tables if table.name not in self)
        added: dict[str, tuple[str, ...]] = {}
        refused = [
            f"table {t.name} is stored and cannot be removed" for t in self.stored_tables if t.name not in wanted
        ]
        for table in wanted.stored_tables:
            if table.name not in self:
                continue
            here = self[table.name]
            refused += _changes(here, table)
            columns = tuple(column.name for column in table.columns if column.name not in here)
            if columns:
                added[table.name] = columns
            for name in columns:
                if not table[name].nullable and table[name].default is None:
                    refused.append(f"new column {name} of {table.name} is not nullable and has no default")
        return Migration(new, added, tuple(refused))

    def to_json(self) -> str:
        """Serialize as JSON text, which :meth:`from_json` reads."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Schema:
        """Parse text from :meth:`to_json`."""
        value = json.loads(text)
        tables = tuple(
            Table(t["name"], tuple(Column(**c) for c in t["columns"]), tuple(t["key"]), t["description"])
            for t in value["tables"]
        )
        return Schema(value["name"], value["version"], tables, value["description"])


def _path_of(source: str | os.PathLike[str] | None) -> Path:
    if source == SMALL:
        return Path(str(importlib.resources.files("chronotile.apdb") / "small.yaml"))
    if source not in (None, LSST):
        return Path(os.fspath(source))
    try:
        found = importlib.resources.files("lsst.sdm.schemas") / "apdb.yaml"
    except ModuleNotFoundError:
        raise DataFileError(
            "the APDB schema of the LSST needs lsst-sdm-schemas: pip install 'chronotile[apdb]'; or give the path of a "
            'Felis file, or schema="small" (--schema small)',
            kind="file-not-found",
        ) from None
    return Path(str(found))


def _mappings(values: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Whether a value is a non-empty list of mappings."""
    return isinstance(values, list) and values != [] and all(isinstance(each, dict) for each in values)


def _refuse_twice(known: list[str], what: str, where: str) -> None:
    twice = [name for name, count in Counter(known).items() if count > 1]
    if twice:
        raise InvalidInputError(f"{where} has more than one {what} {name_list(twice)}", kind="invalid-definition")


def _table(value: Mapping[str, Any], where: str) -> Table:
    name = str(value.get("name", "without name"))
    given = value.get("columns")
    if not _mappings(given):
        raise InvalidInputError(f"table {name} of {where} has no columns of its own", kind="invalid-definition")
    references = {}
    columns = []
    for each in given:
        column = _column(each, f"table {name} of {where}")
        references[str(each.get("@id", f"#{name}.{column.name}"))] = column.name
        columns.append(column)
    key = value.get("primaryKey") or []
    key = key if isinstance(key, list) else [key]
    return Table(
        name, tuple(columns), tuple(references.get(str(k), str(k)) for k in key), _line(value.get("description"))
    )


def _column(value: Mapping[str, Any], where: str) -> Column:
    name, kind = str(value.get("name", "without name")), str(value.get("datatype"))
    if kind not in _TYPES:
        raise InvalidInputError(
            f"column {name} of {where} has unknown datatype {kind}: use one of {', '.join(_TYPES)}",
            kind="invalid-definition",
        )
    return Column(
        name, _TYPES[kind], bool(value.get("nullable", True)),
        _line(value.get("fits:tunit") or value.get("ivoa:unit")), _line(value.get("description")),
        _line(value.get("ivoa:ucd")), value.get("value"),
    )  # fmt: skip


def _line(text: Any) -> str | None:
    """Join the lines of a text."""
    return " ".join(str(text).split()) if text else None


def _changes(here: Table, wanted: Table) -> list[str]:
    """Differences between `here` and `wanted` that a migration cannot make."""
    found = []
    for column in here.columns:
        if column.name not in wanted:
            found.append(f"column {column.name} of {here.name} is stored and cannot be removed")
            continue
        other = wanted[column.name]
        if other.type != column.type:
            found.append(f"column {column.name} of {here.name} is {column.type} and cannot become {other.type}")
        if other.unit and column.unit and other.unit != column.unit:
            found.append(
                f"column {column.name} of {here.name} is in {column.unit} and cannot become {other.unit}: stored "
                "values would change their meaning"
            )
        if column.nullable and not other.nullable:
            found.append(f"column {column.name} of {here.name} may be null and cannot be made to forbid it")
    if here.key != wanted.key:
        found.append(f"the key of {here.name} is {', '.join(here.key)} and cannot become {', '.join(wanted.key)}")
    return found
