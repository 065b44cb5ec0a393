"""TLS certificates of a cluster: an authority, one certificate per node, and one for clients.

They are created with ``openssl`` and ``keytool`` and stored in the cluster's folder.
"""

from __future__ import annotations

import os
import secrets
import shutil
import ssl
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronotile_tools.lab import places, software
from chronotile_tools.lab.errors import LabError, MissingToolError

_DAYS = "3650"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Tls:
    """PEM files for a client."""

    ca: Path
    """The authority's certificate: a client that trusts it trusts the nodes."""
    client_certificate: Path
    """A certificate for clients, by the same authority."""
    client_key: Path
    """Its private key (PKCS 8, not encrypted, readable by the owner only)."""
    mutual: bool
    """Whether nodes require client certificates."""

    def context(self) -> ssl.SSLContext:
        """SSL context that verifies the node and presents the client's certificate."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.client_certificate, self.client_key)
        return context


def client_files(folder: Path, *, mutual: bool) -> Tls:
    """The client's files of an authority's folder."""
    return Tls(folder / "ca.pem", folder / "client.pem", folder / "client.key", mutual)


def make_authority(folder: Path, *, mutual: bool = False) -> Tls:
    """Create an authority and a client certificate in a new folder.

    Each call creates a separate authority, so tests can create untrusted ones.

    Raises
    ------
    MissingToolError
        When openssl is missing.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca, key = folder / "ca.pem", folder / "ca.key"
    places.write_whole(folder / "ca.cnf", _CA_CONFIGURATION)
    _openssl("req", "-x509", "-config", folder / "ca.cnf", *_KEY, "-keyout", key, "-out", ca, "-days", _DAYS)
    places.write_whole(folder / "password", secrets.token_hex(16), mode=0o600)
    files = client_files(folder, mutual=mutual)
    _issue(folder, files.client_certificate, files.client_key, "chronotile client", "DNS:client")
    return files


def node_options(folder: Path, node_folder: Path, node: str, address: str, *, mutual: bool) -> dict[str, Any]:
    """Create a node's key store for this address, if missing, and return its ``client_encryption_options``."""
    target = node_folder / "tls"
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate, key, store = target / f"{address}.pem", target / f"{address}.key", target / f"{address}.p12"
    trust = folder / "trust.p12"
    password = (folder / "password").read_text()
    if not trust.exists():
        _make_trust(folder, trust)
    if not store.exists():
        _issue(folder, certificate, key, node, f"IP:{address},DNS:{node},DNS:localhost")
        temporary = store.with_suffix(".new")
        source = ("-inkey", key, "-in", certificate, "-certfile", folder / "ca.pem", "-name", node)
        _openssl("pkcs12", "-export", *source, "-out", temporary, "-passout", f"file:{folder}/password")
        temporary.replace(store)
    options: dict[str, Any] = {
        "enabled": True,
        "optional": False,
        "keystore": str(store),
        "keystore_password": password,
        "store_type": "PKCS12",
        "protocol": "TLS",
        "require_client_auth": mutual,
        "truststore": str(trust),
        "truststore_password": password,
    }
    return options


def _make_trust(folder: Path, trust: Path) -> None:
    # Java does not trust certificates in a store written by openssl; keytool marks them as trusted.
    temporary = trust.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    keytool = software.tool_of_java(17, "keytool")
    store = ["-keystore", str(temporary), "-storetype", "PKCS12", "-storepass:file", str(folder / "password")]
    _run([str(keytool), "-importcert", "-noprompt", "-alias", "ca", "-file", str(folder / "ca.pem"), *store])
    temporary.replace(trust)


def _issue(folder: Path, certificate: Path, key: Path, name: str, alternative: str) -> None:
    """Create a key, and sign a certificate for it with the folder's authority."""
    request, extensions = certificate.with_suffix(".csr"), certificate.with_suffix(".ext")
    _openssl(
        "req", "-new", "-config", folder / "ca.cnf", "-subj", f"/CN={name}", *_KEY, "-keyout", key, "-out", request
    )
    places.write_whole(
        extensions,
        f"subjectAltName={alternative}\nbasicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n"
        "extendedKeyUsage=serverAuth,clientAuth\nauthorityKeyIdentifier=keyid\n",
    )
    authority = ("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-set_serial", f"0x{secrets.token_hex(16)}")
    _openssl("x509", "-req", "-in", request, *authority, "-days", _DAYS, "-extfile", extensions, "-out", certificate)
    request.unlink()
    extensions.unlink()
    key.chmod(0o600)


def _openssl(*arguments: str | Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise MissingToolError(
            "openssl is required for TLS: install it (on Debian: apt-get install openssl)", tool="openssl"
        )
    _run([program, *map(str, arguments)])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
        umask=0o077,
    )
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"{Path(command[0]).name} failed: {' '.join(output[-3:])}", kind="lab-command")


_CA_CONFIGURATION = """[req]
distinguished_name = name
x509_extensions = authority
prompt = no
[name]
CN = Chronotile laboratory
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
"""
