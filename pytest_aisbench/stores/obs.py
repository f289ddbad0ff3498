"""A Store in OBS, Huawei's object storage: many files at once, and each transfer verified.

`ObsClient` sends the single requests; this module makes uploads, downloads and listings of them. Small files of a large
tree go by `SmallPuts`, where obstore is installed.
"""

from __future__ import annotations

import collections
import hashlib
import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import IO, Any
from urllib.parse import unquote

from pytest_aisbench.config.access import Access, service_endpoint
from pytest_aisbench.engine.staging import PIECE
from pytest_aisbench.errors import BadAnswer, Damaged, Garbled, StagingFailed, Unreachable
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.model.ports import Head, Upload
from pytest_aisbench.net.retry import CHECK_S
from pytest_aisbench.secret import Secret
from pytest_aisbench.stores.local_files import (
    FileSlice,
    content_md5,
    read_whole,
    relative_path,
    safe_download,
    translate_disk_errors,
)
from pytest_aisbench.stores.obs_client import Answer, ObsClient, md5_of
from pytest_aisbench.stores.obs_vendor import Body

_LOG = get_logger("store")
_MOST_THREADS = 1024
_PART = 16 * 1024 * 1024  # bytes
_MOST_PARTS = 10_000  # of one file: OBS takes no more
_READS_EACH = 4
_ONE_PUT = 100 * PIECE  # larger files go in parts
_SMALL = PIECE  # files up to this size are held in memory, one per thread
_OBSTORE_FROM = 32  # small files; for fewer the import of obstore takes longer than they do
# Requests at once. More threads than the CPU needs only wait for each other; over a distance they wait for answers.
_NEAR, _FAR = 16, 96
_PAGE = 1000
_METADATA = ("x-obs-meta-", "x-amz-meta-")


