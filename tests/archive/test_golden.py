"""Archives that were written once for each version of the format are opened, read and written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support_apdb import visit_of
from support_golden import GOLDEN, content, fill, states

import chronotile as ct
from chronotile import apdb, historian
from chronotile_tools import lab

VERSIONS = sorted(folder.name for folder in GOLDEN.glob("v*"))


def stored(version: str, name: str) -> bytes:
    return gzip.decompress((GOLDEN / version / name).read_bytes())


def text(found: Any) -> str:
    # Text, since NaN equals nothing.
    return json.dumps(found, sort_keys=True)


def check(archive: ct.Archive, version: str) -> None:
    """All that was stored is found, and can be added to, rewritten and taken out again."""
    expected = json.loads(stored(version, "content.json.gz"))
    found = content(archive)
    assert {name: text(part) for name, part in found.items()} == {name: text(part) for name, part in expected.items()}
    for name in archive.datasets():
        assert archive[name].verify().ok, name
    dataset = archive["states"]
    assert not dataset.write(states(4, 20), batch="version-4").stored
    assert dataset.write(states(5, 30), batch="version-5").stored
    newest = dataset.read(order_by=["id"]).to_arrow()["version"].to_pylist()
    assert newest[:31] == [5] * 30 + [3]
    database, plant, later = apdb.open(archive), historian.open(archive), "2026-01-02T00:00:00Z"
    assert database.contains(4, 1)
    database.store(**visit_of(9, list(range(5, 30))))
    plant.write({"tag": ["mill.speed"], "time": [later], "value": [1.0]})
    for name in archive.datasets():
        archive[name].consolidate()
        assert archive[name].verify().ok, name
    dataset.remove_batch("version-5")
    database.remove_visit(9, 1)
    plant.delete("mill.speed", later, "2026-01-02T01:00:00Z")
    again = content(archive)
    assert {name: text(part) for name, part in again.items()} == {name: text(part) for name, part in expected.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_file_is_read_and_written(version: str, path: Path) -> None:
    path.write_bytes(stored(version, "archive.db.gz"))
    with ct.open(path) as archive:
        check(archive, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_keyspace_is_read_and_written(version: str, single_node: lab.Cluster) -> None:
    keyspace = f"golden_{version}"
    with single_node.nodes[0].connect(timeout_s=60) as connection:
        replication = "{'class': 'NetworkTopologyStrategy', 'dc1': 1}"
        connection.run(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
        for table in json.loads(stored(version, "keyspace.json.gz")):
            connection.run(table["create"].replace("golden.", f"{keyspace}."))
            for row in table["rows"]:
                quoted = row.replace("'", "''")
                connection.run(f"INSERT INTO {keyspace}.{table['name']} JSON '{quoted}'")
    with ct.open(single_node.url(keyspace)) as archive:
        check(archive, version)


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_what_the_newest_golden_archives_hold_is_what_is_stored_now(
    engine: str, request: pytest.FixtureRequest
) -> None:
    archive: ct.Archive = request.getfixturevalue(engine)
    fill(archive)
    expected = json.loads(stored(VERSIONS[-1], "content.json.gz"))
    found = content(archive)
    assert {name: text(part) for name, part in found.items()} == {name: text(part) for name, part in expected.items()}
