"""Reads and edits systemd units, podman's quadlets and environment files."""

import re
from collections.abc import Iterator, Sequence

from winhost.core.dataclass import dataclass
from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.arguments import IMAGE, add_setting, container_options, parse_variable, read_container
from winhost.recipes.command_editor import remove_words
from winhost.recipes.read_commands import add_shell_variables, read_command, read_container_command
from winhost.recipes.read_compose import split_words
from winhost.recipes.recipe_model import Editor, Recipe, RecipeEngine, RecipeForm, Setting, is_secret
from winhost.recipes.recipe_text import PlacedText, SourceFile
from winhost.recipes.shell_words import split_commands
from winhost.recipes.spelling import suggest

_SECTION = re.compile(r"[ \t]*\[([^\]\n]+)\][ \t]*\r?$")
_ENTRY = re.compile(r"[ \t]*([A-Za-z][\w-]*)[ \t]*=[ \t]*")
_COMMENT = re.compile(r"[ \t]*[#;]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_SHELL = re.compile(r"(?<=\s)(?:&&|\|\|?|\d?>>?(?:&\d)?|<|~/\S*)(?=\s|$)")
_PREFIXES = "@-:+!|"
# The options of `podman run` that correspond to keys of a quadlet's [Container].
PODMAN_OPTIONS = {
    "Image": IMAGE,
    "ShmSize": "--shm-size",
    "Network": "--network",
    "PublishPort": "--publish",
    "Volume": "--volume",
    "AddDevice": "--device",
    "StopTimeout": "--stop-timeout",
    "Memory": "--memory",
    "User": "--user",
    "Entrypoint": "--entrypoint",
    "Ulimit": "--ulimit",
    "EnvironmentFile": "--env-file",
}
RELEVANT_KEYS = (
    "Restart",
    "TimeoutStartSec",
    "TimeoutStopSec",
    "Type",
    "KillMode",
    "KillSignal",
    "User",
    "EnvironmentFile",
    "MemoryMax",
    "LimitMEMLOCK",
    "Environment",
    "PrivateDevices",
    "DevicePolicy",
    "DeviceAllow",
    "ProtectHome",
    "BindPaths",
    "BindReadOnlyPaths",
    "MemoryDenyWriteExecute",
    "WorkingDirectory",
    "ExecStartPre",
    "ExecStartPost",
    "Notify",
    "WantedBy",
    "TimeoutSec",
)


@dataclass(frozen=True)
class UnitEntry:
    """An entry of a unit, with its continuation lines. value: without the continuation characters."""

    section: str
    name: str
    value: PlacedText
    key: PlacedText


def read_entries(source: SourceFile) -> Iterator[UnitEntry]:
    """Yield the settings of a unit, in order."""
    section, offset, text = "", 0, source.text
    while offset < len(text):
        end = _logical_end(text, offset)
        line = text[offset:end]
        if found := _SECTION.match(line):
            section = found[1]
        elif (found := _ENTRY.match(line)) and not line.lstrip().startswith(("#", ";")):
            whole = source.all_text
            value = _drop_comments(whole.part(offset + found.end(), offset + len(line.rstrip())))
            yield UnitEntry(section, found[1], value, whole.part(offset + found.start(1), offset + found.end(1)))
        offset = end + 1


def _logical_end(text: str, offset: int) -> int:
    """Return the end of the line that begins here, continuation lines included."""
    continues = False
    while True:
        end = text.find("\n", offset)
        if end < 0:
            return len(text)
        if not (continues and _COMMENT.match(text, offset)):  # comment lines within are ignored
            continues = text[offset:end].rstrip("\r").endswith("\\")
        if not continues:
            return end
        offset = end + 1


def _drop_comments(text: PlacedText) -> PlacedText:
    """Drop comment lines between the lines of a value."""
    kept_indexes: list[int] = []
    offset = 0
    for line in text.value.splitlines(keepends=True):
        if not (offset and _COMMENT.match(line)):
            kept_indexes += range(offset, offset + len(line))
        offset += len(line)
    if len(kept_indexes) == len(text.value):
        return text
    return PlacedText(
        "".join(text.value[i] for i in kept_indexes), [text.offsets[i] for i in kept_indexes], text.start, text.end
    )


def read_unit(source: SourceFile) -> Recipe:
    """Read a service that starts an engine, or a quadlet with one."""
    found = list(read_entries(source))
    quadlet = any(entry.section == "Container" for entry in found)
    slips: list[Observation] = []
    engine = _read_quadlet(found, slips) if quadlet else _read_service(found, slips)
    if engine is None:
        return Recipe(RecipeForm.QUADLET if quadlet else RecipeForm.SYSTEMD, ())
    engine.slips += [*slips, *_find_refused_lines(found)]
    for entry in found:
        if entry.name in RELEVANT_KEYS and entry.section in ("Service", "Install", "Unit", "Container"):
            shown = entry.value if entry.value.value else None
            engine.container.append(Setting(entry.name, entry.value.value, entry.key, shown, (), entry.name))
    engine.editor = UnitEditor(source, engine, found, quadlet)
    return Recipe(engine.form, (engine,))


def _find_refused_lines(found: Sequence[UnitEntry]) -> Iterator[Observation]:
    """Report entries that are refused, or that mean something else."""
    oneshot = any(entry.name == "Type" and entry.value.value == "oneshot" for entry in found)
    started, again = 0, None
    known = container_options().quadlet
    for entry in found:
        if entry.section == "Container" and entry.name not in known:
            words = {"name": entry.name, "near": suggest(entry.name, known)}
            yield Observation("unknown-quadlet-key", entry.key.start, words)
        elif entry.section == "Service" and entry.name == "ExecStart":
            started = started + 1 if entry.value.value.strip() else 0
            again = entry.key if started > 1 and not oneshot else again
        elif entry.section == "Service" and entry.name == "Environment":
            for word in _assignments(entry.value):
                if re.search(r"\$\{?[A-Za-z_]", word.value):
                    yield Observation("variable-not-expanded", word.start, {"name": word.value.partition("=")[0]})
    if again:
        yield Observation("several-programs", again.start)


def _read_service(found: Sequence[UnitEntry], slips: list[Observation]) -> RecipeEngine | None:
    started = [entry for entry in found if entry.section == "Service" and entry.name == "ExecStart"]
    engine = None
    for entry in started:
        words = _split(entry.value, slips)
        if words and words[0].value[:1] in _PREFIXES and words[0].value.strip(_PREFIXES):
            words[0] = words[0].part(len(words[0].value) - len(words[0].value.lstrip(_PREFIXES)))
        engine = read_command(words, RecipeForm.SYSTEMD, slips)
        slips += _find_shell_syntax(entry.value)
        if engine is not None:
            engine.label = "unit"
            engine.positions |= {"ExecStart": entry.key, "command": words[0]}
            slips += _check_program_path(words[0])
            break
    variables = _variables(found, "Service")
    if engine is not None:
        add_shell_variables(engine, variables)
    elif any(_is_of_engine(each.name) for each in variables):  # a drop-in, or a script that starts the engine
        engine = RecipeEngine(RecipeForm.SYSTEMD, "unit", found[0].key, has_command=False, partial=True)
        engine.variables += variables
    return engine


def _check_program_path(program: PlacedText) -> Iterator[Observation]:
    """Report a program path that systemd refuses, or searches in other folders than a shell."""
    if not program.value.startswith(("/", "$")):
        if "/" not in program.value:
            yield Observation("not-absolute", program.start, {"word": program.value})
        elif not program.value.startswith("%"):
            yield Observation("relative-program", program.start, {"word": program.value})


def _is_of_engine(variable: str) -> bool:
    return is_secret(variable) or variable.startswith(("VLLM_", "HF_", "NCCL_", "CUDA_VISIBLE", "PYTORCH_"))


def _find_shell_syntax(text: PlacedText) -> Iterator[Observation]:
    """Report syntax outside of quotes that only a shell interprets."""
    bare = _QUOTED.sub(lambda found: "x" * len(found[0]), text.value)
    for found in _SHELL.finditer(bare):
        yield Observation("shell-in-unit", text.part(found.start()).start, {"word": found[0]})


def _read_quadlet(found: Sequence[UnitEntry], slips: list[Observation]) -> RecipeEngine | None:
    inside = [entry for entry in found if entry.section == "Container"]
    at = next((entry.key for entry in inside if entry.name == "Image"), inside[0].key)
    engine = RecipeEngine(RecipeForm.QUADLET, "container", at, in_container=True)
    for entry in inside:
        if entry.name == "PodmanArgs":
            read_container([*_split(entry.value, slips), PlacedText("", (), 0, 0)], engine)
            engine.container = [each for each in engine.container if each.value != ""]
        elif option := PODMAN_OPTIONS.get(entry.name):
            value = entry.value if entry.value.value else None
            add_setting(engine, Setting(option, entry.value.value, entry.key, value, (entry.value,), entry.name))
    engine.variables += _variables(found, "Container")
    engine.shell_variables += _variables(found, "Service")
    words = [word for entry in inside if entry.name == "Exec" for word in _split(entry.value, slips)]
    return read_container_command(engine, words, slips)


def _variables(found: Sequence[UnitEntry], section: str) -> list[Setting]:
    texts = [entry.value for entry in found if entry.section == section and entry.name == "Environment"]
    return [parse_variable(word, (word,)) for text in texts for word in _assignments(text)]


def _assignments(text: PlacedText) -> list[PlacedText]:
    """Return the words with `=`; systemd ignores all others."""
    return [word for command in split_commands(text, comments=False)[0] for word in command.words if "=" in word.value]


def _split(text: PlacedText, slips: list[Observation]) -> list[PlacedText]:
    """Split a text like systemd, for which `;` and `#` are words."""
    return split_words(text, "systemd", slips, comments=False)


class UnitEditor(Editor):
    """Edits a unit with one engine."""

    def __init__(self, source: SourceFile, engine: RecipeEngine, found: Sequence[UnitEntry], quadlet: bool) -> None:
        self._source, self._engine, self._found, self._quadlet = source, engine, found, quadlet

    def remove(self, setting: Setting) -> Sequence[TextEdit]:
        entry = next((each for each in self._found if setting.texts and _within(setting.texts[0], each.value)), None)
        if entry is None:
            return ()
        if entry.value.start == setting.texts[0].start and entry.value.end == setting.texts[-1].end:
            start, end = self._source.line_bounds(entry.key.start)
            return (TextEdit(start, end, ""),) if entry.value.end <= end else ()
        if entry.value.start == setting.texts[0].start:
            text, end = self._source.text, setting.texts[-1].end
            return (TextEdit(entry.value.start, end + len(text[end:]) - len(text[end:].lstrip(" \t")), ""),)
        return remove_words(self._source, setting.texts, "\\")

    def add_option(self, words: str) -> Sequence[TextEdit]:
        own = [text for setting in self._engine.options for text in setting.texts if text.offsets]
        own += [each for each in (self._engine.model, *self._engine.strays) if each and each.offsets]
        end = max((text.end for text in own), default=0)
        return (TextEdit(end, end, f" {words}"),) if end else ()

    def add_variable(self, name: str, value: str) -> Sequence[TextEdit]:
        if self._engine.in_container and not self._quadlet:
            return self.add_to_container("--env", f"{name}={value}")
        return self._add_line(f"Environment={name}={value}")

    def add_to_container(self, name: str, value: str) -> Sequence[TextEdit]:
        if not self._quadlet:
            run = self._engine.positions.get("run")
            return (TextEdit(run.end, run.end, f" {name}={value}"),) if run else ()
        key = next((key for key, option in PODMAN_OPTIONS.items() if option == name), None)
        return self._add_line(f"{key}={value}") if key else self._add_line(f"PodmanArgs={name}={value}")

    def _add_line(self, line: str) -> Sequence[TextEdit]:
        """Return an edit that adds a line before the one that starts the engine."""
        starts = self._engine.position if self._quadlet else self._engine.positions["ExecStart"]
        start, _ = self._source.line_bounds(starts.start)
        return (TextEdit(start, start, line + self._source.newline),)


def _within(text: PlacedText, value: PlacedText) -> bool:
    return value.start <= text.start and text.end <= value.end


def read_environment(source: SourceFile) -> Recipe:
    """Read a file of `NAME=VALUE` lines for `--env-file` or EnvironmentFile=."""
    engine = RecipeEngine(RecipeForm.ENVIRONMENT, "environment", source.all_text.part(0, 0), has_command=False)
    offset = 0
    for line in source.text.split("\n"):
        bare = line.strip()
        if "=" in bare and not bare.startswith(("#", ";")):
            first = offset + line.index(bare) + (bare.startswith("export ") and len("export "))
            setting = parse_variable(source.all_text.part(first, offset + line.index(bare) + len(bare)), ())
            engine.variables.append(_unquote(setting))
            if engine.variables[-1].value != setting.value or bare.startswith("export "):
                engine.slips.append(Observation("not-for-docker", offset + line.index(bare)))
        offset += len(line) + 1
    engine.editor = EnvironmentEditor(source)
    return Recipe(RecipeForm.ENVIRONMENT, (engine,) if engine.variables else ())


def _unquote(setting: Setting) -> Setting:
    """Return a setting without quotes around its value, which systemd removes and docker's `--env-file` keeps."""
    value = setting.value_text
    if value is None or len(value.value) < 2 or value.value[0] not in "'\"" or value.value[-1] != value.value[0]:
        return Setting(setting.name, setting.value, setting.text, value, (setting.text,), setting.written)
    inner = value.part(1, len(value.value) - 1)
    return Setting(setting.name, inner.value, setting.text, inner, (setting.text,), setting.written)


class EnvironmentEditor(Editor):
    """Edits a file that contains only variables."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source

    def remove(self, setting: Setting) -> Sequence[TextEdit]:
        start, end = self._source.line_bounds(setting.text.start)
        return (TextEdit(start, end, ""),)

    def add_variable(self, name: str, value: str) -> Sequence[TextEdit]:
        end = len(self._source.text)
        before = "" if self._source.text.endswith("\n") else self._source.newline
        return (TextEdit(end, end, f"{before}{name}={value}{self._source.newline}"),)
