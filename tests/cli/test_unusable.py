"""Unusable paths, numbers, facts, plans, playbooks and forms each give one error."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases import FASTEST
from tests.cli.conftest import Line
from tests.rows import each_row
from winhost.engine.plan_dda import DdaDecisions
from winhost.lab.physics.ssh_keys import public_line
from winhost.lab.running_lab import Lab
from winhost.model.shipped import shipped
from winhost.paths.vocabulary import VOCABULARIES

HOST = "server2025-role-installed"


@pytest.fixture
def facts(line: Line) -> Path:
    return line.facts(HOST)


@pytest.fixture
def plan(line: Line, facts: Path) -> Path:
    assert line("plan", "--facts", facts, "--vm", "llm-01", "-o", "plan.json").code == 0
    return Path("plan.json")


def edited(path: Path, change: Callable[[Any], object]) -> Path:
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


# ---- places


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--facts", "FACTS", "--vm", "llm-01", "-o", "nowhere/plan.json"),
        ("lab", "up", HOST, "-o", "file/x"),
        ("demo", "--keep", "file/x"),
        ("bundle", "-o", "file/x"),
    ],
)
def test_a_place_that_cannot_be_is_named(line: Line, facts: Path, words: tuple[str, ...]) -> None:
    Path("file").touch()
    said = line(*(word.replace("FACTS", str(facts)) for word in words))
    assert said.code == 2
    assert any(f": {place}" in said.err.replace(f"{Path.cwd()}/", "") for place in ("nowhere", "file"))
    assert "cannot be used (" in said.err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no folder that nobody may write to")
def test_a_folder_that_takes_no_bundle_is_named_as_it_was(line: Line) -> None:
    assert line("bundle", "-o", "/proc/mine").err.startswith("error: /proc/mine cannot be used (")


def test_a_state_folder_that_cannot_be_is_named(line: Line, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").touch()
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    monkeypatch.setenv("WINHOST_STATE", "file")
    said = line("apply", "plan.json", "--yes", "--accept", "vm-stop,force-dismount")
    assert said.code == 2
    assert "file/locks cannot be made: " in said.err
    assert "WINHOST_STATE" in said.err


def test_a_state_folder_that_takes_no_lock_is_named_with_where_to_choose_another(
    line: Line, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    monkeypatch.setenv("WINHOST_STATE", "mine")
    for place in ("mine", "mine/locks", "mine/locks/gpu-03.lock"):
        Path(place).mkdir(mode=0o700)
    said = line("apply", "plan.json", "--yes", "--accept", "vm-stop,force-dismount")
    assert said.code == 2
    assert "gpu-03.lock cannot be made: " in said.err
    assert "Set WINHOST_STATE to a folder of your own" in said.err


def test_a_place_that_cannot_be_is_a_document_too(line: Line, facts: Path) -> None:
    said = line("plan", "--facts", facts, "--vm", "llm-01", "-o", "nowhere/plan.json", "--json")
    assert (said.code, said.err) == (2, "")
    assert said.result["error"]["kind"] == "UnusablePlace"


# ---- forms


@pytest.mark.parametrize(
    "words", [("assess", "--at-once", "0"), ("asess",), ("plan", "--no-such"), ("schema", "facts")]
)
def test_wrong_usage_is_a_document_where_json_was_asked_for(line: Line, words: tuple[str, ...]) -> None:
    said = line(*words, "--json")
    assert (said.code, said.err) == (2, "")
    assert (said.result["error"]["kind"], said.result["error"]["exit_code"]) == ("WrongUsage", 2)
    assert "--help" in said.result["error"]["hint"]


@pytest.mark.parametrize("forms", [("--json", "--jsonl"), ("--jsonl", "--json")])
def test_an_answer_has_one_form(line: Line, plan: Path, forms: tuple[str, str]) -> None:
    said = line("apply", plan, "--yes", *forms)
    assert said.code == 2
    assert "choose one" in said.result["error"]["what"]


# ---- numbers


@each_row("option", ["--high", "--low"])
@each_row("size", ["0", "0GiB", "-5", "1.5GiB", "many", "9" * 5000])
def test_a_size_is_a_whole_number_above_nothing(line: Line, facts: Path, option: str, size: str) -> None:
    said = line("plan", "--facts", facts, "--vm", "llm-01", option, size)
    assert said.code == 2
    assert "is not a size" in said.err


@pytest.mark.parametrize("speed", ["0", "-1", "nan", "inf"])
def test_time_in_the_lab_goes_on(line: Line, speed: str) -> None:
    said = line("lab", "up", HOST, "--speed", speed)
    assert said.code == 2
    assert "--speed" in said.err


# ---- facts


def state(resource: str, **values: object) -> Callable[[Any], object]:
    return lambda document: document["resources"][resource][0]["state"].update(values)


@each_row(
    ("change", "told"),
    [
        (
            lambda document: document["resources"]["OperatingSystem"].append(
                document["resources"]["OperatingSystem"][0]
            ),
            "2 rec",
        ),
        (state("Firmware", address_width=-3), "address_width"),
        (state("Firmware", address_width=10**9), "address_width"),
        (state("PciDevice", ranges=[{"start": 1 << 32, "length": -5}]), "ranges.0.length"),
        (state("PciDevice", ranges=[{"start": 1 << 32, "length": 0}]), "ranges.0.length"),
        (state("PciDevice", ranges=[{"start": -1, "length": 4096}]), "ranges.0.start"),
        (state("PciDevice", vram=-1), "vram"),
        (state("Session", peers=["nobody"]), "peers.0: should be an IP address"),
        (state("Wsl", version="newest"), "version: should be a version such as 2.6.1"),
        (state("NetworkAdapter", addresses=[{"address": "here", "prefix": 24, "origin": "dhcp"}]), "addresses.0"),
        (state("NetworkAdapter", addresses=[{"address": "1.2.3.4", "prefix": 64, "origin": "dhcp"}]), "addresses.0"),
        (lambda document: document["resources"]["Vm"][0].update(key={}), "Vm[0].key: should have the parts: vm"),
        (lambda document: document.update(origin="hearsay"), "origin: should be one of"),
        (lambda document: document.update(read_at="never"), "read_at: should be a time"),
        (lambda document: document.update(host=""), "host: is empty"),
    ],
)
def test_facts_that_no_host_has_are_refused_with_the_property(
    line: Line, facts: Path, change: Callable[[Any], object], told: str
) -> None:
    facts = Path(shutil.copy(facts, "edited.json"))
    edited(facts, change)
    for words in (("assess",), ("plan", "--vm", "llm-01")):
        said = line(*words, "--facts", facts)
        assert said.code == 2
        assert told in said.err


def test_a_number_of_thousands_of_digits_is_a_fault_of_its_file(line: Line, facts: Path) -> None:
    facts.write_text(
        facts.read_text(encoding="utf-8").replace('"build": 26100', f'"build": {"9" * 6000}', 1), encoding="utf-8"
    )
    said = line("assess", "--facts", facts)
    assert said.code == 2
    assert "too long" in said.err


def test_a_fact_that_nothing_can_do_without_is_named(line: Line, facts: Path, plan: Path) -> None:
    edited(facts, lambda document: document["resources"].update(OperatingSystem=[]))
    assert "OperatingSystem could not be read" in line("assess", "--facts", facts, "--path", "dda").out
    said = line("verify", plan, "--facts", facts)
    assert said.code == 1
    assert said.err.startswith("error: OperatingSystem could not be read")


# ---- plans


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda document: document.update(stages=[]), "it has no stages"),
        (lambda document: document["stages"][0]["steps"][0].update(resource="Frob"), "there is no resource Frob"),
        (lambda document: document["request"].update(playbook={}), "its playbook: schema"),
        (
            lambda document: document["request"]["playbook"]["resources"][0].update(title="${vm.nam}"),
            "resources[0].title: ${vm.nam} is not decided here; did you mean 'vm.name'?",
        ),
    ],
    ids=["no stages", "unknown resource", "no playbook", "mistyped reference"],
)
@pytest.mark.parametrize("words", [("verify", "--facts", "FACTS"), ("bundle", "-o", "made")])
def test_a_plan_that_cannot_be_is_refused(
    line: Line, facts: Path, plan: Path, change: Callable[[Any], object], told: str, words: tuple[str, ...]
) -> None:
    edited(plan, change)
    command, *rest = (word.replace("FACTS", str(facts)) for word in words)
    said = line(command, plan, *rest)
    assert said.code == 2
    assert told in said.err


def in_step(**fields: object) -> Callable[[Any], object]:
    return lambda document: document["stages"][0]["steps"][0].update(fields)


@each_row(
    ("change", "told"),
    [
        (lambda document: document.update(host=""), "host: is empty"),
        (lambda document: document.update(machine_id=""), "machine_id: is empty"),
        (lambda document: document.update(origin="somewhere"), "origin: should be one of: recorded, imported"),
        (lambda document: document.update(facts_read_at="yesterday"), "facts_read_at: should be a time"),
        (lambda document: document.update(facts_read_at="2026-01-01T00:00:00"), "facts_read_at: should be a time"),
        (lambda document: document.update(winhost="newest"), "winhost: should be a version"),
        (lambda document: document["request"].update(low=-1), "request.low: should be a size"),
        (lambda document: document["stages"][0].update(number=7), "stages[0].number: should be 1"),
        (in_step(id="1.2"), "stages[0].steps[0].id: should be there, and in no other step"),
        (in_step(before={}), "stages[0].steps[0].before: should have the properties of desired"),
        (in_step(before={"state": []}), "stages[0].steps[0].before.state: "),
        (in_step(key={}), "the key of VmPower has the parts: vm"),
        (in_step(role="guest"), "stages[0].steps[0].role: should be"),
        (in_step(risks=["\x1b[2J\x1b]0;x"]), "stages[0].steps[0].risks[0]: is no consent; there are: vm-stop"),
        (in_step(may_need=["all"]), "stages[0].steps[0].may_need[0]: is no consent"),
    ],
)
@each_row("words", [("verify", "--facts", "FACTS"), ("bundle", "-o", "made"), ("apply", "--yes")])
def test_a_field_of_a_plan_that_cannot_be_is_told_with_its_place(
    line: Line, facts: Path, plan: Path, change: Callable[[Any], object], told: str, words: tuple[str, ...]
) -> None:
    plan = Path(shutil.copy(plan, "edited.json"))
    edited(plan, change)
    command, *rest = (word.replace("FACTS", str(facts)) for word in words)
    said = line(command, plan, *rest)
    assert said.code == 2
    assert told in said.err
    assert "\x1b" not in said.err
    assert not Path("made").exists()


def test_what_waits_in_a_plan_waits_for_something_and_asks_what_is_known(line: Line) -> None:
    assert line("plan", "--facts", line.facts("server2025-3gpu"), "--vm", "llm-01", "-o", "plan.json").code == 0
    for field, value, told in (
        ("until", "Rapture", "until: is no resource"),
        ("resource", "Frob", "resource: is no resource"),
        ("asks", ["all"], "asks[0]: is no consent"),
    ):
        made = Path(f"{field}.json")
        made.write_text(Path("plan.json").read_text())
        edited(made, lambda document: document["stages"][0]["deferred"][0].update({field: value}))  # noqa: B023
        said = line("bundle", made, "-o", "made")
        assert (said.code, f"stages[0].deferred[0].{told}" in said.err) == (2, True), said.err


# ---- playbooks


@pytest.mark.parametrize(
    ("shipped_text", "mistyped", "told"),
    [
        ('key: {vm: "${vm.id}"}', 'key: {vm: "${vm.idd}"}', "${vm.idd} is not decided here; did you mean 'vm.id'?"),
        ("for_each: companions", "for_each: gpu", "resources[N].for_each: should be one of: gpus, companions"),
        ("title: Power of ${vm.name}", "title: ${each.name}", "resources[N].title: ${each.name} is not decided here"),
        ("${mmio.why}", "${}", "${} is not decided here; there are: vm.id"),
        ("${mmio.why}", "${_facts}", "${_facts} is not decided here"),
    ],
)
def test_a_reference_to_nothing_is_a_fault_at_its_place(
    line: Line, facts: Path, shipped_text: str, mistyped: str, told: str
) -> None:
    text = (shipped("playbooks") / "dda.yaml").read_text(encoding="utf-8")
    Path("mine.yaml").write_text(text.replace(shipped_text, mistyped, 1), encoding="utf-8")
    said = line("plan", "--facts", facts, "--vm", "llm-01", "--playbook", "mine.yaml")
    assert said.code == 2
    before = text[: text.index(shipped_text)]
    assert f"mine.yaml:{1 + before.count(chr(10))}:" in said.err
    assert told.replace("[N]", f"[{before.count('- resource:') - 1}]") in said.err


@pytest.mark.parametrize("left_out", VOCABULARIES["dda"].together)
def test_a_guest_that_would_be_left_half_way_is_a_fault(line: Line, facts: Path, left_out: str) -> None:
    content = yaml.load((shipped("playbooks") / "dda.yaml").read_text(encoding="utf-8"), FASTEST)
    content["resources"] = [each for each in content["resources"] if each.get("for_each") != left_out]
    Path("mine.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    said = line("plan", "--facts", facts, "--vm", "llm-01", "--playbook", "mine.yaml")
    assert (said.code, f"needs entries for {left_out} as well" in said.err) == (2, True), said.err


@pytest.mark.parametrize(
    ("left_out", "lacks"),
    [
        (
            set(VOCABULARIES["dda"].together),
            "new_vm.guest: needs entries for seeds, guests, first_keys, known_guests, ",
        ),
        ({"new_vms"}, "new_vm: needs entries for new_vms, which this playbook lacks"),
    ],
    ids=["the guest", "the VM"],
)
def test_what_is_asked_for_and_has_no_entry_is_refused(
    line: Line, facts: Path, tmp_path: Path, left_out: set[str], lacks: str
) -> None:
    """Without the refusal, the plan would have no steps for it."""
    content = yaml.load((shipped("playbooks") / "dda.yaml").read_text(encoding="utf-8"), FASTEST)
    content["resources"] = [each for each in content["resources"] if each.get("for_each") not in left_out]
    Path("mine.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    Path("me.pub").write_text(f"{public_line(b'a key that there is none of'.ljust(32))} me\n", encoding="utf-8")
    words = ("plan", "--facts", facts, "--new-vm", "llm-02", "--cpus", "4", "--memory", "16GiB", "--disk", "40GiB")
    disk = ("--vhdx", r"D:\ubuntu.vhdx", "--vhdx-sha256", "0" * 64)
    said = line(*words, *disk, "--ssh-key", "me.pub", "--playbook", "mine.yaml")
    assert (said.code, lacks in " ".join(said.err.split())) == (2, True), said.err


def test_a_playbook_may_refer_to_every_decision_and_to_nothing_else(line: Line, facts: Path) -> None:
    words = VOCABULARIES["dda"]
    public = {name for name in dir(DdaDecisions) if not name.startswith("_")} - {"selection", "check", "inside"}
    assert {word.split(".")[0] for word in words.decisions} | words.lists.keys() == public
    text = (shipped("playbooks") / "dda.yaml").read_text(encoding="utf-8")
    every = " ".join(f"${{{word}}}" for word in words.decisions)
    each = " ".join(f"${{each.{part}}}" for part in words.lists["companions"])
    text = text.replace("The VM ends in this power state.", every).replace("It shares the slot", f"{each} It")
    Path("mine.yaml").write_text(text, encoding="utf-8")
    said = line("plan", "--facts", facts, "--vm", "llm-01", "--playbook", "mine.yaml", "--json")
    assert said.code == 0
    assert "${" not in json.dumps(said.result["plan"]["stages"])


# ---- what is said to whom


def test_missing_rights_are_blamed_for_what_they_cost_and_no_more(
    line: Line, facts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from winhost.cli.look.detect import show_facts
    from winhost.model.documents import read_document
    from winhost.model.facts import Facts

    show_facts(read_document(line.facts("not-administrator"), Facts), wide=True)
    blamed, untold = capsys.readouterr().out.split("is not an administrator there:")[1].split("Not exposed by Windows")
    assert "VmMmio" in blamed
    assert "Firmware.address_width" not in blamed
    assert "Firmware.address_width" in untold


def test_codes_are_listed_by_what_they_begin_with_and_gaps_once(line: Line) -> None:
    codes = [row["code"] for row in line("explain", "--list", "--json").results]
    assert [code for code in codes if code.endswith(".unknown")] == ["*.unknown"]
    assert line("explain", "nvlink.unknown").code == 0
    listed = [row["code"] for row in line("explain", "--list", "mmio", "--json").results]
    assert listed == [code for code in codes if code.startswith("mmio")] != []
    assert line("explain", "--list", "nonsense").code == 2


def test_the_hint_of_a_refused_window_leads_somewhere(line: Line, facts: Path) -> None:
    said = line("plan", "--facts", facts, "--vm", "llm-01", "--high", "2MiB")
    assert said.code == 3
    code = said.err.partition("winhost explain ")[2].split()[0]
    assert (code, line("explain", code).code) == ("mmio.high-too-small", 0)


def test_the_schema_of_a_playbook_lists_what_can_be_set(line: Line) -> None:
    resources = line("schema", "playbook").json["$defs"]["PlaybookResource"]["properties"]["resource"]["enum"]
    assert "VmMmio" in resources
    assert "OperatingSystem" not in resources
