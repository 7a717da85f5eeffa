"""One plan from Windows to a node of a cluster: over the guest or distro to k3s and what it runs, in one run."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hub.stand_in_hub import StandInHub
from tests.serving.one_plan import CONSENTS, KEY, MODEL, hub_of_model, inside, windows
from tests.serving.stacks import IMAGE
from winhost.cli.plan.stack import PlannedStack
from winhost.cli.plan.stack_options import ClusterOptions, StackOptions
from winhost.images.k3s_release import ReleaseAsset
from winhost.lab.linux.containers import SimulatedCluster
from winhost.model.errors import RefusedError, UsageError
from winhost.resources.host import HostFacts

PATHS = pytest.mark.parametrize("path", ["wsl2", "dda"])
STAYS = {"wsl2": {"Wsl"}, "dda": set()}  # winhost never downgrades WSL
JOIN = {"join": "https://10.0.0.5:6443", "join_token": "env:K3S_TOKEN"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    monkeypatch.setenv("K3S_TOKEN", "canary-of-the-token")
    asset = ReleaseAsset("k3s", "https://releases.example.com/k3s", "ab" * 32, 70_000_000)
    monkeypatch.setattr("winhost.images.k3s_release.k3s_release", lambda *_, **__: (asset,))
    with hub_of_model() as found:
        yield found


def join(here: Any, folder: Path, hub: StandInHub, models: Any = None, **words: Any) -> Any:
    """The plans of this host end at a node from now on."""
    file, key = folder / "workload.yaml", folder / "alice.key"
    document = {"schema": "winhost.workload/1", "deploy": "kubernetes", "models": models or {"chat": MODEL}}
    file.write_text(yaml.safe_dump({**document, "versions": {"vllm": "0.33.0"}}), encoding="utf-8")
    key.write_text(KEY, encoding="ascii")
    key.chmod(0o600)
    said = StackOptions(workload=file, api_key=(f"alice=file:{key}",), engine_image=IMAGE.pinned, hub=hub.url)
    planned = PlannedStack(said, ClusterOptions(no_device_plugin=False, device_plugin=IMAGE.pinned, **words))
    planned.check()
    asked = here.request if hasattr(here, "book") else here.request()
    joined, found = planned.add_to_request(HostFacts(here.facts()), asked)
    if hasattr(here, "book"):
        here.book = joined.playbook.content
    else:
        here.joined = joined.playbook.content
    return found


def cluster(here: Any) -> SimulatedCluster:
    found: SimulatedCluster = inside(here).part(SimulatedCluster)
    return found


@pytest.mark.costly
@PATHS
def test_it_is_one_run_from_windows_to_a_cluster_that_serves_and_back(
    tmp_path: Path, path: str, hub: StandInHub
) -> None:
    here = windows(tmp_path, path)
    found = here.state()
    join(here, tmp_path, hub)
    plan = here.plan()
    assert {"ClusterNode", "ClusterObjects", "ReleaseFile"} <= {each.resource for each in plan.deferred}
    outcome = here.apply(plan, CONSENTS)
    assert (outcome.outcome, outcome.holds) == ("applied", True)
    assert ("service", "winhost", "gateway") in cluster(here).objects
    assert inside(here).apt.packages.get("docker.io") is None or path == "wsl2", "nothing but k3s runs containers"
    assert here.rollback(CONSENTS).outcome == "rolled back"
    now = here.state()
    assert {name for name in {*found, *now} if found.get(name) != now.get(name)} == STAYS[path]


@pytest.mark.costly
@PATHS
def test_it_joins_a_cluster_with_a_token_that_no_file_of_ours_has(tmp_path: Path, path: str, hub: StandInHub) -> None:
    here = windows(tmp_path, path)
    join(here, tmp_path, hub, **JOIN)
    assert here.apply(here.plan(), CONSENTS).holds
    assert (cluster(here).node is not None, cluster(here).serves) == (True, False)
    kept = [each.read_text("utf-8") for each in tmp_path.rglob("*") if each.is_file()]
    assert not any("canary-of-the-token" in text for text in kept)


def test_wsl_has_no_swap_then_and_it_is_said_before_what_is_one_there(tmp_path: Path, hub: StandInHub) -> None:
    here: Any = windows(tmp_path, "wsl2", "win11-pro-2xl20-wddm")
    found = join(here, tmp_path, hub)
    assert here.book["settings"]["swap"] == "0"
    said = "\n".join(found.notes)
    assert "swap is off, and bridged networking is preferred" in said
    assert "kubernetes-per-gpu.one-device" in said
    assert "kubernetes-per-gpu.mirrored" in said
    with pytest.raises(RefusedError) as refused:
        join(here, tmp_path, hub, models={name: copy.deepcopy(MODEL) for name in "ab"})
    assert refused.value.code == "NotInPods"


def test_swap_that_is_wanted_is_refused(tmp_path: Path, hub: StandInHub) -> None:
    here: Any = windows(tmp_path, "wsl2")
    here.book = {**here.request.playbook.content, "settings": {**here.request.playbook.settings, "swap": "8 GiB"}}
    with pytest.raises(UsageError) as refused:
        join(here, tmp_path, hub)
    assert refused.value.code == "SwapInCluster"
