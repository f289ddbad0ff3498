"""`session.obs`: files between this machine and OBS, each request signed by itself."""

from __future__ import annotations

import base64
import hashlib
import hmac
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from email.utils import formatdate
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

_LARGEST = 5 * 1024**3  # bytes of a file that the wheel downloads


class Obs:
    """Folders in OBS end with `/`. A refusal is an error here: the wheel's own methods return nothing."""

    def __init__(self, credentials: dict[str, str], endpoint: str) -> None:
        self._credentials = credentials
        self._endpoint = urlsplit(endpoint)

    def upload_file(self, src_local_file: str, dst_obs_dir: str) -> None:
        bucket, key = _folder(dst_obs_dir)
        self._send("PUT", bucket, key + Path(src_local_file).name, Path(src_local_file).read_bytes())

    def upload_dir(self, src_local_dir: str, dst_obs_dir: str) -> None:
        bucket, key = _folder(dst_obs_dir)
        for file in sorted(path for path in Path(src_local_dir).rglob("*") if path.is_file()):
            self._send("PUT", bucket, key + file.relative_to(src_local_dir).as_posix(), file.read_bytes())

    def download_file(self, src_obs_file: str, dst_local_dir: str) -> None:
        bucket, key = _place(src_obs_file)
        self._fetch(bucket, key, Path(dst_local_dir, PurePosixPath(key).name))

    def download_dir(self, src_obs_dir: str, dst_local_dir: str) -> None:
        bucket, key = _folder(src_obs_dir)
        for found in self._keys(bucket, key):
            if not found.endswith("/"):
                self._fetch(bucket, found, Path(dst_local_dir, found[len(key) :]))

    def is_obs_path_exists(self, path: str) -> bool:
        bucket, key = _place(path)
        return any(found == key or key.endswith("/") for found in self._keys(bucket, key))

    def _fetch(self, bucket: str, key: str, file: Path) -> None:
        size = int(self._send("HEAD", bucket, key)[1].get("Content-Length", "0"))
        if size > _LARGEST:
            raise ValueError(f"obs://{bucket}/{key} is larger than 5 GB")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self._send("GET", bucket, key)[0])

    def _keys(self, bucket: str, prefix: str) -> Iterator[str]:
        marker = ""
        while True:
            page = ET.fromstring(self._send("GET", bucket, "", query={"prefix": prefix, "marker": marker})[0])
            space = page.tag[: page.tag.index("}") + 1] if "}" in page.tag else ""
            keys = [each.text or "" for each in page.iter(f"{space}Key")]
            yield from keys
            if page.findtext(f"{space}IsTruncated") != "true" or not keys:
                return
            marker = keys[-1]

    def _send(
        self, method: str, bucket: str, key: str, content: bytes = b"", query: dict[str, str] | None = None
    ) -> tuple[bytes, dict[str, Any]]:
        path, date = f"/{bucket}/{quote(key, safe='/~')}", formatdate(usegmt=True)
        text = f"{method}\n\n\n{date}\n{path}"
        secret = self._credentials["secret_key"].encode()
        signature = base64.b64encode(hmac.new(secret, text.encode(), hashlib.sha1).digest()).decode()
        headers = {"Date": date, "Authorization": f"OBS {self._credentials['access_key']}:{signature}"}
        connect = HTTPSConnection if self._endpoint.scheme == "https" else HTTPConnection
        connection = connect(self._endpoint.netloc, timeout=60)
        try:
            connection.request(method, path + (f"?{urlencode(query)}" if query else ""), content or None, headers)
            response = connection.getresponse()
            data = response.read()
            if response.status >= 300:
                raise OSError(f"{method} obs://{bucket}/{key}: HTTP {response.status}")
            return data, dict(response.headers.items())
        finally:
            connection.close()


def _place(path: str) -> tuple[str, str]:
    if not path.startswith("obs://"):
        raise ValueError(f"{path} is not an obs path")
    bucket, _, key = path[len("obs://") :].partition("/")
    return bucket, key


def _folder(path: str) -> tuple[str, str]:
    bucket, key = _place(path)
    if key and not key.endswith("/"):
        raise ValueError(f"{path} is not a folder: it does not end with /")
    return bucket, key
