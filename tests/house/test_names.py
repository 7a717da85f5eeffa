"""A class is known by its name alone: no two public ones share it, or a reader has to ask which is meant."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.house.tree import HOUSE


def public_classes(root: Path) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file in sorted(root.rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(file.relative_to(root).as_posix())
    return found


def shared(found: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: files for name, files in found.items() if len(files) > 1}


def test_no_two_public_classes_share_a_name() -> None:
    assert shared(public_classes(HOUSE)) == {}


def test_a_shared_name_is_seen(tmp_path: Path) -> None:
    for file in ("one.py", "other.py"):
        (tmp_path / file).write_text("class Card: ...\nclass _Own: ...\n")
    assert shared(public_classes(tmp_path)) == {"Card": ["one.py", "other.py"]}
