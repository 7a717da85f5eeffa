"""The administrative share of a host, played by a real Samba: what is written there, and what refuses."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from tests.connect.served import QUICK, Served
from tests.processes import PATIENCE_S
from winhost.connect.file_copy import NotWritten, send_by_smb
from winhost.core.steps import Step
from winhost.engine.host_session import HostSession
from winhost.engine.uploads import Sources, find_in_folder
from winhost.model.fleet import Host, Transport
from winhost.model.secrets import SecretRef

SMBD = shutil.which("smbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not SMBD or not shutil.which("smbpasswd") or os.geteuid() != 0, reason="needs Samba, and root"),
]

PASSWORD = 'it\'s $(a) "secret"'
CONTENT = os.urandom(3 << 20) + b"its end"
KEY = {"sha256": sha256(CONTENT).hexdigest(), "name": "disk.vhdx", "source": "./disk.vhdx"}
STEP = Step("1", "StagedFile", KEY, "desired", {"present": False}, {"present": True}, "The disk", "")
_CONFIG = """[global]
server role = standalone
interfaces = lo
bind interfaces only = yes
smb ports = {port}
private dir = {folder}
lock directory = {folder}
state directory = {folder}
cache directory = {folder}
pid directory = {folder}
ncalrpc dir = {folder}/ncalrpc
log file = {folder}/log
passdb backend = tdbsam:{folder}/passdb.tdb
smb encrypt = required
server min protocol = SMB3
disable spoolss = yes
load printers = no
[C$]
path = {folder}/c
read only = no
"""


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """Its folder, and the port."""
    folder = tmp_path_factory.mktemp("samba")
    (folder / "c").mkdir()
    with closing(socket.create_server(("127.0.0.1", 0))) as asked:
        port = asked.getsockname()[1]
    config = folder / "smb.conf"
    config.write_text(_CONFIG.format(folder=folder, port=port))
    made = ["smbpasswd", "-c", str(config), "-L", "-s", "-a", getpass.getuser()]
    subprocess.run(
        made, input=f"{PASSWORD}\n{PASSWORD}\n", text=True, check=True, capture_output=True, timeout=PATIENCE_S
    )
    with (folder / "output").open("wb") as output:
        server = subprocess.Popen(
            [str(SMBD), "--foreground", "--no-process-group", "-s", str(config)], stdout=output, stderr=output
        )
    try:
        _wait_for(port)
        yield folder / "c", port
    finally:
        server.kill()
        server.wait(PATIENCE_S)


def _wait_for(port: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(port)


def host(monkeypatch: pytest.MonkeyPatch, password: str = PASSWORD) -> Host:
    monkeypatch.setenv("SECRET_OF_SHARE", password)
    login = Transport(port=5985, user=getpass.getuser(), password=SecretRef.parse("env:SECRET_OF_SHARE"))
    return Host(name="gpu-01", address="127.0.0.1", transport=login)


def test_a_file_is_written_from_where_it_ended(
    share: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, port = share
    (tmp_path / "disk.vhdx").write_bytes(CONTENT)
    (folder / "x.part").write_bytes(CONTENT[:1000])
    told = [*send_by_smb(host(monkeypatch), r"C:\x.part", tmp_path / "disk.vhdx", 1000, port)]
    assert (folder / "x.part").read_bytes() == CONTENT
    assert told == [1000, 1000 + (1 << 20), 1000 + (2 << 20), len(CONTENT)]


def test_what_cannot_be_written_says_why_and_no_secret(
    share: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk.vhdx").write_bytes(CONTENT)
    for path, password, port in (
        (r"C:\nowhere\x.part", PASSWORD, share[1]),
        (r"D:\x.part", PASSWORD, share[1]),
        (r"C:\x.part", "another secret", share[1]),
        (r"C:\x.part", PASSWORD, 1),
    ):
        with pytest.raises(NotWritten) as refused:
            list(send_by_smb(host(monkeypatch, password), path, tmp_path / "disk.vhdx", 0, port))
        assert str(refused.value)
        assert password not in str(refused.value)


def test_a_host_that_finds_nothing_there_gets_it_over_the_wire(
    served: Served, share: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share is of another computer, as it is where somebody moved %ProgramData%."""
    folder, port = share
    (tmp_path / "disk.vhdx").write_bytes(CONTENT)
    there = folder / "ProgramData" / "winhost" / "files"
    there.mkdir(parents=True, exist_ok=True)
    (there / f"{KEY['sha256']}-disk.vhdx.part").write_bytes(b"")
    to_share = partial(send_by_smb, host(monkeypatch), port=port)
    hands = HostSession(
        served.connector(),
        QUICK,
        served.events.append,
        within=0,
        sources=Sources(find_in_folder(tmp_path), share=lambda: to_share),
    )
    assert hands.set(STEP, frozenset()).after["present"] is True
    hands.close()
    assert (there / f"{KEY['sha256']}-disk.vhdx.part").read_bytes() == CONTENT
    assert any("is not where the host looks for it" in event.text for event in served.events)
