"""Which ports of a Linux listen, read from the kernel's tables."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from winhost.resources.linux.listening_port import script

ROW = "{at:4}: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {at} 1 0 100\n"


def test_it_is_found_among_thousands_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their lines are more than is read of any file whole."""
    loopback = int.from_bytes(bytes((127, 0, 0, 1)), sys.byteorder)
    rows = [ROW.format(at=at, address=f"{loopback:08X}", port=40000, state="06") for at in range(20_000)]
    rows.append(ROW.format(at=20_000, address="00000000", port=8443, state=script.LISTENING))
    table = ("  sl  local_address rem_address   st\n" + "".join(rows)).encode("ascii")
    assert len(table) > 1 << 20

    @contextmanager
    def opened(path: str) -> Iterator[io.BytesIO]:
        yield io.BytesIO(table if path.endswith("/tcp") else table.partition(b"\n")[0])

    monkeypatch.setattr(script, "opened", opened)
    monkeypatch.setattr(script, "status", lambda path: True)
    assert [*script.listeners()] == [("0.0.0.0", "8443", "20000")]
