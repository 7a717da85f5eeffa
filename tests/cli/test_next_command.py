"""Tests of the last line of `detect` and `assess`: the printed command works."""

import json
import re
import shlex

import pytest

from tests.cli.conftest import Line
from winhost.cli.output import with_fleet
from winhost.lab.hostfile import host_files
from winhost.lab.running_lab import Lab
from winhost.model.shipped import shipped

EXAMPLES = shipped("examples") / "workloads"


def next_of(out: str) -> list[str]:
    before, command = out.splitlines()[-2:]
    assert before == "Next:"
    program, *words = shlex.split(command)
    assert program == "winhost"
    return words


@pytest.mark.costly
@pytest.mark.parametrize("host", [path.stem for path in host_files()])
def test_the_command_after_assess_works(line: Line, host: str) -> None:
    said = line("assess", line.facts(host))
    words = next_of(said.out)
    assert line(*words).code == 0
    if words[0] == "plan":
        recommended = line("assess", line.facts(host), "--json").result["recommended"]
        made = line(*words, "--json").result
        assert (made["path"], made["variant"]) == (recommended["path"], recommended["variant"])
    else:
        assert words[0] in ("assess", "explain")


def test_the_command_after_assess_keeps_what_was_asked(line: Line) -> None:
    said = line("assess", line.facts("win11-pro-1gpu"), "--need", "criu", "--assume", "PciDevice.rmrr=false")
    words = next_of(said.out)
    assert words[words.index("--path") + 1].startswith("wsl2/")
    assert "--assume" in words
    assert line(*words).code == 0


def test_the_plan_after_assess_serves_the_workload_that_was_assessed(line: Line) -> None:
    workload = EXAMPLES / "one-7b-on-24gb.yaml"
    words = next_of(line("assess", line.facts("win11-pro-1gpu"), "--workload", workload).out)
    assert words[0] == "plan"
    assert words[words.index("--workload") + 1] == str(workload)
    assert "no such option" not in line(*words).err


def test_a_refused_plan_of_a_facts_file_leads_to_a_plan_of_that_file(line: Line) -> None:
    file = line.facts("win11-pro-1gpu")
    said = line("plan", file, "--path", "dda")
    assert said.code == 3
    (command,) = re.findall(r"winhost (plan .*)", " ".join(said.err.split("\n")[-2:]))
    words = shlex.split(command)
    assert words[:3] == ["plan", str(file), "--path"]
    assert line(*words).code == 0


def test_a_command_that_an_error_prints_names_the_file_that_was_read(line: Line) -> None:
    for host, words, code in (
        ("server2025-role-installed", ("--path", "linux"), 2),  # OtherSystem
        ("win11-intel-arc-only", (), 3),  # NotChosen
    ):
        file = line.facts(host)
        said = line("plan", file, *words)
        assert (said.code, f"winhost assess {shlex.quote(str(file))}" in " ".join(said.err.split())) == (code, True)


def test_a_hypothesis_leads_to_no_plan(line: Line) -> None:
    said = line("assess", line.facts("win11-pro-1gpu"), "--what-if", "install-server")
    assert "Next:" not in said.out


def test_several_hosts_have_one_next_command(line: Line, lab: Lab) -> None:
    detected = line("detect", "*")
    assert next_of(detected.out) == ["assess", "*"]
    assessed = line(*next_of(detected.out))
    assert assessed.out.count("Next:") == 1
    assert next_of(assessed.out) == ["assess", "gpu-03"]
    assert line(*next_of(assessed.out)).code == 0


def test_documents_and_files_have_no_next_command(line: Line) -> None:
    facts = line.facts("win11-pro-1gpu")
    assert "recommended" in json.loads(line("assess", facts, "--json").out)["results"][0]
    assert "Next" not in line("assess", facts, "-o", "name").out


def test_where_nothing_is_served_the_next_command_serves(line: Line, lab: Lab) -> None:
    for words in (("serve", "logs"), ("serve", "status"), ("open",)):
        told = line(*words, "gpu-03")
        assert (told.code, "gpu-03: nothing is served" in told.err) == (1, True), told.err
        assert told.err.splitlines()[-1] == "  Serve a model on it: winhost up --on gpu-03"
        without_linux = line(*words, "desk-01").err
        assert "desk-01: nothing is served: " in without_linux
        assert "WslAccess" not in without_linux
    assert line("chat", "Say hello").err.splitlines()[-1] == "  Serve a model on it: winhost up --on gpu-03"
    assert "  winhost up\n" in line("status").out
    assert "  winhost up\n" in line().out


def test_a_command_names_the_fleet_file_that_was_typed_and_help_of_a_group_does_not() -> None:
    said = {
        "Undo: winhost rollback r-1": "Undo: winhost rollback --fleet lab r-1",
        "winhost serve test llm-01": "winhost serve test --fleet lab llm-01",
        "winhost serve keys list llm-01": "winhost serve keys list --fleet lab llm-01",
        "Who decides it: winhost yield desk-01": "Who decides it: winhost yield --fleet lab desk-01",
        "What fits: winhost models show desk-01": "What fits: winhost models show --fleet lab desk-01",
        "winhost models shows what is known": "winhost models shows what is known",
        "winhost up is done\nwinhost down a\nwinhost up --fleet lab": "winhost up is done\n"
        "winhost down --fleet lab a\nwinhost up --fleet lab",
        "winhost serve keys add --help": "winhost serve keys add --help",
        "winhost plan --help": "winhost plan --help",
    }
    assert {text: with_fleet(text, "lab") for text in said} == said
