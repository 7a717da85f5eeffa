"""The shopping list: what to run to settle what verdicts wait for."""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from tests.compat.test_rules import HOSTS
from tests.imports.brought import DATA, imported
from tests.rows import each_row
from winhost.compat.evaluation import MAX_COMMANDS, Evaluation, Requirements, evaluate, settling_commands
from winhost.core.answers import RemoteFault, Unknown
from winhost.imports.observation import Observation
from winhost.lab.hostfile import expand
from winhost.model.facts import Facts
from winhost.render import verdict_text

UNREAD = Unknown(RemoteFault("AccessDenied", message="Access is denied."))
UBUNTU = Path(__file__).parents[2] / "examples" / "linux" / "ubuntu-2xh100.json"
H200 = DATA / "recorded" / "nvidia-smi-2xH200-linux.xml"


def without_windows(facts: Facts) -> Facts:
    return replace(facts, resources={**facts.resources, "OperatingSystem": UNREAD})


def answer(facts: Facts) -> Evaluation:
    return evaluate(facts, Requirements())


@each_row("host", ["server2025-3gpu", "win11-pro-1gpu", "win11-no-gpu"])
def test_where_nobody_knows_the_windows_nothing_is_recommended(host: str) -> None:
    found = answer(without_windows(HOSTS[host]))
    assert found.assessment.recommended is None
    said = verdict_text.describe_recommendation(found, found.fits[0], Requirements().needs)
    assert not any(sentence.startswith("Recommended") for sentence in said)
    lines = verdict_text.describe_settling_commands(found)
    assert lines[1] == f"1. {settling_commands()[0].run}"
    assert "OperatingSystem" in lines[2]


def test_an_import_is_told_at_most_three_commands_and_the_first_settles_most() -> None:
    found = answer(imported([H200]))
    assert 0 < len(found.settle) <= MAX_COMMANDS
    assert found.settle[0].reasons >= max(each.reasons for each in found.settle[:-1])
    assert found.settle[0].run.startswith("Get-ComputerInfo")
    assert {fact for each in found.settle for fact in each.settles} >= {"OperatingSystem", "PciDevice.rmrr", "Vm"}


def test_what_a_command_wrote_is_added_to_the_facts_that_are_there() -> None:
    """An import adds to the file of an import alone, and some files name no machine."""
    brought = imported([H200])
    for facts, file in ((brought, "my/h200.json"), (without_windows(HOSTS["win11-pro-1gpu"]), "facts.json")):
        told = [each for each in evaluate(facts, Requirements(), "my/h200.json").settle if "import" in each.then]
        assert told
        for each in told:
            assert each.then == f"Then: winhost facts import {each.run.split()[-1]} --host {facts.host} -o {file}"


def test_what_a_command_told_is_not_asked_for_again() -> None:
    before = answer(imported([H200]))
    after = answer(imported([H200, DATA / "synthetic" / "computer-info-win11-pro.json"]))
    asked = {fact for each in after.settle for fact in each.settles}
    assert "OperatingSystem" in {fact for each in before.settle for fact in each.settles}
    assert "OperatingSystem" not in asked
    assert after.assessment.recommended is not None


def test_a_host_of_which_all_is_known_is_told_nothing() -> None:
    found = answer(HOSTS["server2025-role-installed"])
    assert found.assessment.recommended == "dda"
    assert verdict_text.describe_settling_commands(found) == ()


FILES = {
    "Get-ComputerInfo": ["computer-info-win11-pro.json", "computer-info-server2025.json"],
    "nvidia-smi": ["nvidia-smi-windows-4090.xml"],
    ".\\SurveyDDA": ["survey-dda-server2025.txt"],
    "dxdiag": ["dxdiag-win11-pro.xml"],
}


@each_row("start", FILES)
def test_a_command_tells_what_is_promised_of_it(start: str) -> None:
    """By what its reader makes of the files that it printed."""
    from winhost.imports.sources import read

    (command,) = (each for each in settling_commands() if each.run.startswith(start))
    told = {"PciDevice"}
    for name in FILES[start]:
        ((_, found), *_) = read(name, (DATA / "synthetic" / name).read_bytes())
        states = [(resource, state) for resource, instances in found.resources.items() for state in instances.values()]
        states += [("PciDevice", function.state) for function in found.functions or ()]
        told |= {resource for resource, _ in states}
        told |= {
            f"{resource}.{key}"
            for resource, state in states
            for key, value in state.items()
            if isinstance(value, Observation)
        }
    for promised in command.provides:
        assert any(fnmatchcase(fact, promised) for fact in told), promised


def test_the_last_command_provides_everything() -> None:
    assert [command.provides == ("*",) for command in settling_commands()] == [False] * (
        len(settling_commands()) - 1
    ) + [True]


def test_a_linux_is_told_no_command_of_windows() -> None:
    linux = expand(UBUNTU)[0]
    found = answer(replace(linux, resources={**linux.resources, "LinuxGpuDriver": UNREAD}))
    assert any(reason.code == "linux.unknown" for reason in found.assessment.every_variant[0].every_reason)
    assert found.settle == ()
