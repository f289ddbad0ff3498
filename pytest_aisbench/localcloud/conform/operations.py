"""Every operation of the vendor's SDKs. The tables below say what is sent to those that are served, and which answer is
right; all others must answer 501 and name the operation. So an operation that is served is added here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from pytest_aisbench.localcloud import vendor_operations as vendor
from pytest_aisbench.localcloud.conform import APULIS, DOCUMENT, OPERATION, Answer, Probe, Scene
from pytest_aisbench.localcloud.vendor_operations import Operation

_Names = Callable[[Scene], Mapping[str, str]]


class Call(NamedTuple):
    status: int
    body: Callable[[Scene], Any] | None = None
    names: _Names = lambda _: {}
    """What stands for the `{names}` of the path, where that is not the usual."""
    has: str = ""
    """What the text of the answer must have in it."""
    query: str = ""
    headers: Mapping[str, str] = {}


def probes() -> list[Probe]:
    every = []
    for api, sdk in vendor.sdks().items():
        source = f"{sdk.name} {sdk.version}"
        for name, operation in sdk.operations.items():
            call = SERVED[api].get(name)
            fault = partial(_served, api, operation, call) if call else partial(_refused, api, operation)
            every.append(Probe(api, OPERATION, name, source, fault, served=call is not None))
    for api, operation, call in DOCUMENTED:
        every.append(Probe(api, OPERATION, operation.name, DOCUMENT, partial(_served, api, operation, call)))
    for path in APULIS_REFUSED:
        operation = Operation(path, "GET", path, (), frozenset())
        every.append(Probe(APULIS, OPERATION, path, DOCUMENT, partial(_refused, APULIS, operation), served=False))
    return every


def _served(api: str, operation: Operation, call: Call, scene: Scene) -> str:
    target = _target(operation, _Braces(USUAL[api](scene) | dict(call.names(scene))), call.query)
    answer = _send(api, scene, operation.method, target, call.body and call.body(scene), **call.headers)
    if answer.status != call.status:
        return f"{call.status} was expected, not {answer}"
    if call.has and call.has not in answer.text:
        return f"{call.has} is missing in {answer}"
    if operation.fields and answer.content:
        content = answer.json
        if isinstance(content, dict) and (unknown := content.keys() - operation.fields):
            return f"the SDK's model of the answer does not have {', '.join(sorted(unknown))}"
    return ""


def _refused(api: str, operation: Operation, scene: Scene) -> str:
    body = OTHER_BODIES.get(operation.name, {} if operation.method in {"POST", "PUT", "PATCH"} else None)
    answer = _send(api, scene, operation.method, _target(operation, USUAL[api](scene)), body)
    if answer.status != 501:
        return f"501 was expected, not {answer}"
    if operation.name not in answer.text + answer.headers.get("X-Not-Served", ""):
        return f"the answer does not name {operation.name}: {answer}"
    return ""


def _target(operation: Operation, names: _Braces, more: str = "") -> str:
    query = "&".join(filter(None, (*operation.query, more)))
    return (f"{operation.path}?{query}" if query else operation.path).format_map(names)


class _Braces(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name.replace("_", "-")


def _send(api: str, scene: Scene, method: str, path: str, body: Any, **headers: str) -> Answer:
    if api == vendor.OBS:
        content = body if isinstance(body, bytes) else b"<X/>" if body is not None else None
        headers |= {"x_amz_oef_marker": "yes"} if "/v1/" in path else {}
        return scene.obs(method, path, content, **headers)
    send = {vendor.IAM: scene.iam, APULIS: scene.apulis}.get(api, scene.modelarts)
    return send(method, path, body)


# What stands for the names in the paths.


def _modelarts(scene: Scene) -> _Braces:
    return _Braces(project_id=scene.project, training_job_id=scene.running, task_id="worker-0")


def _otc(scene: Scene) -> _Braces:
    job, version = scene.v1_running
    return _Braces(project_id=scene.project, training_job=job, version=version)


def _obs(scene: Scene) -> _Braces:
    return _Braces(bucket=scene.bucket, key="data/file")


USUAL: dict[str, Callable[[Scene], _Braces]] = {
    vendor.MODELARTS_V2: _modelarts,
    vendor.MODELARTS_V1: _modelarts,
    vendor.MODELARTS_V1_OTC: _otc,
    vendor.OBS: _obs,
    vendor.IAM: lambda _: _Braces(),
    APULIS: lambda _: _Braces(),
}


# ModelArts.


def _spare(scene: Scene) -> dict[str, str]:
    return {"training_job_id": scene.v2_job()}


def _spare_v1(scene: Scene) -> dict[str, str]:
    job, version = scene.v1_job()
    return {"training_job": job, "version": version}


def _config(scene: Scene) -> dict[str, str]:
    return {"name": scene.v1_config()}


def _new_version(scene: Scene) -> dict[str, Any]:
    return {"config": scene.v1_body()["config"] | {"pre_version_id": int(scene.v1_running[1])}}


def _new_config(scene: Scene) -> dict[str, Any]:
    return {"config_name": scene.name("config"), "config": scene.v1_body()["config"]}


V2 = {
    "create_training_job": Call(201, Scene.v2_body, has='"phase"'),
    "show_training_job_details": Call(200, has='"status"'),
    "change_training_job_description": Call(200, lambda _: {"description": "another"}),
    "delete_training_job": Call(202, names=_spare),
    "stop_training_job": Call(202, lambda _: {"action_type": "terminate"}, _spare, "Terminating"),
    "list_training_jobs": Call(200, lambda _: {"limit": 1}, has='"items"'),
    "list_training_job_tasks": Call(200, has="worker-0"),
    "list_training_job_events": Call(200, has='"events"'),
    "show_training_job_logs_preview": Call(200, names=lambda s: {"training_job_id": s.ended}, has='"content"'),
    "show_training_job_metrics": Call(200, names=lambda s: {"training_job_id": s.ended}, has='"metrics"'),
    "show_training_job_engines": Call(200, has="Ascend-Powered-Engine"),
    "show_training_job_flavors": Call(200, has="modelarts.kat1"),
    "show_training_flavor_max_available_resource": Call(200, query="flavor_id=modelarts.kat1.xlarge"),
    "show_training_quotas": Call(200, has="job-num"),
    "validate_training_job_name": Call(200, query="job_name=never-used", has="false"),
}
V1 = {
    "create_training_job": Call(200, Scene.v1_body, has='"version_id"'),
    "training_jobs": Call(200, has='"jobs"'),
    "update_training_job": Call(200, lambda _: {"job_desc": "another"}),
    "delete_training_job": Call(200, names=_spare_v1),
    "training_job_versions": Call(200, has='"versions"'),
    "create_training_job_version": Call(200, _new_version, has="V0002"),
    "get_training_job_version": Call(200, has='"status"'),
    "stop_training_job_version": Call(200, names=_spare_v1),
    "delete_training_job_version": Call(200, names=_spare_v1),
    "job_engines": Call(200, has='"engines"'),
    "job_flavors": Call(200, has='"specs"'),
    "training_job_configs": Call(200, has='"configs"'),
    "create_training_job_config": Call(200, _new_config),
    "get_training_job_config": Call(200, names=_config, has='"config_name"'),
    "update_training_job_config": Call(200, lambda _: {"config_desc": "another"}, _config),
    "delete_training_job_config": Call(200, names=_config),
}


# OBS.

_ABSENT = {  # questions to which a new bucket answers that it has none
    "getBucketCors": "NoSuchCORSConfiguration",
    "getBucketCustomDomain": "NoSuchCustomDomain",
    "getBucketEncryption": "ServerSideEncryptionConfigurationNotFoundError",
    "getBucketLifecycle": "NoSuchLifecycleConfiguration",
    "getBucketLifecycleConfiguration": "NoSuchLifecycleConfiguration",
    "getBucketObjectLock": "ObjectLockConfigurationNotFoundError",
    "getBucketPolicy": "NoSuchBucketPolicy",
    "getBucketPolicyPublicStatus": "NoSuchBucketPolicy",
    "getBucketPublicAccessBlock": "NoSuchPublicAccessBlockConfiguration",
    "getBucketReplication": "ReplicationConfigurationNotFoundError",
    "getBucketTagging": "NoSuchTagSet",
    "getBucketWebsite": "NoSuchWebsiteConfiguration",
    "getBucketWebsiteConfiguration": "NoSuchWebsiteConfiguration",
}
_COPY = {"x_amz_copy_source": "/aisbench/data/file"}
_COMPLETE = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>"
_DELETE = b"<Delete><Object><Key>gone</Key></Object></Delete>"


def _upload(scene: Scene) -> dict[str, str]:
    return {"key": "uploaded", "upload": scene.upload("uploaded")}


def _own_bucket(scene: Scene) -> dict[str, str]:
    return {"bucket": scene.bucket_of_its_own()}


def _put(_: Scene) -> bytes:
    return b"content"


def _etag_of_part(_: Scene) -> bytes:
    import hashlib

    return _COMPLETE.format(hashlib.md5(b"part", usedforsecurity=False).hexdigest()).encode()


OBS_CALLS = {name: Call(404, has=code) for name, code in _ABSENT.items()} | {
    "listBuckets": Call(200, has="<Bucket>"),
    "createBucket": Call(200, names=lambda s: {"bucket": s.name("bucket")}),
    "headBucket": Call(200),
    "getBucketMetadata": Call(200),
    "deleteBucket": Call(204, names=_own_bucket),
    "listObjects": Call(200, has="<Key>data/file</Key>"),
    "listVersions": Call(200, has="<VersionId>null</VersionId>"),
    "listMultipartUploads": Call(200, has="ListMultipartUploadsResult"),
    "getBucketLocation": Call(200, has="local-1"),
    "getBucketStorageInfo": Call(200, has="<ObjectNumber>"),
    "getBucketQuota": Call(200, has="<StorageQuota>0<"),
    "getBucketAcl": Call(200, has="FULL_CONTROL"),
    "getBucketLogging": Call(200, has="BucketLoggingStatus"),
    "getBucketLoggingConfiguration": Call(200, has="BucketLoggingStatus"),
    "getBucketNotification": Call(200, has="NotificationConfiguration"),
    "getBucketRequestPayment": Call(200, has="BucketOwner"),
    "getBucketStoragePolicy": Call(200, has="STANDARD"),
    "getBucketVersioning": Call(200, has="VersioningConfiguration"),
    "getBucketVersioningConfiguration": Call(200, has="VersioningConfiguration"),
    "deleteObjects": Call(200, lambda _: _DELETE, has="<Deleted>"),
    "putObject": Call(200, _put),
    "putContent": Call(200, _put),
    "copyObject": Call(200, names=lambda _: {"key": "copy"}, has="CopyObjectResult", headers=_COPY),
    "copyPart": Call(200, names=_upload, has="CopyPartResult", headers=_COPY),
    "getObject": Call(200),
    "headObject": Call(200),
    "getObjectMetadata": Call(200),
    "deleteObject": Call(204, names=lambda _: {"key": "gone"}),
    "getObjectAcl": Call(200, has="FULL_CONTROL"),
    "getObjectTagging": Call(200, has="<TagSet"),
    "initiateMultipartUpload": Call(200, has="<UploadId>"),
    "uploadPart": Call(200, _put, _upload),
    "listParts": Call(200, names=_upload, has="<PartNumber>1<"),
    "completeMultipartUpload": Call(200, _etag_of_part, _upload, "<ETag>"),
    "abortMultipartUpload": Call(204, names=_upload),
}


# IAM.


def _token_request(method: str, fields: Callable[[Scene], Any]) -> Callable[[Scene], Any]:
    return lambda scene: {"auth": {"identity": {"methods": [method], method: fields(scene)}}}


def _password(scene: Scene) -> dict[str, Any]:
    user, password = scene.card["apulis_user"], scene.card["apulis_password"]  # those of the account
    return {"user": {"name": user, "password": password, "domain": {"name": "aisbench"}}}


IAM_CALLS = {
    "keystone_show_version": Call(200),
    "keystone_list_versions": Call(300, has='"versions"'),
    "keystone_list_projects": Call(200, has="local-1"),
    "keystone_list_auth_projects": Call(200, has="local-1"),
    "keystone_create_user_token_by_password": Call(201, _token_request("password", _password), has='"catalog"'),
    "keystone_create_scoped_token": Call(201, _token_request("token", lambda s: {"id": s.token}), has='"catalog"'),
    "create_temporary_access_key_by_token": Call(201, _token_request("token", lambda _: {}), has="securitytoken"),
}
# Operations of one path that differ by what they send.
_MFA = {"auth": {"identity": {"methods": ["password", "totp"], "password": {}, "totp": {}}}}
_AGENCY = {"auth": {"identity": {"methods": ["assume_role"], "assume_role": {"domain_name": "x"}}}}
OTHER_BODIES: dict[str, Any] = {
    "keystone_create_user_token_by_password_and_mfa": _MFA,
    "keystone_create_agency_token": _AGENCY,
    "create_temporary_access_key_by_agency": _AGENCY,
}
SERVED: dict[str, dict[str, Call]] = {
    vendor.MODELARTS_V2: V2,
    vendor.MODELARTS_V1: {},
    vendor.MODELARTS_V1_OTC: V1,
    vendor.OBS: OBS_CALLS,
    vendor.IAM: IAM_CALLS,
}


# What the vendor documents and no SDK has.


def _documented(method: str, path: str, fields: str = "") -> Operation:
    path, _, query = path.partition("?")
    return Operation(f"{method} {path}", method, path, tuple(filter(None, [query])), frozenset(fields.split()))


def _ended_v1(scene: Scene) -> dict[str, str]:
    job, version = scene.v1_ended
    name = scene.modelarts("GET", f"v1:training-jobs/{job}/versions/{version}").json["job_name"]
    return {"training_job": job, "version": version, "log": f"job-{name}.0"}


def _apulis(scene: Scene) -> dict[str, str]:
    return {"job": scene.apulis_job()}


_VERSION = "/v1/{project_id}/training-jobs/{training_job}/versions/{version}"
_APULIS = [  # the calls below /apis/ that take a job, and what stands in their answers
    ("GetJobStatus", '"jobStatus"'),
    ("GetJobDetail", '"jobParams"'),
    ("GetJobDetailV2", '"jobParams"'),
    ("GetJobLog", '"max_page"'),
    ("GetJobRawLog", '"log"'),
    ("KillJob", "Success"),
    ("PauseJob", '"result"'),
    ("ResumeJob", '"result"'),
    ("ApproveJob", '"result"'),
    ("CloneJob", '"'),
    ("endpoints", ""),
    ("jobs/priorities", "{"),
]
_APULIS_LISTS = [
    ("ListJobs", '"runningJobs"'),
    ("ListJobsV2", '"runningJobs"'),
    ("ListJobsV3", '"allJobs"'),
    ("ListVCs", "platform"),
    ("GetVC", "platform"),
    ("GetVCPendingJobs", ""),
    ("GetAllDevice", "huawei_npu_arm64"),
]
APULIS_REFUSED = ("/apis/AddCommand", "/apis/GetCommands", "/api/v2/clusters/c/jobs/j", "/ai_arts/api/trainings")
DOCUMENTED = [
    (
        vendor.MODELARTS_V2,
        _documented("GET", "/v2/{project_id}/training-jobs/{training_job_id}/tasks/{task_id}/logs/url"),
        Call(200, names=lambda s: {"training_job_id": s.ended}, has="obs_url"),
    ),
    (vendor.MODELARTS_V1_OTC, _documented("GET", f"{_VERSION}/log/file-names"), Call(200, has='"log_file_list"')),
    (
        vendor.MODELARTS_V1_OTC,
        _documented("GET", f"{_VERSION}/aom-log?log_file={{log}}"),
        Call(200, names=_ended_v1, has='"content"'),
    ),
    *(
        (APULIS, _documented("GET", f"/apis/{name}?jobId={{job}}"), Call(200, names=_apulis, has=has))
        for name, has in _APULIS
    ),
    *((APULIS, _documented("GET", f"/apis/{name}"), Call(200, has=has)) for name, has in _APULIS_LISTS),
    (
        APULIS,
        _documented("POST", "/custom-user-dashboard-backend/auth/login"),
        Call(200, lambda s: {"userName": s.card["apulis_user"], "password": s.password_md5}, has='"token"'),
    ),
]
