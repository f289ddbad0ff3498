"""A job for Apulis, and the request that the platform makes of it."""

from __future__ import annotations

from typing import Any

from pytest_aisbench import Settings
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, StoreUrl
from pytest_aisbench.platforms.apulis.platform import Apulis
from pytest_aisbench.platforms.apulis.settings import ApulisAccess

ACCESS = ApulisAccess("http://10.0.0.1", user="admin", vc="platform", share="/mnt/apulis", share_in_pods="/data/ais")
TRIAL = StoreUrl("share", "aisbench/trials/r/resnet-2x8/1/")
SPEC = JobSpec(
    name="resnet50-2x8-r-0a1b2c",
    shape=Shape(2, 8),
    code=StoreUrl("share", "aisbench/code/0a1b/code/"),
    entry="train.py",
    outputs=TRIAL / "outputs/",
    logs=TRIAL / "logs/",
    framework="mindspore",
    parameters={"epoch_size": "90"},
    options={"image": "apulistech/mindspore:0.3.0-withtools"},
    description="aisbench resnet50-2x8 trial r/resnet50-2x8/1",
)
GPU = {"image": "apulistech/horovod:0.19.2", "device_type": "nvidia_gpu_amd64"}


def rendered(spec: JobSpec, apulis: ApulisAccess = ACCESS, **settings: Any) -> dict[str, Any]:
    request = Apulis(Settings(platform="apulis", tables={"apulis": apulis}, **settings)).render(spec)
    assert (request.method, request.path) == ("POST", "/apis/PostJob")
    return dict(request.body)
