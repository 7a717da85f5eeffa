"""Tests of winhost render kubernetes."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases import FASTEST
from tests.cli.conftest import Line
from tests.images.stand_in_registry import StandInRegistry, serving
from tests.schemas import faults
from tests.serving.one_plan import KEY
from winhost.cli.plan import stack_options
from winhost.cluster import render_request

DIGEST = f"sha256:{'ab' * 32}"
IMAGES = ("--digest", DIGEST, "--no-device-plugin")
MACHINE = ("--gpus", "2x48GiB", "--memory", "256GiB")
COMMIT = "a" * 40


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICE", KEY)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve a hub with one file for every model; other tests check its answers."""

    def listed(model: str, revision: str, reference: str | None, hub: str) -> dict[str, Any]:
        files = [f"sha256:{'ef' * 32} 15000000000 model.safetensors"]
        return {"source": f"{hub}/{model}", "revision": revision, "files": files, "token": reference}

    monkeypatch.setattr("winhost.cli.plan.stack_parts.model_files", listed)


def workload(line: Line, **changed: object) -> str:
    model = {"id": "org/chat", "revision": COMMIT, "parameters": "1B", "context": 4096}
    shape = {"layers": 28, "kv_heads": 4, "head_dim": 128}
    written = {"schema": "winhost.workload/1", "deploy": "kubernetes", "models": {"chat": {**model, "shape": shape}}}
    file = line.folder / "workload.yaml"
    file.write_text(yaml.safe_dump({**written, **changed}), "utf-8")
    return str(file)


def rendered(line: Line, *words: object, **changed: object) -> Any:
    named = () if "--keys-secret" in words else ("--api-key", "alice=env:ALICE")
    return line("render", "kubernetes", workload(line, **changed), *named, *map(str, words))


@pytest.mark.usefixtures("hub")
def test_it_prints_manifests_with_keys_as_hashes(line: Line) -> None:
    said = rendered(line, *MACHINE, *IMAGES)
    assert said.code == 0, said.err
    kinds = [each["kind"] for each in yaml.load_all(said.out, FASTEST)]
    assert (kinds[0], kinds.count("Deployment"), kinds.count("NetworkPolicy")) == ("Namespace", 2, 3)
    assert "alice sha256:" in said.out
    assert KEY not in said.out + said.err
    assert "note: unverified" in said.err


