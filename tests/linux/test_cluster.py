"""k3s as the agent brings it, starts from it and asks it: its program stands in, all else is real."""

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.linux.hub import REVISION, Hub, serving
from tests.linux.sandbox import Sandbox
from tests.processes import started
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError
from winhost.core.undo import find_undo
from winhost.resources.linux.cluster import NO_OBJECTS
from winhost.resources.linux.files import NO_RELEASE
from winhost.resources.registry import RULES

pytestmark = pytest.mark.real

STAND_IN = (Path(__file__).parent / "k3s_standin.py").read_bytes()
PROGRAM = {"path": "/usr/local/bin/k3s"}
IMAGES = {"path": "/var/lib/rancher/k3s/agent/images/k3s-airgap-images-amd64.tar.zst"}
TOKEN = {"path": "/etc/rancher/k3s/join-token"}
NODE = {"node": "gpu-01"}
SECRET = "K10abc::server:canary-of-the-token"
CONFIG = "/etc/rancher/k3s/config.yaml"


@pytest.fixture(autouse=True)
def _clean(sandbox: Sandbox) -> None:
    folders = ("/etc/rancher", "/var/lib/rancher", "/var/lib/winhost", "/usr/local/bin/k3s", "/run/models-are-away")
    sandbox.run("rm", "-rf", *folders, f"{PROGRAM['path']}.winhost-part")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub({"k3s": STAND_IN, "images": b"images" * 1000})) as made:
        yield made


def release(hub: Hub, name: str, **more: Any) -> dict[str, Any]:
    data = hub.files[name]
    return {
        "source": f"{hub.source}/resolve/{REVISION}/{name}",
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        **more,
    }


def code_of(call: Any) -> str:
    with pytest.raises(RemoteError) as caught:
        call()
    assert SECRET not in str(caught.value)
    return caught.value.fault.code


def undo(resource: str, answer: Any, desired: Mapping[str, Any]) -> Any:
    before = {name: answer.before[name] for name in desired}
    return find_undo(RULES[resource], before, answer.after, answer.after)


def put_k3s(sandbox: Sandbox) -> None:
    sandbox.write(PROGRAM["path"], STAND_IN.decode(), 0o755)


@contextmanager
def running(sandbox: Sandbox, role: str, **config: Any) -> Iterator[None]:
    """Start k3s as its unit does."""
    lines = [f"{key.replace('_', '-')}: {json.dumps(value)}" for key, value in config.items()]
    sandbox.write(CONFIG, "\n".join(lines) + "\n")
    with started(sandbox.inside(PROGRAM["path"], role), stderr=subprocess.DEVNULL) as process:
        for _ in range(200):
            if sandbox.path("/var/lib/rancher/k3s/agent/imported").exists() or process.poll() is not None:
                break
            sandbox.run("sleep", "0.05")
        yield
        process.kill()


# --- Files


def test_the_program_comes_by_its_hash_and_can_be_run(agent: Agent, sandbox: Sandbox, hub: Hub) -> None:
    wanted = release(hub, "k3s")
    answer = agent.set("ReleaseFile", PROGRAM, wanted, {}, {})
    assert answer.after == wanted
    assert sandbox.path(PROGRAM["path"]).stat().st_mode & 0o777 == 0o755
    assert [record.key for record in agent.read(["ReleaseFile"])["ReleaseFile"]] == [PROGRAM]
    back = undo("ReleaseFile", answer, wanted)
    assert back == {"source": None}
    assert agent.set("ReleaseFile", PROGRAM, back, {}, {}).after == NO_RELEASE
    assert not sandbox.path(PROGRAM["path"]).exists()


