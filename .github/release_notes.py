"""Prints what CHANGELOG.md says of the version that a tag names, as the text of its release.

    python .github/release_notes.py v1.2.3

Fails where pyproject.toml has another version, or the changelog has none of it with a date: `## 1.2.3 (2026-11-22)`.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes(tag: str, project: str, changelog: str) -> str:
    version = tomllib.loads(project)["project"]["version"]
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag}, and pyproject.toml has version {version}")
    parts = re.split(r"^## (.+)$", changelog, flags=re.MULTILINE)
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        if re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", title):
            return str(text).strip()
    raise SystemExit(f"CHANGELOG.md has no '## {version} (YYYY-MM-DD)'")


if __name__ == "__main__":
    texts = [(ROOT / name).read_text("utf-8") for name in ("pyproject.toml", "CHANGELOG.md")]
    print(notes(sys.argv[1], *texts))
