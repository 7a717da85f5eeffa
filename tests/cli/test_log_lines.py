"""The log on stderr: its options before and after a command, its separation from stdout, and no secret in it."""

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from tests.cases import FASTEST
from tests.cli.conftest import Line, Said
from tests.cli.terminal import talk
from tests.secrets_kept import shown_in
from winhost import __version__
from winhost.cli import log_lines
from winhost.lab.hostfile import find
from winhost.lab.running_lab import SSH_KEY_FILE, USER, Lab
from winhost.lab.wire.served_host import Phase, drop
from winhost.lab.wire.wsman import Action
from winhost.model.documents import read_document
from winhost.model.facts import Facts
from winhost.resources.registry import WINDOWS

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo terminal")

CALL = f"gpu-03: get {len(WINDOWS)} resources: "
NTLM_TOKEN = "TlRMTVNTUA"  # how the logon's messages begin, in base64
LIBRARIES = ("pypsrp", "winrm", "paramiko", "spnego", "requests", "urllib3", "psrpcore")


# ---- where it is asked for


@pytest.mark.costly
@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    "words",
    [
        ("-v", "detect", "gpu-03"),
        ("detect", "gpu-03", "-v"),
        ("detect", "--verbose", "gpu-03"),
        ("--debug", "detect", "gpu-03"),
        ("detect", "gpu-03", "--debug"),
        ("-v", "detect", "gpu-03", "--debug"),
    ],
)
def test_it_is_asked_for_before_the_command_or_after_it(line: Line, words: tuple[str, ...]) -> None:
    said = line(*words)
    assert said.code == 0
    assert said.err.count(CALL) == (2 if "--debug" in words else 1)  # also when it is asked
    assert ("connect to 127.0.0.1" in said.err) == ("--debug" in words)
    assert (f"winhost {__version__}, Python" in said.err) == ("--debug" in words)
    assert CALL not in said.out
    assert line("detect", "gpu-03").err == ""


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_a_variable_asks_for_it_as_well(line: Line, monkeypatch: pytest.MonkeyPatch, value: str, shown: bool) -> None:
    monkeypatch.setenv("WINHOST_DEBUG", value)
    assert (CALL in line("detect", "gpu-03").err) == shown


@pytest.mark.parametrize("name", ["detect", "assess", "plan", "apply", "resume", "rollback", "verify", "report"])
def test_every_command_that_reaches_hosts_takes_it(line: Line, name: str) -> None:
    help_ = line(name, "--help").out
    assert "-v, --verbose" in help_
    assert "--debug" in help_


@pytest.mark.usefixtures("lab")
def test_a_run_says_its_calls_among_its_progress(line: Line) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    said = line("apply", "plan.json", "--accept", "vm-stop,vm-turn-off,restart,force-dismount", "--yes", "-v")
    told = said.err.splitlines()
    (call,) = (number for number, each in enumerate(told) if each.startswith("gpu-03: set VmMmio vm="))
    assert told[call + 1].startswith("gpu-03 ✓ [2/")


# ---- among nothing that others read


@pytest.mark.costly
@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("form", ["--json", "-oyaml", "-oname"])
def test_an_answer_for_programs_stays_as_it_is(line: Line, form: str) -> None:
    said = line("detect", "gpu-03", form, "--debug")
    assert CALL in said.err
    read = {"--json": json.loads, "-oyaml": yaml.safe_load, "-oname": str.split}[form](said.out)
    assert read
    assert "connect" not in line("detect", "gpu-03", form).err


@pytest.mark.costly
@posix
@pytest.mark.usefixtures("lab")
def test_on_a_terminal_there_are_no_live_lines_among_those_of_the_log(line: Line) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    words = ("apply", "plan.json", "--accept", "vm-stop,vm-turn-off,restart,force-dismount", "--yes")
    told = talk("-v", *words)
    assert told.code == 0
    assert "\x1b[" not in told.text
    assert "gpu-03: set VmMmio vm=" in told.text
    assert "gpu-03 ✓ [2/" in told.text


