"""Rules that no single operation or code shows: what goes with what, in which order, and how much of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from pytest_aisbench.localcloud import vendor_operations as vendor
from pytest_aisbench.localcloud.conform import APULIS, AT_ONCE, DOCUMENT, OURS, RULE, Probe, Scene


def probes() -> list[Probe]:
    return [Probe(api, RULE, (rule.__doc__ or "").rstrip("."), source, rule) for api, source, rule in RULES]


def _is(got: object, wanted: object) -> str:
    return "" if got == wanted else f"{wanted!r} was expected, not {got!r}"


# ModelArts V2.


def _terminated(scene: Scene) -> str:
    """A job that is stopped is Terminating, then Terminated."""
    job = scene.v2_job()
    answer = scene.modelarts("POST", f"v2:training-jobs/{job}/actions", {"action_type": "terminate"})
    first = answer.json["status"]["phase"]
    scene.wait(lambda: scene.phase(job) != "Terminating")
    return _is((first, scene.phase(job)), ("Terminating", "Terminated"))


def _page(scene: Scene) -> str:
    """A page of jobs has 1 to 50 of them."""
    sizes = [scene.modelarts("POST", "v2:training-job-searches", {"limit": size}).status for size in (0, 1, 50, 51)]
    return _is(sizes, [400, 200, 200, 400])


def _described(scene: Scene) -> str:
    """A description is shown as it was changed, and has at most 256 characters."""
    job = scene.running
    path = f"v2:training-jobs/{job}"
    scene.modelarts("PUT", path, {"description": "changed"})
    too_long = scene.modelarts("PUT", path, {"description": "x" * 257}).status
    return _is((scene.modelarts("GET", path).json["metadata"]["description"], too_long), ("changed", 400))


def _deleted(scene: Scene) -> str:
    """The name of a deleted job is free again."""
    body = scene.v2_body()
    job = scene.modelarts("POST", "v2:training-jobs", body).json["metadata"]["id"]
    scene.modelarts("DELETE", f"v2:training-jobs/{job}")
    return _is(scene.modelarts("POST", "v2:training-jobs", body).status, 201)


def _name_length(scene: Scene) -> str:
    """A name has up to 64 characters."""
    names = (scene.name("n" * 55).ljust(64, "x"), "n" * 65)
    answers = [scene.modelarts("POST", "v2:training-jobs", scene.v2_body(AT_ONCE, metadata__name=n)) for n in names]
    return _is([answer.status for answer in answers], [201, 400])


def _auto_stop(scene: Scene) -> str:
    """A job stops by itself after 1 to 72 hours."""
    statuses = []
    for hours in (0, 72, 73):
        body = scene.v2_body(AT_ONCE, spec__auto_stop={"time_unit": "HOURS", "duration": hours})
        statuses.append(scene.modelarts("POST", "v2:training-jobs", body).status)
    return _is(statuses, [400, 201, 400])


def _early_log(scene: Scene) -> str:
    """The log of a job that has ended is complete, and lies in log_export_path too."""
    preview = scene.modelarts("GET", f"v2:training-jobs/{scene.ended}/tasks/worker-0/logs/preview").json
    listing = scene.obs("GET", "/{bucket}?prefix=log/").text
    return _is((preview["current_size"] == preview["full_size"] > 0, scene.ended in listing), (True, True))


def _foreign_task(scene: Scene) -> str:
    """A task that the job does not have is refused."""
    path = f"v2:training-jobs/{scene.running}/tasks/worker-9/logs/preview"
    return _is(scene.modelarts("GET", path).status, 400)


# ModelArts V1.


def _apart(scene: Scene) -> str:
    """Jobs of V1 and V2 do not see each other."""
    job, version = scene.v1_running
    unknown = scene.modelarts("GET", f"v1:training-jobs/{scene.running}/versions/{version}").status
    listed = scene.modelarts("POST", "v2:training-job-searches", {}).text
    return _is((unknown, f'"id": "{job}"' in listed), (400, False))


def _v1_stopped(scene: Scene) -> str:
    """A version that is stopped ends with 12, or with 13 if it never ran."""
    job, version = scene.v1_job()
    scene.modelarts("POST", f"v1:training-jobs/{job}/versions/{version}/stop")
    scene.wait(lambda: scene.v1_status(job, version) not in {7, 8, 9})
    return "" if scene.v1_status(job, version) in {12, 13} else f"not {scene.v1_status(job, version)}"


def _v1_numbers(scene: Scene) -> str:
    """Ids and states are numbers, except in the answer to a create."""
    job, version = scene.v1_running
    answer = scene.modelarts("GET", f"v1:training-jobs/{job}/versions/{version}").json
    return _is([type(each) for each in (job, answer["job_id"], answer["status"])], [str, int, int])


def _v1_errors(scene: Scene) -> str:
    """An error has is_success, error_message and error_code, and no error_msg."""
    answer = scene.modelarts("GET", "v1:training-jobs/0/versions/0").json
    return _is(sorted(answer), ["error_code", "error_message", "is_success"])


def _v1_page(scene: Scene) -> str:
    """A page of jobs has 1 to 1000 of them."""
    sizes = [scene.modelarts("GET", f"v1:training-jobs?per_page={size}").status for size in (0, 1, 1000, 1001)]
    return _is(sizes, [400, 200, 200, 400])


# OBS.


def _etag(scene: Scene) -> str:
    """The ETag of an object is its MD5."""
    answer = scene.obs("PUT", "/{bucket}/etag", b"content")
    digest = hashlib.md5(b"content", usedforsecurity=False).hexdigest()
    return _is(answer.headers["ETag"], f'"{digest}"')


def _range(scene: Scene) -> str:
    """A range is 206 and says which bytes it has."""
    scene.put("range", b"0123456789")
    answer = scene.obs("GET", "/{bucket}/range", Range="bytes=2-4")
    return _is((answer.status, answer.content, answer.headers["Content-Range"]), (206, b"234", "bytes 2-4/10"))


def _pages(scene: Scene) -> str:
    """Pages of a listing come to an end and have every key once, in versions 1 and 2."""
    for name in "abcde":
        scene.put(f"pages/{name}", b"")
    faults = []
    for first, following, mark in (
        ("max-keys=2", "marker", "NextMarker"),
        ("list-type=2&max-keys=2", "continuation-token", "NextContinuationToken"),
    ):
        keys, token = "", ""
        while token or not keys:
            path = f"/{{bucket}}?prefix=pages/&{first}" + (f"&{following}={token}" if token else "")
            text = scene.obs("GET", path).text
            keys += "".join(part[0] for part in text.split("<Key>pages/")[1:])
            token = text.partition(f"<{mark}>")[2].partition("<")[0]
            if len(keys) > 5:
                break
        faults.append(_is(keys, "abcde"))
    return "; ".join(filter(None, faults))


def _folders(scene: Scene) -> str:
    """A delimiter folds keys to common prefixes."""
    scene.put("folds/a/1", b"")
    scene.put("folds/b/1", b"")
    text = scene.obs("GET", "/{bucket}?prefix=folds/&delimiter=/").text
    return _is(("<Prefix>folds/a/</Prefix>" in text, "<Key>" in text), (True, False))


def _absent_delete(scene: Scene) -> str:
    """Deleting what is not there is 204."""
    return _is(scene.obs("DELETE", "/{bucket}/no/such/key").status, 204)


def _none_match(scene: Scene) -> str:
    """A copy that is still good is 304."""
    etag = scene.obs("PUT", "/{bucket}/fresh", b"x").headers["ETag"]
    return _is(scene.obs("GET", "/{bucket}/fresh", If_None_Match=etag).status, 304)


def _metadata(scene: Scene) -> str:
    """An object keeps its metadata and its type."""
    scene.obs("PUT", "/{bucket}/meta", b"x", x_amz_meta_colour="blue", Content_Type="text/x-probe")
    headers = scene.obs("HEAD", "/{bucket}/meta").headers
    return _is((headers.get("x-amz-meta-colour"), headers["Content-Type"]), ("blue", "text/x-probe"))


def _expired(scene: Scene) -> str:
    """A URL that was signed in advance ends."""
    signed = f"/{scene.bucket}/data/file?Expires=1000000000&Signature=x&AWSAccessKeyId={scene.card['access_key']}"
    return _is(scene.send("obs", "GET", signed).status, 403)


def _unversioned(scene: Scene) -> str:
    """Every object has the one version null."""
    return _is(scene.obs("GET", "/{bucket}/data/file?versionId=null").status, 200)


# IAM and Apulis.


def _temporary(scene: Scene) -> str:
    """Temporary keys come with a token and a time at which they end."""
    body = {"auth": {"identity": {"methods": ["token"], "token": {"duration_seconds": 900}}}}
    keys = scene.iam("POST", "/v3.0/OS-CREDENTIAL/securitytokens", body).json["credential"]
    return _is(sorted(keys), ["access", "expires_at", "secret", "securitytoken"])


def _catalog(scene: Scene) -> str:
    """The catalog of a token has ModelArts, OBS and IAM."""
    body = {"auth": {"identity": {"methods": ["token"], "token": {"id": scene.token}}}}
    catalog = scene.send("iam", "POST", "/v3/auth/tokens", body).json["token"]["catalog"]
    return _is({"modelarts", "object", "identity"} - {service["type"] for service in catalog}, set())


def _silent(scene: Scene) -> str:
    """A job that is refused is 200 without a jobId, and an unknown one null."""
    refused = scene.apulis("POST", "/apis/PostJob", {"userName": "nobody", "jobName": "x"})
    unknown = scene.apulis("GET", "/apis/GetJobStatus?jobId=unknown")
    return _is((refused.status, "jobId" in refused.json, unknown.json), (200, False, None))


RULES: list[tuple[str, str, Callable[[Scene], str]]] = [
    *((vendor.MODELARTS_V2, DOCUMENT, rule) for rule in (_terminated, _page, _described, _name_length, _auto_stop)),
    *((vendor.MODELARTS_V2, OURS, rule) for rule in (_deleted, _early_log, _foreign_task)),
    *((vendor.MODELARTS_V1_OTC, DOCUMENT, rule) for rule in (_v1_stopped, _v1_numbers, _v1_errors, _v1_page)),
    (vendor.MODELARTS_V1_OTC, OURS, _apart),
    *((vendor.OBS, DOCUMENT, rule) for rule in (_etag, _range, _pages, _folders, _absent_delete, _none_match)),
    *((vendor.OBS, DOCUMENT, rule) for rule in (_metadata, _expired, _unversioned)),
    *((vendor.IAM, DOCUMENT, rule) for rule in (_temporary, _catalog)),
    (APULIS, DOCUMENT, _silent),
]
