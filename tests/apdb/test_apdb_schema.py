"""Schemas of surveys: read from Felis, checked, reduced, extended and compared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa

import chronotile as ct
from chronotile.apdb import Column, Schema, names
from chronotile.apdb.schema import Migration, Table

SMALL_YAML = Path(ct.__file__).parent / "apdb" / "small.yaml"


@pytest.fixture(scope="module")
def small() -> Schema:
    return Schema.read("small")


def parse(text: str) -> Schema:
    """A schema that need not have the tables of a survey."""
    return Schema.parse(text, check=False)


def table_of(*columns: str, **members: str) -> Table:
    """The only table of a Felis text."""
    written = [f"columns: [{', '.join(columns)}]", *(f"{name}: {value}" for name, value in members.items())]
    (found,) = parse("tables: [{name: t, " + ", ".join(written) + "}]").tables
    return found


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("datatype", "kind", "arrow"),
    [
        ("boolean", "bool", pa.bool_()), ("byte", "int8", pa.int8()), ("short", "int16", pa.int16()),
        ("int", "int32", pa.int32()), ("long", "int64", pa.int64()), ("float", "float32", pa.float32()),
        ("double", "float64", pa.float64()), ("char", "utf8", pa.utf8()), ("string", "utf8", pa.utf8()),
        ("unicode", "utf8", pa.utf8()), ("text", "utf8", pa.utf8()), ("binary", "binary", pa.binary()),
        ("timestamp", "timestamp[us]", pa.timestamp("us")),
    ],
)  # fmt: skip
def test_datatypes_of_felis_are_arrow_types(datatype: str, kind: str, arrow: pa.DataType) -> None:
    (column,) = table_of(f"{{name: x, datatype: {datatype}}}").columns
    assert column == Column("x", kind)
    assert column.arrow.equals(pa.field("x", arrow), check_metadata=True)


def test_a_column_has_its_unit_meaning_and_default() -> None:
    table = table_of(
        "{name: a, datatype: int, nullable: false, 'fits:tunit': nJy, 'ivoa:unit': Jy, 'ivoa:ucd': phot.flux, value: 7,"
        " description: 'In words,\n\n  in two lines.'}",
        "{name: b, datatype: long, 'ivoa:unit': deg}",
        "{name: c, datatype: long, 'fits:tunit': '', description: ''}",
        description="'What it\n\n holds.'",
    )
    assert table.columns == (
        Column("a", "int32", False, "nJy", "In words, in two lines.", "phot.flux", 7),
        Column("b", "int64", unit="deg"),
        Column("c", "int64"),
    )
    assert table.description == "What it holds."
    notes = {"unit": "nJy", "description": "In words, in two lines.", "ucd": "phot.flux"}
    wanted = [
        pa.field("a", pa.int32(), False, notes), pa.field("b", pa.int64(), True, {"unit": "deg"}),
        pa.field("c", pa.int64()),
    ]  # fmt: skip
    assert table.arrow.equals(pa.schema(wanted, {"description": "What it holds."}), check_metadata=True)
    assert table_of("{name: c, datatype: long}").arrow.metadata is None


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("'#t.a'", ("a",)), ("['#t.b', '#t.a']", ("b", "a")), ("['#own', '#t.a']", ("c", "a")), ("b", ("b",)),
        ("[]", ()), ("", ()), ("5", ("5",)), ("'#t.c'", ("#t.c",)),
    ],
)  # fmt: skip
def test_a_key_names_columns_by_their_references(written: str, key: tuple[str, ...]) -> None:
    columns = ["{name: a, datatype: int}", "{name: b, datatype: int}", "{name: c, datatype: int, '@id': '#own'}"]
    assert table_of(*columns, primaryKey=written).key == key


@pytest.mark.parametrize(
    ("head", "name", "version"),
    [
        ("", "", "0.1.0"), ("name:\nversion:\n", "", "0.1.0"), ("name: s\nversion: 1.5\n", "s", "1.5"),
        ("version: {current: 10.0.1, compatible: [1.0.0]}\n", "", "10.0.1"),
        ("version: {compatible: []}\n", "", "0.1.0"),
    ],
)  # fmt: skip
def test_a_schema_has_the_name_and_version_of_its_first_document(head: str, name: str, version: str) -> None:
    text = "tables: [{name: %s, columns: [{name: x, datatype: int}]}]\n"
    schema = parse(f"---\n---\n{head}description: 'Of\n\n  both.'\n{text % 'one'}---\nversion: 9\n{text % 'two'}")
    assert (schema.name, schema.version, schema.description) == (name, version, "Of both.")
    assert [table.name for table in schema.tables] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a Felis schema: no tables"), ("a: 1", "no tables"), ("[1]", "no tables"), ("tables:", "no tables"),
        ("tables: []", "no tables"), ("tables: text", "no tables"), ("tables: 5", "no tables"),
        ("tables: [text]", "no tables"), ("tables: {a: 1}", "no tables"),
        ("tables: [{columns: [{name: x, datatype: int}]}, text]", "no tables"),
        ("tables: [{columns: [{name: x, datatype: int}]}]\n---\na: 1", "no tables"),
        ("tables: [", "invalid YAML"), ("day: 2026-13-45", "invalid YAML"), ("[" * 1_000, "invalid YAML"),
        ("tables: [{name: t}]", "table t of here has no columns of its own"),
        ("tables: [{name: t, columns: []}]", "table t of here has no columns of its own"),
        ("tables: [{name: t, columns: [x]}]", "table t of here has no columns of its own"),
        ("tables: [{columnRefs: {}}]", "table without name of here has no columns of its own"),
        ("tables: [{name: t, columns: [{name: x, datatype: real}]}]",
         "column x of table t of here has unknown datatype real: use one of boolean, byte"),
        ("tables: [{name: t, columns: [{}]}]", "column without name of table t of here has unknown datatype None"),
    ],
)  # fmt: skip
def test_what_is_no_schema_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(ct.InvalidInputError, match=says) as error:
        Schema.parse(text, "here", check=False)
    assert error.value.kind == "invalid-definition"


def test_a_file_is_read_and_one_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Schema
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_bytes(SMALL_YAML.read_bytes())
    assert Schema.read("own.yaml") == Schema.read(tmp_path / "own.yaml") == Schema.read(small) == small
    Path("latin1.yaml").write_bytes(b"name: caf\xe9")
    Path("empty.yaml").touch()
    Path("folder").mkdir()
    hint = "; the named schemas are lsst and small; anything else is a file"
    for source, kind, says in (
        ("smal", "file-not-found", f"cannot read the schema smal: No such file or directory{hint}"),
        ("folder", "file-format", f"cannot read the schema folder: Is a directory{hint}"),
        ("folder/none", "file-not-found", "cannot read the schema folder/none: No such file or directory"),
        ("own.yaml/x", "file-access", "cannot read the schema own.yaml/x: Not a directory"),
        ("latin1.yaml", "file-format", "cannot read the schema latin1.yaml: invalid UTF-8 at byte 10"),
    ):
        with pytest.raises(ct.DataFileError) as error:
            Schema.read(source)
        assert (error.value.kind, str(error.value)) == (kind, says)
    with pytest.raises(ct.InvalidInputError, match=r"^empty.yaml: not a Felis schema"):
        Schema.read("empty.yaml")


def test_the_schema_of_the_lsst_is_the_default() -> None:
    pytest.importorskip("lsst.sdm.schemas", reason="lsst-sdm-schemas is not installed")
    assert Schema.read() == Schema.read("lsst")
    assert len(Schema.read()["DiaSource"].columns) > 100


def test_without_its_package_a_schema_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lsst.sdm.schemas", None)
    with pytest.raises(ct.DataFileError, match=r"needs lsst-sdm-schemas.*--schema small") as error:
        Schema.read()
    assert error.value.kind == "file-not-found"
    assert Schema.read("small").name == "SmallSurvey"
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ct.MissingPackageError, match=r"^reading a Felis schema needs .*'chronotile\[apdb\]'"):
        Schema.read("small")


# ---------------------------------------------------------------- checks


def without(text: str) -> str:
    """The small schema without lines that contain a text."""
    return "\n".join(line for line in SMALL_YAML.read_text().splitlines() if text not in line)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (without("Middle of the exposure"), "table DiaSource of schema SmallSurvey lacks the required column midp"),
        (SMALL_YAML.read_text().replace("name: DiaForcedSource", "name: Forced"),
         "schema SmallSurvey lacks the required table DiaForcedSource"),
        (SMALL_YAML.read_text().replace("visit, datatype: long", "visit, datatype: int"),
         "column visit of DiaSource is int32, it must be int64"),
        (SMALL_YAML.read_text().replace("detector, datatype: short", "detector, datatype: float"),
         "column detector of DiaSource is float32, it must be an integer"),
        (SMALL_YAML.read_text().replace("name: snr", "name: _snr"),
         "column _snr of DiaSource: names that begin with _ are reserved"),
        (SMALL_YAML.read_text().replace("name: snr", "name: band"), "table DiaSource has more than one column band"),
        (SMALL_YAML.read_text().replace("name: SSObject", "name: DiaSource"),
         "schema SmallSurvey has more than one table DiaSource"),
        (SMALL_YAML.read_text().replace("#DiaSource.diaSourceId", "#DiaSource.id"),
         "the key of table DiaSource has no column #DiaSource.id"),
    ],
)  # fmt: skip
def test_a_schema_that_no_database_takes_is_refused(text: str, says: str) -> None:
    with pytest.raises(ct.InvalidInputError, match=says) as error:
        Schema.parse(text)
    assert error.value.kind == "invalid-definition"
    assert Schema.parse(text, check=False).name == "SmallSurvey"


@pytest.mark.parametrize("datatype", ["byte", "short", "int", "long"])
def test_a_detector_is_any_integer(datatype: str) -> None:
    text = SMALL_YAML.read_text().replace("detector, datatype: short", f"detector, datatype: {datatype}")
    assert Schema.parse(text)["DiaSource"]["detector"].type.startswith("int")


def test_names_that_are_not_there_are_refused_with_the_nearest(small: Schema) -> None:
    unknown: dict[str, Callable[[], object]] = {
        "the schema has no table 'DiaSorce'; did you mean DiaSource": lambda: small["DiaSorce"],
        "table DiaSource has no column 'psfFlx'; did you mean psfFlux": lambda: small["DiaSource"]["psfFlx"],
    }
    for says, look in unknown.items():
        with pytest.raises(ct.InvalidInputError, match=says) as error:
            look()
        assert error.value.kind == "invalid-request"
    assert "DiaSource" in small
    assert "DiaSorce" not in small
    with pytest.raises(ct.InvalidInputError, match="column x has unknown type 'int': use one of bool, int8"):
        Column("x", "int")


def test_a_table_keeps_the_plans_that_were_made_for_it() -> None:
    one, other = (Schema.read("small")["DiaSource"] for _ in range(2))
    one.plans["key"] = "plan"
    assert (one.plans, other.plans) == ({"key": "plan"}, {})
    assert one == other


# ---------------------------------------------------------------- copies


def test_a_subset_keeps_what_is_named_required_or_in_a_key(small: Schema) -> None:
    assert small.subset() == small
    assert [table.name for table in small.subset(tables=[]).tables] == list(names.MAIN_TABLES)
    assert small.subset(tables=["SSObject"]) == small
    other = Table("Other", (Column("a", "int32"), Column("b", "int32"), Column("c", "int32")), ("b",))
    part = small.with_tables([other]).subset({"DiaSource": ["psfFlux"], "Other": ["c"]}, tables=["Other"])
    assert [table.name for table in part.tables] == [*names.MAIN_TABLES, "Other"]
    kept = {*names.REQUIRED["DiaSource"], "psfFlux"}
    assert part["DiaSource"].column_names == [name for name in small["DiaSource"].column_names if name in kept]
    assert part["DiaObject"] == small["DiaObject"]
    assert part["Other"].column_names == ["b", "c"]
    with pytest.raises(ct.InvalidInputError, match=r"table DiaSource has no column a, b$"):
        small.subset({"DiaSource": ["psfFlux", "b", "a"]})
    with pytest.raises(ct.InvalidInputError, match="no table 'Dia'"):
        small.subset({"Dia": []})


def test_columns_are_added_behind_those_of_a_table(small: Schema) -> None:
    score = Column("score", "float32")
    more = small.extended({"DiaSource": iter([score]), "SSObject": []})
    assert more["DiaSource"].columns == (*small["DiaSource"].columns, score)
    assert [table for table in more.tables if table.name != "DiaSource"] == [
        table for table in small.tables if table.name != "DiaSource"
    ]
    for added, says in (
        ({"DiaSorce": [score]}, "no table 'DiaSorce'"),
        ({"DiaSource": [Column("_score", "float32")]}, "_ are reserved"),
        ({"DiaSource": [Column("band", "utf8")]}, "more than one column band"),
    ):
        with pytest.raises(ct.InvalidInputError, match=says):
            small.extended(added)


def test_a_relaxed_schema_asks_for_what_is_required_or_in_a_key(small: Schema) -> None:
    strict = Schema(
        "strict", "1",
        tuple(
            Table(t.name, tuple(Column(c.name, c.type, nullable=False, unit=c.unit) for c in t.columns), t.key)
            for t in small.tables
        ),
    )  # fmt: skip
    relaxed = strict.relaxed()
    required = {t.name: [c.name for c in t.columns if not c.nullable] for t in relaxed.tables}
    assert required == {
        "DiaObject": ["diaObjectId", "validityStartMjdTai", "ra", "dec"],
        "DiaSource": ["diaSourceId", "visit", "detector", "midpointMjdTai", "ra", "dec"],
        "DiaForcedSource": ["diaObjectId", "visit", "detector", "ra", "dec", "midpointMjdTai"],
        "SSObject": ["ssObjectId"],
    }
    assert [t.column_names for t in relaxed.tables] == [t.column_names for t in strict.tables]
    assert relaxed["DiaSource"]["psfFlux"].unit == "nJy"


def test_a_schema_is_the_same_after_json(small: Schema) -> None:
    whole = small.extended({"DiaSource": [Column("a", "int32", False, "nJy", "Words.", "phot.flux", 7)]})
    assert Schema.from_json(whole.to_json()) == whole


# ---------------------------------------------------------------- migration


HERE = Table("t", (Column("a", "int32", unit="nJy"), Column("b", "int64", nullable=False)), ("b",))


def schema_of(*tables: Table) -> Schema:
    return Schema("s", "1", tables)


def test_what_a_schema_lacks_is_added() -> None:
    stored = schema_of(HERE)
    assert stored.migration_to(stored) == Migration()
    assert stored.migration_to(stored).empty
    more = Table(
        "t", (*HERE.columns, Column("c", "int32"), Column("d", "int32", nullable=False, default=0)), HERE.key
    )  # fmt: skip
    other = Table("u", (Column("x", "int32", nullable=False),))
    kept_apart = [Table("DiaObjectLast", ()), Table("metadata", ())]
    wanted = schema_of(other, more, *kept_apart)
    assert wanted.stored_tables == (other, more)
    plan = stored.migration_to(wanted)
    assert plan == Migration(("u",), {"t": ("c", "d")})
    assert not plan.empty
    assert not Migration(("u",)).empty
    assert not Migration(columns={"t": ("c",)}).empty
    assert not Migration(refused=("why",)).empty
    assert schema_of(HERE, *kept_apart).migration_to(schema_of(HERE)).empty


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"a": Column("a", "int32", unit=None)}, None),
        ({"b": Column("b", "int64", nullable=True)}, None),
        ({"b": Column("b", "int64", nullable=False, unit="s")}, None),
        ({"a": Column("z", "int32")}, "column a of t is stored and cannot be removed"),
        ({"a": Column("a", "int64", unit="nJy")}, "column a of t is int32 and cannot become int64"),
        ({"a": Column("a", "int32", unit="Jy")}, "column a of t is in nJy and cannot become Jy: stored values would "
         "change their meaning"),
        ({"a": Column("a", "int32", False, "nJy")}, "column a of t may be null and cannot be made to forbid it"),
        ({"key": ("b", "a")}, "the key of t is b and cannot become b, a"),
        ({"c": Column("c", "int32", nullable=False)}, "new column c of t is not nullable and has no default"),
    ],
)  # fmt: skip
def test_a_migration_that_would_change_stored_rows_is_refused(changes: dict[str, Any], reason: str | None) -> None:
    key = changes.pop("key", HERE.key)
    columns = tuple(({column.name: column for column in HERE.columns} | changes).values())
    plan = schema_of(HERE).migration_to(schema_of(Table("t", columns, key)))
    assert plan.refused == (() if reason is None else (reason,))


def test_all_reasons_against_a_migration_are_given() -> None:
    gone = Table("gone", (Column("x", "int32"),))
    wanted = Table("t", (Column("b", "int32", nullable=False),), ("b",))
    assert schema_of(gone, HERE).migration_to(schema_of(wanted)).refused == (
        "table gone is stored and cannot be removed",
        "column a of t is stored and cannot be removed",
        "column b of t is int64 and cannot become int32",
    )
