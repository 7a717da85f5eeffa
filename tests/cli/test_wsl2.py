"""WSL 2 on the command line: plan, apply and rollback, impossible settings, and exit codes."""

import os
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases import read_cases
from tests.cli.conftest import Line
from tests.rows import each_row
from winhost.lab.hostfile import find
from winhost.lab.linux.serving import STAND_IN
from winhost.lab.running_lab import Lab
from winhost.model.shipped import shipped
from winhost.model.units import MiB

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBQmLs1Q0m2Y8gRZ0nT9vJwqK4cE7hX5uPdFbVt6SyaA desk"
WITH_KEY = ("--set", f"access.key={KEY}")
BRIDGE = ("--set", "bridge.switch=lan", "--set", "bridge.adapter=Ethernet")
ACCEPT = ("--accept", "restart,network,vm-stop", "--yes")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Lab]:
    """desk-01, a Windows 11 with an old WSL; fleet.yaml in the current folder."""
    with Lab([find("win11-pro-1gpu")], tmp_path, scale=0.001) as running:
        yield running


def plan(line: Line, *words: object, host: str = "win11-pro-1gpu") -> Any:
    return line("plan", "--facts", line.facts(host), "--path", "wsl2", *words)


@pytest.mark.costly
def test_the_demo_tells_the_whole_story(line: Line) -> None:
    said = line("demo", "wsl2")
    assert said.code == 0, said.err
    for claim in (
        "simulated",
        "Served:   tiny, each",
        "desk-01: as planned",
        "6 of 6 requests",
        "A stand-in of the simulator answered, not a model",
        "no difference but WSL itself",
    ):
        assert claim in said.out
    assert f'A completion of tiny, from this computer: "{STAND_IN}"' in said.err
    assert list(line.folder.iterdir()) == []


# ---- what a plan shows


def test_a_plan_shows_its_steps_what_waits_what_it_asks_and_what_stays(line: Line) -> None:
    said = plan(line, *WITH_KEY)
    assert (said.code, said.err) == (0, "")
    for part in (
        "WSL itself: 2.6.1.0 → 2.7.14.0",
        "Cannot be undone: WSL itself: winhost never downgrades WSL: 2.6.1.0 does not come back",
        "Tasks of winhost",
        "With the task that runs WSL: .wslconfig of winhost, The VM of winhost",
        "With SSH access to the distro: Docker's packages",
        "network: interrupt",
        "degraded: With mirrored networking, WSL shares the addresses and ports of Windows. [wsl2.mirrored]",
        "--details",
    ):
        assert part in said.out, part
    assert "[wsl2.shows-windows]" not in said.out  # a note that limits nothing
    assert len(said.out.splitlines()) <= 25


def test_the_details_of_a_plan_show_every_step_with_its_reason(line: Line) -> None:
    said = plan(line, *WITH_KEY, "--details")
    assert (said.code, said.err) == (0, "")
    for part in (
        "WSL itself",
        "2.6.1.0 → 2.7.14.0",
        "cannot be undone: winhost never downgrades WSL: 2.6.1.0 does not come back",
        "Tasks of winhost",
        ".wslconfig of winhost:",
        "Memory: 32 GiB, the larger",
        "Stage 2 can be planned only once the task that runs WSL and SSH access to the distro are available.",
        "Docker Engine",
        "network: interrupt",
        "[wsl2.mirrored]",
    ):
        assert part in said.out, part


def test_a_plan_over_the_managements_own_adapter_shows_what_moves(line: Line) -> None:
    said = plan(line, *WITH_KEY, *BRIDGE, host="win11-two-networks")
    assert said.code == 0
    assert "Switch lan" in said.out
    assert "10.30.0.12/24 (manual), gateway 10.30.0.1, DNS 10.30.0.1, 10.30.0.2, VLAN 120" in said.out


