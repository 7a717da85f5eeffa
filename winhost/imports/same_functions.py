"""Which functions of several files are one and the same: by place first, then by what they are."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import field, replace

from winhost.core.dataclass import dataclass
from winhost.imports.import_errors import contradiction, unreadable
from winhost.imports.observation import FileObservations, Observation, SeenFunction, State, Unreported, Value
from winhost.model.errors import UsageError, visible

_IDS_WITHOUT_SUBSYSTEM = 2


@dataclass(eq=False)
class Met:
    """A function of the machine, with what each file says of it."""

    seen: list[tuple[str, SeenFunction]] = field(default_factory=list)

    @property
    def location(self) -> str | None:
        """The location path where a file has one, else the bus address."""
        paths = [function.location for _, function in self.seen if function.location]
        return next(iter(paths), None) or next((function.place for _, function in self.seen if function.place), None)

    @property
    def ids(self) -> str:
        """The most complete ones."""
        return max((function.ids for _, function in self.seen), key=len)


def met(files: Sequence[tuple[str, FileObservations]]) -> list[Met]:
    """The functions of all files, each once. Raises UsageError: CardsDoNotMatch, Contradiction, NotReadable."""
    found: list[Met] = []
    complete: str | None = None
    for file, observations in sorted(files, key=lambda each: _order(each[1])):
        functions = observations.functions or ()
        _refuse_same_places(file, functions)
        _join(found, file, functions, complete)
        complete = complete or (file if observations.every_function else None)
    _refuse_two_in_one_place(found)
    return found


def _order(observations: FileObservations) -> tuple[bool, int]:
    """A complete list first, so that what others know and it does not is noticed; then what knows places best."""
    functions = observations.functions or ()
    placed = 2 * any(each.location for each in functions) + any(each.address for each in functions)
    return not observations.every_function, -placed


def _refuse_same_places(file: str, functions: Iterable[SeenFunction]) -> None:
    for place, times in Counter(function.place for function in functions).items():
        if place is not None and times > 1:
            raise unreadable(file, f"lists {place} {times} times", "Import one listing of one machine.")


def _refuse_two_in_one_place(found: Iterable[Met]) -> None:
    there: dict[str, Met] = {}
    for each in found:
        if each.location is None:
            continue
        other = there.setdefault(each.location, each)
        if other is not each:
            (one, first), (two, second) = other.seen[0], each.seen[0]
            raise contradiction(f"what is at {each.location}", (one, first.name), (two, second.name))


def _join(found: list[Met], file: str, functions: Iterable[SeenFunction], complete: str | None) -> None:
    left, free = [], list(found)
    for function in functions:
        same = next((each for each in free if _same_place(each, function)), None)
        if same is None:
            left.append(function)
        else:
            same.seen.append((file, function))
            free.remove(same)
    for alike in _alike(left):
        fitting = [each for each in free if _fits(each, alike[0])]
        _join_alike(found, fitting, file, alike, complete)
        free = [each for each in free if each not in fitting]


def _same_place(one: Met, other: SeenFunction) -> bool:
    places = {each.place for _, each in one.seen} | {_instance(each) for _, each in one.seen}
    shared = places & {other.place, _instance(other)} - {None}
    return bool(shared) and _fits(one, other)


def _instance(function: SeenFunction) -> str | None:
    value = function.state.get("instance")
    return str(value.value) if isinstance(value, Observation) else None


def _alike(functions: Iterable[SeenFunction]) -> list[list[SeenFunction]]:
    groups: defaultdict[str, list[SeenFunction]] = defaultdict(list)
    for function in functions:
        groups[function.ids or function.name.casefold()].append(function)
    return list(groups.values())


def _fits(one: Met, other: SeenFunction) -> bool:
    """The same ids as far as both have them; a listing without ids goes by the name that Windows shows."""
    for _, function in one.seen:
        if function.ids and other.ids:
            return _same_ids(function.ids, other.ids)
    return any(function.name.casefold() == other.name.casefold() for _, function in one.seen)


def _same_ids(one: str, other: str) -> bool:
    parts = list(zip(one.split("&"), other.split("&"), strict=False))
    return len(parts) >= _IDS_WITHOUT_SUBSYSTEM and all(a == b for a, b in parts)


def _join_alike(found: list[Met], free: list[Met], file: str, alike: list[SeenFunction], complete: str | None) -> None:
    if not free and complete is None:
        found += [Met([(file, function)]) for function in alike]
    elif len(free) == len(alike):
        for each, function in zip(free, _interchangeable(alike), strict=True):
            each.seen.append((file, function))
    else:
        other = free[0].seen[0][0] if free else str(complete)
        raise UsageError(
            "CardsDoNotMatch",
            what=f"{visible(file)} lists {len(alike)} of {visible(alike[0].name)}, {visible(other)} lists {len(free)}",
            meaning="They are from different machines, or one of them does not list every GPU, "
            "and nothing tells the GPUs apart.",
            hint="Leave one of the two files out, or add one that lists every GPU: lspci -vv -nn.",
        )


def _interchangeable(alike: list[SeenFunction]) -> list[SeenFunction]:
    """Of several alike, only what is true of all of them can be said of each, and no place."""
    if len(alike) == 1:
        return alike
    names = dict.fromkeys(name for function in alike for name in function.state)
    common: State = {name: _common(name, alike) for name in names}
    return [replace(function, state=common, location=None, address=None) for function in alike]


def _common(name: str, alike: list[SeenFunction]) -> Value:
    values = [function.state.get(name) for function in alike]
    first = values[0]
    if first is not None and all(value == first for value in values):
        return first
    return Unreported(f"{len(alike)} cards alike differ in it, and nothing says which is which")