@pytest.mark.usefixtures("lab")
def test_a_reader_who_is_gone_ends_nothing(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("winhost.cli.prepare_streams", lambda: None)
    monkeypatch.setattr(sys, "stderr", Broken())
    assert line("detect", "gpu-03", "--debug", "--json").result["facts"]["host"] == "gpu-03"


def test_what_a_host_names_begins_no_line_and_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("winhost.connect.agent", logging.INFO, "", 1, "get %s", ("a\nb\x1b[2J\u202e",), None)
    shown = log_lines.LogLines()
    shown.setFormatter(log_lines.PlainLines("%(message)s"))
    shown.emit(record)
    assert capsys.readouterr().err == "get a\\nb\\x1b[2J\\u202e\n"


def test_nothing_is_left_of_it_when_the_command_ends(line: Line) -> None:
    ours = logging.getLogger("winhost")
    before = (ours.level, list(ours.handlers))
    assert line("detect", "nobody", "--debug").code == 2
    assert (ours.level, ours.handlers) == before


# ---- never with a secret


def shapes(lab: Lab) -> list[str]:
    """The lab's password as it is and as Basic sends it, and the parts of its SSH key."""
    password = (lab.folder / "password").read_text()
    key = (lab.folder / SSH_KEY_FILE).read_text().splitlines()[1:-1]
    return [password, f"{USER}:{password}", *key]


def change_fleet(**transport: Any) -> None:
    """Change all hosts of the fleet.yaml in the current folder."""
    file = Path("fleet.yaml")
    fleet = yaml.load(file.read_text(), FASTEST)
    for host in fleet["hosts"].values():
        host["transport"] |= transport
    file.write_text(json.dumps(fleet))


def left(folder: Path) -> str:
    """Return the contents of all files except the fleet file and the files that it refers to."""
    given = {"fleet.yaml", "password", SSH_KEY_FILE}
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in given)
    return "\n".join(path.read_bytes().decode("utf-8", "replace") for path in files)


def assert_kept(said: Said, folder: Path, secrets: list[str], caplog: pytest.LogCaptureFixture) -> None:
    logged = [repr(each.args) for each in caplog.records]
    everything = "\n".join([said.out, said.err, left(folder), caplog.text, *logged])
    assert shown_in(everything, secrets) == []
    assert NTLM_TOKEN not in everything


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    fake, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    errors.KeyringError = OSError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", fake)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return fake


PLACES = ["env", "file", "cmd", "keyring"]


def reference(scheme: str, password: str, monkeypatch: pytest.MonkeyPatch, keyring: ModuleType) -> str:
    """Return a reference to the password of this kind; a program has the password among its arguments, too."""
    monkeypatch.setenv("CANARY", password)
    keyring.get_password = lambda service, user: password  # type: ignore[attr-defined]
    program = json.dumps([sys.executable, "-c", "import sys; print(sys.argv[1])", password])
    return {
        "env": "env:CANARY",
        "file": f"file:{Path('password').resolve()}",
        "cmd": f"cmd:{program}",
        "keyring": "keyring:winhost/gpu-03",
    }[scheme]


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["psrp", "winrs"])
@pytest.mark.parametrize(("scheme", "auth"), list(zip(PLACES, ["ntlm", "basic"] * 2, strict=True)))
def test_no_password_is_in_it_wherever_it_is_given(
    line: Line,
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    keyring: ModuleType,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    scheme: str,
    auth: str,
) -> None:
    secrets = shapes(lab)
    change_fleet(kind=kind, auth=auth, password=reference(scheme, secrets[0], monkeypatch, keyring))
    lab.endpoints["gpu-03"].faults.plan(drop, Action.RECEIVE, Phase.FINISHED)
    said = line("detect", "gpu-03", "--debug", "-o", "facts")
    assert said.code == 0, said.err
    assert "so reading again in another session" in said.err
    assert "status 200" in said.err
    assert_kept(said, lab.folder, secrets, caplog)


