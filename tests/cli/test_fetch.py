"""winhost fetch collects the downloads of a plan. Registry and hub are on loopback."""

import hashlib
import json
import socket
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pysequoia import Cert

from tests.cases import FASTEST
from tests.cli.conftest import Line, Said
from tests.hub.stand_in_hub import COMMIT, StandInHub
from tests.hub.stand_in_hub import serving as serving_hub
from tests.images.mirror import Mirror, served, signer
from tests.images.stand_in_registry import StandInRegistry
from tests.images.stand_in_registry import serving as serving_registry
from tests.offline.test_package_archive import Archive, stanza
from winhost.cli.change.offline import FetchedFolder, _show
from winhost.hub.repositories import model_files
from winhost.lab.running_lab import Lab
from winhost.model.shipped import shipped
from winhost.offline import package_archive
from winhost.offline.collection import CopiedFile
from winhost.web import large_files

HOST = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
WEIGHTS = bytes(range(256)) * 3000
LAYER = bytes(reversed(range(256))) * 4000
FILES = {"config.json": b"{}", "sub/model.safetensors": WEIGHTS}
TOKEN = "hf_canary-of-the-folder"


@dataclass
class Site:
    """A simulated Linux, and the servers that its plan downloads from."""

    line: Line
    lab: Lab
    hub: StandInHub
    registry: StandInRegistry

    @property
    def linux(self) -> Any:
        (found,) = self.lab.linux_hosts.values()
        return found.linux

    @property
    def image(self) -> str:
        digest = next(name.partition("/")[2] for name in self.registry.answers if name.startswith("manifests/sha256:"))
        return f"{self.registry.host}/org/engine@{digest}"

    def plan(self) -> None:
        book = yaml.load((shipped("playbooks") / "linux.yaml").read_text("utf-8"), FASTEST)
        files = model_files("org/model", COMMIT, "env:HF_TOKEN", self.hub.url)
        start = f"docker run {self.image}\n"
        book["resources"] += [
            entry("ContainerImage", {"engine": "docker", "image": self.image}, {"present": True}),
            entry("ModelFiles", {"folder": "/srv/models/one"}, files),
            entry(
                "LinuxFile",
                {"path": "/etc/systemd/system/winhost-engine-one.service"},
                {"text": start, "mode": "0644", "owner": "root:root"},
            ),
        ]
        Path("book.yaml").write_text(yaml.safe_dump(book))
        said = self.line("plan", "llm-01", "--playbook", "book.yaml", "-o", "plan.json")
        assert said.code == 0, said.err + said.out

    def fetch(self, *words: str) -> Said:
        return self.line("fetch", "plan.json", "-o", "offline", *words)


def entry(resource: str, key: dict[str, str], desired: dict[str, Any]) -> dict[str, Any]:
    return {"resource": resource, "title": resource, "key": key, "desired": desired, "why": "A model is served."}


