"""winhost up and down: one command from a machine to a completion, and one back."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cli import up_desk
from tests.cli.conftest import Line
from tests.cli.process import journal, kill_winhost
from tests.cli.terminal import stays, talk
from tests.cli.up_desk import IMAGE, Desk, desk, fleet_of, hub_of_all, without_keys
from tests.processes import PATIENCE_S, started
from tests.rows import each_row
from winhost.cli import named_hosts
from winhost.cli.up import up
from winhost.cli.up.runs import mark_run_started, new_folder, suggest_up_commands
from winhost.cli.up.show import LINES
from winhost.engine.failures import RunInterrupted, next_steps_of
from winhost.engine.store import Store
from winhost.lab.hostfile import find
from winhost.lab.linux.serving import STAND_IN
from winhost.lab.running_lab import USER, Lab
from winhost.model.fleet import Host, Ssh
from winhost.web.server import run_server

LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
BEST = "openai/gpt-oss-20b"
AGREED = ("--yes", "--accept", "restart,network")
SAID = f'from this computer: "{STAND_IN}"'


@pytest.fixture
def here(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Desk]:
    """This machine is a desktop with one GPU and without a fleet file. The parameter: another host file."""
    with desk(tmp_path, monkeypatch, getattr(request, "param", "win11-pro-1gpu")) as found:
        monkeypatch.setattr("socket.gethostname", lambda: "My-Desk.example.com")
        _reach_distro(found, monkeypatch)
        yield found


def _reach_distro(found: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the port at which the simulated distro really listens."""
    real, port = named_hosts.this_machine, found.lab.ssh_endpoints[found.name].port

    def reached() -> Host:
        host = real()
        assert isinstance(host, Host)
        return host.model_copy(update={"ssh": Ssh(address="127.0.0.1", port=port)})

    monkeypatch.setattr(named_hosts, "this_machine", reached)


def standing(line: Line) -> list[str]:
    return [str(each["run"]) for each in line("runs", "--json").results if each["state"] != "rolled back"]


def folder_of(line: Line) -> Path:
    """Return the folder of the only run that is not undone."""
    (folder,) = [each["folder"] for each in line("runs", "--json").results if each["state"] != "rolled back"]
    assert Path(folder).parent == line.folder / "state/up"
    return Path(folder)


def command_in(text: str, before: str) -> list[str]:
    """Return the arguments of the command that is printed after this text."""
    found = re.search(f"{re.escape(before)}winhost (.*)", text)
    assert found, text
    return shlex.split(found[1])


def differences(before: str, after: str) -> set[str]:
    one, other = json.loads(before), json.loads(after)
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


@pytest.mark.costly
def test_a_desktop_without_any_file_serves_and_is_given_back(line: Line, here: Desk) -> None:
    before = here.state()
    said = line("up", *AGREED, *here.serves)
    assert said.code == 0, said.err
    assert SAID in said.err
    assert " The distro's image (" in said.err, "a step is told without the properties that it changed"
    assert not Path("fleet.yaml").exists()
    assert f"my-desk can serve {BEST} by wsl2/mirrored" in said.out
    assert said.out.splitlines()[-1] == "  winhost down"
    plan = folder_of(line) / "plan.json"
    assert line("verify", plan).code == 0
    assert str(plan.with_name("workload.yaml")) in plan.read_text("utf-8")
    made = here.state()
    assert re.search(r" applied +20\d\d-\d\d-\d\d \d\d:\d\d UTC", line("runs").out)
    assert STAND_IN in line("chat", "Say hello").out
    for name in ((), (BEST,), ("gpt-oss-20B",)):  # as `winhost models` shows it
        again = line("up", *name, *here.serves)
        assert (again.code, "served already" in again.out, here.state()) == (0, True, made), again.err
    other = line("up", "org/model", *here.serves)
    assert (other.code, "winhost down my-desk" in other.err, here.state()) == (2, True, made)
    asked = line("down")
    assert (asked.code, here.state()) == (2, made)
    told = " ".join(asked.out.split())
    assert "Distro winhost goes, with 5.0 GB of models that winhost downloaded; its disk ext4.vhdx has 6.5 GB" in told
    assert r"to a .tar in %ProgramData%\winhost\exports\winhost" in told
    command = command_in(asked.err, "without questions: ")
    assert command == ["down", "--yes", "--accept", "vm-stop,network"]
    gone = line(*command)
    assert gone.code == 0, gone.err
    assert differences(before, here.state()) == {"Wsl"}  # it is never downgraded
    nothing = line("down")
    assert (nothing.code, "there is no run of winhost up to undo" in nothing.out) == (0, True)


