"""Tests the wheels: their contents, the C library they need, and how they work in new environments.

`python scripts/check_wheel.py WHEEL TOOLS_WHEEL` checks the contents, then installs the wheel of `chronotile` in a new
virtual environment of each Python from 3.11 to 3.14 on this machine, where it stores and reads a small archive through
Python and the command line. Then it adds the wheel of `chronotile-tools` and runs one of its commands. Wheels for
another machine or C library are only checked for their contents; a message says that they were not installed.
`python scripts/check_wheel.py --interpreter 3.13` prints the path of a Python of that version.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PLACES = (
    "~/.pyenv/versions/{version}.*/bin/python",
    "{RUNNER_TOOL_CACHE}/Python/{version}.*/*/bin/python",
    "/usr/local/bin/python{version}",
)
"""Locations of interpreters besides those on PATH."""

FILES = (
    "chronotile/_native.abi3.so",
    "chronotile/_native.pyi",
    "chronotile/py.typed",
    ".dist-info/licenses/LICENSE",
    ".dist-info/licenses/LICENSE-THIRD-PARTY.txt",
    ".dist-info/entry_points.txt",
)
TOOLS_FILES = (
    "chronotile_tools/py.typed",
    ".dist-info/licenses/LICENSE",
    ".dist-info/entry_points.txt",
)
EXAMPLE = """
import sys
import chronotile as ct

rows = {"sensor": ["a", "a", "b"], "time": [1, 2, 3], "value": [0.5, 1.5, 2.5]}
with ct.open("sqlite:plant.db") as archive:
    values = archive.create(
        "values", schema={"sensor": "utf8", "time": "timestamp[s]", "value": "float64"},
        cell=ct.hash("sensor"), time="time", window="1d", id=["sensor", "time"],
    )
    values.write(rows, batch="first")
    values.write(rows, batch="first")
    assert values.count() == 3
    assert values.verify().ok
assert not {"numpy", "pyarrow", "pandas"} & set(sys.modules)
"""


def check_files(wheel: Path, files: tuple[str, ...]) -> None:
    """Check that the wheel contains files whose paths end like this."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for wanted in files:
        if not any(name.endswith(wanted) for name in names):
            raise SystemExit(f"{wheel.name} lacks {wanted}")


def check_contents(wheel: Path) -> None:
    """Check that the wheel contains the module, stubs, licences and the bill of materials."""
    check_files(wheel, FILES)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        boms = [name for name in names if ".dist-info/sboms/" in name]
        if not boms:
            raise SystemExit(f"{wheel.name} has no bill of materials (.dist-info/sboms)")
        components = json.loads(archive.read(boms[0]))["components"]
        size = sum(info.file_size for info in archive.infolist())
    packed_mb, unpacked_mb = wheel.stat().st_size / 1e6, size / 1e6
    print(f"{wheel.name}: {packed_mb:.1f} MB packed, {unpacked_mb:.1f} MB unpacked, {len(components)} components")


_TAG = re.compile(r"(?P<family>manylinux|musllinux)_(?P<major>\d+)_(?P<minor>\d+)(?=_)")


def check_platform(wheel: Path) -> None:
    """Check that the wheel needs no newer C library than its platform tag says."""
    if "linux" not in wheel.name:
        return
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    text = " ".join(shown.stdout.split())
    named, needed = _TAG.search(wheel.name), _TAG.search(text.partition("constrains the platform tag to")[2])
    needed = needed or _TAG.search(text.partition("following platform tag")[2])
    if shown.returncode or named is None or needed is None or not covers(named, needed):
        raise SystemExit(f"{wheel.name} needs a newer platform than its tag says:\n{shown.stdout}{shown.stderr}")
    print(f"auditwheel: needs {needed[0]}, tag {named[0]}")


def covers(named: re.Match[str], needed: re.Match[str]) -> bool:
    """Whether a wheel that needs platform tag `needed` runs on every system that tag `named` admits."""
    versions = [(int(tag["major"]), int(tag["minor"])) for tag in (needed, named)]
    return named["family"] == needed["family"] and versions[0] <= versions[1]


def fits_this_machine(wheel: Path) -> bool:
    """Whether the wheel was built for this processor and C library."""
    system = {"Linux": "linux", "Darwin": "macosx"}.get(platform.system(), "")
    libc = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    tag = wheel.stem.rsplit("-", 1)[1]
    return platform.machine() in tag and system in tag and (system != "linux" or libc in tag)


def interpreter(version: str) -> str | None:
    """A Python of this version on PATH or in a usual place."""
    candidates = [shutil.which(f"python{version}")]
    for place in PLACES:
        pattern = place.format(version=version, RUNNER_TOOL_CACHE=os.environ.get("RUNNER_TOOL_CACHE", "/nowhere"))
        candidates += sorted(glob.glob(os.path.expanduser(pattern)), reverse=True)
    # pyenv puts launchers on PATH for all its versions; those of versions that are not selected fail.
    probe = ["-c", f"import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"]
    for python in filter(None, candidates):
        if subprocess.run([python, *probe], capture_output=True, check=False).returncode == 0:
            return python
    return None


def try_in(python: str, wheel: Path, tools: Path) -> None:
    """Install only the wheel in a new environment, and store and read there; then add the tools."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def run(*command: object) -> str:
            done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
            return done.stdout

        run(python, "-m", "venv", "env")
        here = folder / "env" / "bin"
        run(here / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel.resolve())
        version = run(here / "chronotile", "--version").strip()
        run(here / "python", "-c", EXAMPLE)
        rows = run(
            here / "chronotile", "read", "sqlite:plant.db", "values", "--columns", "sensor,value", "--format", "csv"
        )
        if sorted(rows.split()) != ["a,0.5", "a,1.5", "b,2.5", "sensor,value"]:
            raise SystemExit(f"chronotile read gave\n{rows}")
        run(here / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", tools.resolve())
        run(here / "chronotile", "lab", "list")
        print(f"{run(here / 'python', '--version').strip()}: {version} stores and reads, and its tools run")


def main() -> None:
    """Check the wheels, or look for an interpreter."""
    if sys.argv[1] == "--interpreter":
        found = interpreter(sys.argv[2])
        if found is None:
            raise SystemExit(f"found no Python {sys.argv[2]}")
        print(found)
        return
    wheel, tools = map(Path, sys.argv[1:])
    check_contents(wheel)
    check_files(tools, TOOLS_FILES)
    # auditwheel resolves the libraries of a wheel on this machine, so it can check only wheels for this machine.
    if not fits_this_machine(wheel):
        print("not installed: the wheel is for another machine or C library; only maturin has checked its tag")
        return
    check_platform(wheel)
    absent = []
    for version in VERSIONS:
        if python := interpreter(version):
            try_in(python, wheel, tools)
        else:
            absent.append(version)
    if len(absent) == len(VERSIONS):
        raise SystemExit("found no Python from 3.11 to 3.14 to test the wheel with")
    if absent:
        print(f"not tested, because this machine does not have it: Python {', '.join(absent)}")


if __name__ == "__main__":
    main()
