"""A Linux that becomes a node, planned, applied and taken back where k3s is simulated."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases import FASTEST
from tests.cluster.clusters import check, machine, request, wide
from tests.engine.linux_world import CONSENTS, LinuxWorld, linux_world
from tests.serving.situations import model
from winhost.cluster.node import (
    CONFIG,
    TOKEN,
    ClusterStack,
    Join,
    NodeFile,
    NodeRequest,
    cluster_stack,
    config_file,
    unit_file,
)
from winhost.core.answers import Record
from winhost.engine.failures import RunInterrupted
from winhost.lab.linux.containers import SimulatedCluster
from winhost.model.errors import RefusedError
from winhost.model.secrets import SecretRef
from winhost.model.shipped import shipped
from winhost.paths.playbook import read_playbook
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES

PROGRAM = NodeFile("/usr/local/bin/k3s", "https://releases.example.com/v1/k3s", "ab" * 32, 70_000_000)
IMAGES = NodeFile(
    "/var/lib/rancher/k3s/agent/images/k3s-airgap-images-amd64.tar.zst",
    "https://releases.example.com/v1/images",
    "cd" * 32,
    200_000_000,
)
JOIN = Join("https://10.0.0.5:6443", "env:K3S_TOKEN")
ACCEPTED = (*CONSENTS, "network")
OBJECTS = "/var/lib/winhost/cluster"
SECRET = "K10abc::server:canary-of-the-token"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K3S_TOKEN", SECRET)


def node(**changed: Any) -> NodeRequest:
    return replace(NodeRequest("llm-01", "v1.35.5+k3s1", (PROGRAM,), request()), **changed)


def world(folder: Path, asked: NodeRequest | None = None, example: str = "ubuntu-2xh100") -> LinuxWorld:
    here = linux_world(folder, example, engine="none")
    stack_on(here, asked or node())
    return here


def stack_on(here: LinuxWorld, asked: NodeRequest) -> ClusterStack:
    found = cluster_stack(HostFacts(here.facts(())), asked)
    book = read_playbook(shipped("playbooks") / "linux.yaml").model_dump(by_alias=True, mode="json")
    here.resources = (*book["resources"], *found.entries)
    return found


def cluster(here: LinuxWorld) -> SimulatedCluster:
    return here.own.linux.part(SimulatedCluster)


# --- What is written -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [node(), node(files=(PROGRAM, IMAGES)), node(join=JOIN), node(wsl="mirrored")])
def test_entries_are_ones_that_a_playbook_can_have(asked: NodeRequest) -> None:
    for each in list[Any](cluster_stack(machine("wsl" if asked.wsl else "metal"), asked).entries):
        type_ = RESOURCE_TYPES[each["resource"]]
        assert type_.check_names(each["key"], each["desired"]) is None
        assert type_.check_values(each["desired"]) is None


def test_a_token_stands_in_a_file_of_its_own_and_nowhere_else() -> None:
    found = cluster_stack(machine("metal"), node(join=JOIN))
    assert SECRET not in json.dumps(found.entries)
    config = yaml.load(config_file(node(join=JOIN)), FASTEST)
    assert (config["server"], config["token-file"], "token" in config) == (JOIN.server, TOKEN, False)
    assert "ExecStart=/usr/local/bin/k3s agent\n" in unit_file(node(join=JOIN))
    (secret,) = (each for each in list[Any](found.entries) if each["resource"] == "SecretFile")
    assert secret["desired"] == {"secret": "env:K3S_TOKEN"}
    assert not any(each["resource"] == "ClusterObjects" for each in list[Any](found.entries))
    assert any("winhost render kubernetes WORKLOAD prints its manifests" in note for note in found.notes)


def test_a_cluster_that_starts_keeps_its_secrets() -> None:
    config = yaml.load(config_file(node()), FASTEST)
    assert config["node-label"] == ["nvidia.com/gpu.present=true"]
    assert (config["write-kubeconfig-mode"], config["secrets-encryption"]) == ("0600", True)
    assert "server" not in config
    assert "ExecStart=/usr/local/bin/k3s server\n" in unit_file(node())


def test_in_wsl_the_network_has_one_adapter_and_it_is_said_what_is_one_there() -> None:
    found = cluster_stack(machine("wsl"), node(wsl="mirrored"))
    assert yaml.load(config_file(node(wsl="mirrored")), FASTEST)["flannel-iface"] == "eth0"
    assert "mount --make-rshared /" in unit_file(node(wsl="mirrored"))
    assert any("swap is off, and bridged networking is preferred" in note for note in found.notes)
    assert any("kubernetes-per-gpu.one-device" in note for note in found.notes)


def test_behind_nat_no_cluster_can_be_joined() -> None:
    with pytest.raises(RefusedError) as refused:
        cluster_stack(machine("wsl"), node(wsl="nat", join=JOIN))
    assert refused.value.code == "JoinsBehindNat"
    assert any("behind-nat" in note for note in cluster_stack(machine("wsl"), node(wsl="nat")).notes)
    assert any("behind-nat" in note for note in cluster_stack(machine("wsl"), node(wsl="bridged")).notes) is False


def test_what_is_put_into_the_cluster_fits_its_schemas_and_brings_no_second_runtime_class() -> None:
    (entry,) = (
        each
        for each in list[Any](cluster_stack(machine("metal"), node()).entries)
        if each["resource"] == "ClusterObjects"
    )
    items = json.loads(entry["desired"]["text"])["items"]
    assert "RuntimeClass" not in [each["kind"] for each in items]
    for each in items:
        check(each, "1.35")


def test_a_model_over_nodes_needs_a_cluster_that_has_some() -> None:
    wanted = request(wide())
    with pytest.raises(RefusedError) as refused:
        cluster_stack(machine("metal"), node(cluster=wanted))
    assert refused.value.code == "SpansNodes"
    assert cluster_stack(machine("metal"), node(cluster=wanted, join=JOIN)).entries


@pytest.mark.parametrize(
    ("port", "ours", "refused"),
    [("6443", False, True), ("10250", False, True), ("6443", True, False), ("22", False, False)],
)
def test_a_node_of_another_cluster_is_left_alone(tmp_path: Path, port: str, ours: bool, refused: bool) -> None:
    """One that winhost made is planned again."""
    facts = linux_world(tmp_path).facts(())
    listens = Record({"processes": ("k3s-server",), "everywhere": True}, {"address": "0.0.0.0", "port": port})
    brought = Record({"source": "https://a/k3s", "sha256": "ab" * 32, "bytes": 1}, {"path": PROGRAM.path})
    told = {**facts.resources, "ListeningPort": (listens,), "ReleaseFile": (brought,) if ours else ()}
    there = HostFacts(replace(facts, resources=told))
    if not refused:
        assert cluster_stack(there, node()).entries
        return
    with pytest.raises(RefusedError) as caught:
        cluster_stack(there, node())
    assert caught.value.code == "AlreadyNode"


# --- What it does ----------------------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("example", ["ubuntu-2xh100", "ubuntu-2xl4-no-driver"])
def test_a_cluster_starts_serves_and_is_taken_back(tmp_path: Path, example: str) -> None:
    here = world(tmp_path, node(files=(PROGRAM, IMAGES)), example)
    before = here.state()
    assert here.apply(here.plan(), ACCEPTED).holds
    assert cluster(here).node == "llm-01"
    assert "winhost.json" in here.own.linux.disk.list_names(OBJECTS)
    assert here.apply(here.plan(), ACCEPTED).changed == 0
    assert here.rollback(ACCEPTED).outcome == "rolled back"
    assert here.state() == before


def test_a_machine_joins_and_its_token_reaches_no_file_of_ours(tmp_path: Path) -> None:
    here = world(tmp_path, node(join=JOIN))
    before = here.state()
    assert here.apply(here.plan(), ACCEPTED).holds
    assert (cluster(here).node, cluster(here).serves) == ("llm-01", False)
    assert here.rollback(ACCEPTED).outcome == "rolled back"
    assert here.state() == before
    kept = [path.read_text("utf-8") for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not any(SECRET in text for text in kept)


@pytest.mark.costly
def test_a_token_of_the_hub_is_put_there_by_reference(tmp_path: Path) -> None:
    asked = node(cluster=request(model("chat", token=SecretRef.parse("env:K3S_TOKEN"))))
    here = world(tmp_path, asked)
    before = here.state()
    assert here.apply(here.plan(), ACCEPTED).holds
    assert ("secret", "winhost", "hub-token") in cluster(here).objects
    assert here.apply(here.plan(), ACCEPTED).changed == 0
    assert here.rollback(ACCEPTED).outcome == "rolled back"
    assert here.state() == before
    assert not any(SECRET in path.read_text("utf-8") for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.costly
def test_another_workload_changes_what_is_in_the_cluster_and_comes_back(tmp_path: Path) -> None:
    here = world(tmp_path)
    assert here.apply(here.plan(), ACCEPTED).holds
    first = here.own.linux.disk.text(f"{OBJECTS}/winhost.json")
    stack_on(here, node(cluster=request(model("chat"), model("coder"))))
    plan = here.plan()
    assert [step.resource for step in plan.steps] == ["ClusterObjects"]
    assert here.apply(plan, ACCEPTED).holds
    assert ("deployment", "winhost", "engine-coder") in cluster(here).objects
    assert here.rollback(ACCEPTED).outcome == "rolled back"
    assert here.own.linux.disk.text(f"{OBJECTS}/winhost.json") == first
    assert ("deployment", "winhost", "engine-coder") not in cluster(here).objects


def test_a_node_that_stopped_is_drift(tmp_path: Path) -> None:
    here = world(tmp_path)
    assert here.apply(here.plan(), ACCEPTED).holds
    here.own.linux.systemd.stop("winhost-k3s.service")
    assert "k3s" in [step.title for step in here.plan().steps]


def test_k3s_comes_before_its_unit_and_the_unit_before_what_is_in_the_cluster(tmp_path: Path) -> None:
    here = world(tmp_path, node(files=(PROGRAM, IMAGES)))
    plan = here.plan()
    assert {"ReleaseFile", "DebianPackage"} <= {step.resource for step in plan.steps}, "k3s finds the runtime there"
    later = [each.resource for each in plan.deferred if each.resource != "CdiSpec"]
    assert later == ["SystemdUnit", "ClusterNode", "ClusterObjects"]


def test_without_a_network_nothing_starts(tmp_path: Path) -> None:
    here = world(tmp_path)
    plan = here.plan()
    here.own.linux.online = False
    with pytest.raises(RunInterrupted):
        here.apply(plan, ACCEPTED)
    assert here.rollback(ACCEPTED).outcome == "rolled back"
    assert here.own.linux.read_file(CONFIG)["text"] is None
