"""The parts of the agent's text that are sent: of each file what all calls need, what reads, what only some hosts need
to be read, what changes, and the C#.

A host gets the parts that a request needs and no others. Every part is constant, begins with a line that names it, and
has its SHA-256 in `parts.sha256`, so that whoever finds it in a log can tell whose it is. It is the text of the files
without lines that are only a comment, and with a tab for each level of indentation.
"""

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

from winhost.core.dataclass import dataclass
from winhost.model.once import once
from winhost.resources.windows.windows_scripts import texts

PUBLISHED = "parts.sha256"
_HEAD = "# winhost part: "
_CALL = "Invoke-Winhost -Json $args[0]\n"
_ENTRY = "invoke-winhost"
_COMPILES = "add-winhostnative"
_READS = "get-winhost"
_MARKS = "get-winhostrunmarks"  # never read together with a whole host
_CHANGES = ("set", "send", "restart")
_VERBS = frozenset(f"invoke-winhost{verb}" for verb in _CHANGES)
_ASKED_FOR = re.compile(r"Assert-WinhostPart ('[\w', -]+')")


@dataclass(frozen=True)
class _Unit:
    """A statement of a file as it is sent. `name` is a function's, or a variable's with its `$`.

    `later`: what is sent once it turns out to be needed. `words`: the others.
    """

    file: str
    name: str
    text: str
    words: frozenset[str]
    later: frozenset[str]
    defines: bool


@dataclass(frozen=True)
class _Parts:
    text: Mapping[str, str]  # by part, in the order in which they are sent
    part_of: Mapping[str, str]  # by the name of a unit
    needs: Mapping[str, frozenset[str]]  # by part, all that it needs at once, itself included
    at_once: Mapping[str, frozenset[str]]  # by unit, what it refers to
    later: Mapping[str, frozenset[str]]  # by unit, what it asks for


class WindowsScripts:
    """The parts that a session of a Windows host is sent, by its requests."""

    def needed(self, request: str, asked_for: Collection[str] = ()) -> tuple[str, ...]:
        """The parts for a request of the agent, in order. asked_for: functions that a host said are missing.

        What only some hosts need is left out where everything is read, and the C# from every read. A request that
        changes something is never made twice, so it gets all that it may need.
        """
        parts = _parts()
        asked = json.loads(request)
        calls = [(str(call.get("resource")).lower(), call) for call in asked["calls"]]
        named = {name.lower() for name in asked_for}
        changing = [(resource, call["verb"]) for resource, call in calls if call.get("verb") in _CHANGES]
        changes = {
            name for resource, verb in changing for name in (f"{verb}-winhost{resource}", f"invoke-winhost{verb}")
        }
        whole = {_READS + resource for resource, call in calls if changes or named or call.get("key") is not None}
        whole |= changes
        if whole or asked.get("exclusive"):
            whole.add(_ENTRY)
        later = parts.later
        if not changes:
            later = {name: others - ({_COMPILES} - named) for name, others in later.items()}
        listed = {_ENTRY, *(_READS + resource for resource, _ in calls)}
        units = _reachable(parts.at_once, listed & parts.at_once.keys())
        units |= _reachable(_joined(parts.at_once, later), whole & parts.at_once.keys())
        names = frozenset().union(*(parts.needs[parts.part_of[unit]] for unit in units))
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
    at_once = {unit.name: (unit.words & by_name.keys()) - {unit.name} - _VERBS for unit in units}
    later = {unit.name: unit.later & by_name.keys() for unit in units}
    gets = [name for name in by_name if name.startswith(_READS)]
    uses = {
        "compile": _reachable(at_once, [_COMPILES]),
        "core": _reachable(at_once, [_ENTRY, *(unit.name for unit in units if not unit.defines)]),
        "read": _reachable(at_once, [name for name in gets if name != _MARKS]),
        "found": _reachable(_joined(at_once, later), [_ENTRY, *gets]),
    }

    def part(unit: _Unit) -> str:
        use = next((use for use, names in uses.items() if unit.name in names), "change")
        return f"{unit.file.removesuffix('.ps1').removesuffix('/script')}/{use}"

    part_of = {unit.name: part(unit) for unit in units}
    order = dict.fromkeys(part_of.values())
    joined = {name: "".join(unit.text for unit in units if part_of[unit.name] == name) for name in order}
    direct: dict[str, set[str]] = {name: set() for name in order}
    for name, others in at_once.items():
        direct[part_of[name]] |= {part_of[other] for other in others}
    return _Parts(
        {name: f"{_HEAD}{name}\n{text.strip()}\n" for name, text in joined.items()},
        part_of,
        {name: frozenset(_reachable(direct, [name])) for name in order},
        at_once,
        later,
    )


def _joined(some: Mapping[str, frozenset[str]], more: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
    return {name: others | more[name] for name, others in some.items()}


def _reachable(refers: Mapping[str, Collection[str]], roots: Iterable[str]) -> set[str]:
    found: set[str] = set()
    left = list(roots)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += refers[name]
    return found


def _units(file: str, text: str) -> Iterator[_Unit]:
    """A statement begins at the start of a line, as nothing within one does except what closes it.

    Here-strings and what a variable has are the same on every way to a host, to the byte.
    """
    sent: list[str] = []
    code: list[str] = []
    here = ""  # what ends the here-string that a line is in
    for line in text.split("\n"):
        if code and not here and line and line[0] not in " })'\"":
            yield _unit(file, sent, code)
            sent, code = [], []
        if here:
            sent.append(line)
            here = "" if line.startswith(here) else here
            continue
        bare = line.lstrip(" ")
        comment = bare.startswith("#")
        constant = bool(code) and code[0].startswith("$")
        if constant or not comment:
            indent = 0 if constant else (len(line) - len(bare)) // 4
            sent.append("\t" * indent + line[4 * indent :])
        if bare and not comment:
            code.append(line)
            here = f"{line[-1]}@" if line.endswith(("@'", '@"')) else ""
    if code:
        yield _unit(file, sent, code)


def _unit(file: str, sent: Sequence[str], code: Sequence[str]) -> _Unit:
    text = "\n".join(code)
    asked_for = _ASKED_FOR.findall(text)
    later = {name.lower() for names in asked_for for name in re.findall(r"[\w-]+", names)}
    words = {word.replace("$script:", "$").lower() for word in re.findall(r"\$script:\w+|[\w-]+", text)} - later
    function = re.match(r"function ([\w-]+) \{", code[0])
    variable = re.match(r"\$script:(\w+) =", code[0])
    name = function[1] if function else f"${variable[1]}" if variable else code[0]
    defines = bool(function or variable)
    return _Unit(file, name.lower(), "\n".join(sent) + "\n", frozenset(words), frozenset(later), defines)


def main() -> None:
    """`python -m winhost.resources.windows.parts [PART]`: print the hashes of the parts, as `parts.sha256` has them, or
    the text of a part.
    """
    for name in sys.argv[1:]:
        if name not in _parts().text:
            sys.exit(f"There is no part {name}. The parts are listed in {PUBLISHED}.")
        sys.stdout.write(_parts().text[name])
    if not sys.argv[1:]:
        sys.stdout.write(published())


if __name__ == "__main__":
    main()