def test_over_another_adapter_nothing_of_the_management_moves(line: Line) -> None:
    said = plan(line, *WITH_KEY, *BRIDGE[:2], "--set", "bridge.adapter=Ethernet 2", host="win11-two-networks")
    assert (said.code, "[wsl2.bridge-moves-management]" in said.out) == (0, False)


def test_settings_go_into_the_plan_as_they_are_set(line: Line) -> None:
    desired = ("network=nat", "distro=1.10", "account=serve", "access.allow=[192.168.1.0/24,192.0.2.0/24]")
    words = [word for setting in desired for word in ("--set", setting)]
    document = plan(line, *WITH_KEY, *words, "--json").result["plan"]
    assert document["schema"] == "winhost.plan/3"
    steps = {step["resource"]: step for step in document["stages"][0]["steps"]}
    assert steps["LocalAccount"]["key"] == {"account": "serve"}
    assert steps["PortForward"]["desired"] == {
        "target": "127.0.0.1",
        "connect_port": 2222,
        "allowed": ["192.168.1.0/24", "192.0.2.0/24"],
    }
    assert document["request"]["playbook"]["settings"]["network"] == "nat"
    assert document["request"]["playbook"]["settings"]["distro"] == "1.10"
    assert {waits["until"] for waits in document["stages"][0]["deferred"]} == {"AccountTasks", "WslAccess"}


def test_the_same_facts_make_the_same_plan_to_the_byte(line: Line) -> None:
    first, second = (re.split('"made_at": "[^"]+"', plan(line, *WITH_KEY, *BRIDGE, "--json").out) for _ in range(2))
    assert (len(first), first) == (2, second)  # but for the second in which it was made


PINNED = {
    "source": "https://releases.ubuntu.com/24.04.4/ubuntu-24.04.4-wsl-amd64.wsl",
    "sha256": "9b2f7730dc68227dd04a9f3e5eab86ad85caf556b8606ad94f1f29ff5c4fd3f5",
}
IMAGES: dict[tuple[str, ...], dict[str, str]] = {
    (): PINNED,
    ("image=Ubuntu-24.04",): PINNED,
    (r"image.source=C:\images\u.wsl",): {**PINNED, "source": r"C:\images\u.wsl"},
    (r"image.source=C:\u.tar", f"image.sha256={'ab' * 32}"): {"source": r"C:\u.tar", "sha256": "ab" * 32},
    (r"image.source=C:\u.tar", "image=Ubuntu-24.04"): PINNED,
}


@pytest.mark.parametrize("given", IMAGES)
def test_an_image_goes_by_name_and_the_plan_holds_its_source_and_hash(line: Line, given: tuple[str, ...]) -> None:
    document = plan(line, *(word for setting in given for word in ("--set", setting)), "--json").result["plan"]
    assert document["request"]["playbook"]["settings"]["image"] == IMAGES[given]
    (staged,) = (
        step["key"]
        for step in document["stages"][0]["steps"]
        if step["resource"] == "StagedFile" and not step["key"]["name"].endswith(".msi")
    )
    assert {"source": staged["source"], "sha256": staged["sha256"]} == IMAGES[given]


# ---- what cannot be