@pytest.fixture
def site(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(large_files.time, "sleep", lambda _: None)
    hub, registry = StandInHub(files=dict(FILES), token=TOKEN), StandInRegistry()
    registry.put_image((LAYER, b"small"))
    with Lab([HOST], tmp_path, scale=0.001) as lab, serving_hub(hub), serving_registry(registry):
        made = Site(line, lab, hub, registry)
        made.plan()
        yield made


def folder_files() -> dict[str, bytes]:
    found = [path for path in Path("offline").rglob("*") if path.is_file() and not path.name.endswith(".lock")]
    return {path.relative_to("offline").as_posix(): path.read_bytes() for path in found}


def test_all_that_a_plan_downloads_is_there_with_its_checksum(site: Site) -> None:
    said = site.fetch("--json")
    assert said.code == 0, said.err + said.out
    files = folder_files()
    sums = dict(reversed(line.split("  ", 1)) for line in files.pop("SHA256SUMS").decode().splitlines())
    assert sums == {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    assert {file["path"] for file in said.result["files"]} == files.keys()
    (archive,) = (path for path in files if path.startswith("containers/"))
    assert files.keys() - {archive} == {"plan.json", *(f"models/org--model/{COMMIT}/{path}" for path in FILES)}
    assert said.result["packages"] == [
        "nvidia-container-toolkit=1.20.0-1",
        "nvidia-container-toolkit-base=1.20.0-1",
    ] or ("nvidia-container-toolkit=1.20.0-1" in said.result["packages"])
    assert TOKEN not in said.out + files["plan.json"].decode()


def test_the_archive_is_an_image_that_engines_load(site: Site) -> None:
    site.fetch()
    (path,) = Path("offline/containers").glob("*.tar")
    with tarfile.open(path) as archive:
        read = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    blobs = {name: data for name, data in read.items() if name.startswith("blobs/")}
    assert all(name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}" for name, data in blobs.items())
    ((docker,), (oci,)) = json.loads(read["manifest.json"]), json.loads(read["index.json"])["manifests"]
    assert [read[name] for name in docker["Layers"]] == [LAYER, b"small"]
    assert oci["digest"] == site.image.partition("@")[2]
    assert path.stat().st_size % tarfile.RECORDSIZE == 0


def test_the_plan_in_the_folder_needs_no_network(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.fetch("--there", "/media/disk/offline")
    connect = socket.socket.connect

    def inside(self: socket.socket, address: Any) -> None:
        assert address[0] in ("127.0.0.1", "::1")
        assert address[1] not in (int(each.rpartition(":")[2]) for each in (site.hub.url, site.registry.host))
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", inside)
    monkeypatch.delenv("HF_TOKEN")
    site.linux.online = False
    assert site.line("apply", "plan.json", "--yes").code == 1
    (run,) = site.line("runs", "--json").results
    assert site.line("rollback", run["run"], "--yes").code == 0
    said = site.line("apply", "offline/plan.json", "--yes")
    assert said.code == 0, said.err + said.out
    unit = site.linux.read_file("/etc/systemd/system/winhost-engine-one.service")
    assert unit["text"] == f"docker run {site.registry.host}/org/engine:sha256-{site.image[-64:-48]}\n"
    assert site.line("verify", "offline/plan.json").code == 0
    assert site.line("bundle", "offline/plan.json", "-o", "bundle").code == 0


def test_it_goes_on_where_it_ended(site: Site) -> None:
    path = f"/org/model/resolve/{COMMIT}/sub/model.safetensors"
    site.hub.cut = {path: [5000] * 6}
    said = site.fetch()
    assert said.code == 0, said.err + said.out
    spans = [span for asked, span in site.hub.spans if asked == path]
    assert spans[:3] == [None, "bytes=5000-", "bytes=10000-"]
    site.hub.asked.clear()
    site.registry.asked.clear()
    assert site.fetch().code == 0
    assert site.hub.asked == []
    assert not any("/blobs/" in asked for _, asked, _ in site.registry.asked)


def test_a_file_that_was_spoilt_comes_again(site: Site) -> None:
    assert site.fetch().code == 0
    whole = folder_files()
    for path in whole:
        data = bytearray(whole[path])
        data[len(data) // 2] ^= 1
        (Path("offline") / path).write_bytes(data)
    assert site.fetch().code == 0
    assert folder_files() == whole


def test_an_archive_that_was_cut_off_goes_on(site: Site) -> None:
    assert site.fetch().code == 0
    whole = folder_files()
    (path,) = Path("offline/containers").glob("*.tar")
    path.with_name(f"{path.name}.part").write_bytes(path.read_bytes()[:500_000])
    path.unlink()
    site.registry.asked.clear()
    assert site.fetch().code == 0
    assert folder_files() == whole
    assert any(span for span in site.registry.spans)


def test_what_has_another_hash_is_not_kept(site: Site) -> None:
    layer = f"blobs/sha256:{hashlib.sha256(LAYER).hexdigest()}"
    right = site.registry.answers[layer]
    site.registry.answers[layer] = (200, {}, LAYER[:-1] + b"!")
    said = site.fetch()
    assert (said.code, "sent another layer" in said.err) == (1, True)
    site.registry.answers[layer] = right
    site.hub.files["sub/model.safetensors"] = WEIGHTS[:-1] + b"!"
    said = site.fetch()
    assert (said.code, "came with another hash" in said.err) == (1, True)
    assert "plan.json" not in folder_files()


@pytest.mark.parametrize("status", [401, 403, 404, 503])
def test_a_hub_that_refuses_is_told(site: Site, status: int) -> None:
    site.hub.answers[f"/org/model/resolve/{COMMIT}/config.json"] = (status, {}, b"")
    said = site.fetch()
    assert (said.code, f"config.json: the hub answers {status}" in said.err) == (1, True)


def test_a_folder_of_something_else_is_left_alone(site: Site) -> None:
    Path("offline").mkdir()
    Path("offline/mine").write_text("x")
    said = site.fetch()
    assert (said.code, "was not made by winhost fetch" in said.err) == (2, True)


def test_a_disk_without_room_is_told_first(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    said = site.fetch()
    assert (said.code, "1,000" in said.err or "left" in said.err) == (2, True)
    assert not any("/blobs/" in path for _, path, _ in site.registry.asked)


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", ".winhost/x", "a\\b", "C:x"])
def test_a_path_out_of_the_folder_is_refused(site: Site, path: str) -> None:
    text = Path("plan.json").read_text("utf-8").replace("sub/model.safetensors", path.replace("\\", "\\\\"))
    Path("plan.json").write_text(text)
    assert site.fetch().code != 0
    assert not Path("x").exists()


def test_a_release_is_taken_from_the_folder_as_well(site: Site) -> None:
    program = bytes(range(256)) * 200
    site.hub.files["k3s"] = program
    source = f"{site.hub.url}/org/model/resolve/{COMMIT}/k3s"
    desired = {"source": source, "sha256": hashlib.sha256(program).hexdigest(), "bytes": len(program)}
    book = yaml.load((shipped("playbooks") / "linux.yaml").read_text("utf-8"), FASTEST)
    book["resources"].append(entry("ReleaseFile", {"path": "/usr/local/bin/k3s"}, desired))
    Path("book.yaml").write_text(yaml.safe_dump(book))
    assert site.line("plan", "llm-01", "--playbook", "book.yaml", "-o", "plan.json").code == 0
    site.hub.token = None
    said = site.fetch("--there", "/srv/copies")
    assert said.code == 0, said.err + said.out
    assert Path("offline/releases/k3s").read_bytes() == program
    plan = json.loads(Path("offline/plan.json").read_text("utf-8"))
    (step,) = (each for each in plan["stages"][0]["steps"] if each["resource"] == "ReleaseFile")
    assert step["desired"] == {**desired, "source": "/srv/copies/releases/k3s"}


def test_packages_come_from_the_signed_lists_of_their_archives(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of the plan's own source become a source with the same key; the others go to apt's cache."""
    theirs, vendors = signer("a distribution"), signer("a vendor")
    wanted = [each.split("=") for each in site.fetch("--json").result["packages"]]
    own = [each for each in wanted if each[0].startswith("nvidia-container-toolkit")]
    assert own
    with served(Mirror()) as mirror:
        document, armoured = json.loads(Path("plan.json").read_text("utf-8")), str(Cert.from_bytes(vendors.public))
        for each in sources_in(document):
            each |= {"uri": f"{mirror.url}/vendor/$(ARCH)", "key": armoured}
        Path("plan.json").write_text(json.dumps(document), "utf-8")
        published(Archive(mirror, vendors, flat=True, base="/vendor/amd64"), {"": own})
        rest = [each for each in wanted if each not in own] + [["unwanted", "1"]]
        for suite in ("noble", "noble-updates", "noble-security"):
            made = Archive(mirror, theirs, base="/ubuntu", suite=suite)
            published(made, {"main": rest if suite == "noble-updates" else [], "universe": []})
        monkeypatch.setattr(package_archive, "distribution_keys", lambda: (theirs.public,))
        said = site.fetch("--release", "ubuntu-24.04", "--archive", f"{mirror.url}/ubuntu")
    assert said.code == 0, said.err + said.out
    files = folder_files()
    debs = {path.rpartition("/")[2].split("_")[0]: path for path in files if path.endswith(".deb")}
    assert debs.keys() == {name for name, _ in wanted}
    assert {path.split("/")[0] for name, path in debs.items() if [name, dict(wanted)[name]] in own} == {"apt"}
    sums = dict(reversed(line.split("  ", 1)) for line in files["SHA256SUMS"].decode().splitlines())
    assert all(sums[path] == hashlib.sha256(files[path]).hexdigest() for path in debs.values())
    assert "Not fetched" not in said.out
    uris = {each["uri"] for each in sources_in(json.loads(files["plan.json"]))}
    assert uris == {"file:/srv/winhost-offline/apt/winhost-nvidia-container-toolkit"}


def published(archive: Archive, packages: dict[str, list[list[str]]]) -> None:
    """Return the names and versions of packages by component."""
    for component, listed in packages.items():
        stanzas = []
        for name, version in listed:
            path, data = f"pool/{name}_{version}_amd64.deb", f"{name} {version}".encode()
            archive.mirror.files[f"{archive.base}/{path}"] = data
            stanzas.append(stanza(name, version, "amd64", data, path))
        archive.lists[component] = "\n".join(stanzas)
    archive.publish()


def test_a_mirror_is_that_of_a_release(site: Site) -> None:
    said = site.fetch("--archive", "https://mirror.example.com/ubuntu")
    assert (said.code, "name that with --release" in said.err) == (2, True)


def sources_in(document: Any) -> list[dict[str, Any]]:
    """Return the desired states of package sources in stages and steps; a playbook only refers to them."""
    found: list[dict[str, Any]] = []
    if isinstance(document, dict):
        if document.get("resource") == "AptSource" and isinstance(document.get("desired"), dict):
            found += [document["desired"]] if ":/" in str(document["desired"].get("uri")) else []
        found += [each for part in document.values() for each in sources_in(part)]
    return found + [each for part in document for each in sources_in(part)] if isinstance(document, list) else found


def test_one_small_file_is_counted_as_one_and_not_as_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    _show(FetchedFolder("here", "/srv/there", (CopiedFile("plan.json", 4321, "ab" * 32),), (), ()))
    assert "1 file, 4,321 bytes in all, checked by their hashes." in capsys.readouterr().out