@pytest.mark.costly
def test_without_a_terminal_the_command_is_told_that_asks_nothing(line: Line, here: Desk) -> None:
    before = here.state()
    said = line("up", "gpt-oss-20b", "--listen", "127.0.0.1:9000", *here.serves)
    assert (said.code, here.state(), standing(line)) == (2, before, [])
    assert not list((line.folder / "state/up").iterdir())
    unasked = line("up", "openai/gpt-oss-20b", "--yes", "--accept", "data", *here.serves)
    assert (unasked.code, command_in(unasked.err, "without questions: ")[-1]) == (2, "restart,network,data")
    assert made_keys(line) == set(), "nobody has agreed"
    command = command_in(said.err, "without questions: ")
    assert command[-3:] == ["--yes", "--accept", "restart,network"]
    assert "workload file are not kept" in unasked.err
    assert f"  winhost workload init openai/gpt-oss-20b --hub {here.serves[1]} -o my.yaml\n" in unasked.err
    done = line(*command, "--json")
    assert (done.code, done.result["outcome"]["outcome"]) == (0, "applied"), done.err
    plan = (folder_of(line) / "plan.json").read_text("utf-8")
    assert "127.0.0.1:9000" in plan
    assert made_keys(line) == {"my-desk.api-key", "my-desk.ssh"}
    assert f"file:{line.folder / 'state/keys/my-desk.api-key'}" in plan


def test_one_up_or_down_is_at_a_host_and_another_is_told_who(
    line: Line, here: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winhost.engine.store.LOCK_TIMEOUT_S", 0)  # nobody only looks
    before, store = here.state(), Store()
    with store.lock("my-desk", "winhost up", command=True):
        for words in (("up", *AGREED, *here.serves), ("down", "--yes")):
            said = line(*words)
            assert (said.code, here.state(), standing(line)) == (1, before, []), said.err
            for part in (f"process {os.getpid()}, winhost up", "end it there with Ctrl-C"):
                assert part in said.err
    with store.lock("my-desk", "apply"):
        said = line("up", *AGREED, *here.serves)
        assert (said.code, "winhost runs" in said.err) == (1, True)


@pytest.mark.costly
@pytest.mark.parametrize("first", ["up", "down"])
def test_of_two_at_once_one_works_and_nothing_is_lost(line: Line, here: Desk, tmp_path: Path, first: str) -> None:
    fleet_of(here, tmp_path)
    before = here.state()
    down = ("down", "--yes", "--accept", "vm-stop,network")
    words = {"up": ("up", *AGREED, *here.serves), "down": down}[first]
    if first == "down":
        assert line("up", *AGREED, *here.serves).code == 0
    known = len(line("runs", "--json").results)
    with started([sys.executable, "-m", "winhost", *words], cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        while not (tmp_path / "state/locks/desk.up.json").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGSTOP)  # it must not end before the others begin
        for other in (("up", *AGREED, *here.serves), down):
            said = line(*other)
            assert (said.code, f"process {process.pid}, winhost {first}" in said.err) == (1, True), said.err
        process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE_S) == 0
    assert len(line("runs", "--json").results) == known + (first == "up")
    if first == "up":
        assert line(*down).code == 0
    assert differences(before, here.state()) == {"Wsl"}