class Obs:
    """A Store, and a `BulkStore`."""

    def __init__(self, endpoint: str, access_key: Secret, secret_key: Secret, **options: Any) -> None:
        """`options` are those of `ObsClient`."""
        self._client = ObsClient(endpoint, access_key, secret_key, **options)
        self._workers = Workers()

    @classmethod
    def of(cls, access: Access, patience: float, why_gone: Callable[[], str] = lambda: "") -> Obs:
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
            why_gone=why_gone,
        )

    def check(self, url: StoreUrl) -> None:
        # A listing, because its errors have a code; those of a HEAD do not.
        def first_key(obs: Any) -> Any:
            return obs.listObjects(url.bucket, prefix=url.key, max_keys=1)

        self._client.ask("list", url, first_key, timeout_s=CHECK_S)

    def location(self, url: StoreUrl) -> str:
        """The region of the bucket; empty if the Store does not tell."""
        body = self._client.ask("look up", url, lambda obs: obs.getBucketLocation(url.bucket), timeout_s=CHECK_S).body
        return str(getattr(body, "location", "") or "")

    def head(self, url: StoreUrl) -> Head | None:
        def request(obs: Any) -> Any:
            result = obs.getObjectMetadata(url.bucket, url.key)
            if result.status < 300 and not obs.headers().get("content-length", "").isdecimal():
                raise Garbled(f"cannot look up {url}: the answer has no length")
            return result

        answer = self._client.ask("look up", url, request, allow=(404,))
        if answer.status == 404:
            return None
        return Head(url, int(answer.headers["content-length"]), answer.md5, _metadata(answer))

    def read(self, url: StoreUrl) -> bytes | None:
        whole = io.BytesIO()
        return whole.getvalue() if self._fetch(url, whole) else None

    def write(self, url: StoreUrl, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        digest = hashlib.md5(data, usedforsecurity=False)
        self._put(url, lambda: io.BytesIO(data), len(data), digest.hexdigest(), metadata)

    def read_many(self, urls: Sequence[StoreUrl]) -> list[bytes | None]:
        contents: list[bytes | None] = [None] * len(urls)

        def read(index: int, url: StoreUrl) -> None:
            contents[index] = self.read(url)

        # A thread for every few: where many trials end at once, handing over costs more than it saves.
        self._workers.run_all([partial(read, *each) for each in enumerate(urls)], -(-len(urls) // _READS_EACH))
        return contents

    def upload(self, uploads: Sequence[Upload]) -> None:
        parted = [PartedUpload(self._client, self._verify_size, each) for each in uploads if each.size > _ONE_PUT]
        whole = [each for each in uploads if each.size <= _ONE_PUT]
        small = sum(each.size <= _SMALL for each in whole)
        put = self._put_small if small >= _OBSTORE_FROM and self._client.small_puts.usable else self._put_file
        calls: list[Callable[[], object]] = [partial(put, each) for each in whole]
        for each in parted:
            calls += each.calls()
        try:
            self._run_all(calls, sum(each.size for each in uploads))
        except BaseException:
            for each in parted:
                each.abort()
            raise

    def objects(self, url: StoreUrl) -> Iterator[Head]:
        prefix, marker, markers = _folder(url), "", set[str]()
        while True:
            page = self._client.ask("list", url, partial(_list, url, prefix, marker)).body
            for key, size, etag in page.contents:
                yield Head(StoreUrl(url.bucket, key), size, md5_of(etag))
            if not page.is_truncated:
                return
            # The last key, not NextMarker, which servers leave out. A listing in circles would never end.
            marker = page.contents[-1][0] if page.contents else ""
            if not marker or marker in markers:
                raise BadAnswer(f"cannot list {url}: the listing goes on, but not after {marker!r}")
            markers.add(marker)

    def download(self, url: StoreUrl, folder: str) -> list[str]:
        return self.download_listed(url, list(self.objects(url)), folder)

    def download_listed(self, url: StoreUrl, heads: Iterable[Head], folder: str) -> list[str]:
        prefix = _folder(url)
        # Keys that end with `/` are folders that consoles draw. Check all keys before writing the first file.
        heads = [head for head in heads if head.size or not head.url.key.endswith("/")]
        heads = [head for head in heads if head.url.bucket == url.bucket and head.url.key.startswith(prefix)]
        paths = {relative_path(head.url.key, prefix): head.url for head in heads}
        calls = [partial(self._download_one, each, folder, path) for path, each in paths.items()]
        self._run_all(calls, sum(head.size for head in heads))
        return list(paths)

    def delete(self, url: StoreUrl) -> None:
        if not url.is_folder:
            self._delete(url)
            return
        self._run_all([partial(self._delete, head.url) for head in self.objects(url)])

    def close(self) -> None:
        self._client.close()
        self._workers.close()

    def _delete(self, url: StoreUrl) -> None:
        self._client.ask("delete", url, lambda obs: obs.deleteObject(url.bucket, url.key), allow=(404,))

    def _download_one(self, url: StoreUrl, folder: str, path: str) -> None:
        with safe_download(folder, path) as out:
            if not self._fetch(url, out):
                raise StagingFailed(f"{url} was deleted while it was downloaded")

    def _fetch(self, url: StoreUrl, out: IO[bytes]) -> bool:
        """Write the whole object, verified, into `out`; False if there is none."""

        def request(obs: Any) -> Any:
            result = obs.getObject(url.bucket, url.key)
            if result.status < 300:
                _save_body(url, result.body, Answer(result.status, None, obs.headers()), out)
            return result

        return self._client.ask("read", url, request, allow=(404,)).status != 404

    def _put_small(self, each: Upload) -> None:
        puts = self._client.small_puts
        if each.size <= _SMALL and puts.usable and not self._client.closed:
            data = read_whole(each.path, each.size)
            if puts.put(each.url, data, each.md5 or hashlib.md5(data, usedforsecurity=False).hexdigest()):
                return
        self._put_file(each)

    def _put_file(self, each: Upload) -> None:
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
            # A stream: the vendor's client formats bytes for its log, and does not notice a file that shrank.
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

    def _run_all(self, calls: Sequence[Callable[[], object]], size: int = 0) -> None:
        """`size` is what they move, in bytes. A few small objects that are near come sooner one by one."""
        at_once = _FAR if self._client.is_far else _NEAR
        if self._client.is_near and size <= PIECE:
            at_once = min(at_once, max(1, len(calls) // 8))
        self._workers.run_all(calls, at_once)


def _folder(url: StoreUrl) -> str:
    return url.key if url.is_folder else f"{url.key}/"


def _list(url: StoreUrl, prefix: str, marker: str, obs: Any) -> Any:
    """A page of a listing; what is none, or half of one, is asked for again."""
    # Ask for encoded keys: XML cannot contain some of the characters that a key may have.
    result = obs.listObjects(url.bucket, prefix=prefix, marker=marker or None, max_keys=_PAGE, encoding_type="url")
    if result.status < 300 and result.body is None:
        raise Garbled(f"cannot list {url}: the answer is not a listing")
    return result


def _metadata(answer: Answer) -> dict[str, str]:
    return {
        unquote(name[len(prefix) :]): unquote(value)
        for name, value in answer.headers.items()
        for prefix in _METADATA
        if name.startswith(prefix)
    }


def _save_body(url: StoreUrl, body: Body, answer: Answer, out: IO[bytes]) -> None:
    """Read the body to its end into `out`, which a second attempt overwrites."""
    digest, size = hashlib.md5(usedforsecurity=False), 0
    with translate_disk_errors(f"cannot keep {url}"):
        out.seek(0)
        out.truncate()
    while piece := body.result.read(PIECE):
        digest.update(piece)
        size += len(piece)
        with translate_disk_errors(f"cannot keep {url}"):
            out.write(piece)
    if body.size is not None and size != body.size:
        raise Unreachable(f"cannot read {url}: it broke off after {size} of {body.size} bytes")
    body.close()  # only now, read to its end, may the connection be used again
    if answer.md5 and answer.md5 != digest.hexdigest():
        raise Damaged(f"{url} arrived with other bytes than the Store has", advice="try again")
    if body.size is None and not answer.md5 and not body.result.chunked:
        # Headers that were cut: what came may be nothing, or half, and no one could tell.
        raise Damaged(f"cannot read {url}: the answer has neither a length nor a checksum", advice="try again")


# Large files: many parts at once. A part that breaks off is sent again, not the whole file.


@dataclass
class _Part:
    number: int
    offset: int
    size: int
    etag: str = ""


class PartedUpload:
    """A file that is uploaded in parts, each verified by its MD5, by calls that many threads may make at once.

    The first call begins the upload and the last one completes it, so that the server puts one file together while it
    receives the next. Then `verify_size` asks for the whole: OBS may lose it and say 200.
    """

    def __init__(self, client: ObsClient, verify_size: Callable[[StoreUrl, int], None], upload: Upload) -> None:
        self._client, self._verify_size, self._upload = client, verify_size, upload
        size = max(_PART, -(-upload.size // _MOST_PARTS))
        offsets = range(0, upload.size, size)
        self._parts = [_Part(number, at, min(size, upload.size - at)) for number, at in enumerate(offsets, 1)]
        self._left = len(self._parts)
        self._id = ""
        self._lock = threading.Lock()

    def calls(self) -> list[Callable[[], None]]:
        return [partial(self._upload_part, part) for part in self._parts]

    def abort(self) -> None:
        """Have the server drop the parts; call it when no call runs any more, after one has failed."""
        url, upload_id, self._id = self._upload.url, self._id, ""
        if not upload_id:
            return
        # The caller raises the first error, whatever becomes of the abort.
        with ignored(_LOG, Exception, "the abort of the upload to %s, whose parts stay", url, level=logging.WARNING):
            self._client.ask("abort", url, lambda obs: obs.abortMultipartUpload(url.bucket, url.key, upload_id))

    def _upload_part(self, part: _Part) -> None:
        with self._lock:
            self._id = upload_id = self._id or self._begin()
        self._send(part, upload_id)
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._complete(upload_id)
            self._id = ""
            self._verify_size(self._upload.url, self._upload.size)

    def _begin(self) -> str:
        url = self._upload.url
        answer = self._client.ask("write", url, lambda obs: obs.initiateMultipartUpload(url.bucket, url.key)).body
        if answer is None or not answer.uploadId:
            raise BadAnswer(f"cannot write {url}: OBS gave no upload id")
        return str(answer.uploadId)

    def _send(self, part: _Part, upload_id: str) -> None:
        url, content = self._upload.url, partial(FileSlice, self._upload.path, part.offset, part.size)
        md5 = content().md5()

        def request(obs: Any) -> Any:
            with content() as stream:
                return obs.uploadPart(
                    url.bucket, url.key, part.number, upload_id, stream, partSize=part.size, md5=content_md5(md5)
                )

        answer = self._client.ask("write", url, request)
        if answer.md5 and answer.md5 != md5:
            what = f"part {part.number} of {url}"
            raise StagingFailed(f"{what} arrived with other bytes than were sent", advice="try again")
        part.etag = answer.headers.get("etag", "")

    def _complete(self, upload_id: str) -> None:
        url = self._upload.url

        def request(obs: Any) -> Any:
            from obs import CompleteMultipartUploadRequest, CompletePart

            listed = [CompletePart(partNum=part.number, etag=part.etag) for part in self._parts]
            return obs.completeMultipartUpload(url.bucket, url.key, upload_id, CompleteMultipartUploadRequest(listed))

        # 404: the answer to an earlier attempt was lost, and the upload is complete already.
        self._client.ask("complete", url, request, allow=(404,))


class Workers:
    """Threads that make many calls at once, and stay for the next ones: to start 16 takes as long as five requests."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def run_all(self, calls: Iterable[Callable[[], object]], at_once: int) -> None:
        """Make all calls, `at_once` at a time. Raise the first error, and drop the calls that have not begun.

        Calls of different callers do not wait for each other, so that a few results do not wait for a data set: a
        thread is started wherever none is idle.
        """
        waiting = collections.deque(calls)

        def work() -> None:
            while True:
                try:
                    call = waiting.popleft()
                except IndexError:
                    return
                call()

        if min(at_once, len(waiting)) <= 1:
            work()
            return
        threads = [self._threads().submit(work) for _ in range(min(at_once, len(waiting)))]
        try:
            wait(threads, return_when=FIRST_EXCEPTION)
        finally:
            waiting.clear()
            wait(threads)
        for each in threads:
            each.result()

    def close(self) -> None:
        """Lets the threads end; calls that run go on, and later ones start threads anew."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool:
            pool.shutdown(wait=False)

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="obs")
            return self._pool
