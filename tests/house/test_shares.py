"""No room outgrows the house: whoever looks for something has a small place to look in."""

from collections import Counter
from pathlib import Path

from tests.house.test_imports import MAY_IMPORT
from tests.house.tree import HOUSE, ROOT

# What somebody writes and reads and what then runs or decides on a user's machine, and ships. Not counted: text that
# is copied from elsewhere (signing keys, cmdlets.json), `examples/`, which users own, and cases of tests.
WRITTEN = {".py", ".ps1", ".sh", ".j2", ".yaml"}
OF_TESTS = "cases.yaml"
LARGEST = 0.20  # symptoms: whole tables of what programs print


def room_of(path: Path) -> str:
    """A folder of winhost/, or one inside it that is a part of its own."""
    folder, *inner = path.relative_to(HOUSE).parts[:-1] or ("",)
    room = f"{folder}/{inner[0]}" if inner else folder
    return room if room in MAY_IMPORT else folder


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def written(top: Path) -> list[Path]:
    return [path for path in sorted(top.rglob("*")) if path.suffix in WRITTEN and path.name != OF_TESTS]


def shares() -> dict[str, float]:
    counted: Counter[str] = Counter()
    for path in written(HOUSE):
        counted[room_of(path)] += lines(path)
    for shipped in ("playbooks", "templates"):
        counted[shipped] = sum(map(lines, written(ROOT / shipped)))
    return {room: count / counted.total() for room, count in counted.items()}


def test_no_room_has_more_than_its_share() -> None:
    assert {room: f"{share:.1%}" for room, share in shares().items() if share > LARGEST} == {}


def test_every_room_is_counted() -> None:
    assert {path.name for path in HOUSE.iterdir() if (path / "__init__.py").exists()} <= {*shares(), "lab"}
