"""The parts of the agent's text, which are sent to a Windows host as its requests need them.

Each file has up to five parts: `core`, which every call needs; `read`, which reads a whole host; `found`, which only
some hosts need; `change`; and `compile`, the C#. Every part is constant, begins with a line that names it, and has its
SHA-256 in `parts.sha256`, so that it can be recognized in a log. A part is the text of its file without comment lines,
and with a tab for each level of indentation.
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
_MARKS = "get-winhostrunmarks"  # is not read together with a whole host
_CHANGES = ("set", "send", "restart")
_VERBS = frozenset(f"invoke-winhost{verb}" for verb in _CHANGES)
_PART_REQUEST = re.compile(r"Assert-WinhostPart ('[\w', -]+')")


@dataclass(frozen=True)
class _Unit:
    """A top-level statement of a file, as it is sent.

    name: of the function, or of the variable with its `$`; later: the functions that it requests with
    `Assert-WinhostPart`, which are sent only on demand; words: all other words of the statement.
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
    part_of: Mapping[str, str]  # the part of each unit
    needs: Mapping[str, frozenset[str]]  # by part, the parts that must be sent with it, itself included
    references: Mapping[str, frozenset[str]]  # by unit, the units that it uses
    later: Mapping[str, frozenset[str]]  # by unit, the units that it requests on demand


