"""Where things are in the Store."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_aisbench.errors import UsageFault


@dataclass(frozen=True, order=True)
class StoreUrl:
    """`obs://bucket/key`; a folder ends with `/`."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        scheme, colon, rest = text.partition("://")
        bucket, _, key = rest.partition("/")
        if not colon or scheme not in {"obs", "s3"} or not bucket:
            raise UsageFault(f"{text!r} is not a place in the Store", advice="write obs://bucket/folder/")
        return cls(bucket, key)

    def __truediv__(self, part: str) -> StoreUrl:
        """Below this folder; a trailing `/` makes a folder again."""
        gap = "" if not self.key or self.key.endswith("/") else "/"
        return StoreUrl(self.bucket, f"{self.key}{gap}{part.lstrip('/')}")

    @property
    def is_folder(self) -> bool:
        return not self.key or self.key.endswith("/")

    def __str__(self) -> str:
        return f"obs://{self.bucket}/{self.key}"


@dataclass(frozen=True)
class Stage:
    """The place of one trial: code by content, shared by trials; outputs and logs of its own."""

    root: StoreUrl
    code: StoreUrl
    inputs: StoreUrl | None = None

    @property
    def outputs(self) -> StoreUrl:
        return self.root / "outputs/"

    @property
    def logs(self) -> StoreUrl:
        return self.root / "logs/"