WRONG = {
    "network=bridge": "settings.network: should be 'auto', 'bridged', 'mirrored' or 'nat', not 'bridge'",
    "network=bridged": "network=bridged also needs bridge.switch=NAME, an external switch that is there, or",
    "distro=../x": "settings.distro: should be 1 to 63 letters, digits, dots, - and _, with a letter or a digit first",
    "distro=nul": "a device of Windows",
    "account=aaaaaaaaaaaaaaaaaaaaa": "settings.account: should be 1 to 20 letters, digits, - and _",
    "acount=x": "settings.acount: unknown key; did you mean 'account'?",
    "bridge={swich: lan}": "settings.bridge.swich: unknown key; did you mean 'switch'?",
    "memory=lots": "settings.memory: should be auto, or a size with its unit, as 48 GiB, of 256 MiB at least",
    "memory=2026-13-45": "settings.memory: should be auto, or a size with its unit",
    f"memory={'[' * 5000}": "settings.memory: should be auto, or a size with its unit",
    "memory=1": "settings.memory: should be auto, or a size with its unit",
    "swap=-1": "settings.swap: should be auto, 0 for none, or a size with its unit, as 48 GiB, of 1 MiB at least",
    "processors=yes": "settings.processors: should be a whole number, not 'yes'",
    "processors=2026-01-01": "settings.processors: should be a whole number, not '2026-01-01'",
    "access.key=hello": "should be one line of a public key file",
    "access.key=ssh-rsa xx": "this is no whole ssh-rsa key",
    "access.key=": "access.key is given nothing; for none say access.key=null",
    "access.port=0": "settings.access.port",
    "bridge.address=10.0.0.5": "settings.bridge.address",
    "containers.toolkit=1.19.1-1": "should be 1.20.0 or later",
    "wsl.version=2.7": "settings.wsl.version: should be three or four numbers with dots between, as 2.7.14",
    "wsl.sha256=DB08": "settings.wsl.sha256: should be a SHA-256",
    "containers.ubuntu=24.04": "settings.containers.ubuntu: should be one word in small letters, as noble",
    "containers.docker=latest": "settings.containers.docker: should be the version of a package as apt writes it",
    "wsl.source=http://example.test/x.msi": "settings.wsl.source",
    "wsl.source=./": "should be ./ and a plain name without folders",
    "wsl.source=./..": "should be ./ and a plain name without folders",
    "wsl.source=./msi/wsl.msi": "should be ./ and a plain name without folders",
    "wsl.source=.\\..\\wsl.msi": "should be ./ and a plain name without folders",
    "wsl.source=./nul.msi": "a device of Windows",
    "image.source=../ubuntu.wsl": "settings.image.source",
    "image.source=ubuntu.wsl": "settings.image.source",
    "image=Ubuntu-24.4": "settings.image: no image is pinned as 'Ubuntu-24.4'; did you mean 'Ubuntu-24.04'?",
    "image=Debian": "no image is pinned as 'Debian'; there are: Ubuntu-24.04",
    "image={source: https://example.test/x.wsl}": "settings.image.sha256: is missing",
    "account.name=x": "account is no group of settings",
    "network": "'network' is not NAME=VALUE",
    "=x": "is not NAME=VALUE",
}


@pytest.mark.costly
@each_row("setting", WRONG)
def test_a_setting_that_cannot_be_is_refused_by_name(line: Line, setting: str) -> None:
    said = plan(line, "--set", setting)
    assert (said.code, WRONG[setting] in said.err) == (2, True), said.err


PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE=\n-----END OPENSSH PRIVATE KEY-----"


@pytest.mark.parametrize("setting", [f"access.key={PRIVATE}", f"access.port={PRIVATE}", PRIVATE, f"{PRIVATE}=x"])
def test_a_private_key_is_refused_and_nothing_of_it_is_shown(line: Line, setting: str) -> None:
    said = plan(line, "--set", setting)
    assert said.code == 2
    assert "this is a private key" in said.err
    assert "ssh-keygen -t ed25519" in said.err
    assert "b3Blbn" not in said.err + said.out


FILED = {
    "  network: auto": ("  network: bridge", "settings.network"),
    "  distro: winhost": ("  distro: ../x", "settings.distro"),
    '    version: "2.7.14"': ('    version: "2.7"', "settings.wsl.version"),
    "    toolkit: 1.20.0-1": ("    toolkit: 1.19.1-1", "settings.containers.toolkit"),
    '    key: {account: "${account}"}': ('    key: {account: "${acount}"}', "did you mean"),
}


