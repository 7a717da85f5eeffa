"""Values that settings may have: names, addresses, sizes, versions, public keys, and files by source and hash."""

import re
from base64 import b64encode
from binascii import Error, a2b_base64
from collections.abc import Iterable, Iterator
from gzip import compress
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Network, ip_address, ip_interface
from itertools import combinations
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from winhost.core.dataclass import dataclass
from winhost.images.seed import GuestAddress
from winhost.model.errors import UsageError, visible
from winhost.model.units import Bytes, MiB, parse_size, size
from winhost.model.written import Closed
from winhost.resources.values import is_device_name
from winhost.resources.windows.distros import PUBLIC_KEY

SWAP_OFF = "0"
_ENDS = "with a letter or a digit first and last"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_ACCOUNT = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,18}[A-Za-z0-9])?"  # 20 characters at most, as local accounts have
_MIN_MEMORY = 256 * MiB  # microsoft/WSL, WslCoreConfig.cpp: less is not taken
_PLAIN = re.compile(r"[A-Za-z0-9._-]{0,63}[A-Za-z0-9_-]")  # of a file, as the host keeps it
_VERSION = r"[0-9][A-Za-z0-9.+:~-]{0,63}"


def address_value(text: str) -> str:
    if text != "dhcp":
        interface = IPv4Interface(text)
        if "/" not in text or interface.ip in (interface.network.network_address, interface.network.broadcast_address):
            raise ValueError("should be dhcp, or an address of a host with its prefix, as 192.0.2.10/24")
    return text


def refuse_gateway(gateway: IPv4Address, address: str) -> None:
    """Raise ValueError where a host with this address and prefix can send nothing through the gateway."""
    interface = IPv4Interface(address)
    network = interface.network
    if gateway not in network:
        raise ValueError(f"the gateway {gateway} is not in the network of {address}")
    if gateway in (network.network_address, network.broadcast_address):
        raise ValueError(f"the gateway {gateway} is no host's: it stands for all of {network}")
    if gateway == interface.ip:
        raise ValueError(f"the gateway {gateway} is the own address of this Linux")


def _check_minimum(text: str, least: Bytes, should: str) -> str:
    """Return the text of a size with its unit, checked against a minimum."""
    try:
        enough = parse_size(text) >= least
    except ValueError:
        enough = False
    if not enough:
        raise ValueError(f"should be {should} a size with its unit, as 48 GiB, of {size(least)} at least")
    return text


def size_in_steps(
    should: str, step: Bytes, least: Bytes, most: Bytes = 1 << 63, word: str | None = None
) -> AfterValidator:
    """Check that a text is a size in steps within bounds, or the word; `should` says the same in words."""

    def check(text: str) -> str:
        if text != word and (not least <= parse_size(text) <= most or parse_size(text) % step):
            raise ValueError(f"should be {should}")
        return text

    return AfterValidator(check)


def swap_value(text: str) -> str:
    return text if text in ("auto", SWAP_OFF) else _check_minimum(text, MiB, "auto, 0 for none, or")


def zero_to_text(given: object) -> object:
    """Return the number 0 of YAML as text; other values unchanged."""
    return SWAP_OFF if given == 0 and type(given) is int else given


def memory_value(text: str) -> str:
    return text if text == "auto" else _check_minimum(text, _MIN_MEMORY, "auto, or")


def matching(pattern: str, should: str) -> AfterValidator:
    """Check that a whole text matches the pattern; `should` says the same in words."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"should be {should}")
        return text

    return AfterValidator(check)


def pack(data: bytes) -> str:
    """Return data as base64-encoded gzip, which the host's scripts unpack. Equal data give equal texts."""
    return b64encode(compress(data, 9, mtime=0)).decode("ascii")


def refuse_device_name(text: str) -> str:
    """Return the name. Raises ValueError for a reserved device name of Windows."""
    if is_device_name(text):
        raise ValueError("should be another name: this is a device of Windows, wherever it stands")
    return text


