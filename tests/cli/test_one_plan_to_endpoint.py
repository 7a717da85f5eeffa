"""winhost plan --workload and apply, over real SSH, up to a completion that this computer requests."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.hub.stand_in_hub import StandInHub
from tests.serving.one_plan import CONSENTS, KEY, workload
from tests.serving.stacks import IMAGE
from winhost.lab.hostfile import find
from winhost.lab.linux.serving import STAND_IN
from winhost.lab.running_lab import Lab

LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
SAID = f'A completion of chat, from this computer: "{STAND_IN}"'


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("ALICE", KEY)
    monkeypatch.setenv("LAST_GROUP", "888888")
    with Lab([find("server2025-role-installed"), find("win11-pro-1gpu"), LINUX], tmp_path, scale=0.001) as running:
        yield running


def mirrored(folder: Path) -> tuple[str, ...]:
    """A folder with a file that a simulated host accepts as an installer."""
    image = folder / "mirror/24.04.4/ubuntu-24.04.4-live-server-amd64.iso"
    image.parent.mkdir(parents=True)
    image.write_bytes(b"as good as an image of Ubuntu Server to a simulated host")
    digest = sha256(image.read_bytes()).hexdigest()
    return "--set", f"system.mirror={folder / 'mirror'}", "--set", f"system.sha256={digest}"


def planned(line: Line, lab: Lab, hub: StandInHub, path: str) -> tuple[str, Path]:
    """Return the host, and the file of its plan."""
    host = {"wsl2": "desk-01", "dda": "gpu-03", "linux": next(iter(lab.linux_hosts)), "dual-boot": "desk-01"}[path]
    plan = line.folder / "plan.json"
    image = line.folder / "noble.vhdx"
    image.write_bytes(b"as good as a VHDX to a simulated host")
    key = f"{lab.folder}/ssh-key.pub"
    words = {
        "wsl2": ("--path", "wsl2", "--set", f"access.key={lab.public_key}"),
        "dda": ("--new-vm", "llm-02", "--cpus", "8", "--memory", "64GiB", "--disk", "200GiB",
                "--vhdx", f"./{image.name}", "--ssh-key", key, "--user", "winhost"),
        "linux": (),
        "dual-boot": ("--path", "dual-boot", "--allow-unverified", "--set", "keys.by=typed",
                      "--set", "keys.last_group=env:LAST_GROUP", "--set", "linux=200GiB",
                      "--set", "system.hostname=gpu-01", "--set", f"system.key=@{key}",
                      *mirrored(line.folder)),
    }[path]  # fmt: skip
    serves = ("--workload", workload(line.folder), "--api-key", "alice=env:ALICE", "--hub", hub.url)
    said = line("plan", host, *words, *serves, "--engine-image", IMAGE.pinned, "-o", plan)
    assert said.code == 0, said.err
    return host, plan


ACCEPT = ("--accept", ",".join(CONSENTS), "--yes")


@pytest.mark.costly
@pytest.mark.parametrize("path", ["wsl2", "dda", "linux", "dual-boot"])
def test_apply_ends_at_a_completion_from_this_computer(line: Line, lab: Lab, hub: StandInHub, path: str) -> None:
    host, plan = planned(line, lab, hub, path)
    assert KEY not in plan.read_text("utf-8")
    said = line("apply", plan, *ACCEPT)
    assert said.code == 0, said.err
    assert SAID in said.err.splitlines()[-1]
    assert f"winhost serve status {host}" in said.out.splitlines()[-1]
    if path in ("wsl2", "dda"):
        changed_windows(line, lab, host)
    assert line("serve", "test", host, "--api-key", "env:ALICE").code == 0
    assert line("serve", "status", host, "--json").result["gpus"]
    assert line("verify", plan).code == 0
    found = line("detect", host).out
    assert ("Its Linux runs now. The facts of its Windows" in found) == (path == "dual-boot")


def changed_windows(line: Line, lab: Lab, host: str) -> None:
    """winhost reports an update of Windows until the endpoint is tested, although its Linux does not know of it."""
    assert line("status", host, "--json").result["since_verified"]["changed"] == []
    system = lab.hosts[host].machine.instances("OperatingSystem")[0].state
    before = f"{system['build']}.{system['revision']}"
    system["revision"] += 1
    now = f"{system['build']}.{system['revision']}"
    (changed,) = line("status", host, "--json").result["since_verified"]["changed"]
    assert changed == {"what": "windows", "verified": before, "now": now}
    for words in (("status",), ("serve", "status")):
        assert f"windows {before} → {now}" in " ".join(line(*words, host).out.split())


@pytest.mark.costly
def test_an_endpoint_that_does_not_take_the_key_is_no_success(
    line: Line, lab: Lab, hub: StandInHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plan = planned(line, lab, hub, "wsl2")
    monkeypatch.setenv("ALICE", "another-key-than-the-one-of-the-plan")
    said = line("apply", plan, *ACCEPT)
    assert said.code == 4
    assert "A completion of chat, from this computer: status should be 200, is 401" in said.out
    assert "another-key" not in said.out + said.err
    monkeypatch.setenv("ALICE", KEY)
    (run,) = [each["run"] for each in line("runs", "--json").results]
    said = line("resume", run, "--yes")
    assert said.code == 0
    assert SAID in said.err


def test_a_key_that_cannot_be_read_ends_it_before_anything_is_changed(
    line: Line, lab: Lab, hub: StandInHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plan = planned(line, lab, hub, "wsl2")
    monkeypatch.delenv("ALICE")
    said = line("apply", plan, *ACCEPT, "--json")
    assert (said.code, line("runs", "--json").results) == (2, [])
