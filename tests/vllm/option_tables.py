"""Adds a version of vLLM to the tables of its options and variables, by two vLLMs that are installed.

    python -m tests.vllm.option_tables BEFORE NEW

BEFORE and NEW are the Pythons of two environments, with the newest version in the tables and the one to be added. The
parser and the variables of each are asked for what they know, which takes no GPU and no model. It changes
winhost/knowledge/vllm_options.yaml and vllm_option_shapes.yaml; nothing else has to change.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import yaml
from packaging.version import Version

from tests.processes import PATIENCE_S

KNOWLEDGE = Path(__file__).parents[2] / "winhost/knowledge"
WIDTH = 120
OPTIONS, SHAPES = KNOWLEDGE / "vllm_options.yaml", KNOWLEDGE / "vllm_option_shapes.yaml"
# Run by vLLM's Python. The parser has been in three modules so far.
READ = """\
import json, sys
from importlib import import_module
from importlib.metadata import version
import vllm.envs
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
for module in ("common", "launchers", "openai"):
    try:
        parser = import_module(f"vllm.entrypoints.{module}.cli_args").make_arg_parser(FlexibleArgumentParser())
        break
    except (ImportError, AttributeError):
        pass
options = [
    {
        "names": action.option_strings or [action.dest],
        "nargs": action.nargs,
        "type": getattr(action.type, "__name__", None),
        "choices": [str(each) for each in action.choices or ()],
        "default": action.default,
    }
    for action in parser._actions
]
found = {"version": version("vllm").partition("+")[0], "options": options}
found["variables"] = {name: read() for name, read in vllm.envs.environment_variables.items()}
json.dump(found, sys.stdout, default=lambda value: [repr(value)])
"""


class Read(NamedTuple):
    """One vLLM, as its own parser and module of variables know it. defaults: numbers, words and None."""

    version: str
    options: frozenset[str]
    variables: frozenset[str]
    shapes: Mapping[str, frozenset[str]]
    short: Mapping[str, str]
    choices: Mapping[str, frozenset[str]]
    defaults: Mapping[str, Any]


def read_installed(python: Path) -> Read:
    """What the vLLM of this Python has. Raises CalledProcessError."""
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}  # some defaults come from variables
    command = [str(python), "-c", READ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=bare, timeout=PATIENCE_S)
    return as_read(json.loads(done.stdout.splitlines()[-1]))


def as_read(found: Mapping[str, Any]) -> Read:
    """What READ printed."""
    long = {_name(each): each for each in found["options"]}
    shapes = {
        "flags": _named(each for each in long.values() if each["nargs"] == 0),
        "several": _named(each for each in long.values() if each["nargs"] in ("+", "*")),
        "whole": frozenset(name for name, each in long.items() if each["type"] == "int"),
        "number": frozenset(name for name, each in long.items() if each["type"] == "float"),
    }
    variables = {name: value for name, value in found["variables"].items() if name.startswith("VLLM_")}
    defaults = {**{name: each["default"] for name, each in long.items()}, **variables}
    return Read(
        found["version"],
        _named(long.values()),
        frozenset(variables),
        shapes,
        {each: name for name, option in long.items() for each in option["names"] if _is_short(each) and each != "-h"},
        {name: frozenset(each["choices"]) - {"None"} for name, each in long.items() if each["choices"]},
        {name: value for name, value in defaults.items() if _is_plain(value) and not name.startswith("VLLM_ROCM_")},
    )


def _name(option: Mapping[str, Any]) -> str:
    return str(next(each for each in option["names"] if not _is_short(each)))


def _named(options: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(each for option in options for each in option["names"] if not _is_short(each))


def _is_short(name: str) -> bool:
    return name.startswith("-") and not name.startswith("--")


def _is_plain(value: object) -> bool:
    """Tell whether it is a number, a word or nothing. A longer word is one that each process makes at random."""
    return value is None or isinstance(value, bool | int | float) or bool(_WORD.fullmatch(str(value)))


_WORD = re.compile(r"[\w-]{1,24}|[\d.]{1,24}")


class Tables(NamedTuple):
    """Both files. known: by `options` and `variables`, in which versions, by position, each name is."""

    heads: tuple[str, str, str]
    versions: tuple[str, ...]
    known: Mapping[str, Mapping[str, frozenset[int]]]
    defaults: Mapping[str, Mapping[str, Any]]
    shapes: Mapping[str, frozenset[str]]
    short: Mapping[str, str]
    choices: Mapping[str, frozenset[str]]


def parse(options: str, shapes: str) -> Tables:
    read, forms = yaml.safe_load(options), yaml.safe_load(shapes)
    known: dict[str, dict[str, frozenset[int]]] = {"options": {}, "variables": {}}
    for where, names in known.items():
        for runs, several in read[where].items():
            ends = [tuple(map(int, run.split("-"))) for run in runs.split()]
            names |= dict.fromkeys(several.split(), frozenset(i for a, b in ends for i in range(a, b + 1)))
    heads = (*(each + "\n" for each in _comments(options)), _comments(shapes)[0] + "\n")
    return Tables(
        (heads[0], heads[1], heads[2]),
        tuple(read["versions"]),
        known,
        read["defaults"],
        {name: frozenset(forms[name].split()) for name in ("flags", "several", "whole", "number")},
        forms["short"],
        {name: frozenset(values) for name, values in forms["choices"].items()},
    )


def _comments(text: str) -> list[str]:
    return [each.strip() for each in re.findall(r"(?:^#.*\n)+", text, re.MULTILINE)]


def added(tables: Tables, before: Read, new: Read) -> Tables:
    """The tables with `new`. An option whose choices are not in them stays one that takes any word. Raises ValueError
    where `before` is not the newest version of them, or `new` is none that is newer.
    """
    if before.version != tables.versions[-1] or Version(new.version) <= Version(before.version):
        raise ValueError(f"the newest in the tables is {tables.versions[-1]}: {before.version}, then {new.version}")
    at = len(tables.versions)
    known = {
        where: {
            name: tables.known[where].get(name, frozenset()) | ({at} if name in names else set())
            for name in {*tables.known[where], *names}
        }
        for where, names in (("options", new.options), ("variables", new.variables))
    }
    defaults = {name: dict(values) for name, values in tables.defaults.items()}
    for name in before.defaults.keys() & new.defaults.keys():
        if before.defaults[name] != new.defaults[name]:
            first = tables.versions[min(known["options"].get(name) or known["variables"][name])]
            defaults.setdefault(name, {first: before.defaults[name]})[new.version] = new.defaults[name]
    shapes = {name: found | new.shapes[name] for name, found in tables.shapes.items()}
    for name in ("whole", "number"):  # only what every version takes as one
        others = (new.options | tables.known["options"].keys()) - tables.shapes[name] - new.shapes[name]
        mixed = (tables.shapes[name] & new.options) ^ (new.shapes[name] & tables.known["options"].keys())
        shapes[name] -= others | mixed
    return Tables(
        tables.heads,
        (*tables.versions, new.version),
        known,
        defaults,
        shapes,
        {**tables.short, **new.short},
        {name: values | new.choices.get(name, frozenset()) for name, values in tables.choices.items()},
    )


def options_text(tables: Tables) -> str:
    lines = [tables.heads[0], f"versions: {json.dumps(tables.versions)}"]
    for where, names in tables.known.items():
        lines.append(f"{where}:")
        groups: dict[tuple[tuple[int, int], ...], list[str]] = {}
        for name, at in sorted(names.items()):
            groups.setdefault(_runs(at), []).append(name)
        for runs, group in sorted(groups.items()):
            lines.append(f'  "{" ".join(f"{first}-{last}" for first, last in runs)}": >-')
            lines.append(_folded(group, "    "))
    lines += ["", tables.heads[1], "defaults:"]
    lines += [f"  {name}: {json.dumps(values)}" for name, values in sorted(tables.defaults.items())]
    return "\n".join(lines) + "\n"


def shapes_text(tables: Tables) -> str:
    lines = [tables.heads[2]]
    for name, found in tables.shapes.items():
        lines += [f"{name}: >-", _folded(sorted(found), "  ")]
    lines += ["short:", *(f"  {name}: {option}" for name, option in sorted(tables.short.items())), "choices:"]
    for name, values in tables.choices.items():
        line = f"  {name}: {json.dumps(sorted(values))}"
        if len(line) > WIDTH:
            line = f"  {name}: [\n{_folded(json.dumps(sorted(values))[1:].split(), '    ')}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _runs(at: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Positions as ranges: 3, 4 and 7 are 3-4 and 7-7."""
    found: list[tuple[int, int]] = []
    for each in sorted(at):
        found = [*found[:-1], (found[-1][0], each)] if found and found[-1][1] == each - 1 else [*found, (each, each)]
    return tuple(found)


def _folded(words: Iterable[str], indent: str) -> str:
    text = " ".join(words)
    return fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def main(words: list[str]) -> None:
    before, new = (read_installed(Path(each)) for each in words)
    tables = added(parse(OPTIONS.read_text("utf-8"), SHAPES.read_text("utf-8")), before, new)
    OPTIONS.write_text(options_text(tables), "utf-8")
    SHAPES.write_text(shapes_text(tables), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
