"""Command lines and scripts: which of their commands start vLLM, by itself, in a shell or in a container."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePosixPath, PureWindowsPath

from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.command_editor import CommandEditor
from winhost.recipes.recipe_model import Recipe, RecipeEngine, RecipeForm, Setting
from winhost.recipes.recipe_text import PlacedText, SourceFile
from winhost.recipes.shell_words import ESCAPES, Command, ShellKind, commands, shell_of
from winhost.recipes.words import (
    IMAGE,
    TOOLS,
    has_port,
    image_name,
    kind_of,
    other_started,
    read_container,
    read_engine,
    read_other,
    variable,
)
from winhost.recipes.yaml_nodes import NotYaml, YamlNode, documents
from winhost.serving.vllm_options import names

_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_SET = ("export", "set", "setx", "declare", "-x", "env", "local")
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_BEFORE = ("exec", "sudo", "nohup", "env", "time", "setsid", "trtllm-llmapi-launch")
_SHELLS = ("sh", "bash", "zsh", "dash", "ash")
_OF_POWERSHELL = re.compile(r"\$env:(\w+)$", re.IGNORECASE)
# Options by which vLLM is told where nobody knows the image.
_OWN = (
    "--tensor-parallel-size",
    "--gpu-memory-utilization",
    "--max-model-len",
    "--served-model-name",
    "--max-num-seqs",
)
DEEPEST = 4  # shells within shells
STARTS = re.compile(
    r"\bvllm\s+serve\b|\bvllm\.entrypoints\b|\bsglang\.launch_server\b|\bsglang\s+serve\b|\bllama-server\b|\bollama\s+serve\b"
    r"|\btrtllm-serve\b|\btext-embeddings-router\b|\blmdeploy\s+serve\s+api_server\b"
    r"|\bcurl\b[^\n]*/sleep\b|\b(?:docker|podman|nerdctl|wslc)(?:\.exe)?\s+(?:container\s+)?(?:run|create)\b"
)
FENCED = re.compile(r"^[ \t]*```(?P<language>[\w+-]*)[^\n]*\n(?P<code>.*?)(?:[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
_LANGUAGES = ("", "bash", "sh", "shell", "console", "zsh", "powershell", "pwsh", "ps1", "cmd", "bat", "text")
_MAPPING = re.compile(r"(?:[ \t]*(?:#[^\n]*|---)?\r?\n)*[\w.\"'-]+:(?:[ \t]|\r?\n)")
# A catalogue in YAML: its descriptions are prose, whatever fences and commands stand in them
_LIST = re.compile(r"(?:[ \t]*(?:#[^\n]*|---)?\r?\n)*- +(?:&[\w.-]+\s+)?[\w.\"'-]+:(?:[ \t]|\r?\n)")
_ITEM = re.compile(r"^- +(?:&|[\w.\"'-]+:(?:[ \t]|\r?$))", re.MULTILINE)
_YAML = ("yaml", "yml")
_BLANK = re.compile(r"[^\n]")
_KEYS = ("run", "cmd", "cmds", "command", "commands", "script", "shell", "exec", "start")
DEEPEST_KEY = 12
MOST_IN_YAML = 8  # pieces of a page
LEAST_ITEMS = 3  # a page may begin with one or two


def read_commands(source: SourceFile) -> Recipe:
    """Every engine that a text starts; variables that it exports before count for those that follow."""
    engines = [engine for script in _scripts(source) for engine in _started_by(*script, source)]
    for number, engine in enumerate(engines, 1):
        engine.where = engine.where if len(engines) == 1 else f"{engine.where} {number}"
    return Recipe(RecipeForm.COMMAND, tuple(engines))


def _scripts(source: SourceFile) -> Sequence[tuple[PlacedText, bool]]:
    """The texts for a shell in a file: the code of a page, the commands of a file in YAML, else all of it. With each,
    whether it is one command, whose lines end where words do.
    """
    text, whole = source.text, (source.whole, False)
    if text.startswith("#!"):
        return [whole]
    if _LIST.match(text) and len(_ITEM.findall(text)) >= LEAST_ITEMS:
        return list(_in_list(source))
    fenced = [found.span("code") for found in FENCED.finditer(text) if found["language"].lower() in _LANGUAGES]
    codes = [(source.whole.part(*span), False) for span in fenced if STARTS.search(text, *span)]
    in_yaml = [code for code in FENCED.finditer(text) if code["language"] in _YAML and STARTS.search(code["code"])]
    codes += [found for code in in_yaml[:MOST_IN_YAML] for found in _in_yaml(source, code)]
    if codes or not STARTS.search(FENCED.sub("", text)):
        return codes
    if not _MAPPING.match(text):
        return [whole]
    try:
        return [found for document in documents(source) if document.is_map for found in _commands_in(document)]
    except NotYaml:
        return [whole]


def _in_list(source: SourceFile) -> Iterator[tuple[PlacedText, bool]]:
    """Commands in the items of a list; nothing where the file is cut off, as its prose is no script."""
    try:
        for document in documents(source):
            for item in document.items():
                yield from _commands_in(item)
    except NotYaml:
        return


def _in_yaml(source: SourceFile, code: re.Match[str]) -> Iterator[tuple[PlacedText, bool]]:
    """Commands in YAML of a page. The text before it is made blank, so that each character stays where it is."""
    alone = _BLANK.sub(" ", source.text[: code.start("code")]) + code["code"]
    try:
        for document in documents(SourceFile(alone, source.encoding, source.bom)):
            yield from _commands_in(document)
    except NotYaml:
        return


def _commands_in(node: YamlNode, path: tuple[str, ...] = ()) -> Iterator[tuple[PlacedText, bool]]:
    """The values for a shell, by their keys; llama-swap has no shell, and splits `cmd` of a model into words."""
    for name, value in node.pairs() if len(path) < DEEPEST_KEY else ():
        for each in value.items() or [value]:
            if each.is_scalar and name.lower() in _KEYS and STARTS.search(each.value):
                yield each.text, len(path) == 2 and (path[0], name) == ("models", "cmd")
            yield from _commands_in(each, (*path, name))


def _started_by(script: PlacedText, one_command: bool, source: SourceFile) -> Iterator[RecipeEngine]:
    shell = shell_of(script.value)
    found, slips = commands(script, shell)
    if one_command:
        found = [Command(tuple(word for command in found for word in command.words))]
        slips = [slip for slip in slips if "continu" not in slip.code and slip.code != "comment-in-command"]
    exported: list[Setting] = []
    for command, lost in _joined(found, source, shell):
        words = _with_image(command.words, exported)
        engine = engine_of(words, RecipeForm.COMMAND, slips)
        if engine and (engine.in_container or has_port(engine)):
            let_know(engine, exported)
            engine.slips += [*slips, *lost]
            engine.editor = CommandEditor(source, engine, shell)
            yield engine
            slips = []
        else:
            exported += _exported(command.words)


def _with_image(words: Sequence[PlacedText], known: Sequence[Setting]) -> Sequence[PlacedText]:
    """`$IMG_NAME` as the image that the script gave it before, where that starts an engine by itself."""
    if not any(_program(word.value) in TOOLS for word in words[:6]):
        return words
    images = {each.name: each.value or "" for each in known if kind_of(each.value or "")}
    values = [images.get(word.value.strip("${}")) if word.value.startswith("$") else None for word in words]
    return [
        PlacedText(value, (), word.start, word.end) if value else word
        for word, value in zip(words, values, strict=True)
    ]


def _joined(
    found: Sequence[Command], source: SourceFile, shell: ShellKind
) -> Iterator[tuple[Command, list[Observation]]]:
    """A line that begins with an option was meant to go on with the command before it."""
    rest = list(found)
    while rest:
        command, lost = rest.pop(0), []
        while rest and "\n" in command.closed_by and rest[0].words[0].value.startswith("--"):
            following = rest.pop(0)
            end, start = command.words[-1].end, following.words[0].start
            lost.append(Observation("line-ends-early", start, edits=_gone_on(source, end, start, ESCAPES[shell])))
            command = Command((*command.words, *following.words), following.closed_by)
        yield command, lost


def _gone_on(source: SourceFile, end: int, start: int, mark: str) -> tuple[TextEdit, ...]:
    """The line that ends there goes on in the one that begins here; what else is between them must be blank."""
    between = source.text[end:start]
    if between.strip() == mark:
        indent = between[between.rindex("\n") + 1 :]
        return (TextEdit(end, start, f" {mark}{source.newline}{indent}"),)
    return () if between.strip() else (TextEdit(end, end, f" {mark}"),)


def _exported(words: Sequence[PlacedText]) -> Iterator[Setting]:
    """`export A=B`, `set A=B`, `$env:A = "B"`."""
    values = [word.value for word in words]
    if found := _OF_POWERSHELL.match(values[0].partition("=")[0]):
        name = found[1]
        rest = [*([words[0].after("=")] if "=" in values[0] else []), *words[1:]]
        value = next((word for word in rest if word.value not in ("=", "")), None)
        yield Setting(name, value.value if value else "", words[0], value, tuple(words), name)
        return
    if values[0].lower() in _SET or all(map(_ASSIGNED.match, values)):
        yield from (variable(word, (word,)) for word in words if _ASSIGNED.match(word.value))


def engine_of(
    words: Sequence[PlacedText], form: RecipeForm, slips: list[Observation], depth: int = 0
) -> RecipeEngine | None:
    """The engine that a command starts, if it does."""
    before: list[Setting] = []
    begins = 0  # behind variables, `exec` and the like
    for at, word in enumerate(words):
        name = _program(word.value)
        begins += at == begins and (bool(_ASSIGNED.match(word.value)) or name in _BEFORE)
        rest = words[at + 1 :]
        if _ASSIGNED.match(word.value):
            before.append(variable(word, (word,)))
        elif name in TOOLS and (runs := _runs(rest)) is not None:
            return _with(_of_container(word, runs, rest, form, slips, depth), before)
        elif name in _SHELLS:
            return _with(_of_shell(rest, form, slips, depth), before)
        elif (began := _began(words, at)) is not None:
            first = words[at - 1] if word.value == "-m" and at else word
            engine = RecipeEngine(form, "command", first, entered=began[0], program=first.value)
            read_engine(words[began[1] :], engine)
            return _with(engine, before)
        elif at == begins and (other := other_started(words[at:])) is not None:
            engine = RecipeEngine(form, "command", word, entered=other[0], program=word.value)
            read_other(other[0], words[at + other[1] :], engine)
            return _with(engine, before)
    return None


def _with(engine: RecipeEngine | None, before: list[Setting]) -> RecipeEngine | None:
    if engine:
        let_know(engine, before)
    return engine


def let_know(engine: RecipeEngine, variables: Sequence[Setting]) -> None:
    """Variables of the shell, which a container gets only where it names them."""
    if engine.in_container:
        engine.outside[:0] = variables
        known = {each.name: each for each in variables}
        engine.variables[:] = [known.get(each.name, each) if each.value is None else each for each in engine.variables]
    else:
        engine.variables[:0] = variables


def _program(word: str) -> str:
    name = PureWindowsPath(word).name if "\\" in word else PurePosixPath(word).name
    return name.casefold().removesuffix(".exe")


def _began(words: Sequence[PlacedText], at: int) -> tuple[str, int] | None:
    """Return how vLLM's server is called here, and the index of its first own word."""
    values = [word.value for word in words[at : at + 3]]
    if _program(values[0]) == "vllm" and values[1:2] == ["serve"]:
        return "vllm serve", at + 2
    if values[0] == "-m" and len(values) > 1 and values[1] in _MODULES:
        behind = at + 2
        if values[1] == _MODULES[1]:
            return ("vllm serve", behind + 1) if values[2:3] == ["serve"] else None
        return "api_server", behind
    if _program(values[0]) == "api_server.py":
        return "api_server", at + 1
    return None


