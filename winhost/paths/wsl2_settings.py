"""What a user may decide about the WSL 2 path: `settings` of its playbook, or `winhost plan --set NAME=VALUE`."""

import re
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Annotated, Literal

from packaging.version import Version
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from winhost.model.units import Bytes, MiB, parse_size, size
from winhost.paths.images import named
from winhost.paths.public_key import public_key
from winhost.resources.values import is_device

AUTO = "auto"
NO_SWAP = "0"
_ENDS = "with a letter or a digit first and last"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_ACCOUNT = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,18}[A-Za-z0-9])?"  # 20 characters at most, as local accounts have
_MADE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")  # what resource ExternalSwitch makes
_LEAST_MEMORY = 256 * MiB  # microsoft/WSL, WslCoreConfig.cpp: less is not taken
_PLAIN = re.compile(r"[A-Za-z0-9._-]{0,63}[A-Za-z0-9_-]")  # of a file, as the host keeps it
_VERSION = r"[0-9][A-Za-z0-9.+:~-]{0,63}"
FIRST_TOOLKIT = Version("1.20.0")  # NVIDIA/nvidia-container-toolkit f2426fc7: all of the driver store, not a list


def _address(text: str) -> str:
    if text != "dhcp":
        interface = IPv4Interface(text)
        if "/" not in text or interface.ip in (interface.network.network_address, interface.network.broadcast_address):
            raise ValueError("should be dhcp, or an address of a host with its prefix, as 192.0.2.10/24")
    return text


def _at_least(text: str, least: Bytes, should: str) -> str:
    """The text of a size; a setting is text, and a number without its unit says too little."""
    try:
        enough = parse_size(text) >= least
    except ValueError:
        enough = False
    if not enough:
        raise ValueError(f"should be {should} a size with its unit, as 48 GiB, of {size(least)} at least")
    return text


def _swap(text: str) -> str:
    return text if text in ("auto", NO_SWAP) else _at_least(text, MiB, "auto, 0 for none, or")


def _as_text(given: object) -> object:
    """The 0 of YAML, which is a number there."""
    return NO_SWAP if given == 0 and type(given) is int else given


def _memory(text: str) -> str:
    return text if text == "auto" else _at_least(text, _LEAST_MEMORY, "auto, or")


def _like(pattern: str, should: str) -> AfterValidator:
    """What a text has to match, whole, and the same in words."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"should be {should}")
        return text

    return AfterValidator(check)


def _no_device(text: str) -> str:
    if is_device(text):
        raise ValueError("should be another name: this is a device of Windows, wherever it stands")
    return text


def _source(text: str) -> str:
    if text.startswith(("./", ".\\")):
        return f"./{_beside(text[2:])}"
    if not re.match(r"https://\S+$|[A-Za-z]:\\", text) or not text.isprintable():
        raise ValueError(
            "should be an https:// address, the absolute path of a file on the host, or ./ and the name of a file that "
            "lies beside the plan"
        )
    return text


def _beside(name: str) -> str:
    if not _PLAIN.fullmatch(name):
        raise ValueError("should be ./ and a plain name without folders: letters, digits, dot, dash and underscore")
    return _no_device(name)


Name = Annotated[str, _like(_NAME, f"1 to 63 letters, digits, dots, - and _, {_ENDS}"), AfterValidator(_no_device)]
Account = Annotated[str, _like(_ACCOUNT, f"1 to 20 letters, digits, - and _, {_ENDS}"), AfterValidator(_no_device)]
Sha256 = Annotated[str, _like("[0-9a-f]{64}", "a SHA-256: 64 digits of 0-9 and a-f, in small letters")]
Debian = Annotated[str, _like(_VERSION, "the version of a package as apt writes it, as 1.20.0-1")]
Source = Annotated[str, AfterValidator(_source)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class File(_Closed):
    """Something to be brought to the host, known by its hash."""

    source: Source
    """An https:// address that the host can reach, a path on the host, or ./ and the name of a file beside the plan,
    which is sent to the host."""
    sha256: Sha256

    @property
    def name(self) -> str:
        """As it is kept on the host: the last part of its source, in plain characters."""
        return re.sub(r"[^A-Za-z0-9._-]", "-", re.split(r"[/\\]", self.source)[-1])[-64:]


class WslPackage(File):
    """The MSI of WSL."""

    version: Annotated[
        str, _like(r"[0-9]{1,4}(\.[0-9]{1,5}){2,3}", "three or four numbers with dots between, as 2.7.14")
    ]

    @property
    def full(self) -> str:
        """With the four parts that Windows Installer writes."""
        return ".".join([*self.version.split("."), "0"][:4])


class Access(_Closed):
    """The way into the distro by SSH; without a key there is none, and the plan ends with the distro."""

    key: Annotated[str, AfterValidator(public_key)] | None = None
    """The public key of the machine that runs winhost."""
    port: Annotated[int, Field(strict=True, ge=1, le=65535)] | None = None
    """Left out: 22 bridged, else 2222, because Windows may have an sshd of its own."""
    allow: tuple[IPv4Network, ...] = ()
    """Networks that may come in, as 192.0.2.0/24; of IPv4, by which the distro is reached. None given: those that the
    host itself is in. The computer that runs winhost has to be in one of them."""


class Bridge(_Closed):
    """The distro as a machine of its own in the host's network."""

    switch: Name = "winhost"
    """The external switch to bridge to; made on `adapter` where it is not there."""
    adapter: str | None = None
    """The network adapter to make the switch on, by name or interface GUID, or auto: a wired one with a link, rather
    not the one that winhost comes through. No other one is touched."""
    address: Annotated[str, AfterValidator(_address)] = "dhcp"
    gateway: IPv4Address | None = None
    dns: tuple[IPv4Address, ...] = ()

    @model_validator(mode="after")
    def _agrees(self) -> "Bridge":
        if self.adapter is not None and not _MADE.fullmatch(self.switch):
            raise ValueError(f"{self.switch}: a switch that is made has a name of 1 to 32 letters, digits, - and _")
        if self.address == "dhcp":
            if self.gateway or self.dns:
                raise ValueError("gateway and dns go with a static address; DHCP brings its own")
        elif self.gateway is None or self.gateway not in IPv4Interface(self.address).network:
            raise ValueError(f"{self.address} needs a gateway in its network")
        return self


