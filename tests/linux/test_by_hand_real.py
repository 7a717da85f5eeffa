"""run.py as a process of its own, on this very machine, in a view of its file system of its own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.linux.sandbox import Sandbox
from tests.linux.unpacked import unpack_linux
from tests.serving.situations import linux
from tests.serving.stacks import request
from winhost.bundle.linux_bundle import HOST_KEY
from winhost.bundle.linux_run import FILES
from winhost.connect.agent import Agent
from winhost.core.answers import Record
from winhost.core.order import steps_for
from winhost.core.steps import DesiredResource
from winhost.model.documents import write_document
from winhost.model.facts import Facts
from winhost.model.plan import Plan, PlanRequest, Stage
from winhost.resources.registry import host_answers
from winhost.serving.stack import stack

pytestmark = pytest.mark.real

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIWhoeverThisIs"
PLACE = "/var/by-hand"
WAY_IN = {"WslAccess": (Record({"active": True, "host_key": KEY}, {"account": "a", "distro": "d"}),)}
NETWORK, CONF, DOCKER = "/etc/systemd/network/10-winhost.network", "/etc/wsl.conf", "/etc/docker/daemon.json"
HOSTILE = "[x]\n$(touch /var/pwned) `id` \u202e\x1b[2J \\ ' \" \u00e4\n"
# Kills or interrupts itself where a line of the journal is to be written.
DRIVER = """
import os, runpy, signal, sys
path, number, name = sys.argv[1:4]
real, count = os.write, 0
def write(descriptor, data):
    global count
    count += data.startswith(b'{"n":')
    if count == int(number) and data.startswith(b'{"n":'):
        os.kill(os.getpid(), getattr(signal, name))
    return real(descriptor, data)
