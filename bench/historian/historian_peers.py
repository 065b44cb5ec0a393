"""The servers that the historian is compared with; each is downloaded or built once, into the user's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

QUESTDB = "org.questdb:questdb:9.1.0"
KAIROSDB = (
    "org.kairosdb:kairosdb:1.3.0-1",
    "com.sun.jersey.contribs:jersey-guice:1.19.4",
    "com.sun.xml.bind:jaxb-impl:2.3.3",
)
"""Maven coordinates. KairosDB's dependencies lack a library of its distribution, and one that Java used to contain."""
VICTORIA_METRICS = "github.com/VictoriaMetrics/VictoriaMetrics@v0.0.0-20250718125606-9d9bea03485e"
"""A Go module and its version."""

MAVEN_DEPENDENCY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
FETCH_S_MAX = 1_800


class MissingPeerError(RuntimeError):
    """A peer is not available or does not start."""


def java() -> str:
    """Path of Java."""
    return tool("java")


def questdb() -> Path:
    """Path of QuestDB's jar."""

    def fetch(folder: Path) -> None:
        run(tool("mvn"), "-q", "-B", f"{MAVEN_DEPENDENCY}:copy", f"-Dartifact={QUESTDB}", f"-DoutputDirectory={folder}")

    (jar,) = cached(f"questdb-{QUESTDB.rpartition(':')[2]}", fetch).glob("questdb-*.jar")
    return jar


def kairosdb() -> Path:
    """The folder with KairosDB's jars and their dependencies."""

    def dependency(coordinates: str) -> str:
        group, artifact, version = coordinates.split(":")
        # Exclude its own dependencies, which are older than those of KairosDB.
        alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
        return (
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
            f"{alone if artifact == 'jersey-guice' else ''}</dependency>"
        )

    def fetch(folder: Path) -> None:
        pom = folder / "pom.xml"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>chronotile</groupId><artifactId>bench</artifactId><version>1</version>"
            f"<dependencies>{''.join(map(dependency, KAIROSDB))}</dependencies></project>\n"
        )
        run(tool("mvn"), "-q", "-B", "-f", str(pom), f"{MAVEN_DEPENDENCY}:copy-dependencies",
            f"-DoutputDirectory={folder}", "-DincludeScope=runtime")  # fmt: skip

    return cached(f"kairosdb-{KAIROSDB[0].rpartition(':')[2]}", fetch)


def victoria_metrics() -> Path:
    """Path of the single-node server."""

    def build(folder: Path) -> None:
        # Go honours the module's `replace` directives only in a build from the module's own folder.
        module = json.loads(run(tool("go"), "mod", "download", "-json", VICTORIA_METRICS))
        source = folder / "source"
        shutil.copytree(module["Dir"], source, copy_function=shutil.copyfile)
        for place in [source, *source.rglob("*")]:
            if place.is_dir():
                place.chmod(0o755)
        run(tool("go"), "build", "-mod=mod", "-buildvcs=false", "-o", str(folder / "victoria-metrics"),
            "./app/victoria-metrics", cwd=source)  # fmt: skip
        shutil.rmtree(source)

    return cached(f"victoria-metrics-{VICTORIA_METRICS.rpartition('@')[2]}", build) / "victoria-metrics"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache. Creates it if it does not exist, and renames it into place only when it is complete."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chronotile" / "bench"
    folder = home / name
    if not folder.is_dir():
        part = home / f"{name}.{os.getpid()}"
        part.mkdir(parents=True)
        try:
            make(part)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def tool(name: str) -> str:
    """Path of a program on PATH."""
    found = shutil.which(name)
    if found is None:
        raise MissingPeerError(f"needs {name}, which is not on PATH")
    return found


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a download or a build; returns its output. If it fails, the error contains the end of the output."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=FETCH_S_MAX, cwd=cwd)  # fmt: skip
    except subprocess.CalledProcessError as error:
        output = (error.stderr or error.stdout)[-600:]
        raise MissingPeerError(f"{command[0]} failed with status {error.returncode}: {output}") from None
    except subprocess.TimeoutExpired:
        raise MissingPeerError(f"{command[0]} took longer than {FETCH_S_MAX} s") from None
    return done.stdout
