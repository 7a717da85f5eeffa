"""The screens of `plan`, `verify`, `detect` and `assess` without `--details` show everything that a decision needs."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from winhost.cli.change.apply import Checked
from winhost.cli.errors import show_failure
from winhost.cli.look.detect import show_facts
from winhost.cli.output import error_text
from winhost.cli.plan.show import GROUPS, grouped_titles, show_notes
from winhost.cli.tables import format_pair, format_value
from winhost.connect.wire_errors import NotAvailable
from winhost.core.answers import Unavailable
from winhost.model.documents import read_document
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts
from winhost.model.plan import RISKS, Deferred, Plan
from winhost.resources.registry import RESOURCE_TYPES


def test_each_resource_that_can_be_set_belongs_to_one_group() -> None:
    grouped = [resource for resources in GROUPS.values() for resource in resources]
    assert sorted(grouped) == sorted(name for name, known in RESOURCE_TYPES.items() if known.sets)


def test_a_plan_is_one_screen_with_every_approval(line: Line) -> None:
    words = ("plan", line.facts("server2025-role-installed"), "--vm", "llm-01")
    said, plan = line(*words), line(*words, "--json").result["plan"]
    steps = [step for stage in plan["stages"] for step in stage["steps"]]
    assert len(steps) > 8
    assert len(said.out.splitlines()) <= 25
    for risk in {risk for step in steps for risk in (*step["risks"], *step["may_need"])}:
        assert f"  {risk}: {RISKS[risk]}" in said.out
    assert "host-enabled → assigned to VM" in said.out
    assert "PCIROOT" not in said.out
    details = line(*words, "--details").out
    assert len(details.splitlines()) > len(said.out.splitlines())
    assert all(step["title"].partition(", its")[0] in details for step in steps)


def test_what_is_planned_later_is_named_once_and_not_by_names_that_are_not_known_yet(line: Line) -> None:
    assert line("plan", line.facts("server2025-3gpu"), "--vm", "llm-01", "-o", "plan.json").code == 0
    later = Checked.from_plan(read_document(Path("plan.json"), Plan), ()).later
    assert "MMIO windows" in later
    assert not [title for title in later if "…" in title]
    assert len({*later}) == len(later) > 4


def test_steps_that_ask_for_an_approval_are_named_among_many(line: Line) -> None:
    said = line("plan", line.facts("win11-pro-2xl20-tcc"), "--path", "wsl2", "--allow-unverified")
    assert "WSL itself" in said.out
    assert "Driver model of" in said.out


def test_what_is_needed_first_is_called_as_people_know_it() -> None:
    lacking = NotAvailable("gpu-01", "connect", "HyperVRole")
    assert error_text(lacking) == "error: gpu-01: connect: not possible until the Hyper-V role is available"


def test_commands_of_an_error_go_with_the_fleet_file_that_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    typed, here = ("plan", "gpu-01", "--fleet", "my fleet.yaml"), " --fleet 'my fleet.yaml'"
    for words, hint, told in (
        (typed, "Read it again: winhost plan gpu-01", f"Read it again: winhost plan{here} gpu-01"),
        (typed, "winhost serve status gpu-01", f"winhost serve status{here} gpu-01"),
        (typed[:2], "winhost plan gpu-01", "winhost plan gpu-01"),
        (typed, "See winhost explain mmio", "See winhost explain mmio"),
        (typed, "winhost up --fleet 'my fleet.yaml' --yes", "winhost up --fleet 'my fleet.yaml' --yes"),
    ):
        show_failure(WinhostError("Gone", what="gone", hint=hint), words)
        assert capsys.readouterr().err.splitlines()[-1] == f"  {told}", hint


def test_a_name_that_is_not_known_yet_leaves_a_whole_sentence() -> None:
    later = (
        Deferred("PortForward", "Port … of the host, to … of the new VM", "HyperVRole", ""),
        Deferred("OwnVm", "New VM …", "HyperVRole", ""),
        Deferred("VmSeed", "Seed of …", "HyperVRole", ""),
        Deferred("VmPower", "…", "HyperVRole", ""),
    )
    told = ", ".join(what for _, what in grouped_titles(later))
    assert "Port … of the host, to … of the new VM" in told
    assert told.endswith("New VM, Seed, power of VMs"), told


def test_a_note_is_told_once_for_all_that_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    consumer = (
        "This GPU is made for desktop computers or notebooks, and Microsoft supports DDA only on server hardware."
    )
    show_notes(
        (
            f"degraded: One at PCIROOT(1)#PCI(0): One. {consumer} [dda.consumer-gpu]",
            f"degraded: Two at PCIROOT(2)#PCI(0): Two. {consumer} [dda.consumer-gpu]",
            "note: host: in the same slot: audio. Other functions of the GPU share its IOMMU group. [dda.companions]",
            "unverified: the request: So it was asked, {really}. [wsl2.some-caution]",
            "to download there: 3 GiB",
        )
    )
    out = capsys.readouterr().out
    assert out.splitlines() == [
        f"degraded: One, Two: {consumer} [dda.consumer-gpu]",
        "unverified: So it was asked, {really}. [wsl2.some-caution]",
        "to download there: 3 GiB",
    ]


def test_verify_says_in_one_line_that_all_is_as_planned_and_else_what_differs(line: Line) -> None:
    facts = line.facts("server2025-role-installed")
    assert line("plan", facts, "--vm", "llm-01", "-o", "plan.json").code == 0
    said = line("verify", "plan.json", facts)
    assert said.code == 4
    assert "✓" not in said.out
    checks = line("verify", "plan.json", facts, "--json").result["checks"]
    assert said.out.count("✗") == sum(not check["holds"] for check in checks)
    assert said.out.splitlines()[-1].startswith("gpu-03: not as planned: ")
    assert line("verify", "plan.json", facts, "--details").out.count("✓") == sum(check["holds"] for check in checks)


def test_detect_shows_what_a_gpu_is_before_where_it_is(line: Line) -> None:
    read = read_document(line.facts("server2025-3gpu"), Facts)
    line.capture.readouterr()
    show_facts(read)
    out = line.capture.readouterr().out
    (row,) = (each for each in out.splitlines() if "L40S" in each)
    assert row.split()[:7] == ["NVIDIA", "L40S", "46,068", "MiB", "nvlddmkm", "32.0.15.8157", "TCC"]
    assert "PCIROOT" not in out
    assert "Not set up yet: the Hyper-V role, WSL." in out
    assert not re.search("VmSwitch|HyperVHost|WslDistro", out)
    show_facts(replace(read, resources={**read.resources, "LinuxFolder": Unavailable("LinuxGroup")}))
    assert "Not set up yet: the Hyper-V role, WSL." in line.capture.readouterr().out
    show_facts(read, wide=True)
    assert "PCIROOT(7B)" in line.capture.readouterr().out


def test_assess_tells_a_note_once_and_names_what_has_to_be_set_up(line: Line) -> None:
    said = line("assess", line.facts("server2025-3gpu"))
    assert said.out.count("[dda.later]") == 1
    assert "[dda.later]\n    observed: the Hyper-V role has to be set up first" in said.out


def test_many_hashes_of_a_step_are_counted_and_shown_only_where_they_differ_or_are_asked_for(line: Line) -> None:
    files = [f"{'ab' * 32} {n} model-{n}.safetensors" for n in range(14)]
    assert format_value(files) == "14 entries"
    assert format_value(files[:2]).count("…") == 2
    others = [*files[:-1], f"{'cd' * 32} 13 model-13.safetensors"]
    assert "cdcdcdcd" in format_pair(files, others)[1]
    assert format_pair(None, files) == ("none", "14 entries")
    words = ("plan", line.facts("win11-pro-1gpu"), "--path", "wsl2", "--details")
    assert "db084e536279a59e" not in line(*words).out
    assert "db084e536279a59e" in line(*words, "-v").out
