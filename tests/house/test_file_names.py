"""A file is known by its name alone, as a class is: `machine.py` in four folders says in none of them what it holds."""

from collections import defaultdict
from pathlib import Path

from tests.house.tree import HOUSE
from winhost.cli import COMMANDS

# Names that say a role, which the folder completes: a resource is `resource.py` and its script in a folder of its own.
ROLES = {"__init__.py", "resource.py", "script.ps1", "script.py"}
# YAML is not meant: catalogues have a file for each subject, `reasons/dda.yaml` and `evidence/dda.yaml`.
CODE = {".py", ".ps1"}


def names(house: Path, commands: set[str]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(house.rglob("*")):
        is_command = house / "cli" in path.parents and path.stem in commands
        if path.suffix in CODE and path.name not in ROLES and not is_command:
            found[path.name].append(path.relative_to(house).as_posix())
    return found


def shared(found: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: files for name, files in found.items() if len(files) > 1}


def test_no_two_files_share_a_name() -> None:
    assert shared(names(HOUSE, set(COMMANDS))) == {}


def test_a_shared_name_is_seen(tmp_path: Path) -> None:
    for file in ("lab/host.py", "cli/host.py", "cli/plan.py", "model/plan.py", "lab/__init__.py", "cli/__init__.py"):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert shared(names(tmp_path, {"plan"})) == {"host.py": ["cli/host.py", "lab/host.py"]}
