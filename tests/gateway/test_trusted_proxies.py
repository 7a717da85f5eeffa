"""Proxies that name their clients: which of them the gateway trusts, and what it refuses."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.running import KEY, gateway
from tests.gateway.test_gateway import wait_until
from tests.gateway.test_gateway_start import certificate, tls_settings
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.gateway.connections import ClientConnection, Clients, PendingConnection, Request
from winhost.gateway.strict_http import Framing, Refused
from winhost.gateway.trusted_proxies import ProxyHeader, TrustedProxies, WrongHeader

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
HERE = (ip_network("127.0.0.1/32"),)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n"


def v2(source: str, command: int = 0x21, family: int | None = None, more: bytes = b"", cut: int = 0) -> bytes:
    address = ip_address(source)
    told = address.packed * 2 + struct.pack("!HH", 50_000, 443) + more
    told = told[: len(told) - cut]
    family = (0x11 if address.version == 4 else 0x21) if family is None else family
    return SIGNATURE + bytes([command, family]) + struct.pack("!H", len(told)) + told


def read(data: bytes) -> tuple[str | None, bytes]:
    """Read a header, in pieces of the size that it asks for. Return the client, None if it is no header, and the
    unread bytes.
    """
    header = ProxyHeader()
    try:
        while missing := header.missing_bytes():
            if not data:
                return "unfinished", b""
            header.feed(data[:missing])
            data = data[missing:]
        return header.client(), data
    except WrongHeader:
        return None, data


BEHIND = GET + b"\r\n"
HEADERS = {
    "v1": (b"PROXY TCP4 192.0.2.7 198.51.100.1 50000 443\r\n", "192.0.2.7"),
    "v1 of IPv6": (b"PROXY TCP6 2001:db8::7 2001:db8::1 0 65535\r\n", "2001:db8::7"),
    "v1 of IPv6, mapped": (b"PROXY TCP6 ::ffff:192.0.2.7 ::ffff:1.2.3.4 1 1\r\n", "192.0.2.7"),
    "v1, unknown": (b"PROXY UNKNOWN\r\n", ""),
    "v1, unknown, with more": (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", ""),
    "v2": (v2("192.0.2.7"), "192.0.2.7"),
    "v2 of IPv6": (v2("2001:db8::7"), "2001:db8::7"),
    "v2 with more": (v2("192.0.2.7", more=b"\x04\x00\x01x" * 100), "192.0.2.7"),
    "v2, local": (v2("192.0.2.7", command=0x20), ""),
    "v2, local, nothing told": (SIGNATURE + b"\x20\0\0\0", ""),
    "v2, unspecified": (v2("192.0.2.7", family=0), ""),
}
WRONG = {
    "no header": BEHIND,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    "v1 with LF alone": b"PROXY TCP4 192.0.2.7 198.51.100.1 50000 443\n",
    "v1 with CR within": b"PROXY TCP4 192.0.2.7\r198.51.100.1 50000 443\r\n",
    "v1 in small letters": b"proxy TCP4 192.0.2.7 198.51.100.1 50000 443\r\n",
    "v1, two spaces": b"PROXY TCP4  192.0.2.7 198.51.100.1 50000 443\r\n",
    "v1 without ports": b"PROXY TCP4 192.0.2.7 198.51.100.1\r\n",
    "v1 with more": b"PROXY TCP4 192.0.2.7 198.51.100.1 50000 443 x\r\n",
    "v1, port too large": b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 443\r\n",
    "v1, port with zeros": b"PROXY TCP4 192.0.2.7 198.51.100.1 050 443\r\n",
    "v1, address with zeros": b"PROXY TCP4 192.0.2.07 198.51.100.1 50000 443\r\n",
    "v1, no address": b"PROXY TCP4 192.0.2.777 198.51.100.1 50000 443\r\n",
    "v1, other address wrong": b"PROXY TCP4 192.0.2.7 198.51.100.1.2 50000 443\r\n",
    "v1, the other family": b"PROXY TCP4 2001:db8::7 2001:db8::1 50000 443\r\n",
    "v1, zone": b"PROXY TCP6 fe80::1%lo 2001:db8::1 50000 443\r\n",
    "v1, UDP": b"PROXY UDP4 192.0.2.7 198.51.100.1 50000 443\r\n",
    "v1 without end": b"PROXY UNKNOWN " + b"x" * 200,
    "v2, version 1": v2("192.0.2.7", command=0x11),
    "v2, other command": v2("192.0.2.7", command=0x22),
    "v2, UDP": v2("192.0.2.7", family=0x12),
    "v2, Unix": v2("192.0.2.7", family=0x31),
    "v2, half an address": v2("192.0.2.7", cut=5),
    "v2, IPv6 in the room of IPv4": v2("192.0.2.7", family=0x21),
    "v2, too long": v2("192.0.2.7", more=bytes(509)),
    "v2, signature with a fault": SIGNATURE[:-1] + b"\r" + v2("192.0.2.7")[12:],
}


@each_row("header,client", HEADERS.values(), ids=HEADERS)
def test_a_header_says_who_the_client_is_and_nothing_behind_it_is_read(header: bytes, client: str) -> None:
    assert read(header + BEHIND) == (client, BEHIND)
    for end in range(len(header)):
        assert read(header[:end])[0] == "unfinished", end


@each_row("header", WRONG.values(), ids=WRONG)
def test_what_is_no_header_is_refused(header: bytes) -> None:
    assert read(header + BEHIND)[0] is None


@given(st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11\0"]), st.binary(max_size=900))
def test_no_header_takes_more_than_it_may(begin: bytes, more: bytes) -> None:
    whole = begin + more
    client, rest = read(whole)
    assert len(whole) - len(rest) <= 536
    assert client in (None, "", "unfinished") or ip_address(str(client))


FORWARDED = {
    "none": (None, ""),
    "one": (b"192.0.2.7", "192.0.2.7"),
    "IPv6": (b"2001:db8::7", "2001:db8::7"),
    "mapped": (b"::ffff:192.0.2.7", "192.0.2.7"),
    "what the client wrote stands before": (b"203.0.113.9, 192.0.2.7", "192.0.2.7"),
    "whatever the client wrote": (b"<script>,, unknown ,192.0.2.7", "192.0.2.7"),
    "a trusted proxy before this one": (b"203.0.113.9, 192.0.2.7, 10.0.0.5", "192.0.2.7"),
    "trusted proxies alone": (b"10.0.0.6,10.0.0.5", "10.0.0.6"),
}
NOT_FORWARDED = [b"", b",", b"unknown", b"192.0.2.7, x", b"192.0.2.7:443", b"[2001:db8::7]", b"x, 10.0.0.5", b"\xff",
                 b"192.0.2.7,", b"fe80::1%lo", b"1" * 5_000]  # fmt: skip


@each_row("value,client", FORWARDED.values(), ids=FORWARDED)
def test_of_forwarded_addresses_the_last_that_is_no_proxy_counts(value: bytes | None, client: str) -> None:
    assert TrustedProxies((ip_network("10.0.0.0/24"),)).find_client(value) == client


@each_row("value", NOT_FORWARDED)
def test_a_proxy_that_forwards_no_address_is_refused(value: bytes) -> None:
    with pytest.raises(Refused, match="forwarded-for"):
        TrustedProxies((ip_network("10.0.0.0/24"),)).find_client(value)


def test_forwarded_addresses_in_several_headers_are_read_in_their_order() -> None:
    framing, found = Framing(1_000), []
    framing.on_forwarded = found.append
    assert [*framing.feed(GET + b"X-Forwarded-For: 203.0.113.9\r\nx-forwarded-for: 192.0.2.7\r\n\r\n")]
    assert found == [b"203.0.113.9,192.0.2.7"]


# ---- on connections


async def answer_with_address(request: Request) -> bool:
    """Return the client's address, or the status and code of a refusal."""
    refused = request.refused
    request.client.write(f"{refused.status} {refused.code}\n".encode() if refused else f"{request.address}\n".encode())
    return True


