"""OBS as the Store, over the vendor's SDK: many files at once, each verified, none outside its folder."""

from __future__ import annotations

import collections
import hashlib
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import IO, Any
from urllib.parse import unquote

from pytest_aisbench.config.access import NO_HOSTS, Access, Hosts, service_endpoint
from pytest_aisbench.engine.staging import PIECE
from pytest_aisbench.errors import BadAnswer, StagingFailed, Unreachable
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import Head, Upload
from pytest_aisbench.net.retry import CHECK_S
from pytest_aisbench.secret import NO_SECRET, Secret
from pytest_aisbench.stores.local_files import (
    FileSlice,
    content_md5,
    relative_path,
    safe_download,
    translate_disk_errors,
)
from pytest_aisbench.stores.obs_client import Answer, ObsClient, md5_of

# -- A large file in parts, many at once: a part that breaks off is sent again, not the file.

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


_ONE_PUT = 100 * PIECE  # larger files go in parts
_PAGE = 1000
_METADATA = ("x-obs-meta-", "x-amz-meta-")


class Obs:
    """A Store. `through` (`127.0.0.1:PORT`) reaches a domain's buckets by a tunnel, where no name resolves."""

    def __init__(
        self,
        endpoint: str,
        access_key: Secret,
        secret_key: Secret,
        *,
        ca_file: str = "",
        security_token: Secret = NO_SECRET,
        signature: str = "",
        region: str = "",
        hosts: Hosts = NO_HOSTS,
        through: str = "",
        threads: int = 32,
        patience: float = 120.0,
        gone: Callable[[], str] = lambda: "",
    ) -> None:
        self._client = ObsClient(
            endpoint,
            access_key,
            secret_key,
            ca_file=ca_file,
            security_token=security_token,
            signature=signature,
            region=region,
            hosts=hosts,
            through=through,
            patience=patience,
            gone=gone,
        )
        self._threads = threads

    @classmethod
    def of(cls, access: Access, patience: float, gone: Callable[[], str] = lambda: "") -> Obs:
        return cls(
            service_endpoint("obs", access),
            access.access_key,
            access.secret_access_key,
            ca_file=access.ca_file,
            security_token=access.security_token,
            signature=access.obs_signature,
            region=access.region_name,
            hosts=access.hosts,
            patience=patience,
            gone=gone,
        )

    def check(self, url: StoreUrl) -> None:
        # A listing, because its errors carry a code; those of a HEAD do not.
        def first_key(obs: Any) -> Any:
            return obs.listObjects(url.bucket, prefix=url.key, max_keys=1)

        self._client.ask("list", url, first_key, within=CHECK_S)

    def location(self, url: StoreUrl) -> str:
        """The region that the bucket is in; empty where the Store does not tell."""
        body = self._client.ask("look up", url, lambda obs: obs.getBucketLocation(url.bucket), within=CHECK_S).body
        return str(getattr(body, "location", "") or "")

    def head(self, url: StoreUrl) -> Head | None:
        answer = self._client.ask("look up", url, lambda obs: obs.getObjectMetadata(url.bucket, url.key), allow=(404,))
        if answer.status == 404:
            return None
        size = answer.headers.get("content-length", "")
        if not size.isdecimal():
            raise BadAnswer(f"cannot look up {url}: the answer has no length")
        return Head(url, int(size), answer.md5, _metadata(answer))

    def read(self, url: StoreUrl) -> bytes | None:
        whole = io.BytesIO()
        return whole.getvalue() if self._fetch(url, whole) else None

    def write(self, url: StoreUrl, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        digest = hashlib.md5(data, usedforsecurity=False)
        self._put(url, lambda: io.BytesIO(data), len(data), digest.hexdigest(), metadata)

    def upload(self, uploads: Sequence[Upload]) -> None:
        self._all([partial(self._upload_whole, each) for each in uploads if each.size <= _ONE_PUT])
        for each in uploads:
            if each.size > _ONE_PUT:
                upload_in_parts(self._client, self._all, each)
                self._verify_size(each.url, each.size)

    def objects(self, url: StoreUrl) -> Iterator[Head]:
        prefix, marker, markers = _folder(url), "", set[str]()
        while True:
            page = self._client.ask("list", url, partial(_list, url.bucket, prefix, marker)).body
            if page is None:  # the vendor swallows what it cannot parse
                raise BadAnswer(f"cannot list {url}: the answer is not a listing")
            for entry in page.contents:
                yield Head(StoreUrl(url.bucket, entry.key), int(entry.size), md5_of(entry.etag))
            if not page.is_truncated:
                return
            # The last key, not NextMarker: servers leave that out. A listing in circles would have no end.
            marker = page.contents[-1].key if page.contents else ""
            if not marker or marker in markers:
                raise BadAnswer(f"cannot list {url}: the listing goes on, but not after {marker!r}")
            markers.add(marker)

    def download(self, url: StoreUrl, folder: str) -> list[str]:
        prefix = _folder(url)
        # Keys that end with `/` are the folders that consoles draw. All are judged before the first is written.
        found = [head.url for head in self.objects(url) if head.size or not head.url.key.endswith("/")]
        paths = {relative_path(each.key, prefix): each for each in found}
        self._all([partial(self._land, each, folder, path) for path, each in paths.items()])
        return list(paths)

    def delete(self, url: StoreUrl) -> None:
        if not url.is_folder:
            self._delete(url)
            return
        self._all([partial(self._delete, head.url) for head in self.objects(url)])

    def close(self) -> None:
        self._client.close()

    def _delete(self, url: StoreUrl) -> None:
        self._client.ask("delete", url, lambda obs: obs.deleteObject(url.bucket, url.key), allow=(404,))

    def _land(self, url: StoreUrl, folder: str, path: str) -> None:
        with safe_download(folder, path) as out:
            if not self._fetch(url, out):
                raise StagingFailed(f"{url} was deleted while it was downloaded")

    def _fetch(self, url: StoreUrl, out: IO[bytes]) -> bool:
        """The whole object, checked, into `out`; False when there is none."""

        def request(obs: Any) -> Any:
            result = obs.getObject(url.bucket, url.key)
            if result.status < 300:
                _drain(url, result.body.response, Answer(result.status, None, obs.headers()), out)
            return result

        return self._client.ask("read", url, request, allow=(404,)).status != 404

    def _upload_whole(self, each: Upload) -> None:
        content = partial(FileSlice, each.path, 0, each.size)
        self._put(each.url, content, each.size, each.md5 or content().md5())

    def _put(
        self,
        url: StoreUrl,
        content: Callable[[], io.IOBase],
        size: int,
        md5: str,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        def request(obs: Any) -> Any:
            header = {"md5": content_md5(md5), "contentLength": size}
            # A stream: the vendor formats bytes for a log that nobody reads, and cannot tell a file that shrank.
            with content() as stream:
                return obs.putContent(url.bucket, url.key, stream, metadata=dict(metadata or {}), headers=header)

        answer = self._client.ask("write", url, request)
        if answer.md5 and answer.md5 != md5:
            raise StagingFailed(f"{url} arrived with other bytes than were sent", advice="try again")
        if not answer.md5:
            self._verify_size(url, size)

    def _verify_size(self, url: StoreUrl, size: int) -> None:
        head = self.head(url)
        if head is None or head.size != size:
            there = "is not there" if head is None else f"has {head.size} bytes"
            raise StagingFailed(f"{url} {there} after {size} bytes were written", advice="try again")

    def _all(self, calls: Iterable[Callable[[], None]]) -> None:
        """Every call, many at once. The first error leaves out those that wait, and is raised.

        The threads are this call's own: a few results need not queue behind a data set.
        """
        waiting = collections.deque(calls)

        def work() -> None:
            while True:
                try:
                    call = waiting.popleft()
                except IndexError:
                    return
                call()

        with ThreadPoolExecutor(self._threads, thread_name_prefix="obs") as pool:
            workers = [pool.submit(work) for _ in range(min(self._threads, len(waiting)))]
            try:
                wait(workers, return_when=FIRST_EXCEPTION)
            finally:
                waiting.clear()
        for worker in workers:
            worker.result()


def _folder(url: StoreUrl) -> str:
    return url.key if url.is_folder else f"{url.key}/"


def _list(bucket: str, prefix: str, marker: str, obs: Any) -> Any:
    # Keys encoded: XML has no way to write some of the characters that a key may have.
    return obs.listObjects(bucket, prefix=prefix, marker=marker or None, max_keys=_PAGE, encoding_type="url")


def _metadata(answer: Answer) -> dict[str, str]:
    return {
        unquote(name[len(prefix) :]): unquote(value)
        for name, value in answer.headers.items()
        for prefix in _METADATA
        if name.startswith(prefix)
    }


def _drain(url: StoreUrl, body: Any, answer: Answer, out: IO[bytes]) -> None:
    """Read the body to its end into `out`, from the start again if this is a second attempt."""
    digest, size = hashlib.md5(usedforsecurity=False), 0
    with translate_disk_errors(f"cannot keep {url}"):
        out.seek(0)
        out.truncate()
    while piece := body.result.read(PIECE):
        digest.update(piece)
        size += len(piece)
        with translate_disk_errors(f"cannot keep {url}"):
            out.write(piece)
    if body.contentLength is not None and size != body.contentLength:
        raise Unreachable(f"cannot read {url}: it broke off after {size} of {body.contentLength} bytes")
    body.close()  # only a connection that was read to its end may be used again
    if answer.md5 and answer.md5 != digest.hexdigest():
        raise StagingFailed(f"{url} arrived with other bytes than the Store has", advice="try again")
