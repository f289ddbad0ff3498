"""A large file in parts, many at once: a part that breaks off is sent again, not the file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_aisbench.adapters.obs_client import ObsClient
from pytest_aisbench.adapters.slices import FileSlice, content_md5
from pytest_aisbench.domain.ports import Upload
from pytest_aisbench.errors import BadAnswer, StagingFailed
from pytest_aisbench.logs import get_logger, ignored

_LOG = get_logger("store")
_PART = 16 * 1024 * 1024
_MOST_PARTS = 10_000


@dataclass
class _Part:
    number: int
    offset: int
    size: int
    etag: str = ""


def upload_in_parts(client: ObsClient, all_of: Callable[[Iterable[Callable[[], None]]], None], upload: Upload) -> None:
    """Each part is verified by its MD5; that the whole is there is the caller's to verify, for OBS may lose it and
    say 200."""
    url, size = upload.url, max(_PART, -(-upload.size // _MOST_PARTS))
    begun = client.ask("write", url, lambda obs: obs.initiateMultipartUpload(url.bucket, url.key)).body
    if begun is None or not begun.uploadId:
        raise BadAnswer(f"cannot write {url}: OBS gave no upload id")
    offsets = range(0, upload.size, size)
    parts = [_Part(number, at, min(size, upload.size - at)) for number, at in enumerate(offsets, 1)]
    try:
        all_of([partial(_send, client, upload, begun.uploadId, part) for part in parts])
        _complete(client, upload, begun.uploadId, parts)
    except BaseException:
        # The first error is the one to tell.
        with ignored(_LOG, Exception, "the abort of the upload to %s, whose parts stay", url, level=logging.WARNING):
            client.ask("abort", url, lambda obs: obs.abortMultipartUpload(url.bucket, url.key, begun.uploadId))
        raise


def _send(client: ObsClient, upload: Upload, upload_id: str, part: _Part) -> None:
    url, content = upload.url, partial(FileSlice, upload.path, part.offset, part.size)
    md5 = content().md5()

    def request(obs: Any) -> Any:
        with content() as stream:
            return obs.uploadPart(
                url.bucket, url.key, part.number, upload_id, stream, partSize=part.size, md5=content_md5(md5)
            )

    answer = client.ask("write", url, request)
    if answer.md5 and answer.md5 != md5:
        raise StagingFailed(f"part {part.number} of {url} arrived with other bytes than were sent", advice="try again")
    part.etag = answer.headers.get("etag", "")


def _complete(client: ObsClient, upload: Upload, upload_id: str, parts: Sequence[_Part]) -> None:
    def request(obs: Any) -> Any:
        from obs import CompleteMultipartUploadRequest, CompletePart

        listed = [CompletePart(partNum=part.number, etag=part.etag) for part in parts]
        return obs.completeMultipartUpload(
            upload.url.bucket, upload.url.key, upload_id, CompleteMultipartUploadRequest(listed)
        )

    # 404: a first answer was lost and the upload is complete already.
    client.ask("complete", upload.url, request, allow=(404,))
