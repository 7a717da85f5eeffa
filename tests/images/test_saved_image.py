"""Images in files: which one, its digest, and what is refused."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import raises
from tests.images.stand_in_registry import INDEX, MANIFEST, OCI, StandInRegistry, blob, serving, sha256
from tests.rows import each_row
from winhost.images.image_archive import SavedImage, archive_name, read_saved, write_archive
from winhost.images.image_registry import PLATFORM, Registry, resolve
from winhost.model.errors import UsageError

LAYERS = (b"a" * 1000, b"b" * 234)
CONFIG = json.dumps({"os": "linux", "architecture": "amd64", "rootfs": {}}).encode()
NAME = "vllm/vllm-openai:v0.33.0"


def written(files: Mapping[str, bytes], path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def blob_path(data: bytes) -> str:
    return f"blobs/sha256/{sha256(data)[7:]}"


def saved_by_docker(config: bytes = CONFIG, names: Any = (NAME, "other:1"), **index: Any) -> dict[str, bytes]:
    """As Docker 25 and later writes it: the image once for each name in the index, which says nothing of platforms."""
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": blob(config, f"{OCI}config.v1+json"),
            "layers": [blob(each, f"{OCI}layer.v1.tar") for each in LAYERS],
        }
    ).encode()
    listed = {"schemaVersion": 2, "manifests": [blob(manifest, MANIFEST)] * 2, **index}
    docker = [{"Config": blob_path(config), "RepoTags": [*names], "Layers": [blob_path(each) for each in LAYERS]}]
    files = {blob_path(each): each for each in (config, manifest, *LAYERS)}
    return {"manifest.json": json.dumps(docker).encode(), "index.json": json.dumps(listed).encode(), **files}


def saved_by_an_older_docker() -> dict[str, bytes]:
    docker = [{"Config": "c.json", "RepoTags": [NAME], "Layers": ["1/layer.tar", "2/layer.tar"]}]
    files = {"c.json": CONFIG, "1/layer.tar": LAYERS[0], "2/layer.tar": LAYERS[1]}
    return {"manifest.json": json.dumps(docker).encode(), **files}


def in_an_index(files: dict[str, bytes], *more: tuple[str, str]) -> dict[str, bytes]:
    """As a Docker with containerd's store writes it: one index, and attestations beside the image."""
    (entry, *_) = json.loads(files["index.json"])["manifests"]
    platforms = [("linux", "amd64"), ("unknown", "unknown"), *more]
    entries = [{**entry, "platform": {"os": system, "architecture": name}} for system, name in platforms]
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
    top = {"schemaVersion": 2, "manifests": [blob(index, INDEX)]}
    return {**files, "index.json": json.dumps(top).encode(), blob_path(index): index}


def read(files: Mapping[str, bytes], folder: Path) -> SavedImage:
    return read_saved(written(files, folder / "image.tar"), PLATFORM)


@pytest.mark.parametrize("wrap", [dict, in_an_index])
def test_the_digest_is_that_of_its_manifest(wrap: Any, tmp_path: Path) -> None:
    files = saved_by_docker()
    (manifest,) = (data for data in files.values() if b'"layers"' in data)
    found = read(wrap(files), tmp_path)
    assert (found.digest, found.bytes, str(found.name)) == (sha256(manifest), 1234, f"docker.io/{NAME}")
    assert f"sha256:{found.sha256}" == sha256((tmp_path / "image.tar").read_bytes())


def test_what_an_older_docker_saved_has_none(tmp_path: Path) -> None:
    found = read(saved_by_an_older_docker(), tmp_path)
    assert (found.digest, found.bytes) == (None, 1234)


def test_what_winhost_fetched_has_that_of_the_registry(tmp_path: Path) -> None:
    with serving(StandInRegistry()) as registry:
        digest = registry.put_image(LAYERS, "v1")
        found = resolve(f"{registry.host}/org/engine:v1")
        write_archive(Registry(found.name), found, tmp_path / "image.tar", lambda done, of: None)
    saved = read_saved(tmp_path / "image.tar", PLATFORM)
    assert (saved.digest, str(saved.name)) == (digest, archive_name(found))


def changed(name: str, data: bytes | None) -> dict[str, bytes]:
    files = saved_by_docker() | ({name: data} if data is not None else {})
    return files if data is not None else {key: value for key, value in files.items() if key != name}


WRONG: dict[str, tuple[dict[str, bytes], str]] = {
    "nothing": ({}, "has no usable manifest.json"),
    "no list": (changed("manifest.json", b"{}"), "one image with a name"),
    "two images": (changed("manifest.json", b"[{}, {}]"), "one image with a name"),
    "no name": (saved_by_docker(names=()), "one image with a name"),
    "a hostile name": (saved_by_docker(names=("--help",)), "name winhost does not read"),
    "no layer": (changed(blob_path(LAYERS[0]), None), "lacks layers"),
    "no manifest": (changed("index.json", b'{"manifests": []}'), "not made for linux/amd64"),
    "another manifest": (changed("index.json", b"[]"), "is no manifest"),
    "another machine": (saved_by_docker(CONFIG.replace(b"amd64", b"arm64")), "for linux/arm64"),
    "another config": (changed(blob_path(CONFIG), CONFIG.replace(b"{}", b"[]")), "says two things"),
}


@each_row("name", WRONG)
def test_what_is_no_image_is_refused(name: str, tmp_path: Path) -> None:
    files, why = WRONG[name]
    with raises("SavedUnusable", match=why):
        read(files, tmp_path)


def test_a_blob_with_another_hash_is_refused(tmp_path: Path) -> None:
    files = saved_by_docker()
    (name,) = (name for name, data in files.items() if b'"layers"' in data)
    with raises("SavedUnusable", match="holds something else"):
        read({**files, name: files[name] + b" "}, tmp_path)


def test_what_is_compressed_or_no_archive_is_refused(tmp_path: Path) -> None:
    with raises("SavedUnusable", match="is no tar archive"):
        read_saved(written(saved_by_docker(), tmp_path / "image.tgz", "w:gz"), PLATFORM)
    (tmp_path / "text").write_text("text")
    with raises("SavedUnusable", match="is no tar archive"):
        read_saved(tmp_path / "text", PLATFORM)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(("Config", "Layers", "RepoTags", "manifests", "platform", "digest", "os")), inner, max_size=4
    ),
    max_leaves=8,
)  # fmt: skip


@given(name=st.sampled_from(("manifest.json", "index.json", blob_path(CONFIG))), document=JSON)
def test_whatever_stands_in_it_nothing_else_is_raised(
    tmp_path_factory: pytest.TempPathFactory, name: str, document: Any
) -> None:
    folder = tmp_path_factory.mktemp("archive")
    code = "SavedUnusable"
    try:
        read(changed(name, json.dumps(document).encode()), folder)
    except UsageError as error:
        code = error.code
    assert code == "SavedUnusable"
