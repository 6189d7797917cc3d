"""A real S3 server for tests: moto's, a process of its own on a free port, spoken to through s3fs as it is."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import botocore.session

from batchgen.object_path import ObjectPath

REGION = "us-east-1"


@contextmanager
def s3_server(**environment: str) -> Iterator[str]:
    """Its URL, while it runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, told = f"http://127.0.0.1:{port}", {**os.environ, **environment}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, env=told, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/moto-api/", timeout=5).close()
            return
        except OSError:
            assert process.poll() is None, "the server ended"
            time.sleep(0.05)
    raise AssertionError("the server does not answer")


def credentials(url: str, key: str = "key", secret: str = "secret") -> dict[str, str]:
    """What a process needs in its environment to use the server at `url`."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def client(service: str, url: str, key: str = "key", secret: str = "secret") -> Any:
    """To make and to look at what the product does not: botocore's, and not the one under test."""
    return botocore.session.Session().create_client(
        service, endpoint_url=url, region_name=REGION, aws_access_key_id=key, aws_secret_access_key=secret
    )


def new_bucket(url: str) -> ObjectPath:
    """An empty one."""
    name = f"bucket-{uuid4().hex[:12]}"
    client("s3", url).create_bucket(Bucket=name)
    return ObjectPath(f"s3://{name}")


def objects(folder: ObjectPath, url: str) -> dict[str, bytes]:
    """Name below `folder` -> bytes, of all objects there."""
    s3, bucket = client("s3", url), folder.store.removeprefix("s3://")
    prefix = f"{folder.key}/" if folder.key else ""
    listed = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    return {
        entry["Key"].removeprefix(prefix): s3.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read()
        for entry in listed
    }