os.write = write
sys.argv = [path, *sys.argv[4:]]
runpy.run_path(path, run_name="__main__")
"""


def plan_for(agent: Agent, desired: tuple[DesiredResource, ...], key: str = KEY) -> Plan:
    """Make a plan with these resources."""
    resources = agent.read(tuple({each.resource for each in desired}))
    facts = Facts("here", "recorded", "2026-11-21T00:00:00+00:00", "0", resources)
    stage = Stage(1, desired, steps_for(desired, host_answers(facts), prefix="1."))
    return Plan("here", "none", "recorded", facts.read_at, "0", PlanRequest("wsl2", {}), (stage,), (), key)


def file(path: str, text: str, mode: str = "0644") -> DesiredResource:
    desired = {"text": text, "mode": mode, "owner": "root:root"}
    return DesiredResource("LinuxFile", {"path": path}, desired, f"File {path}", "For the test.")


@pytest.fixture
def here(sandbox: Sandbox) -> Sandbox:
    """A Debian with a file that will be replaced, and without remains of earlier tests."""
    sandbox.write(HOST_KEY, f"{KEY} root@here\n")
    sandbox.run("rm", "-rf", "/var/lib/winhost", NETWORK, DOCKER, PLACE)
    sandbox.write(CONF, HOSTILE, 0o600)
    return sandbox


DESIRED = (file(NETWORK, HOSTILE), file(CONF, "[boot]\nsystemd=true\n"), file(DOCKER, "{}\n", "0640"))


@pytest.fixture
def made(here: Sandbox, agent: Agent) -> Path:
    return unpack_linux(plan_for(agent, DESIRED), here.path(PLACE))


def states(agent: Agent) -> list[Any]:
    return [agent.get("LinuxFile", each.key) for each in DESIRED]


def run(here: Sandbox, *words: str, python: tuple[str, ...] = ("python3", "-I")) -> tuple[int, Any]:
    done = here.run(*python, f"{PLACE}/run.py", *words, "--json")
    return done.returncode, json.loads(done.stdout or "null")


def test_it_goes_there_says_so_and_goes_back(here: Sandbox, agent: Agent, made: Path) -> None:
    found = states(agent)
    assert run(here, "verify")[0] == 4
    code, said = run(here, "apply", "--check")
    assert (code, [step["desired"] for step in said["steps"]]) == (
        0,
        [step.desired for step in plan_for(agent, DESIRED).steps],
    )
    assert states(agent) == found
    code, said = run(here, "apply")
    assert (code, said["outcome"], said["changed"]) == (0, "applied", 3)
    assert states(agent) == [{**each.desired, "link": None} for each in DESIRED]
    assert run(here, "verify")[0] == 0
    assert not here.path("/var/pwned").exists()
    code, said = run(here, "rollback")
    assert (code, said["outcome"], said["kept"]) == (0, "rolled back", [])
    assert states(agent) == found


def test_the_files_of_what_serves_are_told_put_there_and_taken_back(here: Sandbox, agent: Agent) -> None:
    """The plan is for an endpoint without containers. The program itself installs its files."""
    entries: list[Any] = [*stack(linux("ubuntu-2xh100"), request("chat")).entries]
    desired = tuple(DesiredResource(**each) for each in entries if each["resource"] == "LinuxFile")
    plan = replace(plan_for(agent, DESIRED), stages=(Stage(1, desired, ()),))
    unpack_linux(plan, here.path(PLACE))
    here.write("/root/windows.json", write_document(Facts("here", "recorded", plan.facts_read_at, "0", WAY_IN)))
    code, facts = run(here, "facts", "/root/windows.json")
    listed = {each["key"]["path"]: each["state"]["text"] for each in facts["resources"]["LinuxFile"]}
    assert code == 0
    assert {listed[each.key["path"]] for each in desired} == {None}
    known = TypeAdapter(Facts).validate_python(facts)
    unpack_linux(
        replace(plan, stages=(Stage(1, desired, steps_for(desired, host_answers(known), prefix="1.")),)),
        here.path(PLACE),
    )
    code, said = run(here, "apply")
    assert (code, said["outcome"], said["changed"]) == (0, "applied", len(desired))
    assert run(here, "verify")[0] == 0
    assert [agent.get("LinuxFile", each.key) for each in desired] == [
        {**each.desired, "link": None} for each in desired
    ]
    code, said = run(here, "rollback")
    assert (code, said["outcome"], said["kept"]) == (0, "rolled back", [])
    assert {(agent.get("LinuxFile", each.key) or {})["text"] for each in desired} == {None}


def test_it_ends_as_the_engine_would(here: Sandbox, agent: Agent, made: Path) -> None:
    run(here, "apply")
    by_hand = states(agent)
    run(here, "rollback")
    for step in plan_for(agent, DESIRED).steps:
        agent.set(step.resource, step.key, step.desired, step.before, {})
    assert states(agent) == by_hand


def test_what_it_keeps_is_for_root_alone(here: Sandbox, made: Path) -> None:
    run(here, "apply")
    folder = here.path("/var/lib/winhost/bundles")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert {path.suffix for path in folder.iterdir()} == {".jsonl", ".json", ""}
    assert {str(path.relative_to(made)) for path in made.rglob("*")} == {"SHA256SUMS", "core", *FILES}


@pytest.mark.parametrize("line", range(1, 9))
def test_killed_at_a_line_it_is_gone_on_with_and_given_back(here: Sandbox, agent: Agent, made: Path, line: int) -> None:
    found = states(agent)
    assert drive(here, line, "SIGKILL").returncode == 137
    assert run(here, "apply")[1]["outcome"] == "applied"
    assert drive(here, min(line, 7), "SIGKILL", "rollback").returncode == 137
    assert run(here, "rollback")[1]["outcome"] == "rolled back"
    assert states(agent) == found


def drive(here: Sandbox, line: int, name: str, command: str = "apply") -> Any:
    words = ("python3", "-I", "-c", DRIVER, f"{PLACE}/run.py", str(line), name, command, "--json")
    return here.run("sh", "-c", '"$@"', "sh", *words)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_asked_to_stop_it_ends_the_step_that_it_is_at(here: Sandbox, agent: Agent, made: Path, name: str) -> None:
    done = drive(here, 2, name)
    assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (1, "Stopped")
    journal = next(here.path("/var/lib/winhost/bundles").glob("*.jsonl"))
    assert [json.loads(line)["event"] for line in journal.read_text().splitlines()] == ["run", "begin", "end"]
    assert run(here, "apply")[1]["outcome"] == "applied"


def test_a_terminal_that_is_gone_stops_nothing(here: Sandbox, made: Path) -> None:
    assert json.loads(drive(here, 2, "SIGHUP").stdout)["outcome"] == "applied"


def test_nothing_that_lies_beside_it_runs(here: Sandbox, made: Path) -> None:
    trap = "open('/var/pwned', 'w')\n"
    for name in ("json.py", "argparse.py", "agent.pyc", "winhost.py", "core/dataclasses.py", "core/evil.py"):
        (made / name).write_text(trap)
    for folder in (made, made / "core"):
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__/order.cpython-311.pyc").write_bytes(b"not compiled by anybody")
    done = here.run("python3", f"{PLACE}/run.py", "apply")
    assert (done.returncode, "start it as: python3 -I" in done.stderr) == (2, True)
    assert run(here, "verify")[0] == 4
    assert not here.path("/var/pwned").exists()


def test_a_host_key_that_is_none_is_told_as_a_failure(here: Sandbox, made: Path) -> None:
    here.write(HOST_KEY, f"{KEY} r\u00f6\u00f6t@here\n")
    assert run(here, "verify")[0] == 4
    here.path(HOST_KEY).unlink()
    here.path(HOST_KEY).mkdir()
    code, said = run(here, "verify")
    here.path(HOST_KEY).rmdir()
    assert (code, said["error"]["kind"]) == (1, "Failure")


def test_wrong_usage_is_told_apart(here: Sandbox, made: Path) -> None:
    for words in (("aply",), ("apply", "--chek"), ("apply", "--within", "soon"), ()):
        assert here.run("python3", "-I", f"{PLACE}/run.py", *words).returncode == 2


def test_a_terminal_obeys_no_names(here: Sandbox, made: Path) -> None:
    done = here.run("python3", "-I", f"{PLACE}/run.py", "apply", "--check")
    assert (done.returncode, done.stdout.isascii(), "\x1b" in done.stdout) == (0, True, False)
    assert "\\u001b" in done.stdout


def test_a_file_that_cannot_be_written_fails_its_step_and_can_be_gone_on_with(
    here: Sandbox, agent: Agent, made: Path
) -> None:
    found = states(agent)
    here.run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(Path(NETWORK).parent))
    code, said = run(here, "apply")
    assert (code, said["error"]["kind"]) == (1, "StepFailed")
    assert "[EROFS]" in said["error"]["what"]
    assert here.path(DOCKER).read_text() == "{}\n"
    here.run("umount", str(Path(NETWORK).parent))
    assert run(here, "apply")[1]["outcome"] == "applied"
    assert run(here, "rollback")[1]["outcome"] == "rolled back"
    assert states(agent) == found