def test_files_of_an_up_that_was_killed_while_it_planned_go_with_the_next(line: Line, here: Desk) -> None:
    class Killed(BaseException):
        """Stands in for SIGKILL: nothing is cleaned up."""

    def kill(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(up, "_ask_for_consents", kill)
        patch.setattr(up, "delete_folder", lambda folder: None)
        with pytest.raises(Killed):
            line("up", *AGREED, *here.serves)
    (left,) = (line.folder / "state/up").iterdir()
    assert (left / "plan.json").exists()
    other = left.with_name("my-desk-2.20261121-101502")
    other.mkdir()
    assert line("up", *here.serves).code == 2  # it asks, and nobody answers
    assert [*(line.folder / "state/up").iterdir()] == [other], "that of another host stays"
    assert made_keys(line) == set()


@pytest.mark.costly
@each_row("words", [(), ("status",), ("runs",)])
def test_files_of_an_up_that_was_killed_while_it_planned_go_with_whatever_comes_next(
    words: tuple[str, ...], line: Line
) -> None:
    store = Store()
    with store.lock("my-desk", "winhost up", command=True):
        folder = new_folder(store, "my-desk")
        assert line(*words).code == 0
        assert folder.exists(), "it is being planned"
    assert line(*words).code == 0
    assert not folder.exists()


def test_files_of_a_run_that_begins_are_kept(line: Line) -> None:
    folder = new_folder(Store(), "my-desk")
    mark_run_started(folder)
    assert line("runs").code == 0
    assert folder.exists()


@each_row(
    ("accept", "retry", "going_back", "hint"),
    [
        ((), None, False, "Continue: winhost up\nRoll back: winhost down"),
        (("data",), None, False, "Continue: winhost up --accept data\nRoll back: winhost down"),
        ((), None, True, "Continue the rollback: winhost down"),
        (
            (),
            "--set high=5TiB",
            False,
            "Choose otherwise: winhost resume R --set high=5TiB\nContinue: winhost up\nRoll back: winhost down",
        ),
    ],
)
def test_a_run_that_stops_goes_on_by_the_command_that_began_it(
    accept: tuple[str, ...], retry: str | None, going_back: bool, hint: str
) -> None:
    steps = next_steps_of("R", going_back, accept, retry)
    here = named_hosts.this_machine()
    with pytest.raises(RunInterrupted) as stopped, suggest_up_commands(here):
        raise RunInterrupted("Halted", "stopped", host=here.name, run="R", next_steps=steps)
    assert stopped.value.hint == hint


def made_keys(line: Line) -> set[str]:
    return {each.name for each in (line.folder / "state/keys").iterdir()} - {".lock"}


@pytest.mark.costly
@pytest.mark.parametrize(("server", "leads"), [("winhost", True), ("another", False)])
def test_it_ends_with_the_address_where_the_loopback_of_windows_leads_to_the_distro(
    line: Line, here: Desk, server: str, leads: bool
) -> None:
    class Gateway(BaseHTTPRequestHandler):
        def version_string(self) -> str:
            return server

        def do_GET(self) -> None:
            assert self.headers["Authorization"] is None
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Gateway) as listening, run_server(listening):
        at = f"127.0.0.1:{listening.server_address[1]}"
        said = line("up", *AGREED, "--listen", at, *here.serves)
        assert said.code == 0, said.err
        assert (f"Base URL: http://{at}/v1" in said.out, "winhost open" in said.out) == (leads, not leads), said.out
        assert line("status", "--json").result["url"] == (f"http://{at}" if leads else None)


@pytest.mark.costly
def test_the_workload_can_be_taken_over(line: Line, here: Desk) -> None:
    assert line("up", *AGREED, *here.serves).code == 0
    folder = folder_of(line)
    (note,) = [each for each in json.loads((folder / "plan.json").read_text("utf-8"))["notes"] if "workload" in each]
    words = command_in(note, "copy it to my.yaml and plan: ")
    Path("my.yaml").write_bytes((folder / "workload.yaml").read_bytes())
    planned = line(*words, "--path", "wsl2", *here.serves, "-o", "mine.json")
    assert planned.code == 0, planned.err
    assert line("verify", "mine.json").code == 0


