"""systemd units, podman's quadlets and environment files."""

import re
from collections.abc import Iterator, Sequence

from winhost.core.dataclass import dataclass
from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.command_editor import removed_words
from winhost.recipes.misspelt import suggested
from winhost.recipes.read_commands import engine_of, let_know, with_command
from winhost.recipes.read_compose import split_words
from winhost.recipes.recipe_model import Editor, Recipe, RecipeEngine, RecipeForm, Setting, is_secret
from winhost.recipes.recipe_text import PlacedText, SourceFile
from winhost.recipes.shell_words import commands
from winhost.recipes.words import IMAGE, add_to, container_options, read_container, variable

_SECTION = re.compile(r"[ \t]*\[([^\]\n]+)\][ \t]*\r?$")
_ENTRY = re.compile(r"[ \t]*([A-Za-z][\w-]*)[ \t]*=[ \t]*")
_REMARK = re.compile(r"[ \t]*[#;]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_SHELL = re.compile(r"(?<=\s)(?:&&|\|\|?|\d?>>?(?:&\d)?|<|~/\S*)(?=\s|$)")
_PREFIXES = "@-:+!|"
# Keys of a quadlet's [Container], and the option of `podman run` that says the same.
QUADLET = {
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
KEPT = (
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
    """A line of a unit with those that it goes on in. value: without the signs that it does."""

    section: str
    name: str
    value: PlacedText
    key: PlacedText


def entries(source: SourceFile) -> Iterator[UnitEntry]:
    """Yield the settings of a unit, in order."""
    section, offset, text = "", 0, source.text
    while offset < len(text):
        end = _logical_end(text, offset)
        line = text[offset:end]
        if found := _SECTION.match(line):
            section = found[1]
        elif (found := _ENTRY.match(line)) and not line.lstrip().startswith(("#", ";")):
            whole = source.whole
            value = _without_remarks(whole.part(offset + found.end(), offset + len(line.rstrip())))
            yield UnitEntry(section, found[1], value, whole.part(offset + found.start(1), offset + found.end(1)))
        offset = end + 1


def _logical_end(text: str, offset: int) -> int:
    """Return the end of the line that begins here, continuation lines included."""
    goes_on = False
    while True:
        end = text.find("\n", offset)
        if end < 0:
            return len(text)
        if not (goes_on and _REMARK.match(text, offset)):  # a remark within is passed over
            goes_on = text[offset:end].rstrip("\r").endswith("\\")
        if not goes_on:
            return end
        offset = end + 1


def _without_remarks(text: PlacedText) -> PlacedText:
    """Lines between those of a value that are remarks are none of it."""
    kept: list[int] = []
    offset = 0
    for line in text.value.splitlines(keepends=True):
        if not (offset and _REMARK.match(line)):
            kept += range(offset, offset + len(line))
        offset += len(line)
    if len(kept) == len(text.value):
        return text
    return PlacedText("".join(text.value[i] for i in kept), [text.at[i] for i in kept], text.start, text.end)


def read_unit(source: SourceFile) -> Recipe:
    """A service that starts vLLM, or a container with it."""
    found = list(entries(source))
    quadlet = any(entry.section == "Container" for entry in found)
    slips: list[Observation] = []
    engine = _of_quadlet(found, slips) if quadlet else _of_service(found, slips)
    if engine is None:
        return Recipe(RecipeForm.QUADLET if quadlet else RecipeForm.SYSTEMD, ())
    engine.slips += [*slips, *_refused(found)]
    for entry in found:
        if entry.name in KEPT and entry.section in ("Service", "Install", "Unit", "Container"):
            shown = entry.value if entry.value.value else None
            engine.container.append(Setting(entry.name, entry.value.value, entry.key, shown, (), entry.name))
    engine.editor = UnitEditor(source, engine, found, quadlet)
    return Recipe(engine.form, (engine,))


def _refused(found: Sequence[UnitEntry]) -> Iterator[Observation]:
    """Lines that are refused, or mean something else."""
    oneshot = any(entry.name == "Type" and entry.value.value == "oneshot" for entry in found)
    started, again = 0, None
    known = container_options().quadlet
    for entry in found:
        if entry.section == "Container" and entry.name not in known:
            words = {"name": entry.name, "near": suggested(entry.name, known)}
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


def _of_service(found: Sequence[UnitEntry], slips: list[Observation]) -> RecipeEngine | None:
    started = [entry for entry in found if entry.section == "Service" and entry.name == "ExecStart"]
    engine = None
    for entry in started:
        words = _words(entry.value, slips)
        if words and words[0].value[:1] in _PREFIXES and words[0].value.strip(_PREFIXES):
            words[0] = words[0].part(len(words[0].value) - len(words[0].value.lstrip(_PREFIXES)))
        engine = engine_of(words, RecipeForm.SYSTEMD, slips)
        slips += _of_a_shell(entry.value)
        if engine is not None:
            engine.where = "unit"
            engine.places |= {"ExecStart": entry.key, "command": words[0]}
            slips += _not_found(words[0])
            break
    variables = _variables(found, "Service")
    if engine is not None:
        let_know(engine, variables)
    elif any(_is_of_engine(each.name) for each in variables):  # a drop-in, or a script with the engine in it
        engine = RecipeEngine(RecipeForm.SYSTEMD, "unit", found[0].key, known=False, partial=True)
        engine.variables += variables
    return engine


def _not_found(program: PlacedText) -> Iterator[Observation]:
    """A program that systemd looks for elsewhere than a shell, or refuses."""
    if not program.value.startswith(("/", "$")):
        if "/" not in program.value:
            yield Observation("not-absolute", program.start, {"word": program.value})
        elif not program.value.startswith("%"):
            yield Observation("relative-program", program.start, {"word": program.value})


def _is_of_engine(variable: str) -> bool:
    return is_secret(variable) or variable.startswith(("VLLM_", "HF_", "NCCL_", "CUDA_VISIBLE", "PYTORCH_"))


def _of_a_shell(text: PlacedText) -> Iterator[Observation]:
    """Signs that only a shell obeys, outside of quotes."""
    bare = _QUOTED.sub(lambda found: "x" * len(found[0]), text.value)
    for found in _SHELL.finditer(bare):
        yield Observation("shell-in-unit", text.part(found.start()).start, {"word": found[0]})


def _of_quadlet(found: Sequence[UnitEntry], slips: list[Observation]) -> RecipeEngine | None:
    inside = [entry for entry in found if entry.section == "Container"]
    at = next((entry.key for entry in inside if entry.name == "Image"), inside[0].key)
    engine = RecipeEngine(RecipeForm.QUADLET, "container", at, in_container=True)
    for entry in inside:
        if entry.name == "PodmanArgs":
            read_container([*_words(entry.value, slips), PlacedText("", (), 0, 0)], engine)
            engine.container = [each for each in engine.container if each.value != ""]
        elif option := QUADLET.get(entry.name):
            value = entry.value if entry.value.value else None
            add_to(engine, Setting(option, entry.value.value, entry.key, value, (entry.value,), entry.name))
    engine.variables += _variables(found, "Container")
    engine.outside += _variables(found, "Service")
    words = [word for entry in inside if entry.name == "Exec" for word in _words(entry.value, slips)]
    return with_command(engine, words, slips)


def _variables(found: Sequence[UnitEntry], section: str) -> list[Setting]:
    texts = [entry.value for entry in found if entry.section == section and entry.name == "Environment"]
    return [variable(word, (word,)) for text in texts for word in _assignments(text)]


def _assignments(text: PlacedText) -> list[PlacedText]:
    """The words with a sign; systemd passes over all others."""
    return [word for command in commands(text, comments=False)[0] for word in command.words if "=" in word.value]


def _words(text: PlacedText, slips: list[Observation]) -> list[PlacedText]:
    """Split as systemd does, near enough: `;` and `#` are words there."""
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
            start, end = self._source.line_of(entry.key.start)
            return (TextEdit(start, end, ""),) if entry.value.end <= end else ()
        if entry.value.start == setting.texts[0].start:
            text, end = self._source.text, setting.texts[-1].end
            return (TextEdit(entry.value.start, end + len(text[end:]) - len(text[end:].lstrip(" \t")), ""),)
        return removed_words(self._source, setting.texts, "\\")

    def add_option(self, words: str) -> Sequence[TextEdit]:
        own = [text for setting in self._engine.options for text in setting.texts if text.at]
        own += [each for each in (self._engine.model, *self._engine.strays) if each and each.at]
        end = max((text.end for text in own), default=0)
        return (TextEdit(end, end, f" {words}"),) if end else ()

    def add_variable(self, name: str, value: str) -> Sequence[TextEdit]:
        if self._engine.in_container and not self._quadlet:
            return self.add_to_container("--env", f"{name}={value}")
        return self._line(f"Environment={name}={value}")

    def add_to_container(self, name: str, value: str) -> Sequence[TextEdit]:
        if not self._quadlet:
            run = self._engine.places.get("run")
            return (TextEdit(run.end, run.end, f" {name}={value}"),) if run else ()
        key = next((key for key, option in QUADLET.items() if option == name), None)
        return self._line(f"{key}={value}") if key else self._line(f"PodmanArgs={name}={value}")

    def _line(self, line: str) -> Sequence[TextEdit]:
        """A new one before that which starts the engine."""
        starts = self._engine.at if self._quadlet else self._engine.places["ExecStart"]
        start, _ = self._source.line_of(starts.start)
        return (TextEdit(start, start, line + self._source.newline),)


def _within(text: PlacedText, value: PlacedText) -> bool:
    return value.start <= text.start and text.end <= value.end


def read_environment(source: SourceFile) -> Recipe:
    """A file of `NAME=VALUE` lines, as `--env-file` and EnvironmentFile= take."""
    engine = RecipeEngine(RecipeForm.ENVIRONMENT, "environment", source.whole.part(0, 0), known=False)
    offset = 0
    for line in source.text.split("\n"):
        bare = line.strip()
        if "=" in bare and not bare.startswith(("#", ";")):
            first = offset + line.index(bare) + (bare.startswith("export ") and len("export "))
            setting = variable(source.whole.part(first, offset + line.index(bare) + len(bare)), ())
            engine.variables.append(_unquoted(setting))
            if engine.variables[-1].value != setting.value or bare.startswith("export "):
                engine.slips.append(Observation("not-for-docker", offset + line.index(bare)))
        offset += len(line) + 1
    engine.editor = EnvironmentEditor(source)
    return Recipe(RecipeForm.ENVIRONMENT, (engine,) if engine.variables else ())


def _unquoted(setting: Setting) -> Setting:
    """`--env-file` of docker keeps quotes as they are, systemd takes them away; both mean the same variable."""
    value = setting.shown
    if value is None or len(value.value) < 2 or value.value[0] not in "'\"" or value.value[-1] != value.value[0]:
        return Setting(setting.name, setting.value, setting.text, value, (setting.text,), setting.written)
    inner = value.part(1, len(value.value) - 1)
    return Setting(setting.name, inner.value, setting.text, inner, (setting.text,), setting.written)


class EnvironmentEditor(Editor):
    """Edits a file that contains only variables."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source

    def remove(self, setting: Setting) -> Sequence[TextEdit]:
        start, end = self._source.line_of(setting.text.start)
        return (TextEdit(start, end, ""),)

    def add_variable(self, name: str, value: str) -> Sequence[TextEdit]:
        end = len(self._source.text)
        before = "" if self._source.text.endswith("\n") else self._source.newline
        return (TextEdit(end, end, f"{before}{name}={value}{self._source.newline}"),)
