"""Listening ports of a Linux, read from the kernel's tables."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.linux.agent_definitions import definitions

ROW = "{at:4}: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {at} 1 0 100\n"


def test_it_is_found_among_thousands_of_connections() -> None:
    """Their lines are more than is read of any file whole."""
    loopback = int.from_bytes(bytes((127, 0, 0, 1)), sys.byteorder)
    rows = [ROW.format(at=at, address=f"{loopback:08X}", port=40000, state="06") for at in range(20_000)]
    rows.append(ROW.format(at=20_000, address="00000000", port=8443, state="0A"))
    table = ("  sl  local_address rem_address   st\n" + "".join(rows)).encode("ascii")
    assert len(table) > 1 << 20

    @contextmanager
    def opened(path: str) -> Iterator[io.BytesIO]:
        yield io.BytesIO(table if path.endswith("/tcp") else table.partition(b"\n")[0])

    agent = definitions()
    agent.update(open_file=opened, file_status=lambda path: True)
    found = agent["listening_ports"](None)
    assert [key for key, _ in found] == [{"address": "0.0.0.0", "port": "8443"}]
