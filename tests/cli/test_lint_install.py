"""Tests of `winhost lint autoinstall`."""

import json
from pathlib import Path

from tests.autoinstall.layouts import MANIFEST
from tests.cli.conftest import Line
from winhost.autoinstall.guard_order import storage_beside_windows
from winhost.model.documents import write_document

LVM = "version: 1\nstorage: {layout: {name: lvm}}\n"
WRONG = "version: 1\nkeyboard: {layou: us}\nstorage: {layout: {name: lvm}}\n"


def test_it_exits_by_what_it_finds(line: Line) -> None:
    Path("autoinstall.yaml").write_text(WRONG)
    said = line("lint", "autoinstall", "autoinstall.yaml")
    assert said.code == 1
    assert "the largest disk is wiped whole" in " ".join(said.out.split())
    answered = json.loads(line("lint", "autoinstall", "autoinstall.yaml", "--json").out)
    found = {each["code"]: each for each in answered["results"][0]["findings"]}
    assert found["autoinstall.lacks-key"]["severity"] == "unsupported"
    assert found["autoinstall.layout-no-mode"]["subject"] == "storage.layout"


def test_what_winhost_writes_passes_beside_the_manifest_that_it_was_made_of(line: Line) -> None:
    Path("manifest.json").write_text(write_document(MANIFEST))
    whole = {
        "version": 1,
        "early-commands": ["python3 guard.py"],
        "apt": {"fallback": "offline-install"},
        "ssh": {"install-server": True},
        "user-data": {"users": [{"name": "ada", "ssh_authorized_keys": ["ssh-ed25519 AAAA"]}]},
        "storage": storage_beside_windows(MANIFEST),
    }
    Path("autoinstall.yaml").write_text(json.dumps(whole))
    said = line("lint", "autoinstall", "autoinstall.yaml", "manifest.json")
    assert (said.code, said.out) == (0, "autoinstall.yaml: nothing found\n")


def test_facts_without_partitions_and_no_version_are_refused_by_name(line: Line) -> None:
    Path("autoinstall.yaml").write_text(LVM)
    said = line("lint", "autoinstall", "autoinstall.yaml", "--installer", "noble")
    assert (said.code, "write it as 24.04.4" in said.err) == (2, True)
    Path("facts.json").write_text("{}")
    assert line("lint", "autoinstall", "autoinstall.yaml", "facts.json").code == 2
