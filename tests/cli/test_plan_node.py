"""winhost plan for a workload in a cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line
from tests.cli.test_render_kubernetes import DIGEST, hub, key, workload
from winhost.images import k3s_release
from winhost.lab.linux.containers import SimulatedCluster
from winhost.lab.running_lab import Lab

LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
PLAN = ("plan", "--facts", LINUX, "--path", "linux", "--api-key", "alice=env:ALICE", "--digest", DIGEST)

__all__ = ["hub", "key"]

SECRET = "K10abc::server:canary-of-the-token"


@pytest.mark.parametrize(
    ("changed", "words", "said"),
    [
        ({"deploy": "units"}, ("--join", "https://a:6443"), "--join is for a workload with deploy: kubernetes"),
        ({}, ("--join", "https://a:6443"), "--join and --join-token go together"),
        ({}, ("--join", "http://a:6443", "--join-token", "env:T"), "begins with https://"),
        ({}, ("--join", "https://a:6443", "--join-token", "K10abc::server:secret"), "--join-token"),
        ({}, ("--listen", "127.0.0.1:1"), "--listen is not for a workload with deploy: kubernetes"),
        ({"versions": {"vllm": "0.33.0"}}, ("--engine-program", "/opt/vllm"), "--engine-program is not for a workload"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anything_is_asked(
    line: Line, changed: dict[str, Any], words: tuple[str, ...], said: str
) -> None:
    found = line(*PLAN, "--workload", workload(line, **changed), *words)
    assert found.code == 2
    assert said in " ".join(found.err.split())
    assert "K10abc" not in found.out + found.err


def test_no_node_is_made_of_a_linux_beside_windows(line: Line) -> None:
    facts = line.facts("win11-free-space")
    words = ("--path", "dual-boot", "--allow-unverified", "--set", "keys.by=entra", "--digest", DIGEST)
    found = line("plan", facts, *words, "--api-key", "alice=env:ALICE", "--workload", workload(line))
    assert (found.code, "Leave deploy: kubernetes out" in " ".join(found.err.split())) == (2, True)


def test_options_of_a_cluster_are_for_a_workload(line: Line) -> None:
    found = line("plan", "--facts", LINUX, "--path", "linux", "--k3s-images")
    assert (found.code, "--k3s-images is for a workload" in " ".join(found.err.split())) == (2, True)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("K3S_TOKEN", SECRET)
    asset = k3s_release.ReleaseAsset("k3s", "https://releases.example.com/k3s", "ab" * 32, 70_000_000)
    monkeypatch.setattr(k3s_release, "k3s_release", lambda *_, **__: (asset,))
    with Lab([LINUX], tmp_path, scale=0.001) as running:
        yield running


@pytest.mark.costly
@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.usefixtures("hub")
def test_over_ssh_it_is_planned_applied_verified_and_rolled_back(line: Line, lab: Lab, joins: bool) -> None:
    host = next(iter(lab.linux_hosts))
    words = ("--join", "https://10.0.0.5:6443", "--join-token", "env:K3S_TOKEN") if joins else ()
    serves = ("--workload", workload(line), "--api-key", "alice=env:ALICE", "--digest", DIGEST)
    plugin = ("--device-plugin", f"nvcr.io/nvidia/k8s-device-plugin@{DIGEST}")
    said = line("plan", host, "--path", "linux", *serves, *plugin, *words, "-o", "plan.json")
    assert said.code == 0, said.err
    shown = " ".join(said.out.split())
    assert "unverified: winhost has seen k3s as a stand-in alone" in shown
    assert "network: interrupt the host's network, or open a port on it" in shown
    assert ("winhost render kubernetes WORKLOAD prints its manifests" in shown) is joins
    applied = line("apply", "plan.json", "--accept", "restart,packages,containers,network", "--yes")
    assert applied.code == 0, applied.err
    cluster = lab.linux_hosts[host].linux.part(SimulatedCluster)
    assert (cluster.node, cluster.serves) == ("llm-01", not joins)
    assert line("verify", "plan.json").code == 0
    (run,) = [each["run"] for each in line("runs", "--json").results]
    back = line("rollback", run, "--accept", "network", "--yes")
    assert back.code == 0, back.err
    assert (
        cluster.is_installed,
        {kind for kind, _, _ in cluster.objects} <= {"namespace", "persistentvolumeclaim"},
    ) == (
        False,
        True,
    )
    assert lab.linux_hosts[host].linux.disk.text("/etc/rancher/k3s/join-token") is None
    written = [path.read_text("utf-8", "replace") for path in line.folder.rglob("*") if path.is_file()]
    assert not any(SECRET in text for text in [*written, said.out, applied.out, applied.err, back.out, back.err])