def test_another_program_is_not_taken_and_not_written_over(agent: Agent, sandbox: Sandbox, hub: Hub) -> None:
    wrong = release(hub, "k3s", sha256="ab" * 32)
    assert code_of(lambda: agent.set("ReleaseFile", PROGRAM, wrong, {}, {})) == "Winhost.NotThisFile"
    assert not sandbox.path(PROGRAM["path"]).exists()
    begun = {**NO_RELEASE, "source": wrong["source"]}
    assert agent.get("ReleaseFile", PROGRAM) == begun, "a rollback then takes its parts away"
    assert agent.set("ReleaseFile", PROGRAM, {"source": None}, {}, {}).after == NO_RELEASE
    sandbox.write(PROGRAM["path"], "#!/bin/sh\n", 0o755)
    assert code_of(lambda: agent.set("ReleaseFile", PROGRAM, release(hub, "k3s"), {}, {})) == "Winhost.NotOurs"
    assert (agent.get("ReleaseFile", PROGRAM) or {})["source"] is None


def test_images_come_from_a_folder_on_the_machine(agent: Agent, sandbox: Sandbox, hub: Hub) -> None:
    sandbox.write("/var/lib/copies/images", hub.files["images"].decode())
    wanted = release(hub, "images", source="/var/lib/copies/images")
    assert agent.set("ReleaseFile", IMAGES, wanted, {}, {}).after == wanted
    assert sandbox.path(IMAGES["path"]).read_bytes() == hub.files["images"]


def test_a_token_is_written_for_root_alone_and_never_told(agent: Agent, sandbox: Sandbox) -> None:
    wanted = {"secret": "env:K3S_TOKEN"}
    answer = agent.set("SecretFile", TOKEN, wanted, {}, {"secret": SECRET})
    assert (answer.before, answer.after) == ({"secret": None}, wanted)
    file = sandbox.path(TOKEN["path"])
    assert (file.read_text(), file.stat().st_mode & 0o777) == (SECRET + "\n", 0o600)
    records = [each.read_text() for each in sandbox.path("/var/lib/winhost").rglob("*") if each.is_file()]
    assert records
    assert not any("canary" in record for record in records)
    assert agent.set("SecretFile", TOKEN, undo("SecretFile", answer, wanted), {}, {}).after == {"secret": None}
    assert not file.exists()


def test_a_token_that_somebody_changed_is_theirs(agent: Agent, sandbox: Sandbox) -> None:
    agent.set("SecretFile", TOKEN, {"secret": "env:K3S_TOKEN"}, {}, {"secret": SECRET})
    sandbox.path(TOKEN["path"]).write_text("another")
    assert agent.get("SecretFile", TOKEN) == {"secret": None}
    agent.set("SecretFile", TOKEN, {"secret": None}, {}, {})
    assert sandbox.path(TOKEN["path"]).read_text() == "another"


def test_a_token_takes_its_secret_and_nobody_elses_place(agent: Agent, sandbox: Sandbox) -> None:
    wanted = {"secret": "env:K3S_TOKEN"}
    assert code_of(lambda: agent.set("SecretFile", TOKEN, wanted, {}, {})) == "Winhost.BadRequest"
    sandbox.write(TOKEN["path"], "theirs\n", 0o600)
    assert code_of(lambda: agent.set("SecretFile", TOKEN, wanted, {}, {"secret": SECRET})) == "Winhost.NotOurs"


# --- Nodes


def test_a_server_is_a_node_that_was_waited_for(agent: Agent, sandbox: Sandbox) -> None:
    put_k3s(sandbox)
    assert agent.get("ClusterNode", NODE) == {"ready": False}
    with running(sandbox, "server", node_name="gpu-01", node_label=["nvidia.com/gpu.present=true"]):
        assert agent.set("ClusterNode", NODE, {"ready": True}, {}, {}).after == {"ready": True}
        other = {"node": "gpu-02"}
        assert (
            code_of(lambda: agent.set("ClusterNode", other, {"ready": True}, {}, {"within": 1}))
            == "Winhost.NodeNotReady"
        )


