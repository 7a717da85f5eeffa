"""Our `dataclass` means what the standard one means, and generates a method only when it is used."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.rows import each_row
from winhost.core.dataclass import _Pending, dataclass

OPTIONS: list[dict[str, bool]] = [
    {},
    {"frozen": True},
    {"frozen": True, "order": True},
    {"frozen": True, "kw_only": True},
    {"frozen": True, "repr": False},
    {"eq": False},
    {"frozen": True, "eq": False},
]


def declared(decorate: Callable[..., Any], options: dict[str, bool]) -> Any:
    class Pair:
        first: int
        rest: tuple[str, ...] = ()
        notes: list[str] = dataclasses.field(default_factory=list, compare=False)

    return decorate(**options)(Pair)


def seen(kind: Any) -> dict[str, Any]:
    """What can be told of a class by using it."""

    def of(ask: Callable[[], object]) -> object:
        try:
            return ask()
        except (TypeError, AttributeError, dataclasses.FrozenInstanceError) as error:
            return type(error).__name__, str(error)

    one, same, other = kind(first=1, rest=("a",)), kind(first=1, rest=("a",)), kind(first=2)
    hashed = of(lambda: hash(one) == hash(same))
    return {
        "repr": "id" if "object at" in repr(one) else repr(one),
        "eq": (one == same, one == other, one == object()),
        "hash": hashed,
        "order": of(lambda: one < other),
        "by position": of(lambda: kind(1).first),
        "unknown": of(lambda: kind(first=1, third=3)),
        "missing": of(kind),
        "set": of(lambda: setattr(one, "first", 3)),
        "delete": of(lambda: delattr(one, "rest")),
        "fields": [(each.name, each.type, each.compare) for each in dataclasses.fields(kind)],
        "match": kind.__match_args__,
        "defaults": (kind.rest, hasattr(kind, "notes"), kind(first=1).notes),
        "replaced": dataclasses.replace(other, rest=("b",)).rest,
        "as data": dataclasses.asdict(other),
        "params": repr(kind.__dataclass_params__),
        "parameters": [(each.name, each.kind) for each in inspect.signature(kind).parameters.values()],
        "name": kind.__init__.__qualname__,
    }


@each_row("options", OPTIONS, ids=str)
def test_it_means_what_the_standard_one_means(options: dict[str, bool]) -> None:
    assert seen(declared(dataclass, options)) == seen(declared(dataclasses.dataclass, options))


@dataclass(frozen=True)
class Base:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("negative")


@dataclass(frozen=True)
class Derived(Base):
    name: str = "none"


class Plain(Derived):
    """No dataclass itself."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "plain")


def test_classes_below_it_have_its_fields_and_its_checks() -> None:
    assert Derived(1) == Derived(1, "none") != Base(1)
    assert Plain(2).name == "plain"
    assert repr(Derived(1)) == "Derived(number=1, name='none')"
    with pytest.raises(ValueError, match="negative"):
        Derived(-1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plain(2).number = 3  # type: ignore[misc]


def test_copies_and_pickles_are_equal() -> None:
    made = Derived(1, "a")
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made


def test_pydantic_reads_one_that_nobody_has_used() -> None:
    kind = declared(dataclass, {"frozen": True})
    assert TypeAdapter(kind).validate_python({"first": "3", "rest": ["a"]}) == kind(3, ("a",))


def pending(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if isinstance(value, _Pending)}


def test_a_method_is_generated_when_it_is_used_and_no_other_with_it() -> None:
    kind: Any = declared(dataclass, {"frozen": True, "order": True})
    kind(1)
    assert pending(kind) >= {"__dataclass_params__", "__eq__", "__repr__"}
    uses: list[Callable[[], object]] = [
        lambda: repr(kind(1)),
        lambda: kind(1) == kind(1),
        lambda: kind(1) < kind(2),
    ]
    for use in uses:
        before = pending(kind)
        use()
        assert len(before - pending(kind)) == 1
    assert pending(kind) >= {"__hash__", "__le__", "__dataclass_params__"}
    assert [each.name for each in dataclasses.fields(kind)] == ["first", "rest", "notes"]


def test_threads_that_use_it_first_at_once_all_get_an_instance() -> None:
    together = Barrier(8)

    def make(kind: Any) -> object:
        together.wait(timeout=300)
        return kind(1, rest=("a",))

    with ThreadPoolExecutor(8) as threads:
        for _ in range(50):
            kind = declared(dataclass, {"frozen": True})
            assert {*threads.map(make, [kind] * 8)} == {kind(1, rest=("a",))}
