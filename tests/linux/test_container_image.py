"""Images of containers, with a real Podman and a registry on loopback."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.linux.registry import PASSWORD, USER, Registry, running
from tests.linux.sandbox import Sandbox
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError
from winhost.core.undo import Keep, find_undo
from winhost.resources.linux.containers import NO_IMAGE
from winhost.resources.registry import RULES

pytestmark = pytest.mark.real

REFERENCE = "env:REGISTRY"
STORAGE = """\
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
"""


@pytest.fixture(scope="module")
def podman(sandbox: Sandbox) -> Sandbox:
    if not Path("/usr/bin/podman").exists():
        pytest.skip("there is no podman")
    sandbox.write("/etc/containers/storage.conf", STORAGE)
    return sandbox


@pytest.fixture
def registry(podman: Sandbox) -> Iterator[Registry]:
    with running(Registry()) as made:
        trust(podman, made)
        yield made


def trust(podman: Sandbox, made: Registry) -> None:
    """Allow the registry without TLS, because it is on loopback."""
    text = f'[[registry]]\nlocation = "127.0.0.1:{made.port}"\ninsecure = true\n'
    podman.write("/etc/containers/registries.conf.d/test.conf", text)


def key(image: str) -> dict[str, str]:
    return {"engine": "podman", "image": image}


def change(agent: Agent, image: str, desired: dict[str, Any], secret: str | None = None) -> Any:
    how = {} if secret is None else {"secret": secret}
    return agent.set("ContainerImage", key(image), desired, {}, how)


def refused(agent: Agent, image: str, desired: dict[str, Any], secret: str | None = None) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        change(agent, image, desired, secret)
    assert PASSWORD not in str(caught.value)
    return caught.value


def undone(answer: Any, desired: dict[str, Any]) -> Any:
    before = {name: answer.before[name] for name in desired}
    return find_undo(RULES["ContainerImage"], before, answer.after, answer.after)


@pytest.mark.parametrize("which", ["image", "of_all_machines"])
def test_an_image_is_pulled_by_its_digest_and_taken_away(agent: Agent, registry: Registry, which: str) -> None:
    image = getattr(registry, which)
    assert agent.get("ContainerImage", key(image)) == NO_IMAGE
    answer = change(agent, image, {"present": True})
    assert (answer.after["present"], len(answer.after["id"])) == (True, 64)
    found = {record.key["image"] for record in agent.read(["ContainerImage"])["ContainerImage"]}
    assert image in found
    assert change(agent, image, {"present": True}).after == answer.after
    undo = undone(answer, {"present": True})
    assert change(agent, image, undo).after == NO_IMAGE


def test_the_password_goes_to_the_registry_and_stays_nowhere(agent: Agent, registry: Registry, podman: Sandbox) -> None:
    registry.locked = True
    assert refused(agent, registry.image, {"present": True}).fault.code == "Winhost.ProgramFailed"
    assert refused(agent, registry.image, {"present": True}, f"{USER}:wrong").fault.code == "Winhost.ProgramFailed"
    assert refused(agent, registry.image, {"present": True}, "no colon").fault.code == "Winhost.BadRequest"
    desired = {"present": True, "credentials": REFERENCE}
    answer = change(agent, registry.image, desired, f"{USER}:{PASSWORD}")
    assert answer.after["credentials"] == REFERENCE
    assert registry.asked
    found = podman.run("grep", "-rlFe", PASSWORD, "/run", "/var/lib/winhost", "/etc", "/root/.docker", "/root/.config")
    assert found.stdout == ""
    assert not podman.path("/run/winhost-registry").exists()
    assert change(agent, registry.image, undone(answer, desired)).after == NO_IMAGE


def test_there_must_be_room_for_it(agent: Agent, registry: Registry) -> None:
    assert refused(agent, registry.image, {"present": True, "bytes": 10**15}).fault.code == "Winhost.NoRoom"
    assert agent.get("ContainerImage", key(registry.image)) == NO_IMAGE
    answer = change(agent, registry.image, {"present": True})
    assert answer.warnings == ("podman does not tell how large it is; without `bytes` the room for it is not checked.",)
    assert change(agent, registry.image, {"present": True, "bytes": 4096}).after["bytes"] == 4096


def test_what_winhost_did_not_bring_stays(agent: Agent, registry: Registry, podman: Sandbox) -> None:
    podman.run("podman", "pull", "--quiet", registry.image)
    answer = change(agent, registry.image, {"present": True, "credentials": REFERENCE}, f"{USER}:{PASSWORD}")
    assert (answer.before["present"], answer.after["credentials"]) == (True, REFERENCE)
    assert refused(agent, registry.image, {"present": False}).fault.code == "Winhost.NotOurs"


def test_what_a_container_uses_stays(agent: Agent, registry: Registry, podman: Sandbox) -> None:
    answer = change(agent, registry.image, {"present": True})
    made = podman.run("podman", "create", "--name=llm-01", "--network=none", registry.image, "/hello")
    assert made.returncode == 0, made.stderr
    now = agent.get("ContainerImage", key(registry.image)) or {}
    assert now["used_by"] == ["llm-01"]
    assert find_undo(RULES["ContainerImage"], {"present": False}, answer.after, now) == Keep("llm-01 uses it now")
    assert refused(agent, registry.image, {"present": False}).fault.code == "Winhost.InUse"
    podman.run("podman", "rm", "llm-01")
    assert change(agent, registry.image, {"present": False}).after == NO_IMAGE


def test_an_archive_is_loaded_if_its_hash_is_right(agent: Agent, registry: Registry, podman: Sandbox) -> None:
    podman.run("podman", "pull", "--quiet", registry.image)
    podman.run("podman", "tag", registry.image, "localhost/saved:1")
    saved = podman.run("podman", "save", "--output=/var/saved.tar", "localhost/saved:1")
    assert saved.returncode == 0, saved.stderr
    podman.run("podman", "image", "rm", "--force", registry.image, "localhost/saved:1")
    sha256 = hashlib.sha256(podman.path("/var/saved.tar").read_bytes()).hexdigest()
    desired = {"present": True, "archive": "/var/saved.tar", "archive_sha256": "0" * 64}
    assert refused(agent, registry.image, desired).fault.code == "Winhost.NotThisImage"
    desired["archive_sha256"] = sha256
    answer = change(agent, registry.image, desired)
    assert answer.after["id"] is not None
    assert change(agent, registry.image, desired).after == answer.after
    other = registry.image[:-1] + ("0" if registry.image[-1] != "0" else "1")
    assert refused(agent, other, desired).fault.code == "Winhost.NotOurs", "the name is taken"
    assert change(agent, registry.image, {"present": False}).after == NO_IMAGE
    assert "saved" not in podman.run("podman", "image", "ls").stdout


HOSTILE = [
    "--help@sha256:" + "0" * 64,
    "test@sha256:" + "0" * 64,
    "docker.io/a:latest",
    "docker.io/a b@sha256:" + "0" * 64,
]


@pytest.mark.parametrize("image", HOSTILE)
def test_what_is_no_image_by_digest_is_refused(agent: Agent, podman: Sandbox, image: str) -> None:
    assert refused(agent, image, {"present": True}).fault.code == "Winhost.BadRequest"


def test_it_waits_for_an_engine(agent: Agent, podman: Sandbox) -> None:
    if not Path("/usr/bin/docker").exists():
        with pytest.raises(Exception, match="DebianPackage"):
            agent.get("ContainerImage", {"engine": "docker", "image": "docker.io/a@sha256:" + "0" * 64})