@pytest.mark.costly
def test_damaged_files_of_a_standing_run_are_told_and_never_taken_for_nothing(line: Line, here: Desk) -> None:
    assert line("up", *AGREED, *here.serves).code == 0
    made, workload = here.state(), folder_of(line) / "workload.yaml"
    whole = workload.read_bytes()
    workload.write_text("a: [")
    other = line("up", "org/model", *AGREED, *here.serves)
    assert (other.code, "workload.yaml" in other.err) == (2, True), other.out
    workload.write_bytes(whole)
    plan, kept = workload.with_name("plan.json"), workload.with_name("plan.json").read_bytes()
    plan.unlink()
    lost = line("up", *AGREED, *here.serves)
    assert (lost.code, "winhost down my-desk" in lost.err) == (2, True), lost.err
    plan.write_bytes(kept)
    (journal,) = (line.folder / "state/runs").glob("*.jsonl")
    journal.write_bytes(journal.read_bytes()[:3000] + b"\ngarbage\n")
    for words in (("up", *AGREED, *here.serves), ("down", "--yes")):
        said = line(*words)
        assert (said.code, "the journal is damaged" in said.err) == (2, True), said.out
    for words in ((), ("status",)):
        said = line(*words)
        assert "the journal is damaged" in said.err
        assert "Nothing is served" not in said.out
    assert here.state() == made


@pytest.mark.costly
@pytest.mark.parametrize(
    ("here", "at"),
    [("win11-pro-1gpu", '"event":"end"'), ("win11-hyperv-off-vbs-on", '"event":"restarting"')],
    indirect=["here"],
)
def test_after_a_kill_or_a_restart_up_goes_on(line: Line, here: Desk, tmp_path: Path, at: str) -> None:
    fleet_of(here, tmp_path)  # another process reads it
    words = ("up", *AGREED, *here.serves)
    run = kill_winhost(words, tmp_path, lambda text: at in text)
    said = line("up", *here.serves)
    assert said.code == 2
    assert f"{run} began at" in said.out
    other = line("up", "org/model", "--yes", *here.serves)
    assert (other.code, "OtherModel" in line("up", "org/model", "--yes", *here.serves, "--json").out) == (2, True)
    command = command_in(said.err, "Go on: ")
    assert command[-1] == "--yes"
    done = line(*command)
    assert done.code == 0, done.err
    assert standing(line) == [run]
    assert line("down", "--yes", "--accept", "vm-stop,network,restart").code == 0


