"""Reading a property that the host did not report raises an error; the others are attributes."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from winhost.core.answers import NOT_READ, Missing, MissingFact, Record, RemoteFault, Unavailable, Unknown
from winhost.resources.host import typed_instance
from winhost.resources.registry import RESOURCE_TYPES
from winhost.resources.windows.read_only import Disk

UNREAD = Unknown(RemoteFault("NotImplemented"))
TOLD = {"model": "a disk", "bus": "NVMe", "boot": False, "guid": None}
MISSING: dict[str, Missing] = {"size": UNREAD, "style": Unavailable("HyperVRole"), "system": UNREAD, "number": UNREAD}
NOT_HELD = {"sector", "offline", "read_only", "health"}  # by facts that were made before it was read


def of_facts() -> Disk:
    return typed_instance(
        Disk, Record({**TOLD, **{name: asdict(why) for name, why in MISSING.items()}}, {"disk": "0"})
    ).state


def made() -> Disk:
    values: dict[str, Any] = {**TOLD, **MISSING}
    return Disk(**values)


@pytest.mark.parametrize(
    "way",
    [
        of_facts,
        made,
        lambda: copy.copy(made()),
        lambda: copy.deepcopy(of_facts()),
        lambda: pickle.loads(pickle.dumps(of_facts())),
    ],
    ids=["of facts", "made", "copied", "deeply", "pickled"],
)
def test_a_property_that_was_not_told_is_never_read_as_a_value(way: Callable[[], Disk]) -> None:
    disk = way()
    assert {name: getattr(disk, name) for name in TOLD} == TOLD
    for name, why in {**MISSING, **dict.fromkeys(NOT_HELD, NOT_READ)}.items():
        with pytest.raises(MissingFact) as raised:
            getattr(disk, name)
        assert (raised.value.fact, raised.value.missing) == (f"Disk.{name}", why)


def test_nothing_that_reads_every_property_passes_over_one_that_was_not_told() -> None:
    whole: Callable[[Disk], object]
    for whole in (repr, hash, asdict, lambda disk: disk == of_facts(), lambda disk: replace(disk, bus="SATA")):
        with pytest.raises(MissingFact):
            whole(of_facts())


def test_what_no_state_has_is_a_mistake_and_no_missing_fact() -> None:
    with pytest.raises(AttributeError, match="'Disk' object has no attribute 'colour'"):
        _ = of_facts().colour  # type: ignore[attr-defined]


def test_every_property_that_was_told_is_a_plain_attribute() -> None:
    """Rules read tens of thousands: none of these reads may run code of ours, and no default may hide a gap."""
    for resource in RESOURCE_TYPES.values():
        assert "__getattribute__" not in {name for known in resource.state.__mro__[:-1] for name in vars(known)}
        defaults = [vars(resource.state).get(name) for name in resource.state.__annotations__]
        assert not any(isinstance(value, Unknown | Unavailable) for value in defaults)
    assert vars(of_facts()).items() >= TOLD.items()
