"""Tokens besides the hub's own: each has a name, a role, perhaps a job, and an end.

The file holds no token, only its SHA-256. So who reads it cannot speak to the hub. A token is 24 random
bytes, for which one round of hashing is enough.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import structlog

from pulsetrain.core.errors import CorruptData, UsageError
from pulsetrain.core.private_file import give_to_owner_of, replace_private

log = structlog.get_logger()

NAME = "tokens.json"
LONGEST_NAME = 64
_NOT_READ = (-1, -1, -1)


class Role(StrEnum):
    """What the bearer of a token may do.

    A viewer reads. An agent connects nodes, sends records and reads the status. An operator does everything.
    """

    VIEWER = "viewer"
    AGENT = "agent"
    OPERATOR = "operator"


@dataclass(frozen=True, kw_only=True)
class Grant:
    """One token. `expires_ns` 0: never. An agent's may be for one `job` and one `node` alone, "" for any."""

    name: str
    role: Role
    sha256: str
    job: str = ""
    node: str = ""
    created_ns: int = 0
    expires_ns: int = 0

    def has_expired(self, now_ns: int) -> bool:
        return 0 < self.expires_ns <= now_ns


class TokenFile:
    """The file `NAME` of a hub's data folder. It is replaced as a whole, and readable by its owner alone."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.path = folder, folder / NAME

    def grants(self) -> tuple[Grant, ...]:
        """All tokens, in the order in which they were made. Raises `CorruptData`."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return ()
        try:
            rows = json.loads(text)["tokens"]
            return tuple(Grant(**{**row, "role": Role(row["role"])}) for row in rows)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptData(f"{self.path} is no list of tokens: {error}") from error

    def create(
        self, name: str, role: Role, *, job: str = "", node: str = "", now_ns: int, expires_ns: int = 0
    ) -> str:
        """Make a token and return it. Nobody can read it again. Raises `UsageError` for a name in use."""
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise UsageError(f"token name {name[:40]!r}: allowed: 1 to {LONGEST_NAME} printable characters")
        for what, value in (("job", job), ("node", node)):
            if value and role is not Role.AGENT:
                raise UsageError(
                    f"--{what} {value}: only an agent's token can be for one {what}, not a {role}'s"
                )
        token = secrets.token_urlsafe(24)
        with self._locked():
            grants = self.grants()
            if any(grant.name == name for grant in grants):
                raise UsageError(f"a token {name!r} exists: revoke it first, or choose another name")
            ends = {"created_ns": now_ns, "expires_ns": expires_ns}
            made = Grant(name=name, role=role, sha256=digest(token), job=job, node=node, **ends)
            self._write([*grants, made])
        return token

    def revoke(self, name: str) -> None:
        """Remove a token. A running hub refuses it from then on. Raises `UsageError` for an unknown name."""
        with self._locked():
            grants = self.grants()
            left = [grant for grant in grants if grant.name != name]
            if len(left) == len(grants):
                raise UsageError(f"no token {name!r}; known: {', '.join(g.name for g in grants) or 'none'}")
            self._write(left)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other commands from writing. Raises `UsageError` for a folder that is not writable."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(self._folder / ".tokens.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"data folder {self._folder}: {error.strerror}") from error
        try:
            give_to_owner_of(self._folder, file)
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _write(self, grants: Sequence[Grant]) -> None:
        """The hub's user has to read what root writes."""
        text = json.dumps({"tokens": [asdict(grant) for grant in grants]}, indent=1)
        replace_private(self.path, text, give=True)


class KnownTokens:
    """The tokens of a file as a running hub knows them. The file is read again whenever it was replaced.

    One that is damaged lets nobody in, apart from the hub's own token, which is not in it. While it cannot be
    read, the tokens stay as they were.
    """

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._grants: dict[str, Grant] = {}

    def grant(self, token: str) -> Grant | None:
        """What the token stands for, expired or not. None for an unknown one."""
        self._look()
        return self._grants.get(digest(token)) if token and self._grants else None

    def _look(self) -> None:
        try:
            found = self._file.path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            seen = None
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._grants = {grant.sha256: grant for grant in self._file.grants()}
        except CorruptData as error:
            self._grants = {}
            log.warning("tokens_not_read", error=str(error))
        except OSError as error:  # too many open files, say: it is read at the next request
            self._seen = _NOT_READ
            log.warning("tokens_not_read", error=str(error))


def digest(token: str) -> str:
    """The SHA-256 of a token, as hexadecimal text."""
    return hashlib.sha256(token.encode()).hexdigest()
