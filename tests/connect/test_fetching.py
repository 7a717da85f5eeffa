"""A file that the host fetches from this computer, by curl, from an address that is there for that time alone."""

import os
import urllib.error
import urllib.request
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.connect.served import QUICK, Served
from tests.processes import PATIENCE_S
from winhost.connect.one_time import serve_file
from winhost.connect.wire_errors import RemoteError
from winhost.core.steps import Step
from winhost.engine.host_session import HostSession
from winhost.engine.uploads import Sources, find_in_folder
from winhost.lab.physics.lab_section import LabSection
from winhost.lab.physics.windows_software import Curl

CONTENT = os.urandom(1000) * 3 + b"its end"
KEY = {"sha256": sha256(CONTENT).hexdigest(), "name": "disk.vhdx", "source": "./disk.vhdx"}
STEP = Step("1", "StagedFile", KEY, "desired", {"present": False}, {"present": True}, "The disk", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "disk.vhdx").write_bytes(CONTENT)
    return tmp_path


def fetching(served: Served, folder: Path) -> HostSession:
    offer = partial(serve_file, host_address="127.0.0.1")
    return HostSession(
        served.connector(),
        QUICK,
        served.events.append,
        within=0,
        sources=Sources(find_in_folder(folder), offer=lambda: offer),
    )


def curl(served: Served, **physics: Any) -> None:
    machine = served.host.machine
    machine.programs.pop("curl.exe", None)
    machine.lab = LabSection.model_validate(machine.lab.model_dump() | {"found": {"curl": physics}})
    Curl(machine)


def pieces(served: Served) -> list[dict[str, Any]]:
    return [call["piece"] for call in served.host.calls("send") if call.get("piece")]


def test_the_host_fetches_it_and_goes_on_where_it_was(served: Served, folder: Path) -> None:
    curl(served, piece=1100)
    hands = fetching(served, folder)
    assert hands.set(STEP, frozenset()).after["present"] is True
    hands.close()
    assert [piece["at"] for piece in pieces(served)] == [0, 1100, 2200]
    assert all("bytes" not in piece for piece in pieces(served))
    address = pieces(served)[0]["from"]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=PATIENCE_S)


@pytest.mark.parametrize("physics", [{"reaches": False}, {"there": False}])
def test_what_it_cannot_fetch_is_sent_over_the_wire(served: Served, folder: Path, physics: dict[str, Any]) -> None:
    curl(served, **physics)
    hands = fetching(served, folder)
    assert hands.set(STEP, frozenset()).after["present"] is True
    hands.close()
    assert "bytes" in pieces(served)[-1]
    (note,) = (event.text for event in served.events if event.kind == "note")
    assert "sending it over the connection instead" in note


def test_another_file_than_was_pinned_is_not_kept(served: Served, folder: Path) -> None:
    (folder / "disk.vhdx").write_bytes(bytes([CONTENT[0] ^ 1]) + CONTENT[1:])
    hands = fetching(served, folder)
    with pytest.raises(RemoteError) as refused:
        hands.set(STEP, frozenset())
    assert refused.value.fault.code == "Winhost.WrongHash"
    assert hands.state("StagedFile", KEY) == {"present": False}
    hands.close()


def test_nothing_is_at_another_address_or_beyond_its_end(folder: Path) -> None:
    with serve_file(folder / "disk.vhdx", "127.0.0.1") as address:
        assert address.startswith("http://127.0.0.1:")
        for wanted, begin, status in (
            (address[:-1] + "x", 0, 404),
            (address.rpartition("/")[0] + "/", 0, 404),
            (address, 9999, 416),
        ):
            asked = urllib.request.Request(wanted, headers={"Range": f"bytes={begin}-"})
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(asked, timeout=PATIENCE_S)
            assert refused.value.code == status
            refused.value.close()
