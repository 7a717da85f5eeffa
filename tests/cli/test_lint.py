"""Tests of winhost lint for files that other programs read without complaining."""

from dataclasses import replace
from pathlib import Path

from tests.cli.conftest import Line
from winhost.lab.hostfile import expand, find
from winhost.model.documents import write_document
from winhost.recipes.wslconfig_limits import VALUES
from winhost.resources.windows.read_only import WslPolicy
from winhost.wslconfig.format import WSLCONFIG
from winhost.wslconfig.keys import keys_of

GOOD = "[wsl2]\nmemory=96GB\n"
TYPED_FROM_A_PAGE = "[ws12]\nnetworkingMode-bridged\nvmSwitch=WSL\n"


def test_a_good_file_is_said_to_be_good(line: Line) -> None:
    Path(".wslconfig").write_text(GOOD)
    said = line("lint", "wslconfig", ".wslconfig")
    assert (said.code, said.out) == (0, ".wslconfig: nothing found\n")


def test_typing_errors_are_found_at_their_places(line: Line) -> None:
    Path(".wslconfig").write_text(TYPED_FROM_A_PAGE)
    said = line("lint", "wslconfig", ".wslconfig")
    assert said.code == 1
    assert ".wslconfig:1:2: " in said.out
    assert ".wslconfig:2:15: " in said.out
    assert "did you mean 'wsl2'?" in said.out


def test_who_names_a_file_first_is_told_the_kinds(line: Line) -> None:
    Path("serve.sh").write_text("vllm serve org/model")
    for word in ("serve.sh", "-"):
        said = line("lint", word)
        assert said.code == 2
        kinds = "autoinstall, cdi, docker-daemon, serve, wslconf, wslconfig"
        assert f"name the kind of file before '{word}': {kinds}" in said.err
    assert "no command 'serv'; did you mean 'serve'?" in line("lint", "serv").err


def test_notes_alone_are_no_failure(line: Line) -> None:
    Path(".wslconfig").write_text("[wsl2]\nvmIdleTimeout=-1\n")
    said = line("lint", "wslconfig", ".wslconfig")
    assert said.code == 0
    assert "wslconfig.short-lived" in said.out


def test_the_version_decides(line: Line) -> None:
    Path(".wslconfig").write_text("[experimental]\nswiotlb=64MB\n")
    assert line("lint", "wslconfig", ".wslconfig", "--wsl", "2.7.14").code == 1
    assert line("lint", "wslconfig", ".wslconfig", "--wsl", "2.9.12").code == 0
    assert line("lint", "wslconfig", ".wslconfig", "--wsl", "newest").code == 2


def test_json_is_one_document(line: Line) -> None:
    Path("wsl.conf").write_text("[boot]\n; x\nsystemd=true\n")
    said = line("lint", "wslconf", "wsl.conf", "--json")
    assert said.code == 1
    assert said.result["file"] == "wsl.conf"
    assert [(it["code"], it["severity"], it["line"], it["column"]) for it in said.result["findings"]] == [
        ("wslconf.semicolon", "degraded", 2, 1),
        ("wslconf.unread", "degraded", 3, 1),
    ]
    Path("wsl.conf").write_text("[boot]\nsystemd=true\n")
    assert line("lint", "wslconf", "wsl.conf", "--json").result == {
        "file": "wsl.conf",
        "host": None,
        "findings": [],
        "evidence": [],
    }


def test_a_file_that_cannot_be_read_is_one_sentence(line: Line) -> None:
    said = line("lint", "wslconfig", "nowhere")
    assert said.code == 2
    assert said.err.startswith("error: nowhere cannot be used (No such file or directory)")
    assert line("lint", "wslconfig", ".").code == 2


def test_what_a_file_holds_moves_no_cursor(line: Line) -> None:
    Path(".wslconfig").write_text("[wsl2]\nnetworkingMode=\x1b[2Jnat\n\x1bx\n")
    said = line("lint", "wslconfig", ".wslconfig")
    assert said.code == 1
    assert "\x1b" not in said.out


def test_a_host_tells_its_wsl_and_what_its_policies_forbid(line: Line, tmp_path: Path) -> None:
    facts, _ = expand(find("win11-pro-1gpu"))
    (policy,) = facts.resources["WslPolicy"]  # type: ignore[misc]
    forbids = replace(policy, state={**policy.state, "allow_networking": False})
    held = replace(facts, resources={**facts.resources, "WslPolicy": (forbids,)})
    (tmp_path / "held.json").write_text(write_document(held), encoding="utf-8")
    (tmp_path / "free.json").write_text(write_document(facts), encoding="utf-8")
    (tmp_path / ".wslconfig").write_text("[wsl2]\nnetworkingMode=mirrored\n", encoding="utf-8")
    assert line("lint", "wslconfig", ".wslconfig", "--facts", "free.json").code == 0
    said = line("lint", "wslconfig", ".wslconfig", "--facts", "held.json", "--json")
    assert (said.code, said.result["host"]) == (1, facts.host)
    assert "wslconfig.policy" in {each["code"] for each in said.result["findings"]}


def test_every_policy_that_a_key_heeds_is_one_that_a_host_tells() -> None:
    heeded = {key.policy for key in keys_of(WSLCONFIG) if key.policy}
    assert heeded - set(VALUES.values()) == {"AllowKernelDebugUserSetting"}  # of a key that nobody is told of
    assert set(VALUES.values()) <= heeded
    assert set(VALUES) <= set(WslPolicy.__annotations__)
