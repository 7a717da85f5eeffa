"""fleet.yaml with one host more or less: all other lines are as they were."""

from pathlib import Path

import pytest

from tests.errors import raises
from tests.rows import each_row
from winhost.model.fleet import Host, load_fleet
from winhost.model.fleet_edit import add_host, remove_host, write_added_host

ENTRY = {"address": "10.0.0.5", "transport": {"user": "CORP\\me", "password": "keyring:winhost/new"}}
BLOCK = [
    "  new:",
    "    address: 10.0.0.5",
    "    transport:",
    "      user: CORP\\me",
    "      password: keyring:winhost/new",
]
TEXTS = {
    "none": "",
    "comments": "# ours\nschema: winhost.fleet/1\nhosts:  # all\n  # the first\n  b:\n    groups: [x] # why\n\n# end\n",
    "no end of line": "schema: winhost.fleet/1\nhosts:\n  b:",
    "not the last part": "schema: winhost.fleet/1\nhosts:\n  b: {}\n  a:\n    groups:\n      - x\n\n"
    "defaults:\n  transport: {port: 5985}\n",
    "no hosts": "schema: winhost.fleet/1\nhosts: {}  # none yet\n",
    "four spaces": "schema: winhost.fleet/1\nhosts:\n    b:\n        address: c\n",
}


@each_row(("name", "text"), TEXTS.items())
def test_a_host_is_added_and_nothing_else_changes(name: str, text: str) -> None:
    new = add_host(text, "new", ENTRY)
    before, after = text.splitlines(), new.splitlines()
    own = [line.strip() for line in BLOCK]
    if name == "no hosts":
        assert after[1] == "hosts:  # none yet"
        before, after = before[:1], [after[0], *after[2:]]
    start = next(number for number, line in enumerate(after) if line.strip() == "new:")
    assert [line.strip() for line in after[start : start + len(own)]] == own
    rest = after[:start] + after[start + len(own) :]
    assert rest == (before or ["schema: winhost.fleet/1", "hosts:"])
    if name not in ("none", "no hosts"):
        assert remove_host(new, "new").splitlines() == before


def test_the_last_host_leaves_a_file_that_is_one(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    host = write_added_host(file, "new", ENTRY)
    assert isinstance(host, Host)
    assert host.transport.user == "CORP\\me"
    file.write_text(remove_host(file.read_text(), "new"))
    assert load_fleet(file).hosts == ()
    assert write_added_host(file, "new", ENTRY) == host


@pytest.mark.parametrize("text", ["schema: winhost.fleet/1\nhosts: {b: {}}\n"])
def test_a_form_that_is_not_changed_is_left_and_the_lines_are_given(text: str) -> None:
    with raises("FleetNotEdited") as caught:
        add_host(text, "new", ENTRY)
    assert "\n".join(BLOCK) in (caught.value.hint or "")


def test_a_host_that_does_not_fit_leaves_the_file(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    text = "schema: winhost.fleet/1\ndefaults:\n  transport: {auth: basic}\n"
    text += "hosts:\n  b:\n    transport: {user: a, password: env:X}\n"
    file.write_text(text)
    with raises("FileFaults"):
        write_added_host(file, "new", {"address": "10.0.0.5", "transport": {"tls": False}})
    assert file.read_text() == text
    with raises("UnfitEntry"):
        write_added_host(file, "new", {"address": "not an address"})
    assert [*tmp_path.iterdir()] == [file]


def test_a_file_in_utf_16_is_read_and_not_changed(tmp_path: Path) -> None:
    """Windows PowerShell 5.1 writes such a one with `>`."""
    file = tmp_path / "fleet.yaml"
    data = "schema: winhost.fleet/1\nhosts: {}\n".encode("utf-16")
    file.write_bytes(data)
    assert load_fleet(file).hosts == ()
    with raises("FleetNotEdited") as caught:
        write_added_host(file, "new", ENTRY)
    assert "it is UTF-16" in caught.value.what
    assert "\n".join(BLOCK) in (caught.value.hint or "")
    assert file.read_bytes() == data
