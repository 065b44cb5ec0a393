"""Writes the golden archives of this format version: `python scripts/golden.py`.

They are written once per version of the archive format; tests open them with every later version. The archive on a
cluster needs Java and Maven.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from support_golden import FORMAT, GOLDEN, content, fill

import chronotile as ct
from chronotile_tools import lab
from chronotile_tools.lab import places

KEYSPACE = "golden"


def main() -> None:
    """Write an archive file, a dump of a keyspace, and the content that readers must find in both."""
    folder = GOLDEN / f"v{FORMAT}"
    if folder.exists():
        sys.exit(f"{folder} exists: archives of a released format are never replaced. For a new format, raise FORMAT")
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "archive.db"
        with ct.open(path) as archive:
            fill(archive)
            expected = content(archive)
        (folder / "archive.db.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        os.environ[places.HOME_VARIABLE] = made
        with lab.up("golden", nodes=1) as cluster:
            with ct.open(cluster.url(KEYSPACE)) as archive:
                fill(archive)
                assert content(archive) == expected, "a cluster returns other rows than a file"
            (folder / "keyspace.json.gz").write_bytes(gzip.compress(json.dumps(dump(cluster)).encode(), mtime=0))
        shutil.rmtree(made, ignore_errors=True)
    (folder / "content.json.gz").write_bytes(gzip.compress(json.dumps(expected, indent=0).encode(), mtime=0))


def dump(cluster: lab.Cluster) -> list[dict[str, Any]]:
    """The tables of the keyspace: the CREATE statement of each, and its rows as JSON."""
    with cluster.nodes[0].connect() as connection:
        names = connection.run(f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{KEYSPACE}'").rows
        tables = []
        for (name,) in sorted(names):
            described = connection.run(f"DESCRIBE TABLE {KEYSPACE}.{name} WITH INTERNALS")
            create = described.rows[0][described.columns.index("create_statement")]
            rows = [row for (row,) in connection.run(f"SELECT JSON * FROM {KEYSPACE}.{name}").rows]
            tables.append({"name": name, "create": create, "rows": rows})
    return tables


if __name__ == "__main__":
    main()