@contextlib.asynccontextmanager
async def listening(
    proxies: TrustedProxies, clients: Clients, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, int]]:
    def client() -> ClientConnection:
        return ClientConnection(answer_with_address, Framing(1_000), clients)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: PendingConnection(client, clients, tls, proxies), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        while clients.count:
            await asyncio.sleep(0.01)


async def answers(place: tuple[str, int], *sent: bytes) -> list[bytes]:
    """Send these parts on one connection, and return an answer to each; empty if the connection is closed."""
    reader, writer = await asyncio.open_connection(*place)
    found = [await answer(reader, writer, each) for each in sent]
    writer.close()
    return found


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes) -> bytes:
    writer.write(sent)
    try:
        return (await asyncio.wait_for(reader.readline(), PATIENCE_S)).rstrip(b"\n")
    except ConnectionError:
        return b""


def clients(**more: float) -> Clients:
    return Clients(
        **{"max_connections": 16, "per_address": 2, "head_timeout": PATIENCE_S, "read_timeout": PATIENCE_S, **more}
    )  # type: ignore[arg-type]


def forwarded(address: str) -> bytes:
    return GET + f"X-Forwarded-For: {address}\r\n\r\n".encode()


PLACES = {
    "header, trusted": (HERE, False, forwarded("192.0.2.7"), b"192.0.2.7"),
    "header, trusted, none": (HERE, False, BEHIND, b"127.0.0.1"),
    "header, trusted, wrong": (HERE, False, forwarded("unknown"), b"400 forwarded-for"),
    "header, not trusted": ((ip_network("10.0.0.0/8"),), False, forwarded("192.0.2.7"), b"127.0.0.1"),
    "header, nobody trusted": ((), False, forwarded("192.0.2.7"), b"127.0.0.1"),
    "header, where the PROXY protocol is said": (HERE, True, HEADERS["v2"][0] + forwarded("203.0.113.9"), b"192.0.2.7"),
    "v1": (HERE, True, HEADERS["v1"][0] + BEHIND, b"192.0.2.7"),
    "v2": (HERE, True, HEADERS["v2 of IPv6"][0] + BEHIND, b"2001:db8::7"),
    "v2, local": (HERE, True, HEADERS["v2, local"][0] + BEHIND, b"127.0.0.1"),
    "v1 from whom nobody trusts": ((ip_network("10.0.0.0/8"),), True, HEADERS["v1"][0] + BEHIND, b"400 request-line"),
    "v2 from whom nobody trusts": ((ip_network("10.0.0.0/8"),), True, HEADERS["v2"][0] + BEHIND, b"400 request-line"),
    "v1 where the header is said": (HERE, False, HEADERS["v1"][0] + BEHIND, b"400 request-line"),
    "no PROXY header": (HERE, True, forwarded("192.0.2.7"), b""),
}