@pytest.mark.parametrize(("token", "joins"), [(SECRET, True), ("another", False)])
def test_a_machine_joins_with_the_token_of_the_cluster(
    agent: Agent, sandbox: Sandbox, token: str, joins: bool, tmp_path: Path
) -> None:
    put_k3s(sandbox)
    elsewhere = Sandbox(tmp_path / "server")
    put_k3s(elsewhere)
    try:
        with running(elsewhere, "server", node_name="server-01", token=SECRET):
            agent.set("SecretFile", TOKEN, {"secret": "env:K3S_TOKEN"}, {}, {"secret": token})
            options = {"server": "http://127.0.0.1:6443", "token_file": TOKEN["path"], "node_name": "gpu-01"}
            with running(sandbox, "agent", **options):
                found = agent.get("ClusterNode", NODE)
    finally:
        elsewhere.close()
    assert found == {"ready": joins}


# --- What is in the cluster


def listed(*items: Mapping[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}) + "\n"


def thing(kind: str, name: str, namespace: str | None = "winhost", **body: Any) -> dict[str, Any]:
    place = {"namespace": namespace} if namespace else {}
    api = "apps/v1" if kind in ("Deployment", "DaemonSet") else "v1"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **place}, **body}


SPACE = thing("Namespace", "winhost", None)
CLAIM = thing("PersistentVolumeClaim", "engine-chat")
ENGINE = thing("Deployment", "engine-chat", spec={"replicas": 1})
GATEWAY = thing("Service", "gateway", spec={"ports": [{"name": "http", "port": 8443}]})
PLUGIN = thing("DaemonSet", "nvidia-device-plugin", "kube-system")
OBJECTS = {"name": "winhost"}


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[None]:
    put_k3s(sandbox)
    with running(sandbox, "server", node_name="gpu-01", node_label=["nvidia.com/gpu.present=true"]):
        yield


def gpus(sandbox: Sandbox) -> str | None:
    """Return the number of GPUs that the node offers to pods."""
    said = sandbox.run(PROGRAM["path"], "kubectl", "get", "node", "gpu-01", "--output", "json").stdout
    found: str | None = json.loads(said)["status"]["allocatable"].get("nvidia.com/gpu")
    return found


@pytest.mark.usefixtures("server")
def test_what_is_applied_serves_and_goes_but_for_what_others_may_have_filled(agent: Agent, sandbox: Sandbox) -> None:
    wanted = {"text": listed(SPACE, PLUGIN, CLAIM, ENGINE, GATEWAY), "serves": True}
    answer = agent.set("ClusterObjects", OBJECTS, wanted, {}, {"within": 60})
    assert (answer.before, answer.after) == (NO_OBJECTS, {**wanted, "token": None})
    assert gpus(sandbox) == "2"
    gone = agent.set("ClusterObjects", OBJECTS, undo("ClusterObjects", answer, wanted), {}, {})
    assert gone.after == NO_OBJECTS
    assert [warning.split(" stays")[0] for warning in gone.warnings] == [
        "PersistentVolumeClaim engine-chat",
        "Namespace winhost",
    ]
    assert gpus(sandbox) is None, "the plugin is gone"


@pytest.mark.usefixtures("server")
def test_what_is_no_longer_wanted_goes_and_an_object_that_is_gone_is_seen(agent: Agent, sandbox: Sandbox) -> None:
    agent.set("ClusterObjects", OBJECTS, {"text": listed(SPACE, PLUGIN, ENGINE)}, {}, {})
    after = agent.set("ClusterObjects", OBJECTS, {"text": listed(SPACE, ENGINE)}, {}, {}).after
    assert after["text"] == listed(SPACE, ENGINE)
    assert gpus(sandbox) is None
    words = ("kubectl", "delete", "--namespace", "winhost", "--ignore-not-found", "Deployment.apps", "engine-chat")
    assert sandbox.run(PROGRAM["path"], *words).returncode == 0
    assert agent.get("ClusterObjects", OBJECTS) == {**NO_OBJECTS, "text": listed(SPACE)}


