"""Windows hosts with a plan that ends at an endpoint: the path's own playbook, joined with what serves a workload."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engine.guest_world import STATIC, GuestWorld, guest_world
from tests.engine.wsl2_world import Wsl2World, playbook, wsl2_world
from tests.hub.stand_in_hub import COMMIT, StandInHub
from tests.hub.stand_in_hub import serving as serving_hub
from tests.serving.stacks import IMAGE
from winhost.cli.plan.stack import PlannedStack
from winhost.cli.plan.stack_options import StackOptions
from winhost.cli.serve.hosts import describe_endpoint, find_serving_run
from winhost.cli.shells import Shell
from winhost.engine.journal import read_journal
from winhost.engine.run_context import Outcome
from winhost.engine.run_state import replay
from winhost.lab.linux.linux_machine import Linux
from winhost.paths.playbook import PathRequest
from winhost.resources.host import HostFacts
from winhost.serving.stack import Stack

CONSENTS = ("restart", "network", "vm-stop", "vm-turn-off", "headless", "force-dismount", "packages", "containers")
CONSENTS = (*CONSENTS, "data")
KEY = "key-of-alice-that-nobody-guesses"
MODEL: dict[str, Any] = {
    "id": "org/model",
    "revision": COMMIT,
    "parameters": 1_000_000_000,
    "dtype": "bfloat16",
    "context": 4096,
    "shape": {"layers": 28, "kv_heads": 4, "head_dim": 128, "hidden": 1536, "vocabulary": 151936},
}


def workload(folder: Path, exposure: str = "loopback", more: Mapping[str, Any] | None = None, **models: Any) -> Path:
    """Of one small model, `chat`, or of others; more: of the file beside them."""
    file = folder / "workload.yaml"
    document = {"schema": "winhost.workload/1", "models": models or {"chat": MODEL}, "exposure": exposure}
    document |= {"versions": {"vllm": "0.33.0"}, **(more or {})}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


@contextmanager
def hub_of_model() -> Iterator[StandInHub]:
    """That has its files."""
    with serving_hub(StandInHub(files={"config.json": b"{}", "model.safetensors": bytes(5000)})) as hub:
        yield hub


@pytest.fixture
def hub() -> Iterator[StandInHub]:
    """The hub, for tests that import this; all tests of a folder would otherwise read what plans with a stack read."""
    with hub_of_model() as found:
        yield found


def joining(folder: Path, hub: StandInHub, **words: Any) -> PlannedStack:
    key = folder / "alice.key"
    key.write_text(KEY, encoding="ascii")
    key.chmod(0o600)
    file = workload(folder, words.pop("exposure", "loopback"), words.pop("more", None))
    said = {"api_key": (f"alice=file:{key}",), "engine_image": IMAGE.pinned, "hub": hub.url, **words}
    return PlannedStack(StackOptions(workload=file, **said))


def join(here: Wsl2World | GuestWorld, folder: Path, hub: StandInHub, **words: Any) -> Stack:
    """The plans of this host end at an endpoint from now on."""
    if isinstance(here, Wsl2World):
        here.book = playbook()
    else:
        here.joined = None
    joined, found = joining(folder, hub, **words).add_to_request(HostFacts(here.facts()), _request(here))
    if isinstance(here, Wsl2World):
        here.book = joined.playbook.content
    else:
        here.joined = joined.playbook.content
    return found


def _request(here: Wsl2World | GuestWorld) -> PathRequest:
    return here.request if isinstance(here, Wsl2World) else here.request()


def windows(folder: Path, path: str, host: str | None = None) -> Wsl2World | GuestWorld:
    """A host for this path, not yet joined."""
    if path == "wsl2":
        return wsl2_world(folder, host or "win11-pro-1gpu")
    return guest_world(folder, network=STATIC, host=host or "server2025-role-installed")


def inside(here: Wsl2World | GuestWorld) -> Linux:
    """The Linux that its plan ends with."""
    return here.inside.linux if isinstance(here, Wsl2World) else here.guest.answers.linux


def lines_at_the_end(here: Any, outcome: Outcome) -> list[str]:
    """What a run tells of the endpoint that it made."""
    record = replay(outcome.run, read_journal(here.store.existing_journal(outcome.run)))
    served = find_serving_run(record, None, outcome.checks)
    return list(describe_endpoint(served, Shell.POSIX)) if served else []
