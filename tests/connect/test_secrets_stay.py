"""A password goes to the host's logon and nowhere else."""

import base64
import json
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S
from winhost.cli import run
from winhost.connect.windows import WindowsConnector
from winhost.engine.store import Store
from winhost.lab.hostfile import expand, find
from winhost.lab.lab_host import LabHost
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.wire.served_host import Phase, drop, refuse
from winhost.lab.wire.wsman import Action
from winhost.lab.wire.wsman_endpoint import Endpoint
from winhost.model.errors import WinhostError
from winhost.model.fleet import load_fleet
from winhost.resources.windows.parts import WindowsScripts

USER, CANARY = "LAB\\admin", "c4nary-in-the-c0al-mine"
HOST = "gpu-03"
CONSENTS = "vm-stop,vm-turn-off,restart,force-dismount"

# As it is, as Basic sends it, and as the hash of NTLM takes it.
SHAPES = {
    CANARY,
    base64.b64encode(CANARY.encode()).decode(),
    base64.b64encode(f"{USER}:{CANARY}".encode()).decode(),
    base64.b64encode(CANARY.encode("utf-16-le")).decode(),
    CANARY.encode("utf-16-le").hex(),
}
NTLM_TOKEN = base64.b64encode(b"NTLMSSP").decode()[:-2]  # a password can be guessed from the third one, offline


def shown_in(text: str) -> set[str]:
    return {shape for shape in SHAPES if shape in text}


