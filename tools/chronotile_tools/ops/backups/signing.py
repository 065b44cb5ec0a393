"""Signatures of manifests: a secret of the operator's, kept in a file, tells his backups from anybody else's.

A signature (HMAC-SHA256) is over the whole manifest: the schema's text, the names, and the digest of each file. Whoever
can write to a store but does not have the key can remove a backup, and cannot change one or add one unnoticed.
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
        """Where it was read, for messages."""

    def __repr__(self) -> str:
        return f"<key of {self.source}>"

    @classmethod
    def read(cls, path: str | Path) -> Key:
        """The key in a file.

        Raises
        ------
        AccessDeniedError
            Kind ``permission``: it cannot be read, or others than its owner may read it.
        DataFileError
            Kind ``file-access``: there is no such file.
        InvalidInputError
            Kind ``invalid-key``: it is too short or too long to be a key.
        """
        try:
            with Path(path).expanduser().open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                secret = file.read(_LENGTH_MAX + 1).strip()
        except PermissionError as error:
            raise AccessDeniedError(f"the key {path} cannot be read: {error.strerror}", kind="permission") from None
        except OSError as error:
            raise DataFileError(f"the key {path} cannot be read: {error.strerror}", kind="file-access") from None
        if mode & 0o077:
            raise AccessDeniedError(
                f"others may read the key {path} (mode {mode:04o}): chmod 600 {path}", kind="permission"
            )
        if not _LENGTH_MIN <= len(secret) <= _LENGTH_MAX:
            raise InvalidInputError(
                f"{path} is not a key of {_LENGTH_MIN} bytes or more: make one with chronotile ops backup key",
                kind="invalid-key",
            )
        return cls(secret, str(path))

    @classmethod
    def read_optional(cls, path: str) -> Key | None:
        """The key in a file; None for an empty path."""
        return cls.read(path) if path else None

    def sign(self, text: bytes) -> str:
        """The signature of a text, in hexadecimal."""
        return hmac.new(self._secret, _PURPOSE + text, hashlib.sha256).hexdigest()

    def is_of(self, signature: object, text: bytes) -> bool:
        """Whether a signature is this key's of this text."""
        return isinstance(signature, str) and hmac.compare_digest(self.sign(text).encode(), signature.encode())


def make_key(path: Path) -> None:
    """Write a new key into a file that only its owner may read.

    Raises
    ------
    DataFileError
        Kind ``file-access``: the file is there already, or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise DataFileError(f"the key {path} cannot be written: {error.strerror}", kind="file-access") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o600)
        file.write(secrets.token_hex(32) + "\n")
