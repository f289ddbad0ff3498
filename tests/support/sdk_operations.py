"""The operations of the vendor's SDKs, taken from the SDKs themselves:

    python tests/support/sdk_operations.py

writes `pytest_aisbench/localcloud/vendor_operations.json`, by which the local cloud names what it does not serve and
`aisbench cloud conform` counts. tests/contract/test_conform.py fails where the file and the SDKs disagree.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "pytest_aisbench" / "localcloud" / "vendor_operations.json"
Operations = dict[str, list[Any]]
"""By the name of the SDK's method: the HTTP method, the path with its query, the fields of the answer."""


def read_api(api: str) -> dict[str, Any]:
    sdk, operations = _READERS[api]
    return {"sdk": sdk, "version": version(sdk), "operations": operations()}


def as_text(sdks: dict[str, Any]) -> str:
    """One operation on a line, so that a new release of an SDK reads well as a difference."""
    parts = []
    for api, sdk in sdks.items():
        lines = [f"   {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(sdk["operations"].items())]
        head = f' {json.dumps(api)}: {{\n  "sdk": {json.dumps(sdk["sdk"])},\n  "version": {json.dumps(sdk["version"])},'
        parts.append(head + '\n  "operations": {\n' + ",\n".join(lines) + "\n  }\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _huawei(package: str, module: str, name: str) -> Operations:
    """Each method of the client has a function that makes its request; the fields are those of the answer's model."""
    client = getattr(importlib.import_module(f"{package}.{module}"), name)
    models = importlib.import_module(package)
    operations: Operations = {}
    for attribute in dir(client):
        if not (match := re.fullmatch(r"_(\w+)_http_info", attribute)):
            continue
        source = inspect.getsource(getattr(client, attribute))
        parts = dict(re.findall(r'"(method|resource_path|response_type|request_type)": "?([^",\n]+)', source))
        answer = getattr(models, parts["response_type"], None)
        fields = sorted(answer.attribute_map.values()) if answer else []
        operations[match[1]] = [parts["method"], parts["resource_path"], fields]
    return operations


# Clients that make their requests as they go are called, and stopped where they would send.


class _Sent(Exception):
    pass


_OTC_VERSIONS = "/v1/{project_id}/training-jobs/{training_job}/versions"
_OTC_BROKEN = {
    "create_training_job_version": ["POST", _OTC_VERSIONS, []],
    "delete_training_job_version": ["DELETE", f"{_OTC_VERSIONS}/{{version}}", []],
    "get_training_job_version": ["GET", f"{_OTC_VERSIONS}/{{version}}", []],
    "stop_training_job_version": ["POST", f"{_OTC_VERSIONS}/{{version}}/stop", []],
}


def _otc() -> Operations:
    from otcextensions.sdk.modelartsv1.v1._proxy import Proxy

    class Recorder(Proxy):  # type: ignore[misc]
        retriable_status_codes = None
        session = None
        default_microversion = None
        service_type = "modelartsv1"

        def request(self, url: str, method: str, **_: Any) -> Any:
            raise _Sent(method, url)

    recorder = Recorder.__new__(Recorder)
    operations: Operations = {}
    for name, function in inspect.getmembers(Proxy, inspect.isfunction):
        if name not in vars(Proxy) or name.startswith(("_", "wait_for", "find_")):
            continue
        arguments = {
            p.name: f"{{{p.name}}}"
            for p in list(inspect.signature(function).parameters.values())[1:]
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
        }
        changes = {"description": "x"} if name.startswith("update") and "description" not in arguments else {}
        try:
            list(getattr(recorder, name)(**arguments | changes))
            raise SystemExit(f"otcextensions: {name} sends nothing")
        except _Sent as sent:
            method, path = sent.args
            operations[name] = [method, "/v1/{project_id}/" + path.partition("?")[0].lstrip("/"), []]
        except KeyError:  # some lose the job on their way to the path
            operations[name] = _OTC_BROKEN[name]
    return operations


# What sends nothing, or several of the other requests in turn.
_COMPOSED = {
    "bucketClient", "check_file_path", "close", "createPostSignature", "createSignedUrl", "createV2SignedUrl",
    "createV4PostSignature", "createV4SignedUrl", "createVirtualBucket", "deletePosixFloder", "downloadFile",
    "downloadFiles", "get_shadow_client", "initLog", "init_session", "putFile", "refresh", "uploadFile",
    "uploadFileAsync",
}  # fmt: skip


def _obs() -> Operations:
    import obs
    from obs import client as module

    class Recorder(obs.ObsClient):  # type: ignore[misc]
        def _make_request_with_retry(self, *arguments: Any, **_: Any) -> None:
            raise _Sent(*arguments)

    def record(name: str, function: Any) -> list[Any]:
        wanted = list(inspect.signature(function).parameters.values())[1:]
        given = {p.name: _OPTIONAL[p.name] for p in wanted if p.name in _OPTIONAL}
        for stand_in in (str, lambda _: _Anything(), lambda _: [_Anything()]):
            needed = {p.name: _NEEDED.get(p.name) or stand_in(p.name) for p in wanted if p.default is p.empty}
            try:
                inspect.unwrap(function)(recorder, **given | needed)
            except _Sent as sent:
                return _obs_row(*sent.args)
            except (AttributeError, TypeError):  # a text where a model of the SDK is needed
                continue
        raise SystemExit(f"esdk-obs-python: {name} sends nothing")

    recorder = Recorder(
        access_key_id="a", secret_access_key="s", server="http://127.0.0.1:9", is_signature_negotiation=False
    )
    methods = [
        (name, function)
        for name, function in inspect.getmembers(module.ObsClient, inspect.isfunction)
        if not name.startswith("_") and name not in _COMPOSED
    ]
    return {name: record(name, function) for name, function in methods}


def _obs_row(method: str, bucket: str, key: str, query: dict[str, Any] | None, *_: Any) -> list[Any]:
    path = (bucket and f"/{bucket}") + (f"/{key}" if key else "") or "/"
    names = "&".join(name if value is None else f"{name}={value}" for name, value in (query or {}).items())
    return [method, f"{path}?{names}" if names else path, []]


class _Anything(dict[str, Any]):
    """Stands for a model of the SDK, all of whose fields are empty."""

    def __getattr__(self, name: str) -> None:
        return None


_OPTIONAL = {
    "content": _Anything(content="x", position=0),
    "aclControl": "private", "aliasInfo": {"bucket1": "b", "bucket2": "c", "alias": "a"},
    "domainName": "example.com", "newObjectKey": "new",
}  # fmt: skip
_NEEDED: dict[str, Any] = {
    **dict.fromkeys(["bucketName", "bucketAlias", "destBucketName", "sourceBucketName"], "{bucket}"),
    **dict.fromkeys(["objectKey", "destObjectKey", "sourceObjectKey"], "{key}"),
    **dict.fromkeys(["partNumber", "quota", "days", "position", "length"], 1),
    "copySource": "{bucket}/{key}",
    "uploadId": "{upload}",
    "jobId": "{job}",
    "inventoryId": "inventory",
}


def _modelarts(version: str) -> Operations:
    both = _huawei("huaweicloudsdkmodelarts.v1", "modelarts_client", "ModelArtsClient")
    return {name: row for name, row in both.items() if row[1].startswith(f"/{version}/")}


_READERS: dict[str, tuple[str, Callable[[], Operations]]] = {
    "ModelArts V2": ("huaweicloudsdkmodelarts", lambda: _modelarts("v2")),
    "ModelArts V1": ("huaweicloudsdkmodelarts", lambda: _modelarts("v1")),
    "ModelArts V1, OTC": ("otcextensions", _otc),
    "OBS": ("esdk-obs-python", _obs),
    "IAM": ("huaweicloudsdkiam", lambda: _huawei("huaweicloudsdkiam.v3", "iam_client", "IamClient")),
}


if __name__ == "__main__":
    FILE.write_text(as_text({api: read_api(api) for api in _READERS}), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
