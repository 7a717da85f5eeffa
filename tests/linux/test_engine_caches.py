"""An engine's cache and the image of its process are removed with its unit."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.linux.agent_definitions import definitions

UNIT = "winhost-engine-a.service"
STOPPED = {"UnitFileState": "disabled", "ActiveState": "failed"}


def test_it_goes_with_the_unit_and_no_other_does(tmp_path: Path) -> None:
    agent = definitions()

    def moved(path: str) -> str:
        return f"{tmp_path}{path}"

    cache = tmp_path / "var/cache"
    for name in ("winhost-engine-a", "winhost-engine-b"):
        (cache / "private" / name).mkdir(parents=True)
        (cache / "private" / name / "graph").touch()
        (cache / name).symlink_to(f"private/{name}")
    images = tmp_path / "var/lib/winhost-images"
    for name in ("a", "b"):
        (images / name / "image").mkdir(parents=True)
    unit = Path(moved(agent["engine_file"](UNIT)))
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\n")
    programs: list[Any] = []
    agent |= {
        "shutil": SimpleNamespace(rmtree=lambda path: shutil.rmtree(moved(path))),
        "file_status": lambda path: Path(moved(path)).lstat(),
        "read_file": lambda path: Path(moved(path)).read_bytes(),
        "remove": lambda path: Path(moved(path)).unlink(),
        "unit_properties": lambda _: STOPPED,
        "run": lambda *words, **_: programs.append(words),
        "run_checked": lambda *words, **_: programs.append(words),
    }
    agent["change_engine_unit"]({"unit": UNIT}, {"text": None, "enabled": False, "active": False}, {})
    assert not unit.exists()
    assert sorted(each.name for each in cache.iterdir()) == ["private", "winhost-engine-b"]
    assert [each.name for each in (cache / "private").iterdir()] == ["winhost-engine-b"]
    assert [each.name for each in images.iterdir()] == ["b"]
