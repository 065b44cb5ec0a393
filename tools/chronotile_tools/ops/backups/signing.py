"""Signatures of manifests: a secret key in a file distinguishes the operator's backups from forged ones.

A signature (HMAC-SHA256) is over the whole manifest: the schema's text, the names, and the digest of each file. Without
the key, anyone who can write to a store can remove backups, but cannot modify or add one unnoticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from chronotile.errors import AccessDeniedError, DataFileError, InvalidInputError

_PURPOSE = b"chronotile backup manifest 1\n"
_LENGTH_MIN = 32
_LENGTH_MAX = 4096


class Key:
    """The secret that manifests are signed with."""

    def __init__(self, secret: bytes, source: str) -> None:
        self._secret = secret
        self.source = source
        """Path of the key, for messages."""

    def __repr__(self) -> str:
        return f"<key of {self.source}>"

    @classmethod
    def read(cls, path: str | Path) -> Key:
        """Read a key from a file.

        Raises
        ------
        AccessDeniedError
            Kind ``permission``: it cannot be read, or is readable by others than its owner.
        DataFileError
            Kind ``file-access``: the file does not exist.
        InvalidInputError
            Kind ``invalid-key``: it is too short or too long.
        """
        try:
            with Path(path).expanduser().open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                secret = file.read(_LENGTH_MAX + 1).strip()
        except PermissionError as error:
            raise AccessDeniedError(f"cannot read key {path}: {error.strerror}", kind="permission") from None
        except OSError as error:
            raise DataFileError(f"cannot read key {path}: {error.strerror}", kind="file-access") from None
        if mode & 0o077:
            raise AccessDeniedError(
                f"key {path} is readable by others (mode {mode:04o}): chmod 600 {path}", kind="permission"
            )
        if not _LENGTH_MIN <= len(secret) <= _LENGTH_MAX:
            raise InvalidInputError(
                f"{path} is not a key of {_LENGTH_MIN} bytes or more: make one with chronotile ops backup key",
                kind="invalid-key",
            )
        return cls(secret, str(path))

    @classmethod
    def read_optional(cls, path: str) -> Key | None:
        """Read a key from a file; None for an empty path."""
        return cls.read(path) if path else None

    def sign(self, text: bytes) -> str:
        """The signature of a text, in hexadecimal."""
        return hmac.new(self._secret, _PURPOSE + text, hashlib.sha256).hexdigest()

    def is_of(self, signature: object, text: bytes) -> bool:
        """Whether a signature of a text was made with this key."""
        return isinstance(signature, str) and hmac.compare_digest(
            self.sign(text).encode(), signature.encode(errors="replace")
        )


def make_key(path: Path) -> None:
    """Write a new key to a file readable only by its owner.

    Raises
    ------
    DataFileError
        Kind ``file-access``: the file exists, or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise DataFileError(f"cannot write key {path}: {error.strerror}", kind="file-access") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o600)
        file.write(secrets.token_hex(32) + "\n")
