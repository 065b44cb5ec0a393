"""Generate the files of `made_up`: python tests/data/make.py"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).parent / "made_up"
LINES = 2_000


# ------------------------------------------------------------------ stars

CLUSTERS = [
    # Right ascension, declination, spread in degrees, stars.
    (270.0, -29.2, 0.3, 500),
    (270.9, -30.0, 1.0, 900),
    (83.8, -5.4, 0.3, 700),
    (80.0, -69.0, 2.0, 1_200),
    (56.8, 24.1, 0.6, 300),
]
GALACTIC_POLE = (192.859, 27.128, 122.932)
"""Right ascension and declination of the pole, and the galactic longitude of the celestial pole (J2000)."""


def equatorial(longitude: np.ndarray, latitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions in galactic coordinates, in degrees, as right ascension and declination."""
    pole_ra, pole_dec, node = np.radians(GALACTIC_POLE)
    longitude, latitude = np.radians(longitude), np.radians(latitude)
    sine = np.sin(pole_dec) * np.sin(latitude) + np.cos(pole_dec) * np.cos(latitude) * np.cos(node - longitude)
    east = np.cos(latitude) * np.sin(node - longitude)
    north = np.cos(pole_dec) * np.sin(latitude) - np.sin(pole_dec) * np.cos(latitude) * np.cos(node - longitude)
    return np.degrees(pole_ra + np.arctan2(east, north)) % 360, np.degrees(np.arcsin(sine))


def stars() -> pa.Table:
    """Stars as uneven as a catalogue of variable stars: over the whole sky, along the galaxy, and in clusters."""
    rng = np.random.default_rng(1993)
    count = 4_000
    parts = [(rng.uniform(0, 360, count), np.degrees(np.arcsin(rng.uniform(-1, 1, count))))]
    parts.append(equatorial(rng.uniform(0, 360, count), rng.laplace(0, 6, count)))
    parts.append(equatorial(rng.normal(0, 12, count) % 360, rng.normal(0, 5, count)))
    for ra, dec, spread, members in CLUSTERS:
        east = rng.normal(0, spread, members) / np.cos(np.radians(dec))
        parts.append(((ra + east) % 360, dec + rng.normal(0, spread, members)))
    # Catalogues give positions to about a tenth of an arc second.
    ra, dec = (np.round(np.concatenate(column), 5) for column in zip(*parts, strict=True))
    kinds = rng.choice(["M", "EA", "RR", "SR:", "UGSS"], len(ra))
    return pa.table({"ra": ra, "dec": dec, "VarType": [f"{kind:<10}" for kind in kinds]})


# ------------------------------------------------------------------ logs


def moments(choose: random.Random, first: datetime, last: datetime) -> list[datetime]:
    """Times of all lines of a log, in order, including the first and the last."""
    span = (last - first).total_seconds()
    between = sorted(choose.uniform(0, span) for _ in range(LINES - 2))
    return [first, *(first + timedelta(seconds=int(s)) for s in between), last]


def address(choose: random.Random, network: str) -> str:
    return f"{network}.{choose.randint(1, 254)}"


def apache_log(choose: random.Random) -> str:
    def message(number: int) -> str:
        kind = choose.random()
        if number == LINES - 1 or kind < 0.27:
            return f"[error] mod_jk child workerEnv in error state {choose.randint(6, 9)}"
        if kind < 0.3:
            client = address(choose, choose.choice(["192.0.2", "198.51.100", "203.0.113"]))
            return f"[error] [client {client}] Directory index forbidden by rule: /var/www/html/"
        if kind < 0.6:
            return "[notice] workerEnv.init() ok /etc/httpd/conf/workers2.properties"
        child, slot = choose.randint(1_000, 32_000), choose.randint(6, 14)
        return f"[notice] jk2_init() Found child {child} in scoreboard slot {slot}"

    times = moments(choose, datetime(2005, 12, 4, 4, 47, 44), datetime(2005, 12, 5, 19, 15, 57))
    lines = [f"[{time:%a %b %d %H:%M:%S %Y}] {message(number)}" for number, time in enumerate(times)]
    return "\r\n".join(lines)


