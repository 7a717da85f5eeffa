"""A file beside the plan, over the real wire: in more fragments than an envelope holds, and cut on the way."""

import os
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from tests.connect.conftest import Serve
from tests.connect.served import OVER_NETWORKS, Served
from tests.errors import raises
from winhost.connect.file_copy import NotWritten, _write_all, copy_pieces, send_by_smb
from winhost.connect.wire_errors import RemoteError
from winhost.core.steps import Step
from winhost.engine.progress import ProgressEvent
from winhost.lab.wire.served_host import Phase, drop
from winhost.lab.wire.wsman import Action
from winhost.model.fleet import Host, Transport
from winhost.model.units import MiB

CONTENT = os.urandom(MiB) * 3 + b"its end"
NAME = "wsl.msi"
KEY = {"sha256": sha256(CONTENT).hexdigest(), "name": NAME, "source": f"./{NAME}"}
STEP = Step("1", "StagedFile", KEY, "desired", {"present": False}, {"present": True}, "The MSI", "")
PIECES = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / NAME).write_bytes(CONTENT)
    return tmp_path


WIRES = [(kind, tls) for kind in OVER_NETWORKS for tls in (False, True)]


@pytest.fixture(params=WIRES, ids=[f"{kind}, {'tls' if tls else 'sealed'}" for kind, tls in WIRES])
def host(serve: Serve, request: pytest.FixtureRequest) -> Served:
    kind, tls = request.param
    served = serve(tls=tls)
    served.target = served.target.model_copy(
        update={"transport": served.target.transport.model_copy(update={"kind": kind})}
    )
    return served


@pytest.mark.costly
def test_all_of_it_comes_in_pieces_that_the_wire_carries(host: Served, folder: Path) -> None:
    hands = host.hands(folder=folder)
    answer = hands.set(STEP, frozenset())
    hands.close()
    assert (answer.before["present"], answer.after["present"]) == (None, True)
    sent = [call["piece"]["at"] for call in host.host.calls("send") if call.get("piece")]
    assert sent == [number * MiB for number in range(PIECES)]
    assert [event.percent for event in host.events] == [0, 33, 66, 99, 100]
    assert [call["expect"] for call in host.host.calls("set")] == [{"present": None}]


CUTS = {
    "before a piece": (Action.COMMAND, Phase.ARRIVED),
    "in the middle of a piece": (Action.SEND, Phase.ARRIVED),
    "with its answer": (Action.RECEIVE, Phase.FINISHED),
}


@pytest.mark.costly
@pytest.mark.parametrize(("action", "when"), CUTS.values(), ids=CUTS)
def test_a_wire_that_breaks_costs_no_more_than_a_piece(
    served: Served, folder: Path, action: Action, when: Phase
) -> None:
    def tell(event: ProgressEvent) -> None:
        served.events.append(event)
        if [each.percent for each in served.events] == [0, 33]:
            served.endpoint.faults.plan(drop, action, when)

    hands = served.hands(tell, folder=folder)
    assert hands.set(STEP, frozenset()).after["present"] is True
    hands.close()
    assert len([call for call in served.host.calls("send") if call.get("piece")]) == PIECES
    assert [event.kind for event in served.events].count("waiting") == 1


def test_another_file_than_was_pinned_is_not_kept(served: Served, folder: Path) -> None:
    (folder / NAME).write_bytes(bytes([CONTENT[0] ^ 1]) + CONTENT[1:])
    hands = served.hands(folder=folder)
    with pytest.raises(RemoteError) as refused:
        hands.set(STEP, frozenset())
    assert refused.value.fault.code == "Winhost.WrongHash"
    assert hands.state("StagedFile", KEY) == {"present": False}
    hands.close()


def test_without_the_file_nothing_is_sent(served: Served, folder: Path) -> None:
    (folder / NAME).unlink()
    hands = served.hands(folder=folder)
    with raises("NotBeside"):
        hands.set(STEP, frozenset())
    hands.close()
    assert [call for call in served.host.calls("send") if call.get("piece")] == []


class SmallTarget:
    """A file on a share that takes only so many bytes at a time, and in all."""

    def __init__(self, most: int, room: int) -> None:
        self.content = b""
        self._most, self._room = most, room

    def write(self, piece: memoryview) -> int:
        taken = min(len(piece), self._most, self._room - len(self.content))
        self.content += piece[:taken]
        return taken


def test_a_share_that_takes_less_than_it_is_given_gets_all(folder: Path) -> None:
    target = SmallTarget(300_000, len(CONTENT))
    assert list(copy_pieces(folder / NAME, MiB, partial(_write_all, target))) == [MiB, 2 * MiB, 3 * MiB, len(CONTENT)]
    assert target.content == CONTENT[MiB:]


def test_a_share_that_takes_nothing_more_ends_it(folder: Path) -> None:
    with pytest.raises(NotWritten):
        list(copy_pieces(folder / NAME, 0, partial(_write_all, SmallTarget(MiB, 2 * MiB + 5))))


def test_a_host_that_is_gone_before_the_goodbye_does_not_hide_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import smbclient
    from smbprotocol.exceptions import SMBConnectionClosed

    def gone(*_: object, **__: object) -> None:
        raise SMBConnectionClosed("the connection is closed")

    for name in ("register_session", "open_file", "delete_session"):
        monkeypatch.setattr(smbclient, name, gone if name != "register_session" else lambda *_, **__: None)
    with pytest.raises(NotWritten, match="the connection is closed"):
        list(
            send_by_smb(
                Host(name="gpu-01", address="127.0.0.1", transport=Transport(port=5985)), r"C:\x.part", folder / NAME, 0
            )
        )
