"""Workflows run what was read: actions by their commits, and a release with its own part of the changelog."""

import re
import runpy

import pytest
import yaml

from tests.house.tree import ROOT

WORKFLOWS = {path.name: path.read_text("utf-8") for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
NOTES = runpy.run_path(str(ROOT / ".github/release_notes.py"))["notes"]
PROJECT = '[project]\nversion = "1.2.0"\n'


@pytest.mark.parametrize("name", WORKFLOWS)
def test_an_action_is_pinned_and_its_version_is_told(name: str) -> None:
    used = re.findall(r"uses: (.+)", WORKFLOWS[name])
    assert [each for each in used if not each.startswith("./") and not PINNED.fullmatch(each)] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_job_ends_and_may_write_nothing_it_need_not(name: str) -> None:
    workflow = yaml.safe_load(WORKFLOWS[name])
    assert workflow["permissions"] == {"contents": "read"}
    assert [job for job, each in workflow["jobs"].items() if "uses" not in each and "timeout-minutes" not in each] == []


def test_a_release_says_what_its_version_brings() -> None:
    changelog = "# Changelog\n\n## 1.2.0 (2026-11-22)\n\n- New.\n\n## 1.1.0 (2026-10-01)\n\n- Old.\n"
    assert NOTES("v1.2.0", PROJECT, changelog) == "- New."


@pytest.mark.parametrize(
    ("tag", "title"), [("v1.2.1", "1.2.0 (2026-11-22)"), ("v1.2.0", "1.2.0 (unreleased)"), ("v1.2.0", "1.1.0")]
)
def test_a_release_without_its_changelog_is_none(tag: str, title: str) -> None:
    with pytest.raises(SystemExit, match=r"v1\.2|CHANGELOG"):
        NOTES(tag, PROJECT, f"# Changelog\n\n## {title}\n\n- New.\n")
