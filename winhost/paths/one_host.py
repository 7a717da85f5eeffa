"""Values that belong to one host: given to several, two machines would have one address or one name."""

from collections.abc import Iterable, Iterator
from ipaddress import ip_interface
from itertools import combinations

from pydantic import BaseModel

from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, visible


@dataclass(frozen=True)
class OfOneHost:
    """Marks such a setting, in Annotated. called: for people; but: words by which each host gets a value of its own."""

    called: str
    but: tuple[str, ...] = ("auto", "dhcp")


@dataclass(frozen=True)
class OwnValue:
    """called: as in OfOneHost; setting: its name, as --set takes it."""

    called: str
    setting: str
    value: str

    @property
    def same(self) -> tuple[str, str]:
        """Equal for what would collide: an address with any prefix, a MAC address however it is written."""
        value = self.value.lower().replace("-", ":") if self.called == "MAC address" else self.value.lower()
        return self.called, str(ip_interface(value).ip) if self.called == "address" else value


def own_values(settings: BaseModel, within: str = "") -> Iterator[OwnValue]:
    """What of the settings of a path belongs to one host."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from own_values(value, f"{within}{name}.")
        for mark in field.metadata:
            if isinstance(mark, OfOneHost) and isinstance(value, str) and value not in mark.but:
                yield OwnValue(mark.called, f"{within}{name}", value)


def refuse_for_several(given: Iterable[OwnValue]) -> None:
    """Raises UsageError (ForOneHost) for the first: the same request goes to several hosts."""
    for each in given:
        raise UsageError(
            "ForOneHost",
            what=f"several hosts are named, and all would get the {each.called} {visible(each.value)} ({each.setting})",
            meaning="It belongs to one host. Nothing was planned.",
            hint="Plan each host by itself, with its own value and its own file: winhost plan HOST … -o HOST.json",
        )


def refuse_shared(hosts: Iterable[tuple[str, BaseModel]]) -> None:
    """Raises UsageError (SharedValue) where two of these hosts would get the same."""
    each = [(host, own) for host, settings in hosts for own in own_values(settings)]
    for (host, own), (other, others) in combinations(each, 2):
        if host != other and own.same == others.same:
            raise UsageError(
                "SharedValue",
                what=f"{visible(host)} and {visible(other)} would both get the {own.called} {visible(own.value)}",
                meaning="It belongs to one host. Nothing was done.",
                hint=f"Plan {visible(other)} again with another value of {others.setting}, then apply both.",
            )
