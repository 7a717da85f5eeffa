"""A real Podman loads the archives that winhost makes of images, and runs the image by the name that it has there."""

import gzip
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.images.stand_in_registry import MANIFEST, OCI, StandInRegistry, blob, serving, sha256
from tests.processes import PATIENCE_S
from winhost.images.image_archive import archive_name, archive_size, read_saved, write_archive
from winhost.images.image_registry import PLATFORM, Registry, resolve

PODMAN = shutil.which("podman")
pytestmark = [pytest.mark.real, pytest.mark.skipif(PODMAN is None, reason="podman is not installed")]

DOCKER = "application/vnd.docker."
KINDS = {
    "oci": (MANIFEST, f"{OCI}config.v1+json", f"{OCI}layer.v1.tar+gzip"),
    "docker": (
        f"{DOCKER}distribution.manifest.v2+json",
        f"{DOCKER}container.image.v1+json",
        f"{DOCKER}image.rootfs.diff.tar.gzip",
    ),
}


@pytest.fixture
def podman() -> Iterator[list[str]]:
    """Its folders have names of at most 50 characters."""
    assert PODMAN
    with TemporaryDirectory(dir="/tmp") as folder:
        yield [PODMAN, f"--root={folder}/root", f"--runroot={folder}/run", "--storage-driver=vfs"]


def layer(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def put(registry: StandInRegistry, kind: str) -> None:
    manifest, config_kind, layer_kind = KINDS[kind]
    layers = [layer("hello", b"there"), layer("large", bytes(100_000))]
    rootfs = {"type": "layers", "diff_ids": [sha256(each) for each in layers]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": rootfs}).encode()
    packed = [gzip.compress(each, mtime=0) for each in layers]
    for data in (config, *packed):
        registry.answers[f"blobs/{sha256(data)}"] = (200, {}, data)
    made = {"schemaVersion": 2, "mediaType": manifest, "config": blob(config, config_kind)}
    made["layers"] = [blob(data, layer_kind) for data in packed]
    registry.put(json.dumps(made).encode(), manifest, "v1")


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_loaded(kind: str, podman: list[str], tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    with serving(StandInRegistry()) as registry:
        put(registry, kind)
        found = resolve(f"{registry.host}/org/engine:v1")
        write_archive(Registry(found.name), found, path, lambda done, of: None)
    assert path.stat().st_size == archive_size(found)
    loaded = subprocess.run(
        [*podman, "load", "--quiet", "-i", path], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert loaded.stdout == f"Loaded image: {archive_name(found)}\n", loaded.stderr
    shown = subprocess.run([*podman, "image", "inspect", archive_name(found)], capture_output=True, timeout=PATIENCE_S)
    (image,) = json.loads(shown.stdout)
    assert f"sha256:{image['Id']}" == found.manifest.config.digest


def test_what_podman_saves_is_read(podman: list[str], tmp_path: Path) -> None:
    """A tar without a manifest, as of Docker before 25."""
    with serving(StandInRegistry()) as registry:
        put(registry, "oci")
        found = resolve(f"{registry.host}/org/engine:v1")
        write_archive(Registry(found.name), found, tmp_path / "image.tar", lambda done, of: None)
    for words in (
        ["load", "--quiet", "-i", tmp_path / "image.tar"],
        ["tag", archive_name(found), "vllm/vllm-openai:v0.33.0"],
        ["save", "--quiet", "--output", tmp_path / "saved.tar", "vllm/vllm-openai:v0.33.0"],
    ):
        done = subprocess.run([*podman, *words], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
    saved = read_saved(tmp_path / "saved.tar", PLATFORM)
    assert (str(saved.name), saved.digest) == ("localhost/vllm/vllm-openai:v0.33.0", None)
