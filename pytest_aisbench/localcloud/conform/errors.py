"""Error codes. Those that the local cloud gives of its own accord are provoked by the requests below; all others that
the vendor documents for ModelArts are set by a fault, and must arrive as the vendor words an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_aisbench.localcloud import vendor_operations as vendor
from pytest_aisbench.localcloud.conform import APULIS, AT_ONCE, DOCUMENT, ERROR, INJECTED, OURS, Answer, Probe, Scene
from pytest_aisbench.localcloud.faults import Fault

_Ask = Callable[[Scene], Answer]
_WRONG = "wrong"

# What the vendor documents for training jobs, by status; all begin with "ModelArts.".
DOCUMENTED = {
    400: "2751 2753 2755 2757 2758 2759 2760 2761 2763 2764 2767 2775 2780 2781 2782 2783 2787 2788 2790 2791 2793 "
    "2802 2806 2807 2808 2809 2810 2811 2812 2814 2815 2816 2818 2819 2820 2822 2832 2833 2837 2840 2845 2855 2857 "
    "2859 2886 2887 2889",
    401: "0201 0202 0203 0204 0205 0207 0208 0209 0211 0212",
    403: "2784 2785 0108 0206 0210",
    404: "2786 2836 2890",
    409: "2796 2878",
    429: "2799",
    500: "2950 2951 2952 2953 2954 2955 2956 2957 2958 2959 0010",
    503: "2950",
}


def documented() -> set[tuple[int, str]]:
    return {(status, f"ModelArts.{code}") for status, codes in DOCUMENTED.items() for code in codes.split()}


def probes() -> list[Probe]:
    every = []
    for api, table in PROVOKED.items():
        for (status, code), ask in table.items():
            source = OURS if status == 501 or api == APULIS else DOCUMENT
            every.append(Probe(api, ERROR, f"{status} {code}", source, partial(_provoked, status, code, ask)))
    for api, version in ((vendor.MODELARTS_V2, "v2"), (vendor.MODELARTS_V1_OTC, "v1")):
        for status, code in sorted(documented() - PROVOKED[api].keys()):
            every.append(Probe(api, INJECTED, f"{status} {code}", DOCUMENT, partial(_set, status, code, version)))
    return every


def _provoked(status: int, code: str, ask: _Ask, scene: Scene) -> str:
    answer = ask(scene)
    return "" if answer.status == status and code in answer.text else f"{status} {code} was expected, not {answer}"


def _set(status: int, code: str, version: str, scene: Scene) -> str:
    scene.cloud.faults.set([Fault(service="modelarts", status=status, code=code, message="for a reason")])
    try:
        answer = scene.modelarts("GET", f"{version}:training-jobs/1")
    finally:
        scene.cloud.faults.clear()
    content = answer.json
    message = content.get("error_msg" if version == "v2" else "error_message")
    right = (answer.status, content.get("error_code"), message) == (status, code, "for a reason")
    return "" if right else f"{status} {code} was expected, not {answer}"


# ModelArts V2.


def _create(**changes: Any) -> _Ask:
    def ask(scene: Scene) -> Answer:
        filled = {place: _filled(value, scene) for place, value in changes.items()}
        return scene.modelarts("POST", "v2:training-jobs", scene.v2_body(AT_ONCE, **filled))

    return ask


def _filled(value: Any, scene: Scene) -> Any:
    return value.replace("{bucket}", scene.bucket) if isinstance(value, str) else value


def _again(scene: Scene) -> Answer:
    body = scene.v2_body(AT_ONCE)
    scene.modelarts("POST", "v2:training-jobs", body)
    return scene.modelarts("POST", "v2:training-jobs", body)


def _deep(scene: Scene) -> Answer:
    scene.put(f"deep/{'f/' * 40}train.py", b"pass")
    return _create(algorithm__code_dir="/{bucket}/deep/")(scene)


def _search(**body: Any) -> _Ask:
    return lambda scene: scene.modelarts("POST", "v2:training-job-searches", body)


def _filter(**condition: Any) -> _Ask:
    return _search(filters=[{"key": "name", "operator": "in", "value": ["x"], **condition}])


def _log_link(**changes: Any) -> _Ask:
    def ask(scene: Scene) -> Answer:
        job = scene.v2_job(**changes)
        scene.modelarts("POST", f"v2:training-jobs/{job}/actions", {"action_type": "terminate"})
        return scene.modelarts("GET", f"v2:training-jobs/{job}/tasks/worker-0/logs/url")

    return ask


def _early_log_link(scene: Scene) -> Answer:
    """Of a job that the queue holds, so that it has written nothing."""
    scene.cloud.faults.set([Fault(name="^probe-", job="pending")])
    try:
        return scene.modelarts("GET", f"v2:training-jobs/{scene.v2_job()}/tasks/worker-0/logs/url")
    finally:
        scene.cloud.faults.clear()


_TWICE = [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]
_DATASET = [{"name": "data", "remote": {"dataset": {"id": "x", "version_id": "y"}}}]
_NAMELESS = [{"name": "a b", "remote": {"obs": {"obs_url": "/x/"}}}]
V2: dict[tuple[int, str], _Ask] = {
    (401, "APIGW.0301"): lambda s: s.send("modelarts", "GET", f"/v2/{s.project}/training-jobs/1", X_Auth_Token=_WRONG),
    (400, "ModelArts.2751"): _again,
    (400, "ModelArts.2753"): _create(algorithm__outputs=_NAMELESS),
    (400, "ModelArts.2755"): _create(algorithm={"id": "x"}),
    (400, "ModelArts.2757"): _create(algorithm__code_dir="/{bucket}/nothing/"),
    (400, "ModelArts.2758"): _create(algorithm__boot_file="/{bucket}/code/other.py"),
    (400, "ModelArts.2760"): _deep,
    (400, "ModelArts.2764"): lambda s: s.modelarts("GET", f"v2:training-jobs/{s.running}/events?limit=many"),
    (400, "ModelArts.2767"): _create(algorithm__parameters=_TWICE),
    (400, "ModelArts.2775"): lambda s: s.modelarts("GET", "v2:training-jobs/unknown"),
    (400, "ModelArts.2780"): _create(algorithm__engine__engine_version="unknown"),
    (400, "ModelArts.2781"): _create(spec__resource__flavor_id="unknown"),
    (400, "ModelArts.2782"): _create(algorithm__inputs=_DATASET),
    (400, "ModelArts.2787"): lambda s: s.modelarts("POST", "v2:training-jobs", b"no JSON"),
    (400, "ModelArts.2788"): _create(metadata__name="a name with blanks"),
    (400, "ModelArts.2790"): _search(sort_by="colour"),
    (400, "ModelArts.2791"): _create(spec__log_export_path={"obs_url": "/no-such-bucket/log/"}),
    (400, "ModelArts.2793"): _create(spec__resource__node_count=10_000),
    (400, "ModelArts.2806"): _create(algorithm__command="train"),
    (400, "ModelArts.2807"): _filter(key="colour"),
    (400, "ModelArts.2808"): _filter(operator="near"),
    (400, "ModelArts.2809"): _filter(value=[1]),
    (400, "ModelArts.2812"): lambda s: s.modelarts(
        "POST", f"v2:training-jobs/{s.running}/actions", {"action_type": "x"}
    ),
    (400, "ModelArts.2818"): _early_log_link,
    (400, "ModelArts.2822"): _log_link(spec__log_export_path=None),
    (404, "ModelArts.2786"): lambda s: s.modelarts("GET", f"/v2/{'0' * 32}/training-jobs/1"),
    (404, "ModelArts.2836"): lambda s: s.modelarts("GET", "v2:no-such-thing"),
    (404, "ModelArts.2890"): _create(spec__resource={"pool_id": "pool-of-others"}),
    (409, "ModelArts.2796"): lambda s: s.modelarts(
        "POST", f"v2:training-jobs/{s.ended}/actions", {"action_type": "terminate"}
    ),
}


# ModelArts V1.


def _create_v1(**changes: Any) -> _Ask:
    def ask(scene: Scene) -> Answer:
        filled = {f"config__{name}": _filled(value, scene) for name, value in changes.items()}
        return scene.modelarts("POST", "v1:training-jobs", scene.v1_body(AT_ONCE, **filled))

    return ask


def _again_v1(scene: Scene) -> Answer:
    body = scene.v1_body()
    scene.modelarts("POST", "v1:training-jobs", body)
    return scene.modelarts("POST", "v1:training-jobs", body)


def _same_output(scene: Scene) -> Answer:
    body = scene.v1_body()
    scene.modelarts("POST", "v1:training-jobs", body)
    return scene.modelarts("POST", "v1:training-jobs", body | {"job_name": scene.name()})


def _stop_ended_v1(scene: Scene) -> Answer:
    job, version = scene.v1_ended
    return scene.modelarts("POST", f"v1:training-jobs/{job}/versions/{version}/stop")


V1: dict[tuple[int, str], _Ask] = {
    (401, "APIGW.0301"): lambda s: s.send("modelarts", "GET", f"/v1/{s.project}/training-jobs", X_Auth_Token=_WRONG),
    (400, "ModelArts.0103"): _again_v1,
    (400, "ModelArts.0104"): _create_v1(data_url=None),
    (400, "ModelArts.0105"): _same_output,
    (400, "ModelArts.2755"): _create_v1(model_id=1),
    (400, "ModelArts.2757"): _create_v1(app_url="/{bucket}/nothing/"),
    (400, "ModelArts.2758"): _create_v1(boot_file_url="/{bucket}/code/other.py"),
    (400, "ModelArts.2767"): _create_v1(parameter=[{"label": "a", "value": "1"}, {"label": "a", "value": "2"}]),
    (400, "ModelArts.2775"): lambda s: s.modelarts("GET", "v1:training-jobs/0/versions/0"),
    (400, "ModelArts.2780"): _create_v1(engine_id=9999),
    (400, "ModelArts.2781"): _create_v1(spec_id=9999),
    (400, "ModelArts.2787"): lambda s: s.modelarts("POST", "v1:training-jobs", b"no JSON"),
    (400, "ModelArts.2791"): _create_v1(log_url="/no-such-bucket/log/"),
    (400, "ModelArts.2793"): _create_v1(worker_server_num=10_000),
    (400, "ModelArts.2806"): _create_v1(user_command="train"),
    (404, "ModelArts.2786"): lambda s: s.modelarts("GET", f"/v1/{'0' * 32}/training-jobs"),
    (404, "ModelArts.2836"): lambda s: s.modelarts("GET", "v1:no-such-thing"),
    (404, "ModelArts.2890"): _create_v1(spec_id=None, pool_id="pool-of-others"),
    (409, "ModelArts.2796"): _stop_ended_v1,
}


# OBS, IAM and Apulis.


def _obs(method: str, path: str, body: bytes | None = None, **headers: str) -> _Ask:
    return lambda scene: scene.obs(method, path, body, **headers)


def _not_empty(scene: Scene) -> Answer:
    name = scene.bucket_of_its_own()
    scene.obs("PUT", f"/{name}/object", b"x")
    return scene.obs("DELETE", f"/{name}")


def _unknown_part(scene: Scene) -> Answer:
    upload = scene.upload("incomplete", None)
    part = "<Part><PartNumber>7</PartNumber><ETag>x</ETag></Part>"
    body = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()
    return scene.obs("POST", f"/{scene.bucket}/incomplete?uploadId={upload}", body)


def _forged(key: str) -> _Ask:
    query = f"Expires=99999999999&Signature=x&AWSAccessKeyId={key}"
    return lambda scene: scene.send("obs", "GET", f"/{scene.bucket}/data/file?{query.format(**scene.card)}")


_MD5_OF_NOTHING = "1B2M2Y8AsgTpgAmY7PhCfg=="
OBS: dict[tuple[int, str], _Ask] = {
    (403, "AccessDenied"): lambda s: s.send("obs", "GET", f"/{s.bucket}/data/file"),
    (403, "InvalidAccessKeyId"): _forged("unknown"),
    (403, "SignatureDoesNotMatch"): _forged("{access_key}"),
    (404, "NoSuchBucket"): _obs("GET", "/no-such-bucket"),
    (404, "NoSuchKey"): _obs("GET", "/{bucket}/no/such/key"),
    (404, "NoSuchUpload"): _obs("PUT", "/{bucket}/key?partNumber=1&uploadId=unknown", b"x"),
    (404, "NoSuchVersion"): _obs("GET", "/{bucket}/data/file?versionId=unknown"),
    (400, "InvalidBucketName"): _obs("PUT", "/A_B"),
    (409, "BucketNotEmpty"): _not_empty,
    (416, "InvalidRange"): _obs("GET", "/{bucket}/data/file", Range="bytes=1000-"),
    (412, "PreconditionFailed"): _obs("GET", "/{bucket}/data/file", If_Match='"other"'),
    (400, "BadDigest"): _obs("PUT", "/{bucket}/digest", b"x", Content_MD5=_MD5_OF_NOTHING),
    (400, "InvalidDigest"): _obs("PUT", "/{bucket}/digest", b"x", Content_MD5="none"),
    (400, "KeyTooLong"): _obs("PUT", "/{bucket}/" + "k" * 1025, b"x"),
    (400, "MalformedXML"): _obs("POST", "/{bucket}?delete", b"<Delete></Delete>"),
    (400, "InvalidArgument"): _obs("GET", "/{bucket}?list-type=3"),
    (400, "InvalidPart"): _unknown_part,
    (501, "x-amz-server-side-encryption"): _obs("PUT", "/{bucket}/k", b"x", x_amz_server_side_encryption="kms"),
    (501, "x-amz-acl"): _obs("PUT", "/{bucket}/k", b"x", x_amz_acl="public-read"),
    (501, "x-amz-storage-class"): _obs("PUT", "/{bucket}/k", b"x", x_amz_storage_class="GLACIER"),
    (501, "x-amz-fs-file-interface"): _obs("PUT", "/pfs-bucket", x_amz_fs_file_interface="Enabled"),
}


def _token(methods: list[str], **fields: Any) -> _Ask:
    body = {"auth": {"identity": {"methods": methods, **fields}}}
    return lambda scene: scene.send("iam", "POST", "/v3/auth/tokens", body)


_NOBODY = {"user": {"name": "nobody", "password": "x", "domain": {"name": "x"}}}
_LONG = {"auth": {"identity": {"methods": ["token"], "token": {"duration_seconds": 10}}}}
IAM: dict[tuple[int, str], _Ask] = {
    (400, "Bad Request"): _token([]),
    (401, "Unauthorized"): _token(["password"], password=_NOBODY),
    (401, "APIGW.0301"): lambda s: s.send("iam", "GET", "/v3/projects", X_Auth_Token=_WRONG),
    (404, "Not Found"): lambda s: s.iam("GET", "/v3/no-such-thing"),
    (400, "duration_seconds"): lambda s: s.iam("POST", "/v3.0/OS-CREDENTIAL/securitytokens", _LONG),
}
PROVOKED: dict[str, dict[tuple[int, str], _Ask]] = {
    vendor.MODELARTS_V2: V2,
    vendor.MODELARTS_V1_OTC: V1,
    vendor.OBS: OBS,
    vendor.IAM: IAM,
    APULIS: {
        (405, "not allowed"): lambda s: s.apulis("GET", "/apis/PostJob"),
        (404, "not found"): lambda s: s.apulis("GET", "/no-such-thing"),
        (401, "UNAUTHORIZED"): lambda s: s.send("apulis", "GET", "/custom-user-dashboard-backend/auth/currentUser"),
        (500, "Internal Server Error"): lambda s: s.apulis("GET", "/apis/GetJobDetail?jobId=unknown"),
    },
}
