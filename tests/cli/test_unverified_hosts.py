"""Each command warns once about a host whose certificate is not checked."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from winhost.lab.hostfile import find
from winhost.lab.running_lab import ALL_HOSTS, Lab

WARNING = re.compile(
    r"^warning: the certificate of (\S+) is not checked: hosts\.\1\.transport\.verify \(fleet.yaml:\d+\) "
    r"is insecure-skip-verification$",
    re.MULTILINE,
)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab with both hosts on HTTPS, one of them with verify: false."""
    hosts = [find("server2025-role-installed"), find("win11-pro-1gpu")]
    with Lab(hosts, tmp_path, scale=0.001, tls=ALL_HOSTS) as running:
        verified = running.fleet_file.read_text(encoding="utf-8")
        unverified = re.sub(r"verify: .*", "verify: insecure-skip-verification", verified, count=1)
        running.fleet_file.write_text(unverified, encoding="utf-8")
        yield running


@pytest.mark.costly
def test_every_command_that_reaches_an_unverified_host_warns_once(line: Line, lab: Lab) -> None:
    accept = ("--accept", "vm-stop,force-dismount", "--yes")
    for words in (
        ("detect", "*", "gpu-03", "@lab"),
        ("detect", "gpu-03", "--json"),
        ("assess", "gpu-03"),
        ("report", "gpu-03", "-o", "report.html"),
        ("plan", "gpu-03", "--path", "dda", "--vm", "llm-01", "-o", "plan.json"),
        ("apply", "plan.json", *accept),
        ("verify", "plan.json"),
    ):
        said = line(*words)
        assert (said.code, WARNING.findall(said.err)) == (0, ["gpu-03"]), words
    run = next((line.folder / "state" / "runs").glob("*.jsonl")).stem
    for words in (("resume", run, "--yes"), ("rollback", run, *accept)):
        assert WARNING.findall(line(*words).err) == ["gpu-03"], words


def test_nothing_is_warned_of_where_the_certificate_is_checked_or_there_is_none(line: Line, lab: Lab) -> None:
    assert "warning" not in line("detect", "desk-01").err
    text = lab.fleet_file.read_text(encoding="utf-8").replace("tls: true", "tls: false", 1)
    lab.fleet_file.write_text(text, encoding="utf-8")
    assert "warning" not in line("detect", "gpu-03").err
