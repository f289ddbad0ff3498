"""Who may use the local cloud: one account with random keys, and the tokens that IAM gave out for it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import string
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REGION = "local-1"
BUCKET = "aisbench"
TOKEN_LIFE = 24 * 3600.0


@dataclass(frozen=True)
class Account:
    access_key: str
    secret_key: str = field(repr=False)
    project_id: str
    region: str
    domain: str
    user: str
    password: str = field(repr=False)
    bucket: str
    security_token: str = field(default="", repr=False)
    """Of temporary keys, which are worth nothing without."""

    @property
    def domain_id(self) -> str:
        return name_id(self.domain)

    @classmethod
    def generate(cls, region: str = REGION, bucket: str = BUCKET) -> Account:
        return cls(
            access_key=_random(20, string.ascii_uppercase + string.digits),
            secret_key=_random(40, string.ascii_letters + string.digits),
            project_id=secrets.token_hex(16),
            region=region,
            domain="aisbench",
            user="aisbench",
            password=secrets.token_urlsafe(16),
            bucket=bucket,
        )


class Accounts:
    clock_skew = 0.0
    """Seconds by which the clock that judges signatures is ahead of the machine's."""

    def __init__(self, accounts: list[Account]) -> None:
        self._by_key = {account.access_key: account for account in accounts}
        self._tokens: dict[str, tuple[Account, float]] = {}
        self._lent: dict[str, tuple[Account, float]] = {}
        self._lock = threading.Lock()

    @classmethod
    def generate(cls) -> Accounts:
        return cls([Account.generate()])

    @classmethod
    def kept(cls, path: Path) -> Accounts:
        """The accounts of an earlier cloud on the same data, or new ones that the next will find."""
        if path.exists():
            return cls([Account(**fields) for fields in json.loads(path.read_text())])
        accounts = cls.generate()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump([asdict(account) for account in accounts], file)
        return accounts

    def __iter__(self) -> Iterator[Account]:
        return iter(self._by_key.values())

    def first(self) -> Account:
        return next(iter(self))

    def by_key(self, access_key: str) -> Account | None:
        account, expires = self._lent.get(access_key, (None, 0.0))
        return self._by_key.get(access_key) or (account if self.now() < expires else None)

    def lend(self) -> Account:
        """The first account by other keys, which are good until they are taken back."""
        return self._with_other_keys(self.first(), math.inf)

    def lend_for(self, account: Account, seconds: float) -> tuple[Account, float]:
        """The account by temporary keys, which need their token, and the time at which they expire."""
        expires = self.now() + seconds
        return self._with_other_keys(account, expires, secrets.token_urlsafe(192)), expires

    def _with_other_keys(self, account: Account, expires: float, token: str = "") -> Account:
        keys = Account.generate()
        other = {"access_key": keys.access_key, "secret_key": keys.secret_key, "security_token": token}
        lent = replace(account, **other)
        self._lent[lent.access_key] = (lent, expires)
        return lent

    def take_back(self, access_key: str) -> None:
        self._lent.pop(access_key, None)

    def now(self) -> float:
        return time.time() + self.clock_skew

    def issue(self, account: Account) -> tuple[str, float]:
        """A token, and the time at which it expires."""
        token, expires = secrets.token_urlsafe(96), self.now() + TOKEN_LIFE
        with self._lock:
            self._tokens[token] = (account, expires)
        return token, expires

    def by_token(self, token: str) -> Account | None:
        with self._lock:
            account, expires = self._tokens.get(token, (None, 0.0))
        return account if self.now() < expires else None


def name_id(name: str) -> str:
    """The 32 hex digits that the vendor calls domains and users by."""
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()


def _random(length: int, alphabet: str) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))
