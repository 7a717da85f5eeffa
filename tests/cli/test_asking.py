"""On a terminal, apply shows the plan first, then asks for each consent once; the first no ends it without a change."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.cli.terminal import talk
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab

pytestmark = [pytest.mark.real, pytest.mark.skipif(os.name != "posix", reason="a pseudo terminal is POSIX's")]


@pytest.fixture
def planned(line: Line, lab: Lab) -> Lab:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    return lab


def test_the_plan_stands_there_before_the_first_question(line: Line, planned: Lab) -> None:
    told = talk("apply", "plan.json", answers="yyyy")
    assert told.code == 0
    first = told.text.index("[y/N]")
    assert "MMIO windows of llm-01" in told.text[:first]
    assert "Approvals needed" in told.text[:first]
    asked = [question.split(":")[1].strip() for question in told.questions[:-1]]
    assert asked == ["vm-stop", "force-dismount", "vm-turn-off"]
    assert all(question.startswith("gpu-03, VM llm-01: ") for question in told.questions[:-1])
    assert "Apply this plan to gpu-03?" in told.questions[-1]
    assert "if it turns out to be needed" in told.questions[2]


@pytest.mark.parametrize("answers", ["yn", *(pytest.param(word, marks=pytest.mark.crash) for word in ("n", "yyn"))])
def test_the_first_no_ends_it(line: Line, planned: Lab, answers: str) -> None:
    found = planned.hosts["gpu-03"].machine.comparable_state()
    told = talk("apply", "plan.json", answers=answers)
    assert told.code == 2
    assert planned.hosts["gpu-03"].machine.comparable_state() == found
    assert line("runs", "--json").json["results"] == []


def test_yes_with_what_is_required_asks_nothing_and_rollback_lists_its_steps_before_it_asks(
    line: Line, planned: Lab
) -> None:
    told = talk("apply", "plan.json", "--yes", "--accept", "vm-stop,force-dismount")
    assert (told.code, told.questions) == (0, [])
    made = planned.hosts["gpu-03"].machine.comparable_state()
    (run,) = (row["run"] for row in line("runs", "--json").json["results"])
    told = talk("rollback", run, answers="n")
    assert told.code == 2
    assert "MMIO windows of llm-01" in told.text[: told.text.index("[y/N]")]
    assert planned.hosts["gpu-03"].machine.comparable_state() == made
    assert line("runs", "--json").json["results"][0]["state"] == "applied"
    told = talk("rollback", run, answers="yy")
    assert (told.code, len(told.questions)) == (0, 2)
    assert f"Roll back {run} on gpu-03?" in told.questions[-1]


def test_rolling_back_the_later_run_offers_what_was_kept_for_it_with_its_own_consents(line: Line, lab: Lab) -> None:
    found = lab.hosts["gpu-03"].machine.comparable_state()
    accept = ("--yes", "--accept", "vm-stop,force-dismount")
    for gpu in ("PCIROOT(49)#PCI(0100)#PCI(0000)", "PCIROOT(16)#PCI(0100)#PCI(0000)"):
        assert line("plan", "gpu-03", "--vm", "llm-01", "--gpu", gpu, "-o", "plan.json", "--force").code == 0
        assert line("apply", "plan.json", *accept).code == 0
    first, second = (row["run"] for row in line("runs", "--json").json["results"])
    assert line("rollback", first, *accept).code == 1
    told = talk("rollback", second, answers="yyyyy")
    assert told.code == 0
    offer = f"what the rollback of {first} kept for {second}, to undo it now?"
    (offered,) = (number for number, question in enumerate(told.questions) if offer in question)
    assert any("vm-stop" in question for question in told.questions[offered + 1 :])
    assert f"Roll back {first} on gpu-03?" in told.questions[-1]
    assert {row["state"] for row in line("runs", "--json").json["results"]} == {"rolled back"}
    assert lab.hosts["gpu-03"].machine.comparable_state() == found


def test_a_check_compares_and_changes_nothing(line: Line, planned: Lab) -> None:
    machine = planned.hosts["gpu-03"].machine
    found = machine.comparable_state()
    said = line("apply", "plan.json", "--check")
    assert (said.code, "nothing was changed" in said.out) == (0, True)
    assert "MMIO windows of llm-01" in said.out
    (checked,) = line("apply", "plan.json", "--check", "--json").json["results"]
    assert {step["resource"] for step in checked["steps"]} >= {"VmMmio", "VmPower"}
    vm = next(vm for vm in machine.vms.values() if vm.name == "llm-01")
    vm.traits = {**vm.traits, "checkpoints": 1}
    assert line("apply", "plan.json", "--check").code == 3
    vm.traits = {**vm.traits, "checkpoints": 0}
    assert machine.comparable_state() == found
    assert list((line.folder / "state").glob("*/*")) == []
    next(vm for vm in machine.vms.values() if vm.name == "llm-01").low = 512 << 20
    assert line("apply", "plan.json", "--check").code == 4


def aged(age: timedelta) -> None:
    plan = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    made = (datetime.now(UTC) - age).isoformat(timespec="seconds")
    Path("plan.json").write_text(json.dumps({**plan, "made_at": made}), encoding="utf-8")


def test_a_plan_of_another_day_says_so_and_may_be_refused(line: Line, planned: Lab) -> None:
    assert "this plan was made" not in line("apply", "plan.json", "--check").err
    aged(timedelta(days=2, hours=1))
    assert "gpu-03: this plan was made 2 days ago" in line("apply", "plan.json", "--check").err
    said = line("apply", "plan.json", "--max-age", "2d", "--yes", "--accept", "vm-stop,force-dismount")
    assert (said.code, "older than --max-age allows: 2 days" in said.err) == (2, True)
    assert line("apply", "plan.json", "--max-age", "2d12h", "--check").code == 0
    assert line("apply", "plan.json", "--max-age", "soon").code == 2
    assert line("runs", "--json").json["results"] == []


@pytest.fixture
def halted(line: Line, tmp_path: Path) -> Iterator[str]:
    """A run that installed the role, restarted the host, and did not find the VM."""
    with Lab([find("server2025-3gpu")], tmp_path, scale=0.001):
        planned = line("plan", "gpu-01", "--vm", "llm-typo", "-o", "plan.json", "--details")
        assert "  vm: llm-typo (once the Hyper-V role is available)" in planned.out
        said = line("apply", "plan.json", "--yes", "--accept", "restart")
        (run,) = line("runs", "--json").json["results"]
        assert (said.code, run["why"]) == (1, "gpu-01 has no VM 'llm-typo'")
        assert f"winhost resume {run['run']} --vm NAME" in said.err
        yield run["run"]


def test_another_vm_is_asked_for_anew(line: Line, halted: str) -> None:
    said = line("resume", halted, "--vm", "llm-01", "--yes")
    assert said.code == 1
    assert f"winhost resume {halted} --vm llm-01 --accept vm-stop,force-dismount" in said.err
    assert "gpu-01: vm: llm-typo → llm-01" in said.out
    assert "MMIO windows of llm-01" in said.out
    told = talk("resume", halted, "--vm", "llm-01", answers="yyyy")
    assert told.code == 0
    assert [question.split(": ")[:2] for question in told.questions[:-1]] == [
        ["gpu-01, VM llm-01", risk] for risk in ("vm-stop", "force-dismount", "vm-turn-off")
    ]
    assert "vm llm-typo → llm-01" in line("runs", halted).out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "network=nat"), "settings.network: unknown key"),
        (("--set", "high=huge"), "is not a size"),
        (("--set", "new_vm.guest.key=@not-there.pub"), "not-there.pub cannot be read"),
    ],
)
def test_what_a_path_does_not_have_cannot_be_chosen(line: Line, halted: str, words: tuple[str, ...], says: str) -> None:
    said = line("resume", halted, *words, "--yes")
    assert (said.code, says in said.err) == (2, True), said.err
