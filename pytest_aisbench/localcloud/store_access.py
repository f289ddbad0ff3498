"""How a job reaches the object store: by the variables that MoXing reads, with keys that end with the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_aisbench.localcloud.accounts import Accounts


class StoreAccess:
    def __init__(self, endpoint: str, accounts: Accounts | None) -> None:
        self._endpoint = endpoint
        self._accounts = accounts

    def lend(self) -> dict[str, str]:
        variables = {
            "S3_ENDPOINT": self._endpoint,
            "S3_USE_HTTPS": str(int(self._endpoint.startswith("https:"))),
            "S3_VERIFY_SSL": "0",
        }
        if self._accounts is None:
            return variables
        account = self._accounts.lend()
        return variables | {"ACCESS_KEY_ID": account.access_key, "SECRET_ACCESS_KEY": account.secret_key}

    def take_back(self, variables: Mapping[str, str]) -> None:
        if self._accounts:
            self._accounts.take_back(variables["ACCESS_KEY_ID"])
