"""The installer's file, how it gets to a machine, and what is heard of it then."""

import hashlib
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest

from tests.autoinstall.layouts import MANIFEST
from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.autoinstall import fetch_settings
from winhost.autoinstall.autoinstall_file import disk_of_manifest
from winhost.autoinstall.fetch_settings import main as fetch
from winhost.autoinstall.guard_order import DiskChoice, Scheme, storage_beside_windows, whole_disks
from winhost.autoinstall.install_plan import InstallSettings, format_install_file, install_document, new_host_key
from winhost.autoinstall.installer_storage import PYTHON
from winhost.autoinstall.lint import lint_autoinstall
from winhost.autoinstall.medium_files import script
from winhost.autoinstall.settings_server import (
    InstallEvent,
    InstallPhase,
    InstallProgress,
    OneTimeSettings,
    SettingsOffer,
    offer_settings,
    parse_event,
    receive_progress,
)
from winhost.images.seed import GuestSeed
from winhost.model.units import GiB

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIP0kC8p1VwC7y1xZVZ1L7C5p2k0J5Q5C5y5Z5V5b5n5m ada@desk"
SEED = GuestSeed("gpu-01", "winhost", (PUBLIC,), "00155D010203")
SETTINGS = InstallSettings(SEED, beside=True)
KEY = new_host_key()
DOCUMENT = install_document(SETTINGS, storage_beside_windows(MANIFEST), KEY)


# --- The file --------------------------------------------------------------------------------------------------------


def test_our_own_file_has_nothing_that_the_linter_finds_but_the_key() -> None:
    found = lint_autoinstall(format_install_file(DOCUMENT).encode(), disks=[disk_of_manifest(MANIFEST)])
    assert {(each.code, each.subject) for each in found} == {
        ("autoinstall.secret", "user-data.ssh_keys.ed25519_private"),
    }


def test_a_whole_machine_has_a_file_as_well() -> None:
    storage = whole_disks([DiskChoice("disk-0", 900 * GiB), DiskChoice("disk-1", 900 * GiB)], Scheme(1, lvm=True))
    document = install_document(replace(SETTINGS, beside=False, local_time=False), storage, KEY)
    assert {each.code for each in lint_autoinstall(format_install_file(document).encode())} == {"autoinstall.secret"}
    assert "error-commands" not in document
    assert "late-commands" not in document


def test_the_new_system_takes_keys_alone_and_is_known_by_its_own() -> None:
    user_data = DOCUMENT["user-data"]
    assert user_data["ssh_keys"] == {"ed25519_private": KEY.private, "ed25519_public": KEY.public}
    assert [user["lock_passwd"] for user in user_data["users"]] == [True]
    assert "password" not in json.dumps({**DOCUMENT, "user-data": None})
    assert DOCUMENT["ssh"] == {"install-server": True, "allow-pw": False, "authorized-keys": [PUBLIC]}
    assert "set-name" not in json.dumps(DOCUMENT["network"])
    assert "rm -f /var/log/installer/autoinstall-user-data" in " ".join(user_data["runcmd"])
    assert KEY.private not in repr(KEY)


def test_windows_is_next_where_it_fails_and_first_where_it_does_not() -> None:
    assert DOCUMENT["error-commands"] == [f"{PYTHON} /cdrom/winhost/boot.py windows"]
    assert DOCUMENT["late-commands"][0] == f"{PYTHON} /cdrom/winhost/boot.py order"
    assert "LOCAL" in DOCUMENT["late-commands"][1]  # Windows keeps the clock in local time
    in_utc = install_document(replace(SETTINGS, local_time=False), storage_beside_windows(MANIFEST), KEY)
    assert in_utc["late-commands"] == DOCUMENT["late-commands"][:1]
    assert DOCUMENT["early-commands"] == [f"{PYTHON} /cdrom/winhost/guard.py{last}" for last in ("", " again")]


def test_a_kernel_that_there_is_not_is_refused() -> None:
    with raises("NoSuchKernel"):
        replace(SETTINGS, kernel="lowlatency")