def _of_shell(
    words: Sequence[PlacedText], form: RecipeForm, slips: list[Observation], depth: int
) -> RecipeEngine | None:
    """The text behind `-c`, if this shell has one."""
    for flag, text in pairwise(words):
        if re.fullmatch(r"-[a-z]*c", flag.value):
            return of_text(text, form, slips, depth, words[list(words).index(text) + 1 :])
    return None


def of_text(
    text: PlacedText, form: RecipeForm, slips: list[Observation], depth: int = 0, following: Sequence[PlacedText] = ()
) -> RecipeEngine | None:
    """The first engine that a text for a shell starts. following: what the text knows as `$0`, `$1`, …"""
    if depth >= DEEPEST:
        return None
    found, inner = commands(text)
    exported: list[Setting] = []
    first: RecipeEngine | None = None
    for command in found:
        words = list(_expanded(command.words, following))
        if engine := engine_of(words, form, slips, depth + 1):
            if first is not None:  # another branch of the script, which may be the one that runs
                first.branched = True
                first.options += [each for each in engine.options if first.option(each.name) is None]
                continue
            engine.variables[:0] = exported
            slips += inner
            first = engine
        exported += _exported(command.words) if first is None else ()
    return first


def _expanded(words: Sequence[PlacedText], following: Sequence[PlacedText]) -> Iterator[PlacedText]:
    """Compose and units double the sign, so that they leave it alone."""
    for word in words:
        name = word.value.replace("$$", "$")
        if name == "$0" and following:
            yield following[0]
        elif name in ("$@", "$*"):
            yield from following[1:]
        else:
            yield word