@pytest.mark.parametrize("kind", ["psrp", "winrs"])
@pytest.mark.parametrize(
    ("password", "code"),
    [("env:CANARY", 5), ("{canary}", 2), ("env:{canary}", 2), ("file:{canary}", 2), ("cmd:{canary} {canary}", 5)],
)
def test_no_password_is_in_it_that_is_wrong_or_in_the_wrong_place(
    line: Line,
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    password: str,
    code: int,
) -> None:
    canary = "c4nary-in the c0al-mine"
    monkeypatch.setenv("CANARY", canary)
    wrong = password.replace("cmd:{canary} ", f"cmd:{sys.executable} -c 1 ").format(canary=canary)
    change_fleet(kind=kind, password=wrong)
    said = line("detect", "gpu-03", "--debug")
    assert said.code in (2, code), said.err
    assert_kept(said, lab.folder, [canary, f"{USER}:{canary}"], caplog)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Lab]:
    """A host whose Linux accepts the lab's key, which has a passphrase."""
    with Lab([find("win11-wsl-served")], tmp_path, scale=0.001) as lab:
        (host,) = lab.hosts.values()
        for session in host.machine.distros.sessions.values():
            for distro in session.distros.values():
                distro.keys = [lab.public_key]
        yield lab


def locked(lab: Lab, passphrase: str) -> str:
    """Write the lab's key with a passphrase."""
    key = Ed25519PrivateKey.from_private_bytes(lab._seed)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, BestAvailableEncryption(passphrase.encode()))
    file = lab.folder / "password"  # which is not looked through either
    file.write_bytes(text)
    return text.decode()


@pytest.mark.costly
@pytest.mark.parametrize("right", [True, False])
def test_no_key_and_no_passphrase_is_in_it(
    line: Line, served: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, right: bool
) -> None:
    passphrase = "open-ses4me-in-the-mine"
    (host,) = served.hosts
    secrets = shapes(served)
    monkeypatch.setenv("WINDOWS", secrets[0])
    monkeypatch.setenv("PASSPHRASE", passphrase if right else "wrong-ses4me")
    secrets += [passphrase, "wrong-ses4me", *locked(served, passphrase).splitlines()[1:-1], served._seed.hex()]
    fleet = yaml.load(Path("fleet.yaml").read_text(), FASTEST)
    fleet["hosts"][host]["transport"]["password"] = "env:WINDOWS"
    fleet["hosts"][host]["ssh"] |= {"key": f"file:{Path('password').resolve()}", "passphrase": "env:PASSPHRASE"}
    Path("fleet.yaml").write_text(json.dumps(fleet))
    said = line("detect", host, "--debug", "-o", "facts")
    assert said.code in (0, 1), said.err
    assert f"{host}/" in said.err
    assert "open ssh, 127.0.0.1 port" in said.err
    assert (": KeyUnusable after" in said.err) != right
    (file,) = Path("facts").iterdir()
    assert isinstance(read_document(file, Facts).resources["LinuxSystem"], tuple) == right
    assert_kept(said, served.folder, secrets, caplog)


class Heard(logging.Handler):
    """Collects what libraries would log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    """The loggers of libraries at DEBUG, which winhost does not quieten here."""
    heard = Heard()
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.addHandler(heard)
    for module in ("psrp", "winrs"):
        monkeypatch.setattr(f"winhost.connect.{module}.silence_libraries", lambda: None)
    yield heard
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.removeHandler(heard)


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("kind", ["psrp", "winrs"])
def test_no_line_of_a_library_is_in_it(line: Line, libraries: Heard, kind: str) -> None:
    """At DEBUG, pypsrp writes each message whole."""
    change_fleet(kind=kind)
    said = line("detect", "gpu-03", "--debug")
    assert said.code == 0
    assert libraries.lines
    assert [each for each in libraries.lines if each and each in said.err] == []
    names = {each.split()[1] for each in said.err.splitlines()}
    assert {name.partition(".")[0] for name in names} == {"winhost"}


def test_only_our_own_tree_gets_a_handler() -> None:
    with click.Context(click.Command("any")) as context:
        log_lines.show_log(context, debug=True)
        loggers = [logging.getLogger(), *map(logging.getLogger, (*logging.root.manager.loggerDict, *LIBRARIES))]
        shown = {each.name for each in loggers if any(isinstance(one, log_lines.LogLines) for one in each.handlers)}
    assert shown == {"winhost"}