@pytest.mark.parametrize("old", FILED)
def test_a_fault_of_a_playbook_is_told_with_its_line(line: Line, old: str) -> None:
    new, says = FILED[old]
    text = (shipped("playbooks") / "wsl2.yaml").read_text(encoding="utf-8").replace(old, new, 1)
    Path("mine.yaml").write_text(text, encoding="utf-8")
    number = next(number for number, found in enumerate(text.splitlines(), start=1) if found == new)
    said = plan(line, "--playbook", "mine.yaml")
    assert said.code == 2
    assert f"mine.yaml:{number}" in said.err, said.err
    assert says in said.err


def test_a_playbook_of_ones_own_may_do_with_less(line: Line) -> None:
    book = read_cases(shipped("playbooks") / "wsl2.yaml")
    book["resources"] = [entry for entry in book["resources"] if entry["resource"] not in ("HyperVFirewall", "CdiSpec")]
    Path("mine.yaml").write_text(yaml.safe_dump(book), encoding="utf-8")
    document = plan(line, *WITH_KEY, "--playbook", "mine.yaml", "--json").result["plan"]
    assert "HyperVFirewall" not in {step["resource"] for step in document["stages"][0]["steps"]}


def test_settings_belong_to_their_path(line: Line) -> None:
    said = line("plan", "--facts", line.facts("server2025-role-installed"), "--vm", "llm-01", "--set", "network=nat")
    assert (said.code, "--set network belongs to wsl2, and not to dda" in said.err) == (2, True), said.err


def test_a_refusal_tells_what_to_do_and_where_the_story_is(line: Line) -> None:
    said = plan(line, "--set", "bridge.switch=lan")
    assert said.code == 3
    assert "--set bridge.adapter=NAME" in said.err
    assert "winhost explain wsl.switch-missing" in said.err
    assert line("explain", "wsl.switch-missing").code == 0


# ---- files beside the plan

MSI, IMAGE = "wsl.2.7.14.0.x64.msi", "ubuntu.wsl"


@pytest.fixture
def files(line: Line) -> tuple[str, ...]:
    """Write both files next to plan.json and return the options that name them."""
    words: list[str] = []
    for setting, name in {"wsl": MSI, "image": IMAGE}.items():
        Path(name).write_bytes(os.urandom(2 * MiB + 9))
        digest = sha256(Path(name).read_bytes()).hexdigest()
        words += ["--set", f"{setting}.source=./{name}", "--set", f"{setting}.sha256={digest}"]
    return tuple(words)


def test_a_plan_names_the_files_that_it_sends(line: Line, files: tuple[str, ...]) -> None:
    said = plan(line, *WITH_KEY, *files)
    assert (said.code, said.err) == (0, "")
    assert f"must be in the same folder as the plan: {IMAGE}, {MSI}" in " ".join(said.out.split())


def test_a_backslash_names_the_same_file(line: Line, files: tuple[str, ...]) -> None:
    said = plan(line, *WITH_KEY, *files, "--set", f"image.source=.\\{IMAGE}", "--json")
    sources = {
        step["key"]["source"] for step in said.result["plan"]["stages"][0]["steps"] if step["resource"] == "StagedFile"
    }
    assert sources == {f"./{MSI}", f"./{IMAGE}"}


@pytest.mark.parametrize("spoiled", ["missing", "another"])
def test_no_plan_is_written_of_a_file_that_is_not_the_pinned_one(
    line: Line, files: tuple[str, ...], spoiled: str
) -> None:
    Path(IMAGE).unlink() if spoiled == "missing" else Path(IMAGE).write_bytes(b"another")
    said = plan(line, *WITH_KEY, *files, "-o", "plan.json")
    assert (said.code, IMAGE in said.err) == (2, True), said.err
    assert not Path("plan.json").exists()