def _runs(words: Sequence[PlacedText]) -> int | None:
    """Return the index of `run` or `create` in `docker run …`, `docker container run …`, `podman create …`."""
    return next((at for at, word in enumerate(words[:6]) if word.value in ("run", "create")), None)


def _of_container(
    tool: PlacedText, runs: int, words: Sequence[PlacedText], form: RecipeForm, slips: list[Observation], depth: int
) -> RecipeEngine | None:
    engine = RecipeEngine(form, "container", tool, program=tool.value)
    inside = read_container(words[runs + 1 :], engine)
    engine.places = {"run": words[runs]}
    return with_command(engine, inside, slips, depth)


def with_entry(
    engine: RecipeEngine, entry: Sequence[PlacedText] | None, inside: Sequence[PlacedText], slips: list[Observation]
) -> RecipeEngine | None:
    """A container with what it runs: by the entrypoint that its file names, which may be none at all, else as
    `with_command`.
    """
    if entry is None:
        return with_command(engine, inside, slips)
    found = engine_of([*entry, *inside], engine.form, slips)
    if found is None:
        return None
    _take_over(engine, found)
    return engine


def _take_over(engine: RecipeEngine, found: RecipeEngine) -> None:
    engine.kind, engine.entered, engine.model, engine.leads = found.kind, found.entered, found.model, found.leads
    engine.words, engine.branched = found.words, found.branched
    engine.options, engine.strays = found.options, found.strays
    engine.variables = [*engine.variables, *found.variables]


