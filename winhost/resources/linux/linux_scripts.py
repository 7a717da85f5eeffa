"""The Python that runs on a Linux, as one constant text: the agent and the scripts of the resources."""

from hashlib import sha256
from importlib.resources import files as packaged
from importlib.resources.abc import Traversable

from winhost import agent, gateway
from winhost.model.once import once
from winhost.model.one_text import join_modules

AGENT = "agent.py"  # its name in the order of scripts, and in offline packages
MODULE = "linux_agent.py"
# The parts linux_NAME.py next to the agent: first those of the agent itself, each after those that it uses; then those
# that several scripts share.
AGENT_PARTS = (
    *("files", "checks", "packages", "revocable", "marks", "calls", "wire", "serve"),
    *("accounts", "cluster", "disks", "download", "engines", "gpus", "records", "ready", "systemd", "head"),
)
PROBE = "linux_probe.py"
PROBE_PARTS = ("libraries", "peer", "collectives", "h264", "video", "trials")
BOOT = "linux_boot.py"
SERVING_PARTS = (MODULE, *(f"linux_{name}.py" for name in ("files", "wire", "ready", "http", "units")))
KEYS_PART = "key_lines.py"  # a module of the gateway, which reads the keys that this text writes
SERVING_LAST = ("linux_keys.py", "linux_serving.py")
SCRIPT = "script.py"
_LAST_LINE = "serve()\n"


def files() -> dict[str, Traversable]:
    """Return the files in the order in which they are sent: the agent, its parts, then the resources' scripts, as
    `cdi_spec/script.py`.
    """
    root = packaged(__package__)
    scripts = {f"{entry.name}/{SCRIPT}": entry / SCRIPT for entry in root.iterdir()}
    return {
        AGENT: packaged(agent) / MODULE,
        **{f"{name}.py": packaged(agent) / f"linux_{name}.py" for name in AGENT_PARTS},
        **{name: scripts[name] for name in sorted(scripts) if scripts[name].is_file()},
    }


@once
def agent_text() -> str:
    """Return the agent and the scripts as one text of definitions. It is the same for every target and call; values
    travel as JSON.
    """
    return join_modules(files().values())


@once
def probe_text() -> str:
    """Return the text that `winhost probe` sends instead of the agent. It has no resources and changes nothing."""
    names = (PROBE, *(f"linux_{name}.py" for name in PROBE_PARTS))
    return f"{join_modules(packaged(agent) / name for name in names)}\n{_LAST_LINE}"


@once
def boot_text() -> str:
    """Return the text that `winhost boot` sends to a Linux of a dual boot. It has no resources."""
    return f"{join_modules([packaged(agent) / BOOT])}\n{_LAST_LINE}"


@once
def serving_text() -> str:
    """Return the text that `winhost serve` sends to manage engines and the gateway. It has no resources."""
    first, last = ([packaged(agent) / name for name in names] for names in (SERVING_PARTS, SERVING_LAST))
    return f"{join_modules([*first, packaged(gateway) / KEYS_PART, *last])}\n{_LAST_LINE}"


def session_text() -> str:
    """Return the text that is sent once per session: the agent, and the line that starts it."""
    return f"{agent_text()}\n{_LAST_LINE}"


def agent_digest() -> str:
    """Return the SHA-256 of `agent_text` in hexadecimal. Machines with equal digests have the same agent."""
    return sha256(agent_text().encode("ascii")).hexdigest()
