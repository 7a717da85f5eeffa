"""The file /etc/winhost/serving.json: what a Linux serves, for `winhost serve` and administrators. A plan writes it."""

import json
from dataclasses import asdict, fields
from typing import Annotated, Any, TypeAlias

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from winhost.core.dataclass import dataclass
from winhost.model.fleet import bracket_ipv6
from winhost.model.yamlfile import adapter

PATH = "/etc/winhost/serving.json"
FORMAT = 1

_Unit = Annotated[str, Field(pattern=r"^winhost-engine-[a-z0-9][a-z0-9-]{0,63}\.service$")]
_Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}$")]
_Socket = Annotated[str, Field(pattern=r"^/run/winhost-engines/[a-z0-9-]{1,64}/engine\.sock$")]
_Text = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,300}$")]
_STRICT = ConfigDict(extra="forbid", strict=True)
GpuNumber: TypeAlias = Annotated[int, Field(ge=0, le=255)]


class NotDeployed(ValueError):
    """The text is not a valid serving.json. The message says where, and what is expected there."""


@checked_dataclass(frozen=True, config=_STRICT)
class DeployedEngine:
    """model: the name for clients; served_name: the name that the engine reports; image: with its digest, None if vLLM
    runs without a container; gpus: numbers of its GPUs; turns: the gateway starts and stops it; stands_by: the model
    that it is a standby of; clients do not call a standby.
    """

    model: _Name
    served_name: _Name
    slug: _Slug
    unit: _Unit
    socket: _Socket
    image: _Text | None
    version: _Text
    profile: _Text
    gpus: list[GpuNumber]
    turns: bool = False
    stands_by: _Name | None = None


@checked_dataclass(frozen=True, config=_STRICT)
class DeployedGateway:
    """listen: an address and a port; yields: the gateway gives up the GPUs on request."""

    unit: Annotated[str, Field(pattern=r"^winhost-gateway\.service$")]
    listen: Annotated[str, Field(pattern=r"^[0-9A-Fa-f:.\[\]]{2,60}:[0-9]{1,5}$")]
    tls: bool
    yields: bool = False

    @property
    def address(self) -> str:
        """The address without the brackets of IPv6."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    def url(self, address: str) -> str:
        """Return the URL of the gateway on a machine with this address."""
        return f"{'https' if self.tls else 'http'}://{endpoint(address, self.port)}"


@dataclass(frozen=True)
class Deployed:
    """The content of serving.json. engines: in the order in which they start."""

    engines: tuple[DeployedEngine, ...]
    gateway: DeployedGateway

    @property
    def published(self) -> tuple[DeployedEngine, ...]:
        """The engines that clients call: one for each model."""
        return tuple(each for each in self.engines if each.stands_by is None)

    def text(self) -> str:
        """Return the text of the file."""
        engines = [asdict(each) for each in self.engines]
        document = {"format": FORMAT, "engines": engines, "gateway": asdict(self.gateway)}
        return json.dumps(document, indent=2) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Deployed":
        """Parse the file. Raises NotDeployed."""
        try:
            top = json.loads(text)
        except (ValueError, RecursionError):
            raise NotDeployed("it is no JSON") from None
        if not isinstance(top, dict) or top.get("format") != FORMAT:
            raise NotDeployed(f"format {FORMAT} is expected")
        names = {each.name for each in fields(cls)}
        if top.keys() - {"format"} != names:
            raise NotDeployed(f"it has to have {', '.join(sorted(names))}")
        engines = _checked(list[DeployedEngine], top["engines"], "engines")
        for name in ("model", "slug"):
            values = [getattr(each, name) for each in engines]
            if len(set(values)) < len(values):
                raise NotDeployed(f"engines: two have the same {name}")
        return cls(tuple(engines), _checked(DeployedGateway, top["gateway"], "gateway"))


def endpoint(address: str, port: int) -> str:
    """Return ADDRESS:PORT, with the brackets of IPv6."""
    return f"{bracket_ipv6(address)}:{port}"


def _checked(kind: Any, value: object, where: str) -> Any:
    try:
        return adapter(kind).validate_json(json.dumps(value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        position = ".".join(str(part) for part in (where, *first["loc"]))
        raise NotDeployed(f"{position}: {first['msg']}") from None