@each_row("networks,protocol,sent,said", PLACES.values(), ids=PLACES)
def test_who_is_believed(networks: tuple[object, ...], protocol: bool, sent: bytes, said: bytes) -> None:
    async def told() -> list[bytes]:
        async with listening(TrustedProxies(networks, protocol), found) as place:  # type: ignore[arg-type]
            return await answers(place, sent)

    found = clients()
    assert asyncio.run(told()) == [said]


@pytest.mark.parametrize("sent", [b"", b"PROXY TCP4 192.0.", SIGNATURE, v2("192.0.2.7")[:-1]])
def test_half_a_header_has_the_time_of_a_head_and_is_counted(sent: bytes) -> None:
    async def told() -> bytes:
        async with listening(TrustedProxies(HERE, True), found) as place:
            reader, writer = await asyncio.open_connection(*place)
            writer.write(sent)
            while not found.count:
                await asyncio.sleep(0.01)
            rest = await asyncio.wait_for(reader.read(), PATIENCE_S)
            writer.close()
            return rest

    found = clients(head_timeout=0.2)
    assert asyncio.run(told()) == b""


def test_a_proxy_that_goes_away_within_its_header_leaves_nothing() -> None:
    async def told() -> None:
        async with listening(TrustedProxies(HERE, True), found) as place:
            _, writer = await asyncio.open_connection(*place)
            writer.write(b"PROXY ")
            while not found.count:
                await asyncio.sleep(0.01)
            writer.close()

    found = clients()
    asyncio.run(asyncio.wait_for(told(), PATIENCE_S))