def _check_source(text: str) -> str:
    if text.startswith(("./", ".\\")):
        name = text[2:]
        if not _PLAIN.fullmatch(name):
            raise ValueError("should be ./ and a plain name without folders: letters, digits, dot, dash and underscore")
        return f"./{refuse_device_name(name)}"
    if not re.match(r"https://\S+$|[A-Za-z]:\\", text) or not text.isprintable():
        raise ValueError(
            "should be an https:// address, the absolute path of a file on the host, or ./ and the name of a file that "
            "lies beside the plan"
        )
    return text


Name = Annotated[
    str, matching(_NAME, f"1 to 63 letters, digits, dots, - and _, {_ENDS}"), AfterValidator(refuse_device_name)
]
Account = Annotated[
    str, matching(_ACCOUNT, f"1 to 20 letters, digits, - and _, {_ENDS}"), AfterValidator(refuse_device_name)
]
Sha256 = Annotated[str, matching("[0-9a-f]{64}", "a SHA-256: 64 digits of 0-9 and a-f, in small letters")]
Debian = Annotated[str, matching(_VERSION, "the version of a package as apt writes it, as 1.20.0-1")]
Upload = Literal["wire", "http", "sftp", "smb"]
"""The way of a file to the host from the computer that runs winhost: over the connection itself, or fetched by the
host's curl.exe from a port that winhost opens for that time, or written to the host by SFTP or to its administrative
share.
"""
Source = Annotated[str, AfterValidator(_check_source)]


# ---- values that belong to one host: given to several, two machines would have one address or one name


@dataclass(frozen=True)
class HostSpecific:
    """Marks a setting that is specific to one host, in Annotated. called: its name in messages; but: values that are
    not host-specific, because each host then gets its own value.
    """

    called: str
    but: tuple[str, ...] = ("auto", "dhcp")


@dataclass(frozen=True)
class HostSpecificValue:
    """A host-specific value. called: as in HostSpecific; setting: its name for --set."""

    called: str
    setting: str
    value: str

    @property
    def conflict_key(self) -> tuple[str, str]:
        """A value that is equal for conflicting settings: an address without prefix, a normalized MAC address."""
        value = self.value.lower().replace("-", ":") if self.called == "MAC address" else self.value.lower()
        return self.called, str(ip_interface(value).ip) if self.called == "address" else value


def host_specific_values(settings: BaseModel, within: str = "") -> Iterator[HostSpecificValue]:
    """Yield the settings of a path that are specific to one host."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from host_specific_values(value, f"{within}{name}.")
        for mark in field.metadata:
            if isinstance(mark, HostSpecific) and isinstance(value, str) and value not in mark.but:
                yield HostSpecificValue(mark.called, f"{within}{name}", value)


def refuse_for_several(given: Iterable[HostSpecificValue]) -> None:
    """Raise UsageError (ForOneHost) for the first value, because the request is for several hosts."""
    for each in given:
        raise UsageError(
            "ForOneHost",
            what=f"several hosts are named, and all would get the {each.called} {visible(each.value)} ({each.setting})",
            meaning="It belongs to one host. Nothing was planned.",
            hint="Plan each host by itself, with its own value and its own file: winhost plan HOST … -o HOST.json",
        )


def refuse_shared(hosts: Iterable[tuple[str, BaseModel]]) -> None:
    """Raise UsageError (SharedValue) if two of these hosts would get the same value."""
    each = [(host, own) for host, settings in hosts for own in host_specific_values(settings)]
    for (host, own), (other, others) in combinations(each, 2):
        if host != other and own.conflict_key == others.conflict_key:
            raise UsageError(
                "SharedValue",
                what=f"{visible(host)} and {visible(other)} would both get the {own.called} {visible(own.value)}",
                meaning="It belongs to one host. Nothing was done.",
                hint=f"Plan {visible(other)} again with another value of {others.setting}, then apply both.",
            )


class PublishedEndpoint(Closed):
    """The endpoint's address and who may reach it. `winhost plan --workload` sets it, by --listen and --allow."""

    port: Annotated[int, Field(strict=True, ge=1, le=65535)]
    """The port of the Linux, and of Windows where that forwards it."""
    allow: tuple[IPv4Network | IPv6Network, ...]
    """Networks that may come to it."""

    @property
    def networks(self) -> list[str]:
        """The allowed networks in the form that resources take."""
        return sorted(map(str, self.allow))

    @property
    def who(self) -> str:
        """The allowed networks in words, for the reader of a plan."""
        return f"{', '.join(self.networks)} (--allow)"


