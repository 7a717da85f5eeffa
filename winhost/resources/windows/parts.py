"""The parts of the agent's text that are sent: of each file what all calls need, what reads, what changes, and the C#.

A host gets the parts that a request needs and no others. Every part is constant, begins with a line that names it, and
has its SHA-256 in `parts.sha256`, so that whoever finds it in a log can tell whose it is.
"""

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

from winhost.core.dataclass import dataclass
from winhost.model.once import once
from winhost.resources.windows.windows_scripts import AGENT, texts

PUBLISHED = "parts.sha256"
_HEAD = "# winhost part: "
_CALL = "Invoke-Winhost -Json $args[0]\n"
_ENTRY = "invoke-winhost"
_COMPILES = "add-winhostnative"
_READS = "get-winhost"
_CHANGES = {"set": "set-winhost", "send": "send-winhost", "restart": "restart-winhost"}


@dataclass(frozen=True)
class _Unit:
    """A statement of a file with the comments above it. `name` is a function's, or a variable's with its `$`."""

    file: str
    name: str
    text: str
    words: frozenset[str]


@dataclass(frozen=True)
class _Parts:
    text: Mapping[str, str]  # by part, in the order in which they are sent
    part_of: Mapping[str, str]  # by the name of a unit
    needs: Mapping[str, frozenset[str]]  # by part, all that it needs, itself included
    compiling: frozenset[str]  # the units that may compile C#


class WindowsScripts:
    """What a session of a Windows host is sent, by its requests."""

    def needed(self, request: str, *, compiling: bool = False) -> tuple[str, ...]:
        """The parts for a request of the agent, in order. A request that only reads gets C# only with `compiling`."""
        parts = _parts()
        calls = [(str(call.get("resource")).lower(), call.get("verb")) for call in json.loads(request)["calls"]]
        roots = {_READS + resource for resource, _ in calls}
        roots |= {_CHANGES[verb] + resource for resource, verb in calls if verb in _CHANGES}
        if any(verb in _CHANGES for _, verb in calls):  # never sent twice: the request alone decides what it gets
            compiling = not parts.compiling.isdisjoint(roots)
        wanted = {_ENTRY, *roots, *([_COMPILES] if compiling else [])}
        names = frozenset().union(*(parts.needs[parts.part_of[root]] for root in wanted if root in parts.part_of))
        return tuple(name for name in parts.text if name in names)

    def text(self, names: Collection[str]) -> str:
        """These parts, then the call of the agent with the only argument of the whole."""
        return definitions(names) + _CALL


def definitions(names: Collection[str]) -> str:
    return "".join(text for name, text in _parts().text.items() if name in names)


def session_text() -> str:
    """Every part, and the call."""
    return WindowsScripts().text(_parts().text)


def recognized(text: str) -> tuple[str, ...]:
    """The parts that a text consists of; none unless it is, to the last character, what `WindowsScripts.text` makes."""
    names = tuple(line.removeprefix(_HEAD) for line in text.split("\n") if line.startswith(_HEAD))
    return names if text == WindowsScripts().text(names) else ()


def digests() -> dict[str, str]:
    return {name: sha256(text.encode("ascii")).hexdigest() for name, text in _parts().text.items()}


def published() -> str:
    """The text of `parts.sha256`, in the format of sha256sum."""
    return "".join(f"{digest}  {name}\n" for name, digest in digests().items())


@once
def _parts() -> _Parts:
    units = [unit for file, text in texts().items() for unit in _units(file, text)]
    by_name = {unit.name: unit for unit in units}
    refers = {unit.name: (unit.words & by_name.keys()) - {unit.name} for unit in units}
    native = _reachable(refers, [_COMPILES])
    plain = {name: others - native for name, others in refers.items()}
    always = [unit.name for unit in units if unit.file == AGENT and not unit.name.startswith(("$", *_VERBS))]
    core = _reachable(plain, [_ENTRY, *always])
    reading = _reachable(plain, [name for name in by_name if name.startswith(_READS)])

    def part(unit: _Unit) -> str:
        uses = {"compile": native, "core": core, "read": reading}
        use = next((use for use, names in uses.items() if unit.name in names), "change")
        return f"{unit.file.removesuffix('.ps1').removesuffix('/script')}/{use}"

    part_of = {unit.name: part(unit) for unit in units}
    order = dict.fromkeys(part_of.values())
    joined = {name: "".join(unit.text for unit in units if part_of[unit.name] == name) for name in order}
    direct: dict[str, set[str]] = {name: set() for name in order}
    for name, others in plain.items():
        direct[part_of[name]] |= {part_of[other] for other in others}
    referring: dict[str, set[str]] = {name: set() for name in by_name}
    for name, others in refers.items():
        for other in others:
            referring[other].add(name)
    return _Parts(
        {name: f"{_HEAD}{name}\n{text.strip()}\n" for name, text in joined.items()},
        part_of,
        {name: frozenset(_reachable(direct, [name])) for name in order},
        frozenset(_reachable(referring, [_COMPILES])),
    )


_VERBS = (_READS, *_CHANGES.values())


def _reachable(refers: Mapping[str, Collection[str]], roots: Iterable[str]) -> set[str]:
    found: set[str] = set()
    left = list(roots)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += refers[name]
    return found


def _units(file: str, text: str) -> Iterator[_Unit]:
    """A statement begins at the start of a line, as nothing within one does except what closes it."""
    lines: list[str] = []
    code: list[str] = []
    here = ""  # what ends the here-string that a line is in
    for line in text.split("\n"):
        if code and not here and line and line[0] not in " })'\"":
            yield _unit(file, lines, code)
            lines, code = [], []
        lines.append(line)
        if here:
            here = "" if line.startswith(here) else here
        elif line and not line.lstrip().startswith("#"):
            code.append(line)
            here = f"{line[-1]}@" if line.endswith(("@'", '@"')) else ""
    if code:
        yield _unit(file, lines, code)


def _unit(file: str, lines: Sequence[str], code: Sequence[str]) -> _Unit:
    words = {word.replace("$script:", "$").lower() for word in re.findall(r"\$script:\w+|[\w-]+", "\n".join(code))}
    function = re.match(r"function ([\w-]+) \{", code[0])
    variable = re.match(r"\$script:(\w+) =", code[0])
    name = function[1] if function else f"${variable[1]}" if variable else code[0]
    return _Unit(file, name.lower(), "\n".join(lines) + "\n", frozenset(words))


def main() -> None:
    """`python -m winhost.resources.windows.parts`: print the hashes of the parts, as `parts.sha256` has them."""
    sys.stdout.write(published())


if __name__ == "__main__":
    main()