@pytest.mark.costly
def test_files_are_sent_from_the_folder_of_the_plan_and_progress_is_told(
    line: Line, files: tuple[str, ...], desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = desk.hosts["desk-01"].machine
    words = ("plan", "desk-01", "--path", "wsl2", *files, "-o", "plan.json")
    assert line(*words).code == 0
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    said = line("apply", "../plan.json", "--fleet", "../fleet.yaml", *ACCEPT)
    assert said.code == 0, said.err
    assert re.search(r"The distro.s image: sent 1\.0 of 2\.1 MB, [\d.,]+ MB/s", said.err)
    assert machine.software.wsl == "2.7.14.0"
    (run,) = line("runs", "--json").results
    assert line("rollback", run["run"], "--fleet", "../fleet.yaml", *ACCEPT).code == 0
    assert machine.instances("StagedFile") == ()


def test_apply_refuses_before_anything_where_a_file_is_not_beside_the_plan(
    line: Line, files: tuple[str, ...], desk: Lab
) -> None:
    found = desk.hosts["desk-01"].machine.comparable_state()
    assert line("plan", "desk-01", "--path", "wsl2", *files, "-o", "plan.json").code == 0
    Path("elsewhere").mkdir()
    Path("plan.json").rename("elsewhere/plan.json")
    said = line("apply", "elsewhere/plan.json", *ACCEPT)
    assert (said.code, "is not there, or is no file" in " ".join(said.err.split())) == (2, True), said.err
    assert desk.hosts["desk-01"].machine.comparable_state() == found
    assert line("runs", "--json").results == []


# ---- done


@pytest.mark.costly
def test_apply_verify_drift_repair_and_rollback_by_their_exit_codes(line: Line, desk: Lab) -> None:
    machine = desk.hosts["desk-01"].machine
    found = machine.comparable_state()
    words = ("plan", "desk-01", "--path", "wsl2", "--set", f"access.key={desk.public_key}")
    assert line(*words, "-o", "plan.json").code == 0
    refused = line("apply", "plan.json", "--yes")
    assert (refused.code, line("runs", "--json").results) == (2, []), refused.err
    assert line("apply", "plan.json", *ACCEPT, "--json").result["outcome"]["outcome"] == "applied"
    assert line("verify", "plan.json").code == 0
    machine.accounts.tasks["keep-alive-winhost"].enabled = False
    drifted = line("verify", "plan.json", "--json")
    assert drifted.code == 4
    assert [c["title"] for c in drifted.result["checks"] if not c["holds"]] == ["Tasks of winhost"]
    repair = line(*words, "-o", "repair.json", "--json").result["plan"]
    assert [step["desired"] for step in repair["stages"][0]["steps"]] == [{"keep_alive": "ready"}]
    assert line("apply", "repair.json", "--yes").code == 0
    assert line("verify", "plan.json").code == 0
    first = min(row["run"] for row in line("runs", "--json").results)
    assert line("rollback", first, *ACCEPT, "--json").result["outcome"]["outcome"] == "rolled back"
    now = machine.comparable_state()
    assert {resource for resource in found if found[resource] != now[resource]} == {"Wsl"}


@pytest.mark.costly
def test_somebody_who_is_logged_on_is_told_by_verify_with_exit_4_and_by_plan_with_exit_3(line: Line, desk: Lab) -> None:
    words = ("plan", "desk-01", "--path", "wsl2", "--set", f"access.key={desk.public_key}")
    assert line(*words, "-o", "plan.json").code == 0
    assert line("apply", "plan.json", *ACCEPT).code == 0
    account = desk.hosts["desk-01"].machine.accounts.find("winhost")
    assert account is not None
    account.sessions = 1
    said = line("verify", "plan.json")
    assert (said.code, "A user is logged on as winhost" in " ".join(said.out.split())) == (4, True), said.out
    assert line(*words).code == 3


def test_hashes_and_keys_are_shown_by_their_ends(line: Line) -> None:
    said = plan(line, "--details", "--set", f"access.key=ssh-ed25519 {'AAAAC3NzaC1lZDI1NTE5AAAAI' + 'B' * 43} me@here")
    assert "none → db084e53…ebcd" in said.out
    assert "db084e536279a59e" not in said.out
