"""Collects the licence texts of the Rust crates that are compiled into the extension.

`python scripts/third_party_licenses.py OUTPUT` writes one text file: the crates with versions and licences, then each
licence text once, with the crates that it belongs to. This covers bundled C sources, whose licence files are in the
crate. A crate without a licence file must offer a licence whose standard text comes with other crates.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROOT_CRATE = "chronotile-python"
_LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice|copyright|unlicense)([-._].*)?", re.IGNORECASE)
_CODE = frozenset({".rs", ".c", ".h", ".py", ".go", ".json", ".toml", ".html", ".bdic", ".cmake"})
_SKIPPED_FOLDERS = frozenset({"tests", "test", "benches", "examples", "fuzz", "docs", "doc", "target", ".github"})
STANDARD = ("Apache-2.0", "MIT")
"""A crate without a licence file must offer one of these licences. Dozens of other crates contain their texts."""
SAME_TEXT = {"alloc-stdlib": "alloc-no-stdlib"}
"""Crates without a licence file, and the crate of the same repository that has it."""


def metadata() -> dict[str, Any]:
    """Output of `cargo metadata` for all packages, without network access."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline"]
    found: dict[str, Any] = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    return found


def linked(cargo: dict[str, Any]) -> list[dict[str, Any]]:
    """External packages that the extension links (its transitive normal dependencies), sorted by name and version."""
    packages = {package["id"]: package for package in cargo["packages"]}
    nodes = {node["id"]: node for node in cargo["resolve"]["nodes"]}
    waiting = [key for key, package in packages.items() if package["name"] == ROOT_CRATE]
    seen = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if normal and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    foreign = [packages[key] for key in seen if packages[key]["source"] is not None]
    return sorted(foreign, key=lambda package: (package["name"], package["version"]))


def licence_files(folder: Path) -> list[Path]:
    """Licence files in a crate's folder, including those of bundled sources."""
    found = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        wanted = _LICENCE_FILE.fullmatch(path.name) and path.suffix.lower() not in _CODE
        if wanted and path.is_file() and not _SKIPPED_FOLDERS.intersection(inside[:-1]):
            found.append(path)
    return found


def report(packages: list[dict[str, Any]]) -> str:
    """The text of the output file."""
    folders = {package["name"]: Path(package["manifest_path"]).parent for package in packages}
    crates_by_text: dict[str, list[str]] = defaultdict(list)
    crates, without_text = [], []
    for package in packages:
        crate, licence = f"{package['name']} {package['version']}", package["license"] or "see its text"
        files = licence_files(folders[package["name"]]) or licence_files(
            folders[SAME_TEXT.get(package["name"], package["name"])]
        )
        if not files and not any(standard in licence for standard in STANDARD):
            without_text.append(f"{crate} ({licence})")
        crates.append(f"{crate}: {licence}" + ("" if files else "; no file in the crate: the standard text applies"))
        for text in {path.read_text(encoding="utf-8", errors="replace").strip() for path in files}:
            crates_by_text[text].append(crate)
    if without_text:
        raise SystemExit(f"no licence text for {', '.join(without_text)}: add its source to {Path(__file__).name}")
    parts = ["Chronotile's extension module contains these crates:\n", *crates, ""]
    for text, owners in sorted(crates_by_text.items(), key=lambda item: item[1]):
        parts += ["-" * 100, f"Licence text of {', '.join(owners)}:", "", text, ""]
    return "\n".join(parts)


def main() -> None:
    """Write the file."""
    packages = linked(metadata())
    Path(sys.argv[1]).write_text(report(packages), encoding="utf-8")
    print(f"licences of {len(packages)} crates in {sys.argv[1]}")


if __name__ == "__main__":
    main()
