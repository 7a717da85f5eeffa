"""Tests of winhost facts import and winhost diff."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line
from winhost.cli.look.commands import TOOLS
from winhost.imports.sources import SOURCES

DATA = Path(__file__).parent.parent / "data" / "imports"
DESK = [
    DATA / "synthetic" / name for name in ("computer-info-win11-pro.json", "lspci-desk.txt", "dxdiag-win11-pro.xml")
]


def edited(path: Path, to: str, change: Callable[[Any], None]) -> Path:
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    other = path.with_name(to)
    other.write_text(json.dumps(document), encoding="utf-8")
    return other


def test_what_was_imported_can_be_judged(line: Line) -> None:
    said = line("facts", "import", *DESK, "-o", "desk.json")
    assert said.code == 0
    assert ", 63.79 GiB memory, " in said.out
    assert "Written to desk.json\nNext:\n  winhost assess desk.json\n" in said.out
    document = json.loads(Path("desk.json").read_text())
    assert document["origin"] == "imported"
    assert document["winhost"].endswith(", from computer-info, lspci, dxdiag")
    judged = line("assess", "--facts", "desk.json", "--json")
    assert "Traceback" not in judged.err
    (result,) = judged.results
    dda = next(option for option in result["options"] if option["path"] == "dda")
    assert "dda.client-sku" in [reason["code"] for reason in dda["reasons"]]


def test_what_is_imported_may_come_from_another_program_and_facts_may_not(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (DATA / "recorded" / "nvidia-smi-2xH200-linux.xml").open() as text:
        monkeypatch.setattr("sys.stdin", text)
        said = line("facts", "import", "-", "--host", "h200", "--json")
    assert len(said.result["facts"]["resources"]["PciDevice"]) == 2
    for words in (("-",), ("--facts", "-")):
        said = line("assess", *words)
        assert (said.code, "not read from standard input" in said.err) == (2, True)


def test_json_holds_the_facts_document(line: Line) -> None:
    said = line("facts", "import", DATA / "recorded" / "nvidia-smi-2xH200-linux.xml", "--host", "h200", "--json")
    assert said.result["facts"]["schema"] == "winhost.facts/3"
    assert said.result["host"] == "h200"
    assert len(said.result["facts"]["resources"]["PciDevice"]) == 2


@pytest.mark.parametrize("name", ["", "a b", "../x", "gpu-01\n", "größe", "-x"])
def test_a_machine_is_called_only_what_a_fleet_could_call_it(line: Line, name: str) -> None:
    said = line("facts", "import", DATA / "recorded" / "nvidia-smi-2xH200-linux.xml", f"--host={name}", "-o", "x.json")
    assert (said.code, "is not a host name: letters, digits" in said.err) == (2, True)
    assert not (line.folder / "x.json").exists()


def test_imported_facts_are_never_planned_from(line: Line) -> None:
    line("facts", "import", *DESK, "-o", "desk.json")
    said = line("plan", "--facts", "desk.json", "--allow-unverified")
    assert said.code == 3
    said = line("plan", "--facts", "desk.json", "--path", "wsl2", "--allow-unverified")
    assert said.code == 3
    assert "Read it from the host, as an administrator: winhost detect" in said.err


def test_imported_facts_make_no_twin(line: Line) -> None:
    line("facts", "import", *DESK, "-o", "desk.json")
    said = line("lab", "up", "desk.json")
    assert said.code == 2
    assert "origin: is imported" in said.err


def test_what_cannot_be_read_is_left_out_and_told(line: Line) -> None:
    Path("notes.txt").write_text("remember the milk")
    other = DATA / "refused" / "systeminfo-part.txt"
    said = line("facts", "import", "notes.txt", other, "gone.xml", *DESK, "-o", "desk.json")
    assert said.code == 0
    assert json.loads(Path("desk.json").read_text())["winhost"].endswith(", from computer-info, lspci, dxdiag")
    warned = said.err.splitlines()
    assert [text.split(" ")[:3] for text in warned] == [["warning:", "left", "out:"]] * 3
    assert "is only a part of systeminfo. Make it with: Get-ComputerInfo" in warned[1]


def test_systeminfo_is_read_and_what_tells_more_is_named(line: Line) -> None:
    said = line("facts", "import", DATA / "synthetic" / "systeminfo-win11-pro.txt", "--json")
    assert said.code == 0
    assert "Get-ComputerInfo | ConvertTo-Json tells more" in said.err
    assert said.result["host"] == "DESK-01"


def test_with_windows_unknown_assess_recommends_nothing_and_says_what_to_run(line: Line) -> None:
    line("facts", "import", DATA / "recorded" / "nvidia-smi-2xH200-linux.xml", "--host", "h200", "-o", "h200.json")
    said = line("assess", "--facts", "h200.json")
    assert "Recommended" not in said.out
    assert "No recommendation: it is unknown which Windows this is." in said.out
    assert "  1. Get-ComputerInfo | ConvertTo-Json > computer.json\n" in said.out
    assert "  4. " not in said.out


def test_a_wrong_file_is_one_sentence_and_exit_2(line: Line) -> None:
    Path("notes.txt").write_text("remember the milk")
    said = line("facts", "import", "notes.txt")
    assert said.code == 2
    assert said.err.startswith("error: notes.txt is of no kind that can be imported\n")
    assert "  Check the path and its permissions. What can be read:" in line("facts", "import", "nowhere.xml").err
    assert line("facts", "import").code == 2


def test_a_file_that_is_too_large_is_no_matter_of_permissions(line: Line) -> None:
    with Path("huge.txt").open("wb") as file:
        file.truncate((16 << 20) + 1)
    said = line("facts", "import", "huge.txt")
    assert said.code == 2
    assert "huge.txt is larger than 16 MiB" in said.err
    assert "permissions" not in said.err


def test_a_nameless_machine_is_asked_for(line: Line) -> None:
    said = line("facts", "import", DESK[1])
    assert said.code == 2
    assert "--host NAME" in said.err


def test_kinds_are_said_twice_and_equal() -> None:
    assert tuple(SOURCES) == TOOLS


def test_no_difference_is_exit_0(line: Line) -> None:
    one = line.facts("server2025-3gpu")
    free = edited(one, "later.json", lambda d: d["resources"]["Memory"][0]["state"].update(free=1))
    said = line("diff", one, free)
    assert said.code == 0
    assert "No fact changed." in said.out
    assert "No verdict changed." in said.out


def test_all_counts_what_moves_by_itself(line: Line) -> None:
    one = line.facts("server2025-3gpu")
    free = edited(one, "later.json", lambda d: d["resources"]["Memory"][0]["state"].update(free=1))
    said = line("diff", one, free, "--all")
    assert said.code == 4
    assert "free (volatile)" in said.out


def test_a_difference_is_exit_4_with_what_it_costs(line: Line) -> None:
    one = line.facts("server2025-3gpu")
    other = edited(
        one, "later.json", lambda d: d["resources"]["OperatingSystem"][0]["state"].update(edition_id="ServerRdsh")
    )
    said = line("diff", one, other)
    assert said.code == 4
    assert "edition_id" in said.out
    assert "→ unsupported" in said.out
    assert "[dda.multi-session] (host)\n    observed: " in said.out.partition("+ unsupported: ")[2]


def test_diff_as_one_document(line: Line) -> None:
    one = line.facts("server2025-3gpu")
    other = edited(one, "later.json", lambda d: d["resources"]["PciDevice"].pop())
    document = line("diff", one, other, "--json").result
    assert document["before"]["host"] == document["after"]["host"]
    gone = [each for each in document["differences"] if each["what"] == "gone"]
    assert [each["resource"] for each in gone] == ["PciDevice"]
    assert gone[0]["before"]["name"]


@pytest.mark.parametrize("broken", ["{", '{"schema": "winhost.plan/3"}'])
def test_diff_of_something_else_is_exit_2(line: Line, broken: str) -> None:
    Path("broken.json").write_text(broken)
    said = line("diff", line.facts("server2025-3gpu"), "broken.json")
    assert said.code == 2
    assert "Traceback" not in said.err


def test_a_hostile_name_is_shown_and_not_obeyed(line: Line) -> None:
    one = line.facts("server2025-3gpu")
    other = edited(one, "later.json", lambda d: d["resources"]["PciDevice"][0]["state"].update(name="\x1b[2J"))
    said = line("diff", one, other)
    assert "\x1b" not in said.out
    assert "\\x1b[2J" in said.out


def test_ids_are_whole_and_values_too(line: Line) -> None:
    one = line.facts("server2025-role-installed")
    long = "a word " * 20
    other = edited(one, "later.json", lambda d: d["resources"]["Vm"][0]["state"].update(name=long))
    vm = json.loads(one.read_text())["resources"]["Vm"][0]["key"]["vm"]
    said = line("diff", one, other)
    assert f"Vm {vm} " in said.out
    assert long.strip() in said.out
    assert "…" not in said.out


def _with_linux(linux: Any, machine_id: str, document: Any) -> None:
    system = [{**each, "state": {**each["state"], "machine_id": machine_id * 32}} for each in linux]
    document["resources"] = {"LinuxSystem": system, **document["resources"]}


def test_two_machines_are_told_apart_from_two_readings(line: Line) -> None:
    one, other = line.facts("server2025-3gpu"), line.facts("win11-pro-1gpu")
    ids = [
        json.loads(file.read_text())["resources"]["OperatingSystem"][0]["state"]["machine_id"] for file in (one, other)
    ]
    said = line("diff", one, other)
    assert said.err == f"warning: these are two machines, not two snapshots of one: their ids are {' and '.join(ids)}\n"
    assert line("diff", one, other, "--json").results[0]["two_machines"] is True
    assert line("diff", one, one).err == ""
    linux = json.loads((DATA.parents[2] / "examples/linux/ubuntu-2xh100.json").read_text())["resources"]["LinuxSystem"]
    of_linux = [
        edited(file, f"of-{number}.json", partial(_with_linux, linux, str(number)))
        for number, file in enumerate((one, other))
    ]
    assert line("diff", *of_linux).err == said.err  # not those of their Linuxes
    unknown = edited(
        other, "unknown.json", lambda d: d["resources"].update(OperatingSystem={"unknown": {"category": "X"}})
    )
    assert line("diff", one, unknown).err == ""  # nobody knows


# ---- folders


@pytest.fixture
def readings(line: Line) -> Path:
    """Make two folders: desk-01 is the same in both, gpu-01 has other GPUs, gpu-03 is only in the second."""
    one, other = line.facts("server2025-3gpu"), line.facts("server2025-role-installed")
    Path("old").mkdir()
    Path("new").mkdir()
    shutil.copy(line.facts("win11-pro-1gpu"), "old")
    shutil.copy(line.facts("win11-pro-1gpu"), "new")
    shutil.copy(one, "old")
    changed = json.loads(one.read_text(encoding="utf-8"))
    del changed["resources"]["PciDevice"][-1]
    Path("new/gpu.json").write_text(json.dumps(changed), encoding="utf-8")
    shutil.copy(other, "new")
    return Path("new")


def test_folders_are_compared_host_by_host(line: Line, readings: Path) -> None:
    said = line("diff", "old", "new")
    assert said.code == 4
    assert "desk-01: nothing changed.\n" in said.out
    assert "- gpu-01, synthetic" in said.out
    assert said.err.startswith("error: gpu-03 is in new, and not in old\n")
    told = {each.get("host") or each["after"]["host"]: each for each in line("diff", "old", "new", "--json").results}
    assert told["desk-01"]["differences"] == []
    assert [each["resource"] for each in told["gpu-01"]["differences"]] == ["PciDevice"]
    assert (told["gpu-03"]["error"]["kind"], told["gpu-03"]["error"]["exit_code"]) == ("OnlyThere", 4)
    assert line("diff", "old", "new", "-o", "name").out.split() == ["gpu-01", "desk-01"]
    assert line("diff", "new", "new").code == 0


def test_a_folder_and_a_file_are_the_host_of_the_file(line: Line, readings: Path) -> None:
    for words in (("old", "new/gpu.json"), ("old/server2025-3gpu.json", "new")):
        said = line("diff", *words, "--json")
        assert (said.code, said.result["after"]["host"]) == (4, "gpu-01")
    assert line("diff", "old", "new/win11-pro-1gpu.json").code == 0


def test_a_broken_file_of_a_folder_loses_nothing_of_the_others(line: Line, readings: Path) -> None:
    (readings / "broken.json").write_text("{")
    said = line("diff", "old", "new")
    assert "desk-01: nothing changed.\n" in said.out
    assert "new/broken.json" in said.err
    shutil.copy("new/gpu.json", "new/again.json")
    said = line("diff", "old", "new")
    assert (said.code, "2 of these are of gpu-01: new/again.json, new/gpu.json" in said.err) == (2, True)
