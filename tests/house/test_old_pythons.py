"""Code that runs in a Linux works with the Python of that Linux, which is older than that of development."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import HOUSE, ROOT
from tests.processes import PATIENCE_S
from winhost.bundle.bundle_files import LINUX_MODULES

READS = [
    HOUSE / "gateway/key_lines.py",
    *HOUSE.glob("agent/linux_*.py"),
    HOUSE / "bundle/linux_run.py",
    HOUSE / "bundle/linux_bundle.py",
    *HOUSE.glob("resources/linux/*/script.py"),
]
CHANGES = [
    HOUSE / "core",
    HOUSE / "gateway",
    ROOT / "winhost_weights",
    *(HOUSE / f"bundle/linux_{name}.py" for name in LINUX_MODULES),
]


def lacks(oldest: str, *words: Path | str) -> str:
    """Return the features that a Python version does not have, with their positions. words: the arguments of vermin."""
    start = ["-c", "from vermin.main import main; main()"]
    options = ["--quiet", "--processes=1", "--violations", "--no-tips", "--no-parse-comments", "-vvv", f"-t={oldest}-"]
    done = subprocess.run(
        [sys.executable, *start, *options, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_changes_need_python_3_10_and_no_later_one() -> None:
    assert lacks("3.10", "--eval-annotations", *CHANGES) == ""


def test_reading_needs_python_3_8_and_no_later_one() -> None:
    assert lacks("3.8", *READS) == ""


@pytest.mark.parametrize(
    ("oldest", "text"), [("3.8", "x = 'ab'.removeprefix('a')\n"), ("3.10", "from datetime import UTC\n")]
)
def test_what_a_version_lacks_is_seen(tmp_path: Path, oldest: str, text: str) -> None:
    (tmp_path / "late.py").write_text(text)
    assert "late.py" in lacks(oldest, tmp_path / "late.py")
