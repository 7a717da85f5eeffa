"""The PowerShell that runs on a host: the agent, its helpers and one script per resource, as one constant text."""

from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files as packaged
from importlib.resources.abc import Traversable

from winhost import agent
from winhost.model.once import once

AGENT = "agent.ps1"
HELPERS = "helpers"  # the folder of scripts that all resources share: files, registry, programs


def files() -> dict[str, Traversable]:
    """The agent, its helpers, then the resources by their folders, as `vm_mmio/script.ps1`: the order in which
    they are sent.
    """
    root = packaged(__package__)
    folders = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    scripts = (script for folder in folders for script in _scripts(root, folder))
    return {AGENT: packaged(agent) / AGENT, **helpers(), **dict(scripts)}


def helpers() -> dict[str, Traversable]:
    """The scripts that all resources share, in the order of file names."""
    return dict(_scripts(packaged(agent), HELPERS))


def _scripts(root: Traversable, folder: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(root.joinpath(folder).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".ps1"):
            yield f"{folder}/{entry.name}", entry


def texts() -> dict[str, str]:
    return {name: script.read_bytes().decode("ascii").replace("\r\n", "\n") for name, script in files().items()}


@once
def agent_text() -> str:
    """All scripts as one text, with definitions only. It is the same for every host and call; values travel as JSON."""
    return "\n".join(texts().values())


def inside_script() -> str:
    """The constant text that the agent gives to `sh -s VERB` inside a distro."""
    _, _, rest = agent_text().partition("function Read-WinhostDistroScript {")
    return rest.partition("@'\n")[2].partition("\n'@")[0]


def job_script() -> str:
    """The script that the task for an account's jobs runs, as `AccountTasks` writes it."""
    return _block("WinhostJobScript")


def watcher_script() -> str:
    """The script that runs in a person's session and asks for the GPUs, as `YieldWatcher` writes it."""
    return _block("WinhostWatcherScript")


def _block(name: str) -> str:
    _, _, rest = agent_text().partition(f"$script:{name} = {{")
    return rest.partition("\n}")[0] + "\n"


def agent_digest() -> str:
    """SHA-256 of `agent_text`, in hexadecimal: it is equal where two places have the same agent."""
    return sha256(agent_text().encode("ascii")).hexdigest()
