"""The Python that runs on a Linux target: the agent and one script per resource, as one constant text."""

import ast
from hashlib import sha256
from importlib.resources import files as packaged
from importlib.resources.abc import Traversable

from winhost import agent
from winhost.model.once import once

AGENT = "agent.py"  # its name in the order of scripts, and in offline packages
MODULE = "linux_agent.py"
PARTS = ("download", "engines")  # of the agent, for several scripts: linux_NAME.py beside it
PROBE = "linux_probe.py"
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
    texts = [script.read_bytes().decode("ascii").replace("\r\n", "\n") for script in files().values()]
    return "\n".join([texts[0], *map(_without_imports_of_ours, texts[1:])])


@once
def probe_text() -> str:
    """What `winhost probe` sends instead of the agent. It knows no resource and changes nothing."""
    text = (packaged(agent) / PROBE).read_bytes().decode("ascii").replace("\r\n", "\n")
    return f"{text}\n{_LAST_LINE}"


def session_text() -> str:
    """What a session gets, once: the agent, and the line that makes it serve."""
    return f"{agent_text()}\n{_LAST_LINE}"


def agent_digest() -> str:
    """SHA-256 of `agent_text`, in hexadecimal: by it people tell whether two places have the same agent."""
    return sha256(agent_text().encode("ascii")).hexdigest()


def _without_imports_of_ours(text: str) -> str:
    """In one text all names are there already, and `__future__` may only be named at its top."""
    lines = text.split("\n")
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("__future__", "winhost"):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(lines)