def hdfs_log(choose: random.Random) -> str:
    def message() -> str:
        block = f"blk_{choose.choice(['', '-'])}{choose.getrandbits(63)}"
        source, target = (f"10.25{choose.randint(0, 1)}.{choose.randint(1, 254)}" for _ in range(2))
        source, target = address(choose, source), address(choose, target)
        responder, port = choose.randint(0, 2), choose.randint(32_768, 60_999)
        kinds = {
            "INFO dfs.DataNode$PacketResponder": [
                f"PacketResponder {responder} for block {block} terminating",
                f"Received block {block} of size 67108864 from /{source}",
            ],
            "INFO dfs.DataNode$DataXceiver": [f"Receiving block {block} src: /{source}:{port} dest: /{target}:50010"],
            "INFO dfs.FSNamesystem": [
                f"BLOCK* NameSystem.addStoredBlock: blockMap updated: {target}:50010 is added to {block} size 67108864"
            ],
            "INFO dfs.FSDataset": [f"Deleting block {block} file /mnt/hadoop/dfs/data/current/{block}"],
            "WARN dfs.DataNode$DataXceiver": [f"{target}:50010:Got exception while serving {block} to /{source}:"],
        }
        return choose.choice([f"{origin}: {text}" for origin, texts in kinds.items() for text in texts])

    times = moments(choose, datetime(2008, 11, 9, 20, 36, 15), datetime(2008, 11, 11, 10, 20, 17))
    lines = [f"{time:%y%m%d %H%M%S} {int(choose.expovariate(1 / 900)) + 13} {message()}" for time in times]
    return "".join(f"{line}\r\n" for line in lines)


def ssh_log(choose: random.Random) -> str:
    def attempt() -> list[str]:
        source = address(choose, choose.choice(["192.0.2", "198.51.100", "203.0.113"]))
        user = choose.choice(["root", "root", "webmaster", "admin", "test", "oracle", "user"])
        known = "" if user == "root" else "invalid user "
        lines = [f"Invalid user {user} from {source}", f"input_userauth_request: invalid user {user} [preauth]"]
        if choose.random() < 0.1:
            host = f"reverse mapping checking getaddrinfo for host.example.com [{source}]"
            lines.insert(0, f"{host} failed - POSSIBLE BREAK-IN ATTEMPT!")
        failure = "pam_unix(sshd:auth): authentication failure; logname= uid=0 euid=0 tty=ssh ruser="
        lines += [
            "pam_unix(sshd:auth): check pass; user unknown",
            f"{failure} rhost={source}",
            f"Failed password for {known}{user} from {source} port {choose.randint(32_768, 60_999)} ssh2",
            f"Received disconnect from {source}: 11: Bye Bye [preauth]",
        ]
        return lines if known else lines[-3:]

    messages: list[str] = []
    process = 24_200
    while len(messages) < LINES:
        messages += [f"gate sshd[{process}]: {line}" for line in attempt()]
        process += choose.randint(1, 4)
    times = moments(choose, datetime(2015, 12, 10, 6, 55, 46), datetime(2015, 12, 10, 11, 4, 45))
    lines = [f"{time:%b %d %H:%M:%S} {message}" for time, message in zip(times, messages, strict=False)]
    return "\r\n".join(lines)


LOGS: dict[str, Callable[[random.Random], str]] = {
    "Apache_2k": apache_log,
    "HDFS_2k": hdfs_log,
    "OpenSSH_2k": ssh_log,
}


# ------------------------------------------------------------------ batch jobs

USERS = [4, 1, 19, 2, 5, 6, 7, 8, *range(20, 60)]
SWF_HEADER = """\
; Version: 2.2
; Computer: none; these jobs are made up
; UnixStartTime: 749458803
; TimeZoneString: US/Pacific
; MaxNodes: 128
; MaxQueues: 2
"""


def batch_jobs(choose: random.Random, count: int = 7_000) -> str:
    """Jobs of three months in the Standard Workload Format; a few users submit most of them."""
    starts = sorted(choose.randrange(92 * 86_400) for _ in range(count - 1))
    lines = [SWF_HEADER]
    job = 0
    for start in [0, *starts]:
        job += choose.choice([1, 1, 2, 5])
        user = USERS[min(int(choose.expovariate(0.25)), len(USERS) - 1)]
        executable = choose.choice([-1, 3, 4, 7, user + 100])
        run_s = 10 if choose.random() < 0.05 else int(choose.lognormvariate(5, 2))
        group = 2 if user in (5, 19) else 1
        processors = choose.choice([1, 1, 2, 4, 16, 32, 32, 64, 128])
        used = f"{job:5} {start:8} {-1:6} {run_s:6} {processors:4} {-1:6} {-1:4} {-1:4} {-1:6} {-1:5} {-1:2}"
        lines.append(f"{used} {user:3} {group:3} {executable:3} {-1:2} {-1:2} {-1:2} {-1:2}\n")
    return "".join(lines)


def main() -> None:
    """Write every file, with the same bytes each time."""
    pq.write_table(stars(), FOLDER / "gcvs.parquet", compression="zstd")
    for number, (name, log) in enumerate(LOGS.items()):
        (FOLDER / "logs" / f"{name}.log").write_bytes(log(random.Random(number)).encode())
    text = batch_jobs(random.Random(7)).encode()
    (FOLDER / "jobs" / "NASA-iPSC-1993-3.1-cln.swf.gz").write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    main()
