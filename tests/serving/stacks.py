"""Workloads with all that serves them, on a simulated Linux."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from tests.engine.linux_world import LinuxWorld, linux_world
from tests.serving.situations import model
from winhost.model.shipped import shipped
from winhost.model.workload import Workload
from winhost.paths.playbook import read_playbook
from winhost.resources.host import HostFacts
from winhost.serving.stack import EngineImage, Stack, StackRequest, stack

IMAGE = EngineImage(f"registry.example.com/vllm/vllm-openai@sha256:{'ab' * 32}", 9_000_000_000)
KEY = f"alice sha256:{'cd' * 32}"
FILES: dict[str, Any] = {
    "source": "https://hub.example.com/org/model",
    "revision": "0123456789abcdef0123456789abcdef01234567",
    "files": [f"sha256:{'ef' * 32} 15000000000 model.safetensors"],
    "token": None,
}


def request(*names: str, vllm: str = "0.33.0", **changed: Any) -> StackRequest:
    models = tuple(model(each) for each in names or ("chat",))
    plain = StackRequest(
        workload=Workload(models, versions={"vllm": Version(vllm)}),
        runtime="docker",
        image=IMAGE,
        files={each.name: FILES for each in models},
        keys=(KEY,),
        listen=("127.0.0.1", 8443),
    )
    return replace(plain, **changed)


def stack_on(here: LinuxWorld, asked: StackRequest) -> Stack:
    """Joined to the playbook of the path."""
    found = stack(HostFacts(here.facts(())), asked)
    book = read_playbook(shipped("playbooks") / "linux.yaml").model_dump(by_alias=True, mode="json")
    here.resources = (*book["resources"], *found.entries)
    return found


def served_world(folder: Path, asked: StackRequest | None = None, example: str = "ubuntu-2xh100") -> LinuxWorld:
    here = linux_world(folder, example)
    stack_on(here, asked or request())
    return here
