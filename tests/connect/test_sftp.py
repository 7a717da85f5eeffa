"""Files that come to a host by SFTP, through a real sshd and its sftp-server: what is written, and what refuses."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from tests.connect.served import QUICK, Served
from tests.connect.sshd import Sshd, keypair
from tests.connect.sshd import served as run_sshd
from tests.rows import each_row
from winhost.connect.file_copy import NotWritten, send_by_sftp
from winhost.connect.wire_errors import RemoteError
from winhost.core.steps import Step
from winhost.engine.host_session import HostSession
from winhost.engine.uploads import Share, Sources, find_in_folder
from winhost.model.errors import WinhostError
from winhost.model.fleet import Host, Transport
from winhost.model.secrets import SecretRef
from winhost.resources.windows.disks import partial_file_path

CONTENT = os.urandom(3 << 20) + b"its end"
KEY = {"sha256": sha256(CONTENT).hexdigest(), "name": "disk.vhdx", "source": "./disk.vhdx"}
STEP = Step("1", "StagedFile", KEY, "desired", {"present": False}, {"present": True}, "The disk", "")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with run_sshd(tmp_path_factory.mktemp("sshd"), "Subsystem sftp internal-sftp") as running:
        yield running


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk.vhdx"
    path.write_bytes(CONTENT)
    return path


def host(sshd: Sshd, **changes: object) -> Host:
    return Host(
        name="gpu-01",
        address="127.0.0.1",
        transport=Transport(port=5985),
        sftp=sshd.login(operation_timeout=20, **changes),
    )


def there(root: Path, path: str, content: bytes = b"") -> Path:
    """A path of the host, where its drive is a folder of ours."""
    file = root / path.replace("\\", "/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("begun", [0, 1000, 1 << 20, len(CONTENT)])
def test_a_file_is_written_from_where_it_ended(sshd: Sshd, disk: Path, tmp_path: Path, begun: int) -> None:
    file = there(tmp_path, r"C:\x\y.part", CONTENT[:begun])
    told = [*send_by_sftp(host(sshd), r"C:\x\y.part", disk, begun, str(tmp_path))]
    assert file.read_bytes() == CONTENT
    assert (told[0], told[-1]) == (begun, len(CONTENT))


def test_what_cannot_be_written_says_why(sshd: Sshd, disk: Path, tmp_path: Path) -> None:
    there(tmp_path, r"C:\x.part")
    another = SecretRef("file", str(keypair(tmp_path / "another")))
    keypair(tmp_path / "host")
    other_host = (tmp_path / "host.pub").read_text()
    for changes, path, said in (
        ({}, r"C:\nowhere\x.part", "No such file"),
        ({"port": 1}, r"C:\x.part", "refused"),
        ({"key": another}, r"C:\x.part", "user"),
        ({"host_key": other_host}, r"C:\x.part", "other than the known one"),
        ({"host_key": None, "known_hosts": tmp_path / "nothing"}, r"C:\x.part", "not known here"),
    ):
        with pytest.raises(NotWritten, match=said):
            list(send_by_sftp(host(sshd, **changes), path, disk, 0, str(tmp_path)))
    with pytest.raises(NotWritten, match=r"no hosts\.gpu-01\.sftp"):
        list(send_by_sftp(host(sshd).model_copy(update={"sftp": None}), r"C:\x.part", disk, 0))
    assert (tmp_path / "C:" / "x.part").read_bytes() == b""


def test_a_disk_that_gets_full_with_the_last_bytes_is_told(sshd: Sshd, disk: Path, tmp_path: Path) -> None:
    file = there(tmp_path, r"C:\x.part")
    file.unlink()
    file.symlink_to("/dev/full")
    with pytest.raises(NotWritten, match="has 0 of 3,145,735 bytes; its disk may be full"):
        list(send_by_sftp(host(sshd), r"C:\x.part", disk, 0, str(tmp_path)))


@each_row(
    "path",
    [r"C:\..\x", r"C:\x\..\y", "C:/x", r"\\host\share\x", r"C:\x:stream", r"C:\a b", "C:\\x\n", r"C:\x.", "", r"C:\*"],
)
def test_only_plain_paths_on_a_drive_are_written(sshd: Sshd, disk: Path, path: str) -> None:
    with pytest.raises(NotWritten, match="no path on a drive"):
        list(send_by_sftp(host(sshd), path, disk, 0, "/nowhere"))


def test_a_server_that_goes_away_leaves_a_beginning_that_the_next_attempt_goes_on_from(
    sshd: Sshd, tmp_path: Path
) -> None:
    content = os.urandom(24 << 20)
    big = tmp_path / "big"
    big.write_bytes(content)
    file = there(tmp_path, r"C:\x.part")
    sending = send_by_sftp(host(sshd), r"C:\x.part", big, 0, str(tmp_path))
    assert [next(sending) for _ in range(9)][-1] == 8 << 20
    sshd.cut()
    with pytest.raises(NotWritten):
        list(sending)
    written = file.read_bytes()
    assert 0 < len(written) < len(content)
    assert content.startswith(written)
    assert [*send_by_sftp(host(sshd), r"C:\x.part", big, len(written), str(tmp_path))][-1] == len(content)
    assert file.read_bytes() == content


def onto(served: Served, sshd: Sshd, root: Path) -> Share:
    """By SFTP into a folder that plays the drive of the simulated host, which then has what came."""

    def share(path: str, source: Path, at: int) -> Iterator[int]:
        file = there(root, path, served.host.machine.files.read(path) or b"")
        yield from send_by_sftp(host(sshd), path, source, at, str(root))
        served.host.machine.files.write(path, file.read_bytes())

    return share


def session(served: Served, folder: Path, share: Share) -> HostSession:
    found = find_in_folder(folder)
    sources = Sources(found, share=lambda: share)
    return HostSession(served.connector(), QUICK, served.events.append, within=0, sources=sources)


def test_the_host_holds_what_came_against_the_hash_of_the_plan(
    served: Served, sshd: Sshd, disk: Path, tmp_path: Path
) -> None:
    hands = session(served, tmp_path, onto(served, sshd, tmp_path / "root"))
    assert hands.set(STEP, frozenset()).after["present"] is True
    hands.close()
    assert [call["piece"]["bytes"] for call in served.host.calls("send") if call.get("piece")] == [""]
    assert not [event for event in served.events if "instead" in event.text]


def test_another_file_than_was_pinned_is_not_kept(served: Served, sshd: Sshd, disk: Path, tmp_path: Path) -> None:
    disk.write_bytes(bytes([CONTENT[0] ^ 1]) + CONTENT[1:])
    hands = session(served, tmp_path, onto(served, sshd, tmp_path / "root"))
    with pytest.raises(RemoteError) as refused:
        hands.set(STEP, frozenset())
    assert refused.value.fault.code == "Winhost.WrongHash"
    assert hands.state("StagedFile", KEY) == {"present": False}
    hands.close()


def test_what_cannot_come_by_sftp_comes_over_the_wire(served: Served, sshd: Sshd, disk: Path, tmp_path: Path) -> None:
    hands = session(served, tmp_path, partial(send_by_sftp, host(sshd, port=1)))
    assert hands.set(STEP, frozenset()).after["present"] is True
    hands.close()
    (told,) = [event.text for event in served.events if event.kind == "note"]
    assert "it cannot be written to the host" in told
    assert "sending it over the connection instead" in told


@pytest.mark.parametrize("name", ["../disk.vhdx", "a b", "NUL.vhdx", "x:y", ""])
def test_a_name_that_is_none_is_never_written(
    served: Served, sshd: Sshd, disk: Path, tmp_path: Path, name: str
) -> None:
    hands = session(served, tmp_path, onto(served, sshd, tmp_path / "root"))
    key = {**KEY, "name": name, "source": f"./{name}"}
    with pytest.raises(WinhostError):
        hands.set(replace(STEP, key=key), frozenset())
    hands.close()
    assert not (tmp_path / "root").exists()


@pytest.mark.costly
def test_where_it_is_written_is_where_the_host_looks() -> None:
    assert partial_file_path(KEY) == rf"C:\ProgramData\winhost\files\{KEY['sha256']}-disk.vhdx.part"