def with_command(
    engine: RecipeEngine, inside: Sequence[PlacedText], slips: list[Observation], depth: int = 0
) -> RecipeEngine | None:
    """A container with what it runs: by its entrypoint, or by that of its image. None where that is not vLLM."""
    entry, image = engine.boxed("--entrypoint"), engine.boxed(IMAGE)
    if entry and entry.shown:
        inside = [entry.shown, *inside]
    found = engine_of(inside, engine.form, slips, depth) if inside else None
    named = (image.value or "") if image else ""
    takes_options = any(word.value.partition("=")[0].replace("_", "-") in names("engine") for word in inside)
    unknown = "$" in named and any(word.value.partition("=")[0].replace("_", "-") in _OWN for word in inside)
    own = has_entrypoint(named) or unknown or (found is None and entry is None and is_derived(named) and takes_options)
    other = kind_of(named)
    if found is None and other and entry is None:
        read_other(other, inside, engine)
        return engine
    if own and entry is None and inside and inside[0].value == "serve":
        engine.entered, engine.places["again 0"] = "twice", inside[0]
        read_engine(inside[1:], engine)
        return engine
    if found is None and not (own and entry is None):
        return None
    if found is None:
        read_engine(inside, engine)
        return engine
    _take_over(engine, found)
    if (
        own and entry is None and found.kind == "vllm" and is_official(named)
    ):  # the image's own `vllm serve` gets these words
        engine.entered = "twice"
        engine.places |= {f"again {n}": word for n, word in enumerate(_again(inside, found))}
    return engine


def _again(inside: Sequence[PlacedText], found: RecipeEngine) -> list[PlacedText]:
    """The words before the engine's own that the image's entrypoint has already."""
    own = {id(text) for setting in found.options for text in setting.texts} | {id(found.model)}
    ends = next((at for at, word in enumerate(inside) if id(word) in own), len(inside))
    return list(inside[:ends])


def has_entrypoint(image: str) -> bool:
    """Tell whether the image starts `vllm serve` by itself, as vLLM's own does, also from another registry."""
    return image_name(image).startswith("vllm-openai") or image.removeprefix("docker.io/").startswith("vllm/vllm")


def is_official(image: str) -> bool:
    """An image of vLLM's own."""
    return image.removeprefix("docker.io/").startswith("vllm/vllm-openai")


def is_derived(image: str) -> bool:
    """One that somebody made of vLLM's, by its name: with what options and from which version it does not say."""
    return "vllm" in image_name(image).casefold() and not has_entrypoint(image)


_LINE = re.compile(r"(?:\\\r?\n|[^\n])+")
_CALL = re.compile(r"\bcurl\b")
_SLEEP = re.compile(r"/sleep(?![\w/-])(?!\?\S*level=)")
_LEVEL = re.compile(r"\{[^{}\n]*\blevel\W{1,6}([02-9])\b")


def sleep_levels(text: str) -> Iterator[tuple[int, str]]:
    """Yield the position and level of each request body that names one; level 1 is vLLM's default."""
    for line in _LINE.finditer(text) if "/sleep" in text else ():
        if _CALL.search(line[0]) and _SLEEP.search(line[0]) and (level := _LEVEL.search(line[0])):
            yield line.start() + level.start(), level[1]
