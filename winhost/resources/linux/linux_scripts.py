"""The Python that runs on a Linux target: the agent and one script per resource, as one constant text."""

from hashlib import sha256
from importlib.resources import files as packaged
from importlib.resources.abc import Traversable

from winhost import agent, gateway
from winhost.model.once import once
from winhost.model.one_text import join_modules

AGENT = "agent.py"  # its name in the order of scripts, and in offline packages
MODULE = "linux_agent.py"
# Of the agent: linux_NAME.py beside it. First what it consists of, each after what that is made of; then what several
# scripts have in common.
PARTS = (
    *("files", "checks", "packages", "revocable", "marks", "calls", "wire", "serve"),
    *("accounts", "cluster", "disks", "download", "engines", "gpus", "records", "ready", "systemd", "head"),
)
PROBE = "linux_probe.py"
PROBE_PARTS = ("libraries", "peer", "collectives", "h264", "video", "trials")
BOOT = "linux_boot.py"
SERVING = (MODULE, *(f"linux_{name}.py" for name in ("files", "wire", "ready", "http", "units")))
KEYS = "key_lines.py"  # of the gateway, which reads what this writes
SERVING_LAST = ("linux_keys.py", "linux_serving.py")
SCRIPT = "script.py"
_LAST_LINE = "serve()\n"


def files() -> dict[str, Traversable]:
    """The agent, then the resources by their folders, as `cdi_spec/script.py`: the order in which they are sent."""
    root = packaged(__package__)
    scripts = {f"{entry.name}/{SCRIPT}": entry / SCRIPT for entry in root.iterdir()}
    return {
        AGENT: packaged(agent) / MODULE,
        **{f"{name}.py": packaged(agent) / f"linux_{name}.py" for name in PARTS},
        **{name: scripts[name] for name in sorted(scripts) if scripts[name].is_file()},
    }


@once
def agent_text() -> str:
    """The agent and the scripts: definitions only. The same for every target and every call; values travel as JSON."""
    return join_modules(files().values())


@once
def probe_text() -> str:
    """The text that `winhost probe` sends instead of the agent. It knows no resource and changes nothing."""
    names = (PROBE, *(f"linux_{name}.py" for name in PROBE_PARTS))
    return f"{join_modules(packaged(agent) / name for name in names)}\n{_LAST_LINE}"


@once
def boot_text() -> str:
    """The text that `winhost boot` sends to a Linux beside Windows. It knows no resource."""
    return f"{join_modules([packaged(agent) / BOOT])}\n{_LAST_LINE}"


@once
def serving_text() -> str:
    """The text that `winhost serve` sends to look after engines and the gateway. It knows no resource."""
    first, last = ([packaged(agent) / name for name in names] for names in (SERVING, SERVING_LAST))
    return f"{join_modules([*first, packaged(gateway) / KEYS, *last])}\n{_LAST_LINE}"


def session_text() -> str:
    """The text that a session gets once: the agent, and the line that makes it serve."""
    return f"{agent_text()}\n{_LAST_LINE}"


def agent_digest() -> str:
    """SHA-256 of `agent_text`, in hexadecimal: by it people tell whether two places have the same agent."""
    return sha256(agent_text().encode("ascii")).hexdigest()
