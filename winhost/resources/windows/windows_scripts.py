"""The PowerShell that runs on a host, as one constant text: the agent, its helpers and the scripts of the resources."""

from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files as packaged
from importlib.resources.abc import Traversable

from winhost import agent
from winhost.model.once import once

AGENT = "agent.ps1"
HELPERS = "helpers"  # the folder of scripts that all resources share: files, registry, programs


def files() -> dict[str, Traversable]:
    """Return the script files in the order in which they are sent: the agent, its helpers, then the resources' scripts,
    as `vm_mmio/script.ps1`.
    """
    root = packaged(__package__)
    folders = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    scripts = (script for folder in folders for script in _scripts(root, folder))
    return {AGENT: packaged(agent) / AGENT, **helpers(), **dict(scripts)}


def helpers() -> dict[str, Traversable]:
    """Return the scripts that all resources share, sorted by file name."""
    return dict(_scripts(packaged(agent), HELPERS))


def _scripts(root: Traversable, folder: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(root.joinpath(folder).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".ps1"):
            yield f"{folder}/{entry.name}", entry


def texts() -> dict[str, str]:
    return {name: script.read_bytes().decode("ascii").replace("\r\n", "\n") for name, script in files().items()}


@once
def agent_text() -> str:
    """Return all scripts as one text of definitions. It is the same for every host and call; values travel as JSON."""
    return "\n".join(texts().values())


def distro_script() -> str:
    """Return the constant text that the agent passes to `sh -s VERB` in a distro."""
    _, _, rest = agent_text().partition("function Read-WinhostDistroScript {")
    return rest.partition("@'\n")[2].partition("\n'@")[0]


def job_script() -> str:
    """Return the script that `AccountTasks` writes, and that an account's task for jobs runs."""
    return _script_block("WinhostJobScript")


def watcher_script() -> str:
    """Return the script that `YieldWatcher` writes, and that requests the GPUs in a desktop user's session."""
    return _script_block("WinhostWatcherScript")


def _script_block(name: str) -> str:
    _, _, rest = agent_text().partition(f"$script:{name} = {{")
    return rest.partition("\n}")[0] + "\n"


def agent_digest() -> str:
    """Return the SHA-256 of `agent_text` in hexadecimal. Hosts with equal digests have the same agent."""
    return sha256(agent_text().encode("ascii")).hexdigest()