@pytest.mark.usefixtures("server")
def test_taking_away_that_was_cut_off_can_be_done_again(agent: Agent, sandbox: Sandbox) -> None:
    """Everything is gone by then, but for the record of it."""
    agent.set("ClusterObjects", OBJECTS, {"text": listed(PLUGIN)}, {}, {})
    words = (
        "kubectl",
        "delete",
        "--namespace",
        "kube-system",
        "--ignore-not-found",
        "DaemonSet.apps",
        "nvidia-device-plugin",
    )
    assert sandbox.run(PROGRAM["path"], *words).returncode == 0
    assert agent.get("ClusterObjects", OBJECTS) == {**NO_OBJECTS, "text": listed()}
    assert agent.set("ClusterObjects", OBJECTS, {"text": None}, {}, {}).after == NO_OBJECTS
    kept = sandbox.path("/var/lib/winhost/cluster")
    assert not kept.exists() or [*kept.iterdir()] == [], "the folder goes where folders have attributes"


@pytest.mark.usefixtures("server")
def test_what_does_not_serve_is_told_with_what_it_waits_for(agent: Agent, sandbox: Sandbox) -> None:
    wanted = {"text": listed(SPACE, ENGINE, GATEWAY), "serves": True}
    sandbox.write("/run/models-are-away", "")
    assert code_of(lambda: agent.set("ClusterObjects", OBJECTS, wanted, {}, {"within": 8})) == "Winhost.NotServing"
    assert (agent.get("ClusterObjects", OBJECTS) or {})["text"] == wanted["text"], "it was applied, and is known"


@pytest.mark.usefixtures("server")
def test_a_manifest_that_is_refused_can_be_taken_back(agent: Agent, sandbox: Sandbox) -> None:
    wrong = {"text": listed(PLUGIN, ENGINE)}  # without its namespace
    assert code_of(lambda: agent.set("ClusterObjects", OBJECTS, wrong, {}, {})) == "Winhost.ProgramFailed"
    assert agent.get("ClusterObjects", OBJECTS) == {**NO_OBJECTS, "text": listed(PLUGIN)}
    assert agent.set("ClusterObjects", OBJECTS, {"text": None}, {}, {}).after == NO_OBJECTS
    assert gpus(sandbox) is None, "what had been applied of it is gone"


@pytest.mark.parametrize("text", ["{}\n", '{"items": [{}]}\n', '{"items": [1]}\n', '{"items": 1}\n', "{\n"])
def test_what_is_no_list_of_manifests_is_refused(agent: Agent, sandbox: Sandbox, text: str) -> None:
    put_k3s(sandbox)
    assert code_of(lambda: agent.set("ClusterObjects", OBJECTS, {"text": text}, {}, {})) == "Winhost.BadRequest"


@pytest.mark.usefixtures("server")
def test_a_token_of_the_hub_reaches_the_cluster_and_nothing_else(agent: Agent, sandbox: Sandbox) -> None:
    wanted = {"text": listed(SPACE, ENGINE), "serves": True, "token": "env:HF_TOKEN"}
    answer = agent.set("ClusterObjects", OBJECTS, wanted, {}, {"within": 60, "secret": SECRET})
    assert answer.after == wanted
    kept = [each.read_text() for each in sandbox.path("/var/lib/winhost").rglob("*") if each.is_file()]
    assert not any("canary" in text for text in kept)
    gone = agent.set("ClusterObjects", OBJECTS, undo("ClusterObjects", answer, wanted), {}, {})
    assert gone.after == NO_OBJECTS
    words = ("kubectl", "get", "secret", "hub-token", "--namespace", "winhost", "--ignore-not-found")
    assert sandbox.run(PROGRAM["path"], *words).stdout == ""


@pytest.mark.usefixtures("server")
def test_a_token_takes_its_value(agent: Agent) -> None:
    wanted = {"text": listed(SPACE, ENGINE), "token": "env:HF_TOKEN"}
    assert code_of(lambda: agent.set("ClusterObjects", OBJECTS, wanted, {}, {})) == "Winhost.BadRequest"
    assert (agent.get("ClusterObjects", OBJECTS) or {})["token"] is None
