"""Who one is, and where."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

from .obs import Obs
from .wire import send

NOTEBOOK = "STANDIN_NOTEBOOK"  # where this is set, it names a file with the user of the notebook


class Session:
    _endpoints: ClassVar[dict[str, str]] = {}  # of the process, as in the wheel

    def __init__(
        self,
        access_key: str | None = None,
        secret_key: str | None = None,
        project_id: str | None = None,
        region_name: str | None = None,
        username: str | None = None,
        password: str | None = None,
        account: str | None = None,
    ) -> None:
        given = {"access_key": access_key, "secret_key": secret_key, "project_id": project_id}
        if not access_key and not username:
            if NOTEBOOK not in os.environ:
                raise ValueError("Please input access_key/secret_key or username/password.")
            given = json.loads(Path(os.environ[NOTEBOOK]).read_text())
            type(self).set_endpoint(**given.pop("endpoints"))
        self.project_id = given["project_id"]
        self.region_name = region_name or self._endpoints.get("region_name", "")
        self.by_password = username is not None
        if self.by_password:
            self.credentials = {"token": self._token(account or username or "", username or "", password or "")}
        else:
            self.access_key, self.secret_key = given["access_key"], given["secret_key"]
            self.credentials = {"access_key": str(self.access_key), "secret_key": str(self.secret_key)}
            default = f"https://obs.{self.region_name}.myhuaweicloud.com"
            self.obs = Obs(self.credentials, self._endpoints.get("obs", default))

    @classmethod
    def set_endpoint(
        cls,
        iam_endpoint: str | None = None,
        obs_endpoint: str | None = None,
        modelarts_endpoint: str | None = None,
        region_name: str | None = None,
    ) -> None:
        given = {"iam": iam_endpoint, "obs": obs_endpoint, "modelarts": modelarts_endpoint, "region_name": region_name}
        cls._endpoints = {key: value for key, value in given.items() if value}

    def call(self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None) -> Any:
        """The answer as it came, refusals like any other."""
        default = f"https://modelarts.{self.region_name}.myhuaweicloud.com"
        url = self._endpoints.get("modelarts", default) + path.format(project_id=self.project_id)
        return send(self.credentials, method, url, body, query)[2]

    def _token(self, account: str, username: str, password: str) -> str:
        user = {"name": username, "password": password, "domain": {"name": account}}
        identity = {"methods": ["password"], "password": {"user": user}}
        scope = {"project": {"id": self.project_id}}
        url = self._endpoints["iam"] + "/v3/auth/tokens"
        status, headers, _ = send({}, "POST", url, {"auth": {"identity": identity, "scope": scope}})
        if status >= 400:
            raise ValueError("The username or password is wrong.")
        return headers["X-Subject-Token"]
