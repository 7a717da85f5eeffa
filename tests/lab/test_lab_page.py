"""What the documentation and the workflow say of the lab is what the lab has."""

import re
from pathlib import Path

import pytest

from tests.cases import read_cases
from tests.rows import each_row
from winhost.lab.physics import lab_section
from winhost.lab.physics.disks import Disks
from winhost.lab.physics.firmware import FirmwarePart
from winhost.lab.physics.host_nats import HostNats
from winhost.lab.physics.lab_section import LabSection
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_accounts import Accounts
from winhost.lab.physics.windows_network import Network
from winhost.lab.physics.windows_power import Power
from winhost.lab.physics.windows_software import Curl, Software
from winhost.lab.physics.wsl_distros import Distros
from winhost.lab.powershell.standins import cmdlets

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lab.md").read_text("utf-8")
CODES = set(re.findall(r"`([^`\n]+)`", PAGE))
ERRORS = read_cases(ROOT / "winhost" / "lab" / "physics" / "windows_errors.yaml")["errors"]
OURS = {"not-stood-in"}  # says that something is missing in the lab, not what Windows does
# Of the machine, not of Windows: who runs it asks these.
NOT_WINDOWS = {
    "accepts_connections",
    "changing",
    "wait_until_ready",
    "ready",
    "restart",
    "on_shutdown",
    "fail",
    "part",
    "comparable_state",
}
PARTS = (Machine, Software, Accounts, Distros, Network, HostNats, Power, Curl)
PARTS += (Disks, FirmwarePart)
# Of a role or feature: the profiled hosts may not have had it.
OPTIONAL_MODULES = {"BitLocker", "Hyper-V", "ServerManager"}


@each_row("name", sorted(set(ERRORS) - OURS))
def test_every_error_is_in_the_table(name: str) -> None:
    assert name in CODES


@pytest.mark.parametrize("name", sorted({name for name in vars(Machine) if name[0] != "_"} - NOT_WINDOWS))
def test_every_behaviour_is_in_the_table(name: str) -> None:
    assert name in CODES


PHYSICS = [each for name, each in vars(lab_section).items() if name.endswith("Physics")]
PHYSICS += lab_section.PART_PHYSICS.values()


@each_row("section", [LabSection, *PHYSICS])
def test_everything_that_a_host_file_can_say_of_its_lab_is_told(section: type[LabSection]) -> None:
    assert set(section.model_fields) - CODES == set()


def test_the_page_names_nothing_that_is_not_there() -> None:
    rows = [line.split("|") for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 5]
    errors = {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row[2])}
    methods = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row[4])}
    assert errors <= set(ERRORS)
    assert {name for name in methods if not any(hasattr(part, name) for part in PARTS)} == set()


def test_every_link_of_the_page_leads_somewhere() -> None:
    marks = set(re.findall(r"\]\[([a-z0-9-]+)\]", PAGE))
    assert marks == set(re.findall(r"^\[([a-z0-9-]+)\]: https://", PAGE, re.MULTILINE))
    files = re.findall(r"\]\((\.\.[^)]+)\)", PAGE)
    assert [name for name in files if not (ROOT / "docs" / name).exists()] == []


def test_the_analyzer_passes_over_what_only_roles_and_features_bring() -> None:
    settings = (ROOT / ".github" / "PSScriptAnalyzerSettings.psd1").read_text("utf-8")
    ignored = re.search(r"IgnoreCommands = @\(([^)]*)\)", settings)
    assert ignored
    optional = {name for name, entry in cmdlets().items() if entry["module"] in OPTIONAL_MODULES}
    assert set(re.findall(r"'([^']+)'", ignored[1])) == optional


def test_the_workflow_runs_what_is_there() -> None:
    jobs = read_cases(ROOT / ".github" / "workflows" / "test.yml")["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    paths = {path for step in steps for path in re.findall(r"(?:tests|winhost|\.github)/[\w/.-]+", step.get("run", ""))}
    assert len(paths) > 3
    assert [path for path in paths if not (ROOT / path).exists()] == []
    engines = {(each["engine"], each["version"]) for each in jobs["powershell"]["strategy"]["matrix"]["include"]}
    assert engines == {("pwsh", "7"), ("powershell", "5.1")}