def test_connections_are_counted_by_client_and_not_by_proxy() -> None:
    """Two connections from an address are allowed. A third one of the proxy is for another client."""

    async def told(protocol: bool) -> list[bytes]:
        async with listening(TrustedProxies(HERE, protocol), clients()) as place:
            found, writers = [], []
            for client in ("192.0.2.7", "192.0.2.7", "192.0.2.7", "192.0.2.8"):
                reader, writer = await asyncio.open_connection(*place)
                found.append(await answer(reader, writer, v2(client) + BEHIND if protocol else forwarded(client)))
                writers.append(writer)
            for writer in writers:
                writer.close()
            return found

    seven, eight = b"192.0.2.7", b"192.0.2.8"
    assert asyncio.run(told(protocol=True)) == [seven, seven, b"", eight]
    assert asyncio.run(told(protocol=False)) == [seven, seven, b"429 connections-of-address", eight]


def test_a_connection_that_a_proxy_keeps_is_of_the_client_that_uses_it() -> None:
    async def told() -> None:
        async with listening(TrustedProxies(HERE), found) as place:
            said = await answers(place, forwarded("192.0.2.7"), forwarded("2001:db8::8"), BEHIND)
            assert said == [b"192.0.2.7", b"2001:db8::8", b"127.0.0.1"]

    found = clients()
    asyncio.run(told())


def test_a_key_of_one_client_of_a_proxy_is_not_anothers() -> None:
    found = clients(per_address=1)
    one, two, three = (ClientConnection(answer_with_address, Framing(1), found) for _ in range(3))
    assert found.admit(one, "")
    assert found.move_to(one, "192.0.2.7")
    found.note_key(one)
    assert found.move_to(one, "192.0.2.8")
    assert not found.admit(two, "192.0.2.8")
    assert found.admit(two, "192.0.2.7")
    assert found.admit(three, "192.0.2.7")


@pytest.mark.parametrize("header", [b"", v2("192.0.2.7")])
def test_tls_follows_the_header_and_a_request_the_handshake_even_in_one_piece(tmp_path: Path, header: bytes) -> None:
    """The header is sent with the first bytes of the handshake, and byte by byte; a request with its last bytes."""

    def asked(place: tuple[str, int], pieces: int) -> bytes:
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with socket.create_connection(place, PATIENCE_S) as to:
            for each in header[:pieces]:
                to.sendall(bytes([each]))
            waiting = header[pieces:]
            sent = False
            while True:
                try:
                    if not sent:
                        tls.do_handshake()
                        tls.write(BEHIND)
                        sent = True
                    return tls.read(100)
                except ssl.SSLWantReadError:
                    to.sendall(waiting + outgoing.read())
                    waiting = b""
                    came = to.recv(65_536)
                    assert came
                    incoming.write(came)

    async def told() -> list[bytes]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        async with listening(TrustedProxies(HERE, bool(header)), clients(), context) as place:
            return [await asyncio.to_thread(asked, place, pieces) for pieces in (0, 28)]

    certificate(tmp_path)
    assert asyncio.run(told()) == [b"192.0.2.7\n" if header else b"127.0.0.1\n"] * 2


def test_the_log_names_the_client_behind_a_proxy(short: Path, python: str) -> None:
    port, settings = tls_settings(short)
    del settings["tls"]
    with gateway(short, {**settings, "trusted_proxies": ["127.0.0.1/32"]}, python) as door:
        head = f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
        for more in ("X-Forwarded-For: 192.0.2.7\r\n", ""):
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as to:
                to.sendall(f"{head}{more}\r\n".encode())
                assert to.makefile("rb").readline().split()[1] == b"200"
        assert wait_until(lambda: "client=192.0.2.7 key=alice" in door.log)
        assert wait_until(lambda: "client=127.0.0.1 key=alice" in door.log)
