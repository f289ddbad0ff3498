"""A Store in memory, for tests of what is read from one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import Head, Upload


class MemoryStore:
    def __init__(self) -> None:
        self.objects_: dict[StoreUrl, bytes] = {}
        self.metadata: dict[StoreUrl, Mapping[str, str]] = {}

    def check(self, url: StoreUrl) -> None: ...

    def head(self, url: StoreUrl) -> Head | None:
        data = self.objects_.get(url)
        return None if data is None else Head(url, len(data), None, self.metadata.get(url, {}))

    def read(self, url: StoreUrl) -> bytes | None:
        return self.objects_.get(url)

    def write(self, url: StoreUrl, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        self.objects_[url] = data
        self.metadata[url] = metadata or {}

    def upload(self, uploads: Sequence[Upload]) -> None:
        for upload in uploads:
            self.write(upload.url, Path(upload.path).read_bytes())

    def objects(self, url: StoreUrl) -> Iterator[Head]:
        for place in sorted(self.objects_):
            if place.bucket == url.bucket and place.key.startswith(url.key):
                yield Head(place, len(self.objects_[place]))

    def download(self, url: StoreUrl, folder: str) -> list[str]:
        names = []
        for head in self.objects(url):
            name = head.url.key.removeprefix(url.key)
            target = Path(folder) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.objects_[head.url])
            names.append(name)
        return names

    def delete(self, url: StoreUrl) -> None:
        self.objects_.pop(url, None)

    def close(self) -> None: ...