@pytest.mark.usefixtures("hub")
def test_a_key_for_metrics_is_a_hash_beside_the_others(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRICS", f"{KEY}-for-metrics")
    said = rendered(line, *MACHINE, *IMAGES, "--metrics-key", "prometheus=env:METRICS")
    assert said.code == 0, said.err
    (secret,) = (each for each in yaml.load_all(said.out, FASTEST) if each["kind"] == "Secret")
    api, metrics = secret["stringData"]["keys"].splitlines()
    assert (api[:13], metrics[:18], metrics[-8:]) == ("alice sha256:", "prometheus sha256:", " metrics")
    assert KEY not in said.out + said.err


@pytest.mark.costly
@pytest.mark.usefixtures("hub")
def test_a_folder_is_for_kustomize_and_written_over_its_like_alone(line: Line) -> None:
    words = (*MACHINE, *IMAGES, "-o", "cluster")
    assert rendered(line, *words).code == rendered(line, *words).code == 0
    listed = yaml.load(Path("cluster/kustomization.yaml").read_text("utf-8"), FASTEST)["resources"]
    assert sorted(path.name for path in Path("cluster").iterdir()) == sorted([*listed, "kustomization.yaml"])
    Path("cluster/gateway.yaml").write_text("mine: true\n")
    assert rendered(line, *words).code == 2
    assert rendered(line, *words, "--force").code == 0


@pytest.mark.usefixtures("hub")
def test_registries_are_asked_for_digests(line: Line) -> None:
    with serving(StandInRegistry()) as registry:
        digest = registry.put_image((b"layer",), "v0.33.0")
        name = f"{registry.host}/org/engine"
        said = rendered(line, *MACHINE, "--engine-image", f"{name}:v0.33.0", "--device-plugin", f"{name}:v0.33.0")
    assert said.code == 0, said.err
    (plugin,) = (each for each in yaml.load_all(said.out, FASTEST) if each["kind"] == "DaemonSet")
    assert plugin["spec"]["template"]["spec"]["containers"][0]["image"] == f"{name}@{digest}"


@pytest.mark.usefixtures("hub")
def test_programs_get_it_in_the_published_envelope(line: Line) -> None:
    said = rendered(line, *MACHINE, *IMAGES, "--keys-secret", "mine", "--json")
    schema = line("schema", "rendered").json
    assert [*faults(said.json, schema, schema)] == []
    assert any("the Secret mine" in note for note in said.result["notes"])


@pytest.mark.parametrize(
    ("changed", "words", "said"),
    [
        ({"deploy": "units"}, (), "write deploy: kubernetes"),
        ({"exposure": "cluster"}, (), "takes --tls-secret NAME, or --plain-http"),
        ({"exposure": "lan"}, ("--plain-http",), "name them, as --allow"),
        ({"video": {"streams": 1}}, (), "--ffmpeg-image"),
        ({}, ("--namespace", "Our_Own"), "small letters, digits and dashes"),
        ({}, ("--tls-secret", "../x"), "small letters, digits and dashes"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_what_cannot_be_meant_is_told(
    line: Line, changed: dict[str, object], words: tuple[str, ...], said: str
) -> None:
    found = rendered(line, *MACHINE, *IMAGES, *words, **changed)
    assert found.code == 2
    assert said in " ".join(found.err.split())


def test_a_model_without_a_commit_is_refused(line: Line) -> None:
    found = rendered(line, *MACHINE, *IMAGES, models={"chat": {"parameters": "1B"}})
    assert (found.code, "has no revision" in found.err) == (2, True)


AWAY = "http://127.0.0.1:9"  # nobody listens there


def test_without_a_network_it_renders_what_is_pinned(line: Line) -> None:
    said = rendered(line, *MACHINE, *IMAGES, "--hub", AWAY)
    assert said.code == 0, said.err
    objects = [*yaml.load_all(said.out, FASTEST)]
    (listing,) = (json.loads(each["data"]["model.json"]) for each in objects if "model.json" in each.get("data", {}))
    assert listing == {"source": f"{AWAY}/org/chat", "revision": COMMIT, "files": None}
    assert "the hub was not reached, so its files stand here without hashes" in " ".join(said.err.split())
    (volume,) = (each for each in objects if each["kind"] == "PersistentVolumeClaim")
    assert volume["spec"]["resources"]["requests"]["storage"] == "20Gi"  # twice 1B at 16 bits, and 16 GiB


@pytest.mark.usefixtures("hub")
def test_a_workload_that_names_no_deployment_is_rendered_all_the_same(line: Line) -> None:
    file = Path(workload(line))
    file.write_text(file.read_text("utf-8").replace("deploy: kubernetes\n", ""), "utf-8")
    said = line("render", "kubernetes", file, *MACHINE, *IMAGES)
    assert said.code == 0, said.err
    key = (line.folder / "state/keys/stated.api-key").read_text("utf-8")
    assert sha256(key.encode()).hexdigest() in said.out
    assert key not in said.out + said.err
    sleeping = {"chat": {"revision": COMMIT, "memory": "4 GiB", "state": "sleeping"}}
    file.write_text(yaml.safe_dump({"schema": "winhost.workload/1", "models": sleeping}), "utf-8")
    assert "Kubernetes gives each GPU to one pod" in line("render", "kubernetes", file, *MACHINE, *IMAGES).err


@pytest.mark.usefixtures("hub")
def test_what_wsl_cannot_run_is_refused_by_a_verdict(line: Line) -> None:
    two = {name: {"revision": COMMIT, "memory": "4 GiB"} for name in ("a", "b")}
    found = rendered(line, "--facts", line.facts("win11-pro-2xl20-wddm"), *IMAGES, models=two)
    assert (found.code, "kubernetes-per-gpu.one-device" in found.err) == (3, True)


def test_defaults_are_those_of_the_manifests() -> None:
    assert (stack_options.NAMESPACE, stack_options.KEYS) == (render_request.NAMESPACE, render_request.KEYS)