def test_a_host_key_is_one_that_openssh_reads(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    private = load_ssh_private_key(KEY.private.encode(), None)
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    assert public.decode() == KEY.public
    assert new_host_key().public != KEY.public


# --- From the controller ---------------------------------------------------------------------------------------------

DATA = json.dumps({"autoinstall": {"version": 1}, "guard": {"machine": {}}}).encode()


def medium(tmp: Path, told: str) -> Path:
    folder = tmp / "cdrom"
    folder.mkdir()
    (folder / "fetch.json").write_text(told)
    for name in ("guard.py", "boot.py"):
        (folder / name).write_text(script(name))
    return folder


def test_settings_are_fetched_once_by_whoever_has_the_medium(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with offer_settings(DATA, "127.0.0.1", 60) as offer:
        folder = medium(tmp_path, offer.fetch_file)
        assert fetch(folder, tmp_path / "root", 0) == 0
        assert json.loads((tmp_path / "root/autoinstall.yaml").read_text()) == {"version": 1}
        assert json.loads((tmp_path / "root/run/winhost/guard.json").read_text()) == {"machine": {}}
        assert (tmp_path / "root/run/winhost/guard.py").read_text() == script("guard.py")
        assert (tmp_path / "root/autoinstall.yaml").stat().st_mode & 0o777 == 0o600
        assert fetch(folder, tmp_path / "other", 0) == 1
        assert not (tmp_path / "other/autoinstall.yaml").exists()
    said = capsys.readouterr().err
    assert "given out once" in said
    assert offer.settings.token not in said


@pytest.mark.parametrize("change", ["certificate", "token", "late", "http"])
def test_settings_stay_with_the_controller(change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with offer_settings(DATA, "127.0.0.1", 0 if change == "late" else 60) as offer:
        told = json.loads(offer.fetch_file)
        if change == "certificate":
            told["sha256"] = hashlib.sha256(b"another").hexdigest()
        elif change == "token":
            told["url"] = told["url"][:-1] + ("A" if told["url"][-1] != "A" else "B")
        elif change == "http":
            told["url"] = told["url"].replace("https", "http")
        assert fetch(medium(tmp_path, json.dumps(told)), tmp_path / "root", 0) == 1
        assert not offer.settings.given
    assert not (tmp_path / "root/autoinstall.yaml").exists()
    assert offer.settings.token not in capsys.readouterr().err


def test_of_several_that_ask_at_once_one_gets_them() -> None:
    settings = OneTimeSettings(DATA, 10**12)
    got: list[int] = []
    ask = partial(settings.take, f"/{settings.token}", "192.0.2.7")
    threads = [threading.Thread(target=lambda: got.append(ask())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(got) == [200, *[503] * 19]
    settings.ended(arrived=True)
    assert ask() == 404


class Request:
    """One of a client that may give up."""

    def __init__(self, offer: SettingsOffer) -> None:
        self._url = urlsplit(offer.url)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        line = socket.create_connection(("127.0.0.1", self._url.port or 0), PATIENCE_S)
        self.line = context.wrap_socket(line)
        self.line.sendall(f"GET {self._url.path} HTTP/1.0\r\n\r\n".encode())

    def status(self) -> int:
        return int(self.line.recv(4096).split()[1])

    def whole(self) -> tuple[int, bytes]:
        """Read to its end, with the status."""
        answer = b""
        with self.line, suppress(ssl.SSLEOFError):
            while piece := self.line.recv(65536):
                answer += piece
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body


@pytest.mark.parametrize("read", [0, 1])
def test_an_answer_that_was_cut_off_uses_nothing_up(read: int, capfd: pytest.CaptureFixture[str]) -> None:
    padded = DATA + b" " * 3_000_000
    with offer_settings(padded, "127.0.0.1", 60) as offer:
        for _ in range(3):
            gone = Request(offer)
            if read:
                assert gone.status() in (200, 503)
            gone.line.close()
        while (whole := Request(offer).whole())[0] == 503:
            time.sleep(0.05)
        assert whole == (200, padded)
        assert Request(offer).whole()[0] in (404, 503)
        while not offer.settings.given:
            time.sleep(0.05)
        assert Request(offer).whole()[0] == 404
    assert "Traceback" not in capfd.readouterr().err


def test_whoever_reads_the_token_cannot_take_a_copy_and_leave_the_installer_another_one(tmp_path: Path) -> None:
    with offer_settings(DATA, "127.0.0.1", 60) as offer:
        folder = medium(tmp_path, offer.fetch_file)
        Request(offer).line.close()
        assert fetch(folder, tmp_path / "root", 0) == 1
        assert not (tmp_path / "root/autoinstall.yaml").exists()


def test_attempts_end_after_some_and_after_some_time_and_are_those_of_one_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    settings = OneTimeSettings(DATA, 10_000.0)
    path, tries = f"/{settings.token}", 0
    while settings.take(path, "192.0.2.7") == 200:
        settings.ended(arrived=False)
        tries += 1
        assert settings.take(path, "192.0.2.8") == 404
    assert tries == 5
    later = OneTimeSettings(DATA, 10_000.0)
    path = f"/{later.token}"
    assert later.take(path, "192.0.2.7") == 200
    later.ended(arrived=False)
    now[0] += 599
    assert later.take(path, "192.0.2.7") == 200
    later.ended(arrived=False)
    now[0] += 2
    assert later.take(path, "192.0.2.7") == 404
    assert not settings.given
    assert not later.given


def test_a_medium_asks_again_for_what_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: set[str] = set()
    answers = [http.client.IncompleteRead(b"{"), OSError("busy"), DATA]

    def fetched(url: str, fingerprint: str, client: str) -> bytes:
        clients.add(client)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(fetch_settings, "fetch", fetched)
    assert fetch_settings.fetch_with_retries("https://192.0.2.1/t", "a", 0) == DATA
    assert len(clients) == 1


# --- Progress --------------------------------------------------------------------------------------------------------

# As Ubuntu's installer sends them: name, description, kind, result.
TOLD = [
    ("subiquity/Early/run", "", "start", None, InstallPhase.STARTED),
    ("winhost/guard", "this machine and its disks match the order", "finish", "SUCCESS", InstallPhase.COMPARED),
    (
        "subiquity/Install/install/curtin_install/run_curtin_step",
        "executing curtin install partitioning step",
        "start",
        None,
        InstallPhase.PARTITIONED,
    ),
    (
        "subiquity/Install/install/curtin_install/run_curtin_step",
        "executing curtin install extract step",
        "start",
        None,
        InstallPhase.COPIED,
    ),
    (
        "subiquity/Install/install/curtin_install/run_curtin_step",
        "executing curtin install curthooks step",
        "start",
        None,
        InstallPhase.CONFIGURED,
    ),
    ("subiquity/Install/install/postinstall", "final system configuration", "start", None, InstallPhase.FINISHED),
    ("subiquity/Shutdown/shutdown", "mode=REBOOT", "start", None, InstallPhase.RESTARTING),
]


def test_phases_follow_what_the_installer_says() -> None:
    progress = InstallProgress()
    for name, words, kind, result, phase in TOLD:
        event = parse_event(
            json.dumps({"name": name, "description": words, "event_type": kind, "result": result}).encode()
        )
        assert event is not None
        assert progress.receive(event)
        assert progress.phase is phase
    assert progress.failure is None
    assert not progress.receive(InstallEvent("subiquity/Early/run", "", True, False))
    assert progress.phase is InstallPhase.RESTARTING


def test_a_guard_that_stopped_is_a_failure_and_no_phase() -> None:
    progress = InstallProgress()
    words = "stopped before the first write: disk-cloned: /dev/sda and /dev/sdb"
    assert progress.receive(InstallEvent("winhost/guard", words, False, True))
    assert (progress.phase, progress.failure) == (InstallPhase.STARTED, words)
    progress.receive(InstallEvent("subiquity/Early/run", "", False, True))
    assert progress.failure == words


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"name": 1}', b"\xff"])
def test_what_is_no_event_is_none(data: bytes) -> None:
    assert parse_event(data) is None


def test_events_are_heard_at_an_address_that_nobody_guesses() -> None:
    heard: list[InstallEvent] = []
    with receive_progress("127.0.0.1", heard.append) as url:
        assert _post(url, b'{"name": "a\\u001b[2J", "description": "b", "event_type": "start"}') == 200
        assert _post(url + "x", b'{"name": "a"}') == 404
        assert _post(url, b"x" * 70_000) == 404
    assert [each.name for each in heard] == ["a\\x1b[2J"]


def _post(url: str, data: bytes) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 404  # it hung up on what is too long
