"""The stand-ins refuse what Windows refuses, and a runspace on them lives and dies as one on a host."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import read_cases
from tests.powershell.twins import NO_PIPELINE_STOPS, Scripts, machine, scripts
from winhost.lab.lab_host import INVOKE
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.powershell.powershell_engine import EngineStopped
from winhost.lab.powershell.standins import cmdlets
from winhost.lab.powershell_host import EngineHost, EngineRunspace
from winhost.lab.wire.served_host import PipelineError, RemoteCommand
from winhost.resources.windows.parts import session_text

MISUSE = read_cases(Path(__file__).parents[1] / "data" / "powershell" / "misuse.yaml")
BOOT = {"resource": "Boot", "verb": "get", "key": {}}
WAIT = 20.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        yield running


@pytest.mark.parametrize("name", MISUSE)
def test_a_wrong_call_fails_as_on_windows(engine: Scripts, name: str) -> None:
    case = dict(MISUSE[name])
    engine.use(machine(case.pop("host", "server2025-role-installed")))
    script, thrown = case.pop("script"), case.pop("thrown")
    # What our agent sets for the whole runspace, that errors stop, holds here too.
    with pytest.raises(PipelineError) as caught:
        engine.run(script)
    assert caught.value.error_id == case.pop("code")
    assert case == {}, "a key that this harness does not know"
    goes_on = f"& {{ $ErrorActionPreference = 'Continue'; try {{ {script}; 'went on' }} catch {{ 'thrown' }} }}"
    assert engine.run(goes_on)[-1] == ("thrown" if thrown else "went on")


def test_every_cmdlet_has_its_documented_parameters(engine: Scripts) -> None:
    script = "foreach ($name in '{0}'.Split(' ')) {{ (Get-Item \"function:$name\").Parameters.Keys -join ' ' }}"
    found = engine.run(script.format(" ".join(cmdlets())))
    for (name, entry), parameters in zip(cmdlets().items(), found, strict=True):
        assert set(entry["parameters"]) - set(parameters.split()) <= {"PSEdition"}, name


@pytest.mark.parametrize("action", ["Continue", "SilentlyContinue", "Ignore"])
def test_a_caller_may_go_on_after_an_error_that_is_only_written(engine: Scripts, action: str) -> None:
    engine.use(machine("server2025-role-installed"))
    assert engine.run(f"Get-Service -Name x -ErrorAction {action}; 'went on'") == ["went on"]


def test_what_if_changes_nothing(engine: Scripts) -> None:
    host = machine("server2025-role-installed")
    before = host.snapshot()
    engine.use(host)
    engine.run("Suspend-VM -VM (Get-VM) -WhatIf; Disable-PnpDevice -InstanceId (Get-PnpDevice)[9].InstanceId -WhatIf")
    assert host.snapshot() == before


# ---- life and death of a runspace


@pytest.fixture
def host() -> Iterator[EngineHost]:
    with EngineHost(machine("server2025-role-installed")) as running:
        yield running


def agent(host: EngineHost) -> EngineRunspace:
    runspace = host.open_runspace("someone")
    runspace.invoke([RemoteCommand(session_text(), is_script=True)], NO_PIPELINE_STOPS)
    return runspace


def ask(runspace: EngineRunspace, call: dict[str, object], stop: threading.Event = NO_PIPELINE_STOPS) -> str:
    request = {"Json": json.dumps({"exclusive": call["verb"] != "get", "calls": [call]})}
    (answer,) = runspace.invoke([RemoteCommand(INVOKE, is_script=False, parameters=request)], stop)
    return str(answer)


def test_a_runspace_dies_with_its_boot_and_the_next_boot_is_another(host: EngineHost) -> None:
    runspace = agent(host)
    before = ask(runspace, BOOT)
    host.machine.restart_computer()
    host.machine.wait_until_ready()
    assert not runspace.running
    with pytest.raises(PipelineError, match="went down"):
        ask(runspace, BOOT)
    after = agent(host)
    assert ask(after, BOOT) != before
    after.close()


def test_a_late_answer_is_not_read_for_that_of_the_next_request(host: EngineHost) -> None:
    runspace = agent(host)
    with pytest.raises(EngineStopped):
        # Given up on before it can have come: what was asked is done all the same, and answered to nobody.
        runspace.engine.ask({"script": "[System.Threading.Thread]::Sleep(1000); 'late'"}, lambda: False)
    assert runspace.engine.ask({"script": "'in time'"}) == ["in time"]
    assert runspace.engine.ask({"script": "'and the next'"}) == ["and the next"]
    runspace.close()


def test_a_pipeline_that_is_stopped_leaves_the_mutex_to_the_next(host: EngineHost) -> None:
    host.machine.clock = LabClock(scale=100.0)  # the guest takes longer than anybody waits
    stopping, other, stop = agent(host), agent(host), threading.Event()
    vm = next(iter(host.machine.vms))
    change = {"resource": "VmPower", "verb": "set", "key": {"vm": vm}, "desired": {"state": "off"}}
    ended: list[PipelineError] = []

    def change_power() -> None:
        try:
            ask(stopping, change, stop)
        except PipelineError as error:
            ended.append(error)

    working = threading.Thread(target=change_power)
    working.start()
    while host.machine.mutex.acquire(blocking=False):
        host.machine.mutex.release()
    stop.set()
    working.join(WAIT)
    host.machine.clock = LabClock()
    assert [error.error_id for error in ended] == ["PipelineStopped"]
    allowed = {"resource": "VmCheckpoints", "verb": "set", "key": {"vm": vm}, "desired": {"automatic": False}}
    assert json.loads(ask(other, allowed))["answers"][0]["ok"]
    other.close()


@pytest.mark.skipif(os.name == "nt", reason="there its pipes are no files")
def test_a_process_that_was_ended_leaves_nothing(
    host: EngineHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    runspace = agent(host)
    assert any(tmp_path.iterdir())
    runspace.close()
    assert not runspace.running
    assert list(tmp_path.iterdir()) == []


def test_only_our_agent_is_run(host: EngineHost) -> None:
    runspace = host.open_runspace("someone")
    with pytest.raises(PipelineError, match="knows only"):
        runspace.invoke([RemoteCommand("Get-ChildItem /", is_script=True)], NO_PIPELINE_STOPS)
    runspace.close()
    assert not runspace.running


def test_whoever_does_not_know_the_word_gets_no_answer(host: EngineHost) -> None:
    import socket

    port = int(host.loopback.address.split()[0])
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as stranger:
        stranger.sendall(b'guess\n{"name": "Get-VM", "given": {}}\n')
        assert stranger.recv(1) == b""