# ---- the address that a Linux of winhost's own gets: a guest, or a system on the machine itself


DHCP = "dhcp"


def _split_list(given: object) -> object:
    """Split the comma-separated text of a command line; return other values unchanged."""
    return [each.strip() for each in given.split(",")] if isinstance(given, str) else given


class OwnAddress(Closed):
    """The settings of an address of its own."""

    address: Annotated[str, AfterValidator(address_value), HostSpecific("address")] = DHCP
    """The address with its prefix, as 192.0.2.10/24. Behind NAT, where no DHCP server is, winhost chooses one."""
    gateway: IPv4Address | None = None
    dns: Annotated[tuple[IPv4Address, ...], BeforeValidator(_split_list)] = ()
    """Name servers. Left out behind NAT: those of the host."""

    @model_validator(mode="after")
    def _agrees(self) -> "OwnAddress":
        if self.gateway is not None and self.address == DHCP:
            raise ValueError("a gateway goes with an address of its own; DHCP tells both")
        if self.gateway is not None:
            refuse_gateway(self.gateway, self.address)
        return self

    @property
    def guest_address(self) -> GuestAddress | None:
        """The address in the form that a seed takes; None for DHCP."""
        if self.address == DHCP or self.gateway is None:
            return None
        return GuestAddress(IPv4Interface(self.address), self.gateway, tuple(map(ip_address, self.dns)))


# ---- public keys of SSH: whether a line of `authorized_keys` is a key that sshd can take


NEW_KEY_HINT = "A new pair: ssh-keygen -t ed25519; the .pub file is the one to give"
_PRIVATE = re.compile(r"BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File")
_POINTS = {b"nistp256": 65, b"nistp384": 97, b"nistp521": 133}  # RFC 5656, uncompressed


def refuse_private(text: str) -> None:
    """Raise ValueError for a private key. The error contains nothing of the text."""
    if _PRIVATE.search(text):
        raise ValueError(
            "this is a private key, and winhost wants the public one: the .pub file beside it. The private one may "
            "stand in your shell's history now; if others can read that, make another pair: ssh-keygen -t ed25519"
        )


def public_key(line: str) -> str:
    """Return the line. Raises ValueError for a key that sshd would silently ignore."""
    refuse_private(line)
    if not re.fullmatch(PUBLIC_KEY, line):
        raise ValueError(
            "should be one line of a public key file, as ssh-ed25519 AAAA… name; the name has no blanks. "
            + NEW_KEY_HINT
        )
    kind, data = line.split(" ")[:2]
    if wrong := _key_fault(kind.encode(), data):
        raise ValueError(f"this is no whole {kind} key: {wrong}. Copy the line of the .pub file again. {NEW_KEY_HINT}")
    return line


def _key_fault(kind: bytes, data: str) -> str | None:
    """Say what is wrong with the data of a key. RFC 4253, 6.6: fields, each after its length; the first names
    the type.
    """
    try:
        name, *fields = _split_fields(a2b_base64(data, strict_mode=True))
    except (Error, ValueError):
        return "its text is cut off, or something is in it that does not belong there"
    if name != kind:
        return "its text is that of another type" if fields else "its text names no type"
    curve = kind.rpartition(b"-")[2]
    if kind == b"ssh-ed25519":
        whole = [len(field) for field in fields] == [32]
    elif kind == b"ssh-rsa":
        whole = len(fields) == 2 and all(fields)
    else:
        whole = len(fields) == 2 and (fields[0], len(fields[1])) == (curve, _POINTS.get(curve))
    return None if whole else "its text has not the parts of such a key"


def _split_fields(data: bytes) -> Iterator[bytes]:
    """Yield the length-prefixed fields of a key. Raises ValueError if the lengths are wrong or there is no field."""
    if not data:
        raise ValueError("nothing")
    while data:
        length = int.from_bytes(data[:4])
        if len(data) < 4 + length:
            raise ValueError("cut off")
        yield data[4 : 4 + length]
        data = data[4 + length :]