@pytest.mark.costly
@pytest.mark.parametrize("here", ["win11-hyperv-off-vbs-on"], indirect=True)
def test_each_restart_ends_winhost_on_its_own_windows_and_the_same_command_goes_on(
    line: Line, here: Desk, tmp_path: Path
) -> None:
    fleet_of(here, tmp_path)  # another process reads it
    before, machine = here.state(), here.lab.hosts[here.name].machine

    def typed(*words: str) -> tuple[int, str]:
        program = [sys.executable, "-m", "winhost", *words]
        with started(program, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            machine._shutdown_callbacks.append(process.kill)
            _, told = process.communicate(timeout=PATIENCE_S)
        machine.wait_until_ready()
        return process.returncode, told

    boot = machine.boot
    for words in (("up", *AGREED, *here.serves), ("down", "--yes", "--accept", "vm-stop,network,restart")):
        code, told = typed(*words)
        assert (code, machine.boot) == (-signal.SIGKILL, boot + 1), told
        assert "which ends winhost. Log on again and type winhost" in told
        assert f"Next: winhost {'up' if words[0] == 'up' else 'down desk'}\n" in line().out
        assert typed(*words)[0] == 0
        assert machine.boot == boot + 1
        boot = machine.boot
        if words[0] == "up":
            assert STAND_IN in line("chat", "Say hello").out
    assert here.state() == before


@pytest.mark.costly
def test_what_cannot_work_is_said_before_anything_is_changed(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(host: str, *words: str, hub: str | None = None) -> tuple[int, str]:
        folder = tmp_path / f"{host}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        with desk(folder, monkeypatch, host) as found:
            before = found.state()
            said = line("up", *AGREED, *words, *found.serves, *(("--hub", hub) if hub else ()))
            assert (found.state(), standing(line)) == (before, []), host
        return said.code, said.err

    rows = (
        (("win11-no-gpu",), 3, "It has no GPU."),
        (("win11-intel-arc-only",), 3, "none of its GPUs is NVIDIA's: Intel"),
        (("win11-not-administrator",), 2, "no administrator rights"),
        (("win11-pro-1gpu", "nobody/nothing/else"), 2, "is not the whole name of a model"),
        (("win11-pro-1gpu", "Qwen3"), 2, "Did you mean Qwen/Qwen3-14B-AWQ or "),
        (("win11-pro-1gpu", "gpt-oss-20"), 2, "Did you mean openai/gpt-oss-20b?"),
        (("win11-pro-1gpu", "gpt-oss-120b"), 3, "openai/gpt-oss-120b does not fit"),
        (("win11-pro-1gpu", "./nofolder"), 2, "./nofolder: there is no such folder"),
        (("win11-pro-1gpu", "--path", "wsl"), 2, "did you mean"),
        (("win11-pro-2xl20-mcdm",), 3, "Do it all the same: winhost up --hub"),
        (("win11-pro-1gpu", "--path", "dda"), 3, "[dda.client-sku]"),
        (("win11-pro-1gpu", "--path", "gpu-p"), 2, f"winhost assess {named_hosts.this_machine().name}"),
        (("win11-pro-1gpu", "--path", "linux"), 2, "is for a host with kind: linux"),
        (("win11-pro-1gpu", "Qwen/Qwen3.5-122B-A10B-FP8"), 3, "does not fit"),
    )
    for words, code, says in rows:
        found = told(*words)
        assert (found[0], says in found[1]) == (code, True), (words, found)
    monkeypatch.setattr(up_desk, "SIZE", 5_000_000_000_000)
    code, text = told("win11-pro-1gpu", "Qwen/Qwen3-14B-AWQ")
    assert (code, "5,000.0 GB are needed" in text) == (3, True), text
    code, text = told("win11-pro-1gpu", hub="http://127.0.0.1:9")
    assert (code, "127.0.0.1:9" in text) == (1, True), text


def test_without_internet_one_message_lists_all_that_has_to_be_named(line: Line, tmp_path: Path) -> None:
    nowhere = "127.0.0.1:9"
    with Lab([find("server2025-3gpu")], tmp_path / "lab", scale=0.001) as lab:
        (name,) = lab.hosts
        there = ("--on", name, "--fleet", without_keys(lab))
        away = ("--hub", f"http://{nowhere}", "--engine-image", f"{nowhere}/vllm:v0.33.0")
        mirror = ("--set", f"new_vm.image.mirror=http://{nowhere}")
        answered = ("--yes", "--accept", "restart")
        said = line("up", *there, *away, *mirror, *answered)
        text = " ".join(said.err.split())
        assert (said.code, "does not reach 3 servers" in text, standing(line)) == (1, True, []), said.err
        command = command_in(text, "All of it: ")
        assert command.count("--hub") == command.count("--engine-image") == 1, text
        for words in (
            "--hub URL",
            "--digest sha256:DIGEST",
            "--set new_vm.vhdx.source=./FILE.vhdx",
            "--yes --accept restart",
        ):
            assert words in " ".join(command), text
        (tmp_path / "FILE.vhdx").write_bytes(b"as good as a VHDX to a simulated host")
        with hub_of_all() as hub:
            values = {"URL": hub.url, "sha256:DIGEST": f"sha256:{'a' * 64}"}
            filled = [values.get(word, word) for word in command if word not in answered]
            assert "without questions: winhost up" in " ".join(line(*filled).err.split())


@pytest.mark.costly
def test_a_server_is_served_by_a_vm_with_the_gpus_that_are_needed(line: Line, tmp_path: Path) -> None:
    (tmp_path / "noble.vhdx").write_bytes(b"as good as a VHDX to a simulated host")
    with Lab([find("server2025-3gpu")], tmp_path / "lab", scale=0.001) as lab, hub_of_all() as hub:
        ((name, host),) = lab.hosts.items()
        before = host.machine.comparable_state()
        words = ("--on", name, "--fleet", without_keys(lab), "--set", "new_vm.vhdx.source=./noble.vhdx")
        asked = line("up", *words, "--hub", hub.url, *IMAGE)
        assert asked.code == 2
        done = line(*command_in(asked.err, "without questions: "))
        assert done.code == 0, done.err
        assert "NVIDIA L40S; idle: NVIDIA GeForce RTX 4090, NVIDIA GeForce RTX 5060 Ti" in done.out
        back = line("down", name, "--fleet", lab.fleet_file)
        assert "its file has 7.5 GB. It is not exported: copy what you need first" in " ".join(back.out.split())
        assert "which is looked at again once winhost's VM is gone" in " ".join(back.out.split())
        assert re.search(r"goes with its Linux: .* and \d+ more\n", back.out), back.out
        gone = line(*command_in(back.err, "without questions: "))
        assert gone.code == 0, gone.err
        assert host.machine.comparable_state() == before


@pytest.mark.costly
def test_a_linux_is_served_and_given_back(line: Line, tmp_path: Path) -> None:
    with Lab([LINUX], tmp_path / "lab", scale=0.001) as lab, hub_of_all() as hub:
        (name,) = lab.linux_hosts
        words = ("--fleet", lab.fleet_file, "--yes")
        done = line("up", "--on", name, *words, "--hub", hub.url, *IMAGE)
        assert done.code == 0, done.err
        assert SAID in done.err
        assert line("down", name, *words).code == 0
        wrong = lab.fleet_file.read_text("utf-8").replace("host_key: ", "host_key: SHA256:")
        lab.fleet_file.write_text(wrong, encoding="utf-8")
        assert line("up", "--on", name, *words, "--hub", hub.url, *IMAGE).code != 0


@pytest.mark.costly
def test_what_differs_by_now_is_repaired_and_both_runs_are_undone_in_one_document(line: Line, tmp_path: Path) -> None:
    with Lab([LINUX], tmp_path / "lab", scale=0.001) as lab, hub_of_all() as hub:
        (name,) = lab.linux_hosts
        words = ("--fleet", lab.fleet_file, "--yes")
        up_again = ("up", "--on", name, *words, "--hub", hub.url, *IMAGE)
        assert line(*up_again).code == 0
        assert line(*up_again, "--json").result["outcome"]["outcome"] == "applied"
        lab.linux_hosts[name].linux.disk.remove("/etc/docker/daemon.json")
        repaired = line(*up_again)
        assert (repaired.code, "1 of 56 properties differ by now" in repaired.err) == (0, True), repaired.err
        assert "Changes    files and settings: GPUs for Docker by CDI\nDownloads  nothing\n" in repaired.out
        assert len(standing(line)) == 2
        gone = line("down", name, *words, "--json")
        assert [each["outcome"]["outcome"] for each in gone.results] == ["rolled back"] * 2
        assert line("down", name, *words, "--json").results == []


@pytest.mark.real
@pytest.mark.skipif(os.name != "posix", reason="a pseudo terminal is POSIX's")
@pytest.mark.parametrize("width", [80, 120])
def test_one_screen_and_one_question(line: Line, here: Desk, tmp_path: Path, width: int) -> None:
    fleet_of(here, tmp_path)
    before = here.state()
    told = talk("up", *here.serves, answers=["1", "n"], width=width)
    assert (told.code, here.state()) == (2, before)
    offered = stays(told.text[: told.text.index("Verdict")])
    assert not [text for text in offered if len(text) > width or text.endswith((" GiB,", " 20"))]
    assert all(f"\n {number} " in f"\n{chr(10).join(offered)}" for number in range(1, 6))
    shown = stays(told.text[told.text.index("Verdict") :])
    screen = shown[: next(number for number, text in enumerate(shown) if "[y/N]" in text) + 1]
    assert len(screen) <= LINES
    assert not [text for text in screen if len(text) > width and not text.startswith("All ")]
    assert screen[-1].startswith("Begin, which approves restart, network?")
    agreed = screen[next(number for number, text in enumerate(screen) if text.startswith("Others")) :]
    assert not [text for text in agreed if "…" in text]
    done = talk("up", *here.serves, answers=["2", "y"], width=width)
    assert done.code == 0
    assert len(done.questions) == 1
    end = stays(done.text[done.text.index("API key for desk, new:") :])
    key = Path(Store().key("desk", "api-key"))
    assert end[1].strip() == key.read_text()
    assert f"  cat {key}" in end
    assert not [text for text in end if len(text) > width and not text.startswith(("  ", "API key:"))], end
    again = talk("up", *here.serves, width=width).text
    assert (key.read_text() in again, "To undo all of it" in again) == (False, True)
    back = talk("down", answers=["y", "y"])
    assert back.code == 0
    assert differences(before, here.state()) == {"Wsl"}


@pytest.mark.real
@pytest.mark.skipif(os.name != "posix", reason="a pseudo terminal is POSIX's")
def test_a_host_by_user_and_address_is_asked_for_its_password_and_added(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with Lab([find("server2025-3gpu")], tmp_path / "lab", scale=0.001) as lab, hub_of_all() as hub:
        ((name, host),) = lab.hosts.items()
        before = host.machine.comparable_state()
        account = f"{USER}@127.0.0.1:{lab.endpoints[name].port}"
        words = ("up", "--on", account, "--set", "new_vm.vhdx.source=./noble.vhdx", "--hub", hub.url, *IMAGE)
        (tmp_path / "noble.vhdx").write_bytes(b"as good as a VHDX to a simulated host")
        password = (lab.folder / "password").read_text("utf-8")
        refused = talk(*words, answers=["wrong"])
        assert (refused.code, "refused the logon" in refused.text) == (5, True)
        told = talk(*words, answers=[password, "y", "1", "n"])
        assert (told.code, password in told.text) == (2, False)
        assert "Begin" in told.questions[-1]
        added = (tmp_path / "config/winhost/fleet.yaml").read_text("utf-8")
        assert (f"user: {USER}" in added, password in added) == (True, False)
        monkeypatch.setenv("_127_0_0_1_PASSWORD", password)
        known = talk(*words, answers=["1", "n"])
        assert (known.code, host.machine.comparable_state()) == (2, before)


@pytest.mark.real
@pytest.mark.costly
@pytest.mark.parametrize("steps", [0, 2, 9, 20])
def test_ctrl_c_at_each_stage_leaves_what_up_goes_on_with(line: Line, here: Desk, tmp_path: Path, steps: int) -> None:
    fleet_of(here, tmp_path)
    words = [sys.executable, "-m", "winhost", "up", *AGREED, *here.serves]
    with started(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            found = journal(tmp_path)
            if found is not None and found.read_text("utf-8").count('"event":"end"') >= steps:
                process.send_signal(signal.SIGINT)
                break
            time.sleep(0.001)
    assert process.returncode in (0, 1, 2)
    done = line("up", *AGREED, *here.serves)
    assert done.code == 0, done.err
    assert len(standing(line)) == 1


@pytest.mark.real
@pytest.mark.skipif(os.name != "posix", reason="a pseudo terminal is POSIX's")
def test_a_key_that_an_interrupted_up_made_is_shown_once_by_the_next(line: Line, here: Desk, tmp_path: Path) -> None:
    fleet_of(here, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(up, "run_with_consents", lambda *_, **__: None)
        patch.setattr(up, "_show_outcome", lambda *_: 1)
        patch.setattr(up, "delete_folder", lambda folder: None)
        assert line("up", *AGREED, *here.serves).code == 1
    key = Path(Store().key("desk", "api-key")).read_text()
    (folder,) = (line.folder / "state/up").iterdir()
    assert line("apply", folder / "plan.json", *AGREED).code == 0
    assert [talk("up", width=120).text.count(key) for _ in range(2)] == [1, 0]


def test_what_this_machine_calls_itself_is_this_machine(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk(tmp_path, monkeypatch) as found:
        monkeypatch.setattr("socket.gethostname", lambda: "My-Desk.example.com")
        for word in ("my-desk", "localhost"):
            assert line("detect", word, "--json").result["host"] == "my-desk"
        assert line("detect", "another").code == 2
        fleet_of(found, tmp_path)
        assert line("detect", "localhost", "--json").result["host"] == "desk"
        fleet_of(found, tmp_path, "my-desk")
        assert line("detect", "my-desk", "--json").result["host"] == "my-desk"


def test_who_is_not_root_is_told_so_first(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_hosts, "local_powershell", lambda: None)
    monkeypatch.setattr(named_hosts, "getuser", lambda: "somebody")
    monkeypatch.setattr("shutil.which", lambda program: None)
    said = line("up")
    assert (said.code, "somebody is not root here" in said.err) == (2, True)