@dataclass
class World:
    """A simulated host with the canary as its password; `folder` is where the user works, and holds the state."""

    machine: Machine
    endpoint: Endpoint
    folder: Path
    secret: Path

    def write_fleet(self, auth: str = "ntlm", **more: object) -> None:
        """The secret comes from a program, so that the process list has something to show."""
        reader = [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", str(self.secret)]
        transport = {
            "port": self.endpoint.port,
            "tls": self.endpoint.certificate_path is not None,
            "auth": auth,
            "user": USER,
            "password": f"cmd:{json.dumps(reader)}",
            **more,
        }
        fleet = {"schema": "winhost.fleet/1", "hosts": {HOST: {"address": "127.0.0.1", "transport": transport}}}
        (self.folder / "fleet.yaml").write_text(json.dumps(fleet), encoding="utf-8")

    def written(self) -> Iterator[tuple[Path, str]]:
        for path in self.folder.rglob("*"):
            if path.is_file():
                yield path, path.read_bytes().decode("utf-8", "replace")


@contextmanager
def world_in(folder: Path, *, tls: bool) -> Iterator[World]:
    facts, section = expand(find("server2025-role-installed"))
    machine = Machine(facts, section, LabClock(0))
    secret = folder / "secret"
    secret.write_text(CANARY, encoding="utf-8")
    secret.chmod(0o600)
    work = folder / "work"
    work.mkdir()
    with Endpoint(LabHost(machine), {USER: CANARY}, tls=tls) as endpoint:
        yield World(machine, endpoint, work, secret)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world_in(tmp_path, tls=False) as made:
        monkeypatch.chdir(made.folder)
        monkeypatch.setenv("WINHOST_STATE", str(made.folder / "state"))
        monkeypatch.delenv("WINHOST_FLEET", raising=False)
        yield made


class Everything(logging.Handler):
    """All that any logger would say to a handler of the root at DEBUG."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += f"{self.format(record)} {record.args!r}\n"

    def hears(self, words: str) -> bool:
        return words in self.text


@pytest.fixture
def logged() -> Iterator[Everything]:
    root, handler = logging.getLogger(), Everything()
    before = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


class ProcessList:
    """Reads the command lines of all processes again and again while it is watched."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.looks = 0
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "ProcessList":
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join(PATIENCE_S)

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self.looks += 1
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.seen.add(entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
                except OSError:
                    continue


@pytest.mark.costly
def test_no_command_leaves_a_trace_of_the_password(
    world: World, logged: Everything, capfd: pytest.CaptureFixture[str]
) -> None:
    world.write_fleet()
    found = world.machine.comparable_state()
    with ProcessList() as processes:
        assert run(["detect", HOST, "-o", "facts"]) == 0
        assert run(["detect", HOST, "--json"]) == 0
        assert run(["plan", HOST, "--vm", "llm-01", "-o", "plan.json"]) == 0
        assert run(["apply", "plan.json", "--yes", "--accept", CONSENTS]) == 0
        assert world.machine.comparable_state() != found
        (name,) = Store().runs()
        assert run(["verify", "plan.json"]) == 0
        assert run(["runs", name]) == 0
        assert run(["rollback", name, "--yes", "--accept", CONSENTS]) == 0
    assert world.machine.comparable_state() == found
    told = capfd.readouterr()
    assert HOST in told.out
    assert shown_in(told.out + told.err) == set()
    files = dict(world.written())
    assert any(path.suffix == ".jsonl" for path in files)
    assert {path: shown for path, text in files.items() if (shown := shown_in(text))} == {}
    assert logged.hears("POST /wsman")
    assert shown_in(logged.text) == set()
    assert not logged.hears(NTLM_TOKEN)
    assert world.endpoint.unencrypted_bodies == 0
    assert shown_in("\n".join(processes.seen)) == set()
    if Path("/proc/self/cmdline").exists():
        assert any(str(world.secret) in line for line in processes.seen)


def everything_told_by(error: BaseException) -> str:
    """What a log, a crash report or a debugger would show of it: the whole chain, with the locals of our frames."""
    told, chain, todo = [], set(), [error]
    while todo:
        each = todo.pop()
        if id(each) in chain:
            continue
        chain.add(id(each))
        told += [repr(each), str(each), repr(vars(each)), *traceback.format_exception(each)]
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code.co_filename != __file__:
                told += [repr(value) for value in frame.f_locals.values()]
                told += [repr(vars(value)) for value in frame.f_locals.values() if isinstance(value, BaseException)]
        todo += [other for other in (each.__cause__, each.__context__) if other is not None]
    return "\n".join(told)


TROUBLES = {
    "refused at the logon": (refuse(401), Action.LOGON, Phase.ARRIVED),
    "cut at the logon": (drop, Action.LOGON, Phase.ARRIVED),
    "cut while opening": (drop, Action.CREATE, Phase.ARRIVED),
    "refused while opening": (refuse(503), Action.CREATE, Phase.ARRIVED),
    "cut while answering": (drop, Action.RECEIVE, Phase.FINISHED),
}


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["psrp", "winrs"])
@pytest.mark.parametrize("auth", ["ntlm", "basic"])
@pytest.mark.parametrize(("trouble", "action", "when"), TROUBLES.values(), ids=TROUBLES.keys())
def test_no_error_holds_the_password(
    world: World, logged: Everything, kind: str, auth: str, trouble: object, action: Action, when: Phase
) -> None:
    world.write_fleet(auth, kind=kind)
    (host,) = load_fleet(world.folder / "fleet.yaml").hosts
    world.endpoint.faults.plan(trouble, action, when)  # type: ignore[arg-type]
    with pytest.raises(WinhostError) as caught:
        WindowsConnector(host, WindowsScripts()).open().get("Boot", {})
    assert shown_in(everything_told_by(caught.value)) == set()
    assert shown_in(logged.text) == set()


LOGONS = [("psrp", "ntlm"), ("psrp", "negotiate"), ("psrp", "basic"), ("winrs", "ntlm"), ("winrs", "basic")]


@pytest.mark.parametrize(("kind", "auth"), LOGONS)
def test_a_password_that_is_refused_is_not_told(
    world: World, logged: Everything, capfd: pytest.CaptureFixture[str], kind: str, auth: str
) -> None:
    world.write_fleet(auth, user="LAB\\nobody", kind=kind)
    assert run(["detect", HOST]) == 5
    told = capfd.readouterr()
    assert "refused the logon" in told.err
    assert shown_in(told.out + told.err + logged.text) == set()


@pytest.mark.parametrize("kind", ["psrp", "winrs"])
def test_a_certificate_is_judged_before_the_password_leaves(tmp_path: Path, logged: Everything, kind: str) -> None:
    with world_in(tmp_path, tls=True) as world:
        world.write_fleet("basic", kind=kind)
        (host,) = load_fleet(world.folder / "fleet.yaml").hosts
        with pytest.raises(WinhostError) as caught:
            WindowsConnector(host, WindowsScripts()).open()
    assert caught.value.code == "CertificateRefused"
    assert shown_in(everything_told_by(caught.value)) == set()
