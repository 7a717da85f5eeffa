"""Wrong input gets one clear sentence with its position and a hint, and the exit code for its cause."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.conftest import Line
from winhost.cli import run
from winhost.lab.running_lab import Lab

FLEET = "schema: winhost.fleet/1\nhosts:\n  gpu-01:\n    address: 127.0.0.1\n    transport: {user: u, password: %s}\n"


def edited(path: Path, change: Callable[[Any], None]) -> Path:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


def test_no_fleet_file_says_where_it_looked_and_what_to_write(line: Line) -> None:
    said = line("detect", "gpu-01")
    assert said.code == 2
    assert "no fleet.yaml: looked for" in said.err
    assert "schema: winhost.fleet/1" in said.err


def test_a_folder_without_facts_is_not_taken_for_a_host(line: Line) -> None:
    Path("snapshots").mkdir()
    for words in (("assess", "snapshots"), ("plan", "snapshots"), ("models", "snapshots"), ("assess", "snapshots/")):
        said = line(*words)
        assert said.code == 2
        assert "there are no facts in snapshots" in said.err
        assert "winhost detect HOST -o snapshots" in said.err
    assert "no fleet.yaml" in line("detect", "snapshots").err


def test_a_file_that_is_not_there_is_not_taken_for_a_host(line: Line) -> None:
    for words in (("assess", "gone.yaml"), ("assess", "gone.json"), ("plan", "./gone"), ("models", "snapshots/gpu-01")):
        said = line(*words)
        assert said.code == 2
        assert f"error: {Path(words[1])}: cannot be read (No such file or directory)" in said.err


def test_a_folder_with_the_name_of_a_host_hides_no_fault_of_the_fleet_file(line: Line) -> None:
    Path("gpu-01").mkdir()
    Path("fleet.yaml").write_text("schema: winhost.fleet/1\nhosts:\n  gpu-01:\n    adress: gpu-01\n")
    assert "fleet.yaml:4" in line("assess", "gpu-01").err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("lab", "up", "x.yaml", "--speed", "fast"), "'fast' is not a valid number"),
        (("detect", "gpu-01", "--at-once", "many"), "'many' is not a valid whole number"),
        (("detect", "gpu-01", "--at-once", "0"), "0 is not in the range 1 to 256"),
    ],
)
def test_what_is_no_number_is_told_in_plain_words(line: Line, words: tuple[str, ...], says: str) -> None:
    said = line(*words)
    assert (said.code, says in said.err) == (2, True), said.err


@pytest.mark.parametrize(
    ("words", "file", "says", "hint"),
    [
        (("assess",), "", "is empty", "Mend it, or read the host into a file: winhost detect HOST -o facts"),
        (("assess",), "{", "is not JSON", "Mend it, or read the host into a file: winhost detect HOST -o facts"),
        (("apply",), "", "is empty", "Mend it, or plan: winhost plan HOST -o plan.json"),
        (("render", "proxy", "haproxy", "--certificate", "/x"), "", "is empty", "winhost workload init ORG/NAME"),
        (
            ("assess", "facts", "--workload"),
            "schema: winhost.facts/2",
            "not 'winhost.workload/1'",
            "winhost schema work",
        ),
        (("detect", "a", "--fleet"), "schema: winhost.workload/1", "not 'winhost.fleet/1'", "winhost schema fleet"),
        (("apply",), '{"schema": "winhost.facts/3"}', "not 'winhost.plan/3'", "winhost plan FACTS -o plan.json"),
        (("install", "media", "-o", "x/"), '{"schema": "winhost.facts/3"}', "not 'winhost.ins", "winhost install plan"),
        (("install", "media", "-o", "x/"), '{"schema": "winhost.install-plan/9"}', "reads 'winhost.ins", "Plan again"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_leads_to_one_that_is(
    line: Line, words: tuple[str, ...], file: str, says: str, hint: str
) -> None:
    Path("given.json").write_text(file)
    said = line(*words, "given.json")
    assert said.code == 2
    assert (says in said.err, hint in " ".join(said.err.split())) == (True, True), said.err


def test_a_folder_without_a_fleet_file_names_the_file_that_it_lacks(line: Line) -> None:
    Path("lab").mkdir()
    said = line("detect", "gpu-01", "--fleet", "lab")
    assert (said.code, f"looked for {Path('lab/fleet.yaml')}" in said.err) == (2, True), said.err


def test_an_unknown_host_is_corrected(line: Line, lab: Lab) -> None:
    said = line("detect", "gpu-3")
    assert said.code == 2
    assert "no host 'gpu-3' in fleet.yaml; did you mean 'gpu-03'?" in said.err


def test_broken_yaml_has_its_place(line: Line) -> None:
    Path("fleet.yaml").write_text("schema: winhost.fleet/1\nhosts:\n  gpu-01: {transport: {port: many}}\n   x: 1\n")
    said = line("detect", "gpu-01")
    assert said.code == 2
    assert "fleet.yaml:4:" in said.err


def test_all_faults_of_a_fleet_are_told_at_once(line: Line) -> None:
    Path("fleet.yaml").write_text(
        "schema: winhost.fleet/1\nhosts:\n  gpu-01:\n    transport:\n      port: many\n      tsl: true\n  gpu-01: {}\n"
    )
    said = line("detect", "gpu-01")
    assert said.code == 2
    for place in ("fleet.yaml:5:", "fleet.yaml:6:", "fleet.yaml:7:"):
        assert place in said.err
    assert "did you mean 'tls'?" in said.err


def test_an_unreadable_secret_is_named_and_not_shown(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    Path("fleet.yaml").write_text(FLEET % "env:NOT_SET")
    said = line("detect", "gpu-01")
    assert said.code == 2
    assert "env:NOT_SET" in said.err


def test_an_unreachable_host_is_exit_5_and_one_sentence(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("SET", "secret")
    Path("fleet.yaml").write_text(FLEET.replace("{user", f"{{port: {port}, user") % "env:SET")
    said = line("detect", "gpu-01")
    assert said.code == 5
    assert said.err.startswith("error: gpu-01 at 127.0.0.1 port ")
    assert "Traceback" not in said.err


def test_one_unreachable_host_does_not_hide_the_others(line: Line, lab: Lab) -> None:
    lab.endpoints["desk-01"].stop()
    said = line("detect", "*", "--json")
    assert said.code == 5
    results = {result["host"]: result for result in said.results}
    assert results["gpu-03"]["facts"]["schema"] == "winhost.facts/3"
    assert results["desk-01"]["error"]["kind"] == "Unreachable"


def test_facts_that_are_no_json(line: Line) -> None:
    Path("facts.json").write_text('{"schema": ')
    said = line("assess", "--facts", "facts.json")
    assert said.code == 2
    assert "facts.json:1:" in said.err


@pytest.mark.parametrize(
    ("words", "made_by"),
    [
        (("assess", "--facts", "nowhere.json"), "winhost detect HOST -o facts"),
        (("diff", "nowhere.json", "nowhere.json"), "winhost detect HOST -o facts"),
        (("verify", "nowhere.json"), "winhost plan HOST -o plan.json"),
        (("assess", "localhost", "--workload", "nowhere.json"), "winhost workload init ORG/NAME -o my.yaml"),
    ],
)
def test_a_file_that_is_not_there_says_how_such_a_file_is_made(
    line: Line, words: tuple[str, ...], made_by: str
) -> None:
    said = line(*words)
    assert said.code == 2
    assert "nowhere.json: cannot be read" in said.err
    assert made_by in said.err


def test_a_file_beside_it_with_almost_the_same_name_is_meant(line: Line) -> None:
    Path("facts.json").write_text("{}", "utf-8")
    assert "did you mean 'facts.json'?" in line("assess", "--facts", "fact.json").err


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("winhost.facts/4", "another version"),
        ("winhost.plan/3", "another kind"),
        ("winhost.detection/1", "--json printed"),
        (7, "another kind"),
    ],
)
def test_a_foreign_or_newer_schema(line: Line, schema: object, told: str) -> None:
    path = edited(line.facts("server2022-2gpu"), lambda document: document.update(schema=schema))
    said = line("assess", "--facts", path)
    assert said.code == 2
    assert told in said.err


def test_facts_with_a_hole_say_what_could_not_be_judged(line: Line) -> None:
    path = edited(line.facts("server2022-2gpu"), lambda document: document["resources"].pop("OperatingSystem"))
    assert "OperatingSystem could not be read" in line("assess", "--facts", path, "--path", "dda").out
    said = line("plan", "--facts", path, "--vm", "infer-01", "--allow-unverified")
    assert said.code == 3
    assert "the operating system could not be read (these facts do not hold it)" in said.err


def test_facts_with_a_wrong_state_say_where(line: Line) -> None:
    path = edited(
        line.facts("server2022-2gpu"), lambda document: document["resources"]["Memory"][0]["state"].update(total="much")
    )
    said = line("assess", "--facts", path)
    assert said.code == 2
    assert "Memory" in said.err
    assert "total" in said.err


def test_a_plan_for_another_host(line: Line, lab: Lab) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    edited(Path("plan.json"), lambda document: document.update(machine_id="4c4c4544-0000-0000-0000-000000000000"))
    said = line("apply", "plan.json", "--yes", "--accept", "vm-stop,force-dismount")
    assert said.code == 2
    assert "is not the machine that this was planned for" in said.err


def test_a_plan_whose_steps_were_edited_is_refused(line: Line, lab: Lab) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    edited(Path("plan.json"), lambda document: document["stages"][0]["desired"][0].update(resource="Format-Volume"))
    said = line("apply", "plan.json", "--yes", "--accept", "vm-stop,force-dismount")
    assert said.code == 2
    assert "Format-Volume" in said.err


def test_a_vm_that_is_not_there_lists_those_that_are(line: Line, lab: Lab) -> None:
    said = line("plan", "gpu-03", "--vm", "llm-1")
    assert said.code == 2
    assert "did you mean 'llm-01'?" in said.err
    assert "files-01" in said.err


def test_which_vm_is_asked_where_there_are_several(line: Line, lab: Lab) -> None:
    said = line("plan", "gpu-03")
    assert said.code == 2
    assert "choose the one that gets the GPUs" in said.err


def test_a_window_that_is_too_small_is_refused_with_the_numbers(line: Line, lab: Lab) -> None:
    gpu = "PCIROOT(49)#PCI(0100)#PCI(0000)"
    said = line("plan", "gpu-03", "--vm", "llm-01", "--gpu", gpu, "--high", "33280MiB")
    assert said.code == 3
    assert "33,312 MiB" in said.err
    assert line("plan", "gpu-03", "--vm", "llm-01", "--gpu", gpu, "--high", "33312MiB").code == 0


def test_a_misspelled_consent_is_refused(line: Line, lab: Lab) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    said = line("apply", "plan.json", "--accept", "vmstop", "--yes")
    assert said.code == 2
    assert "vm-stop" in said.err


def test_without_a_terminal_nobody_is_asked(line: Line, lab: Lab) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    said = line("apply", "plan.json", "--accept", "vm-stop,force-dismount")
    assert said.code == 2
    assert "--yes" in said.err


def test_a_damaged_journal_is_refused_and_a_torn_one_goes_on(line: Line, lab: Lab) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    assert line("apply", "plan.json", "--yes", "--accept", "vm-stop,force-dismount").code == 0
    (journal,) = (line.folder / "state" / "runs").glob("*.jsonl")
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-30])
    assert line("resume", journal.stem, "--yes").code == 0
    journal.write_bytes(whole.replace(b"llm-01", b"llm-02", 1))
    said = line("rollback", journal.stem, "--yes", "--accept", "vm-stop")
    assert said.code == 2
    assert ".jsonl:1: the journal is damaged" in said.err
    assert "damaged" in line("runs").out


def test_errors_are_a_document_where_json_was_asked_for(line: Line, lab: Lab) -> None:
    said = line("plan", "desk-01", "--path", "dda", "--json")
    assert said.code == 3
    assert said.err == ""
    assert said.result["error"]["kind"] == "Refused"
    assert "dda.client-sku" in said.result["error"]["meaning"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("assess", "--path", "wls2"), "there is no path 'wls2'; did you mean 'wsl2'?"),
        (("plan", "--path", "wls2"), "there is no path 'wls2'; did you mean 'wsl2'?"),
        (
            ("plan", "--path", "gpu-p"),
            "winhost evaluates gpu-p but cannot plan it yet; it can plan: dda, dual-boot, linux, wsl2",
        ),
        (("explain", "DDA.CLIENT-SKU"), "did you mean 'dda.client-sku'?"),
        (("explain", "wsl2"), "winhost explain --list wsl2"),
        (("detect",), "no host named\n  Name localhost (this machine), hosts of fleet.yaml, a pattern"),
        (("assess",), "no host named, and no --facts file"),
        (("plan",), "no host named, and no --facts file"),
        (("plan", "gpu-01", "--path", "gpu-p"), "which of them this host supports: winhost assess gpu-01"),
        (("status", "--every", "3"), "--every is for --watch"),
        (("plan", "--high", "5TB"), "How it is used: winhost plan --help"),
        (("up", "--accept"), "How it is used: winhost up --help"),
    ],
)
def test_words_that_mean_nothing_here_get_the_next_command(line: Line, words: tuple[str, ...], says: str) -> None:
    said = line(*words)
    assert (said.code, says in said.err) == (2, True), said.err
    assert said.err.startswith("error: ")


def test_two_plans_for_one_host_are_not_begun(line: Line, lab: Lab) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    said = line("apply", "plan.json", "./plan.json", "--yes", "--accept", "vm-stop,force-dismount")
    assert said.code == 2
    assert "several of these plans are for gpu-03" in said.err
    assert line("runs").out == "No runs yet. winhost apply starts one.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_a_full_disk_names_the_file(line: Line) -> None:
    said = line("plan", "--facts", line.facts("server2025-role-installed"), "--vm", "llm-01", "-o", "/dev/full")
    assert said.code == 1
    assert "refused /dev/full: No space left on device" in said.err


@pytest.mark.parametrize("size", [("--high", "1GiB"), ("--low", "2MiB")])
def test_a_window_that_is_too_small_is_refused_before_the_role_is_installed_for_it(
    line: Line, size: tuple[str, str]
) -> None:
    said = line("plan", "--facts", line.facts("server2025-3gpu"), "--vm", "llm-01", *size)
    assert (said.code, "too small" in said.err) == (3, True), said.err


def test_what_nobody_verified_says_how_it_is_planned_all_the_same(line: Line) -> None:
    facts = line.facts("server2022-wsl")
    said = line("plan", "--facts", facts, "--path", "wsl2")
    assert said.code == 3
    assert "--allow-unverified" in said.err
    assert line("plan", "--facts", facts, "--path", "wsl2", "--allow-unverified").code == 0


@pytest.mark.parametrize(("answer", "told"), [(KeyboardInterrupt, "\nStopped.\n"), ("n", "Stopped.\n")])
def test_a_question_that_is_interrupted_ends_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: Any, told: str
) -> None:
    def answered(*_: object, **__: object) -> str:
        if answer is KeyboardInterrupt:
            raise KeyboardInterrupt
        return str(answer)

    monkeypatch.setattr("click.termui.visible_prompt_func", answered)
    monkeypatch.setattr("winhost.cli.winhost.main", lambda *_, **__: click.confirm("Begin?", abort=True, err=True))
    assert run([]) == 130
    assert capsys.readouterr().err.rpartition("]: ")[2] == told


def test_a_hidden_prompt_that_is_interrupted_leaves_no_empty_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("click.termui.hidden_prompt_func", interrupted)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert run(["host", "add", "admin@127.0.0.1"]) == 130
    assert capsys.readouterr().err.rpartition(":")[2].lstrip(" ") == "\nStopped.\n"