class Containers(_Closed):
    """What runs containers in the distro, pinned; later versions do not come by themselves."""

    ubuntu: Annotated[str, _like("[a-z]{2,20}", "one word in small letters, as noble")]
    """The code name of the image's Ubuntu, by which Docker sorts its packages."""
    docker: Debian
    toolkit: Debian
    """nvidia-container-toolkit: 1.20.0 and later know the whole driver that WSL mounts."""

    @field_validator("toolkit")
    @classmethod
    def _knows_wsl(cls, version: str) -> str:
        if Version(version.partition("-")[0]) < FIRST_TOOLKIT:
            raise ValueError(
                f"should be {FIRST_TOOLKIT} or later: before it, containers in WSL lack most of the driver"
            )
        return version


class Settings(_Closed):
    """Everything has a default but what only you can know."""

    network: Literal["auto", "bridged", "mirrored", "nat"] = "auto"
    """auto: bridged where `bridge` says how, else mirrored where this Windows and WSL can, else NAT."""
    bridge: Bridge | None = None
    account: Account = "winhost"
    administrator: bool = False
    """Whether the account that owns the distro is an administrator: only for where WSL is seen to refuse others."""
    distro: Name = "winhost"
    image: Annotated[File, BeforeValidator(named)]
    """The name of one that is pinned, as Ubuntu-24.04, or source and sha256 of any other."""
    wsl: WslPackage
    memory: Annotated[str, AfterValidator(_memory)] = "auto"
    """What Linux gets: auto, or as 48 GiB."""
    swap: Annotated[str, AfterValidator(_swap), BeforeValidator(_as_text)] = "auto"
    """auto: what WSL takes, a quarter of memory; 0: none, as Kubernetes wants it; or a size."""
    processors: Annotated[int, Field(strict=True, ge=1, le=2048)] | None = None
    access: Access = Access()
    containers: Containers
    never_sleep: bool = False
    """Whether the active power plan is set never to sleep or hibernate on AC power."""

    @model_validator(mode="after")
    def _agrees(self) -> "Settings":
        if self.network == "bridged" and self.bridge is None:
            raise ValueError(
                "network=bridged also needs bridge.switch=NAME, an external switch that is there, or "
                "bridge.adapter=NAME, the network adapter to make one on"
            )
        if self.network in ("mirrored", "nat") and self.bridge is not None:
            raise ValueError(f"bridge.* is for network=bridged, and not for network={self.network}")
        return self

    def stated(self, name: Literal["memory", "swap"]) -> Bytes | None:
        """A size in bytes, or None for auto."""
        text: str = getattr(self, name)
        if text == "auto":
            return None
        return 0 if text == NO_SWAP else parse_size(text)
