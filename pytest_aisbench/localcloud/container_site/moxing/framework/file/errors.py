"""The exceptions of MoXing; each is the OSError that a local file would raise."""

from __future__ import annotations

import errno


class Response:
    """What OBS said no with."""

    def __init__(self, status: int, code: str = "", message: str = "", request_id: str = "") -> None:
        self.status = status
        self.errorCode = code
        self.errorMessage = message
        self.requestId = request_id

    def __repr__(self) -> str:
        return f"{self.status} {self.errorCode}: {self.errorMessage} (request {self.requestId})"


class MoxFileRespException(OSError):
    """OBS refused; `resp` says why."""

    def __init__(self, resp: Response, path: str = "") -> None:
        super().__init__(errno.EIO, f"OBS refused: {resp!r}", path)
        self.resp = resp


class MoxFileNotExistsException(MoxFileRespException, FileNotFoundError):
    def __init__(self, path: str, resp: Response | None = None) -> None:
        OSError.__init__(self, errno.ENOENT, "No such file or directory", path)
        self.resp = resp or Response(404, "NoSuchKey", "The specified key does not exist.")


class MoxFileReadException(OSError):
    """An answer that began well broke off."""


class MoxFileNameDuplicateException(OSError):
    """A file and a folder have the same name, which OBS allows and a disk does not."""
