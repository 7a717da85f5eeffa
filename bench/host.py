"""The host that everything is measured on: three GPUs, the role installed, one VM to give them to."""

from pathlib import Path

from winhost.lab.hostfile import expand, find
from winhost.model.documents import write_document

NAME = "server2025-role-installed"
VM = "llm-01"


def write_facts(folder: Path) -> Path:
    """The file that `winhost detect -o` would write."""
    facts, _ = expand(find(NAME))
    file = folder / "facts.json"
    file.write_text(write_document(facts), encoding="utf-8")
    return file