class WindowsScripts:
    """The parts that a session of a Windows host is sent for its requests."""

    def needed(self, request: str, asked_for: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of the parts for a request to the agent, in order.

        asked_for: functions that the host reported missing. Parts that only some hosts need are left out when
        everything is read, and the C# is left out of every read. A request with a change is never sent twice, so it
        gets every part that it may need.
        """
        parts = _parts()
        document = json.loads(request)
        calls = [(str(call.get("resource")).lower(), call) for call in document["calls"]]
        missing = {name.lower() for name in asked_for}
        changing = [(resource, call["verb"]) for resource, call in calls if call.get("verb") in _CHANGES]
        changes = {
            name for resource, verb in changing for name in (f"{verb}-winhost{resource}", f"invoke-winhost{verb}")
        }
        complete = {_READS + resource for resource, call in calls if changes or missing or call.get("key") is not None}
        complete |= changes
        if complete or document.get("exclusive"):
            complete.add(_ENTRY)
        later = parts.later
        if not changes:
            later = {name: others - ({_COMPILES} - missing) for name, others in later.items()}
        roots = {_ENTRY, *(_READS + resource for resource, _ in calls)}
        units = _reachable(parts.references, roots & parts.references.keys())
        units |= _reachable(_merge_references(parts.references, later), complete & parts.references.keys())
        names = frozenset().union(*(parts.needs[parts.part_of[unit]] for unit in units))
        return tuple(name for name in parts.text if name in names)

    def text(self, names: Collection[str]) -> str:
        """Return these parts, followed by the call of the agent with its only argument."""
        return definitions(names) + _CALL


def definitions(names: Collection[str]) -> str:
    return "".join(text for name, text in _parts().text.items() if name in names)


def session_text() -> str:
    """Return all parts and the call of the agent."""
    return WindowsScripts().text(_parts().text)


def recognize_parts(text: str) -> tuple[str, ...]:
    """Return the names of the parts in a text; none unless the text is exactly what `WindowsScripts.text` returns."""
    names = tuple(line.removeprefix(_HEAD) for line in text.split("\n") if line.startswith(_HEAD))
    return names if text == WindowsScripts().text(names) else ()


def digests() -> dict[str, str]:
    return {name: sha256(text.encode("ascii")).hexdigest() for name, text in _parts().text.items()}


def published_digests() -> str:
    """Return the text of `parts.sha256`, in the format of sha256sum."""
    return "".join(f"{digest}  {name}\n" for name, digest in digests().items())


@once
def _parts() -> _Parts:
    units = [unit for file, text in texts().items() for unit in _split_units(file, text)]
    by_name = {unit.name: unit for unit in units}
    references = {unit.name: (unit.words & by_name.keys()) - {unit.name} - _VERBS for unit in units}
    later = {unit.name: unit.later & by_name.keys() for unit in units}
    gets = [name for name in by_name if name.startswith(_READS)]
    uses = {
        "compile": _reachable(references, [_COMPILES]),
        "core": _reachable(references, [_ENTRY, *(unit.name for unit in units if not unit.defines)]),
        "read": _reachable(references, [name for name in gets if name != _MARKS]),
        "found": _reachable(_merge_references(references, later), [_ENTRY, *gets]),
    }

    def part(unit: _Unit) -> str:
        use = next((use for use, names in uses.items() if unit.name in names), "change")
        return f"{unit.file.removesuffix('.ps1').removesuffix('/script')}/{use}"

    part_of = {unit.name: part(unit) for unit in units}
    order = dict.fromkeys(part_of.values())
    joined = {name: "".join(unit.text for unit in units if part_of[unit.name] == name) for name in order}
    direct: dict[str, set[str]] = {name: set() for name in order}
    for name, others in references.items():
        direct[part_of[name]] |= {part_of[other] for other in others}
    return _Parts(
        {name: f"{_HEAD}{name}\n{text.strip()}\n" for name, text in joined.items()},
        part_of,
        {name: frozenset(_reachable(direct, [name])) for name in order},
        references,
        later,
    )


def _merge_references(
    references: Mapping[str, frozenset[str]], more: Mapping[str, frozenset[str]]
) -> Mapping[str, frozenset[str]]:
    return {name: others | more[name] for name, others in references.items()}


def _reachable(references: Mapping[str, Collection[str]], roots: Iterable[str]) -> set[str]:
    reached: set[str] = set()
    pending = list(roots)
    while pending:
        if (name := pending.pop()) not in reached:
            reached.add(name)
            pending += references[name]
    return reached


def _split_units(file: str, text: str) -> Iterator[_Unit]:
    """Split a file into its top-level statements.

    A statement begins in the first column; within a statement, only a closing delimiter does. Here-strings and the
    values of variables are kept unchanged, to the byte.
    """
    sent: list[str] = []
    code: list[str] = []
    terminator = ""  # of the here-string that contains the line
    for line in text.split("\n"):
        if code and not terminator and line and line[0] not in " })'\"":
            yield _build_unit(file, sent, code)
            sent, code = [], []
        if terminator:
            sent.append(line)
            terminator = "" if line.startswith(terminator) else terminator
            continue
        bare = line.lstrip(" ")
        comment = bare.startswith("#")
        constant = bool(code) and code[0].startswith("$")
        if constant or not comment:
            indent = 0 if constant else (len(line) - len(bare)) // 4
            sent.append("\t" * indent + line[4 * indent :])
        if bare and not comment:
            code.append(line)
            terminator = f"{line[-1]}@" if line.endswith(("@'", '@"')) else ""
    if code:
        yield _build_unit(file, sent, code)


def _build_unit(file: str, sent: Sequence[str], code: Sequence[str]) -> _Unit:
    text = "\n".join(code)
    requests = _PART_REQUEST.findall(text)
    later = {name.lower() for names in requests for name in re.findall(r"[\w-]+", names)}
    words = {word.replace("$script:", "$").lower() for word in re.findall(r"\$script:\w+|[\w-]+", text)} - later
    function = re.match(r"function ([\w-]+) \{", code[0])
    variable = re.match(r"\$script:(\w+) =", code[0])
    name = function[1] if function else f"${variable[1]}" if variable else code[0]
    defines = bool(function or variable)
    return _Unit(file, name.lower(), "\n".join(sent) + "\n", frozenset(words), frozenset(later), defines)


def main() -> None:
    """Print the hashes of all parts, as in `parts.sha256`, or the text of each part that the command line names."""
    for name in sys.argv[1:]:
        if name not in _parts().text:
            sys.exit(f"There is no part {name}. The parts are listed in {PUBLISHED}.")
        sys.stdout.write(_parts().text[name])
    if not sys.argv[1:]:
        sys.stdout.write(published_digests())


if __name__ == "__main__":
    main()
