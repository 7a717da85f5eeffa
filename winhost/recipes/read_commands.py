"""Reads command lines and scripts: finds the commands that start an engine, directly, in a shell or in a container."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePosixPath, PureWindowsPath

from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.arguments import (
    IMAGE,
    TOOLS,
    engine_of_image,
    find_other_engine,
    has_port,
    image_name,
    parse_variable,
    read_container,
    read_other_engine,
    read_vllm_arguments,
)
from winhost.recipes.command_editor import CommandEditor
from winhost.recipes.recipe_model import Recipe, RecipeEngine, RecipeForm, Setting
from winhost.recipes.recipe_text import PlacedText, SourceFile
from winhost.recipes.shell_words import ESCAPES, Command, ShellKind, detect_shell, split_commands
from winhost.recipes.yaml_nodes import NotYaml, YamlNode, parse_documents
from winhost.serving.vllm_options import names

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_ASSIGNMENT_COMMANDS = ("export", "set", "setx", "declare", "-x", "env", "local")
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_PREFIX_COMMANDS = ("exec", "sudo", "nohup", "env", "time", "setsid", "trtllm-llmapi-launch")
_SHELLS = ("sh", "bash", "zsh", "dash", "ash")
_POWERSHELL_VARIABLE = re.compile(r"\$env:(\w+)$", re.IGNORECASE)
# Options that identify vLLM if the image is not known.
_TYPICAL_OPTIONS = (
    "--tensor-parallel-size",
    "--gpu-memory-utilization",
    "--max-model-len",
    "--served-model-name",
    "--max-num-seqs",
)
MAX_SHELL_DEPTH = 4  # shells within shells
STARTS = re.compile(
    r"\bvllm\s+serve\b|\bvllm\.entrypoints\b|\bsglang\.launch_server\b|\bsglang\s+serve\b|\bllama-server\b|\bollama\s+serve\b"
    r"|\btrtllm-serve\b|\btext-embeddings-router\b|\blmdeploy\s+serve\s+api_server\b"
    r"|\bcurl\b[^\n]*/sleep\b|\b(?:docker|podman|nerdctl|wslc)(?:\.exe)?\s+(?:container\s+)?(?:run|create)\b"
)
FENCED = re.compile(r"^[ \t]*```(?P<language>[\w+-]*)[^\n]*\n(?P<code>.*?)(?:[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
_LANGUAGES = ("", "bash", "sh", "shell", "console", "zsh", "powershell", "pwsh", "ps1", "cmd", "bat", "text")
_MAPPING = re.compile(r"(?:[ \t]*(?:#[^\n]*|---)?\r?\n)*[\w.\"'-]+:(?:[ \t]|\r?\n)")
# A catalogue in YAML, whose descriptions are prose, even with fences and commands in them.
_LIST = re.compile(r"(?:[ \t]*(?:#[^\n]*|---)?\r?\n)*- +(?:&[\w.-]+\s+)?[\w.\"'-]+:(?:[ \t]|\r?\n)")
_ITEM = re.compile(r"^- +(?:&|[\w.\"'-]+:(?:[ \t]|\r?$))", re.MULTILINE)
_YAML = ("yaml", "yml")
_BLANK = re.compile(r"[^\n]")
_KEYS = ("run", "cmd", "cmds", "command", "commands", "script", "shell", "exec", "start")
MAX_KEY_DEPTH = 12
MAX_YAML_BLOCKS = 8  # fenced YAML blocks of a page that are read
MIN_ITEMS = 3  # a page may begin with one or two


def read_commands(source: SourceFile) -> Recipe:
    """Read every engine that a text starts, with the variables that the text exports before."""
    engines = [engine for script in _scripts(source) for engine in _read_script(*script, source)]
    for number, engine in enumerate(engines, 1):
        engine.label = engine.label if len(engines) == 1 else f"{engine.label} {number}"
    return Recipe(RecipeForm.COMMAND, tuple(engines))


def _scripts(source: SourceFile) -> Sequence[tuple[PlacedText, bool]]:
    """Return the scripts in a file: the code blocks of a page, the commands of a YAML file, else the whole text. With
    each, whether it is a single command, so that line ends only separate words.
    """
    text, whole = source.text, (source.all_text, False)
    if text.startswith("#!"):
        return [whole]
    if _LIST.match(text) and len(_ITEM.findall(text)) >= MIN_ITEMS:
        return list(_scripts_in_list(source))
    fenced = [found.span("code") for found in FENCED.finditer(text) if found["language"].lower() in _LANGUAGES]
    codes = [(source.all_text.part(*span), False) for span in fenced if STARTS.search(text, *span)]
    in_yaml = [code for code in FENCED.finditer(text) if code["language"] in _YAML and STARTS.search(code["code"])]
    codes += [found for code in in_yaml[:MAX_YAML_BLOCKS] for found in _scripts_in_yaml(source, code)]
    if codes or not STARTS.search(FENCED.sub("", text)):
        return codes
    if not _MAPPING.match(text):
        return [whole]
    try:
        return [
            found for document in parse_documents(source) if document.is_map for found in _scripts_in_node(document)
        ]
    except NotYaml:
        return [whole]


def _scripts_in_list(source: SourceFile) -> Iterator[tuple[PlacedText, bool]]:
    """Yield the scripts in the items of a list; none if the YAML is incomplete, because its prose is no script."""
    try:
        for document in parse_documents(source):
            for item in document.items():
                yield from _scripts_in_node(item)
    except NotYaml:
        return


def _scripts_in_yaml(source: SourceFile, code: re.Match[str]) -> Iterator[tuple[PlacedText, bool]]:
    """Yield the scripts in a YAML block of a page. The text before it is blanked, so that offsets stay the same."""
    alone = _BLANK.sub(" ", source.text[: code.start("code")]) + code["code"]
    try:
        for document in parse_documents(SourceFile(alone, source.encoding, source.bom)):
            yield from _scripts_in_node(document)
    except NotYaml:
        return


def _scripts_in_node(node: YamlNode, path: tuple[str, ...] = ()) -> Iterator[tuple[PlacedText, bool]]:
    """Yield the values that are scripts, by their keys. llama-swap has no shell, and splits `cmd` of a model into
    words.
    """
    for name, value in node.pairs() if len(path) < MAX_KEY_DEPTH else ():
        for each in value.items() or [value]:
            if each.is_scalar and name.lower() in _KEYS and STARTS.search(each.value):
                yield each.text, len(path) == 2 and (path[0], name) == ("models", "cmd")
            yield from _scripts_in_node(each, (*path, name))


def _read_script(script: PlacedText, one_command: bool, source: SourceFile) -> Iterator[RecipeEngine]:
    shell = detect_shell(script.value)
    found, slips = split_commands(script, shell)
    if one_command:
        found = [Command(tuple(word for command in found for word in command.words))]
        slips = [slip for slip in slips if "continu" not in slip.code and slip.code != "comment-in-command"]
    exported: list[Setting] = []
    for command, missing in _join_broken_lines(found, source, shell):
        words = _expand_image(command.words, exported)
        engine = read_command(words, RecipeForm.COMMAND, slips)
        if engine and (engine.in_container or has_port(engine)):
            add_shell_variables(engine, exported)
            engine.slips += [*slips, *missing]
            engine.editor = CommandEditor(source, engine, shell)
            yield engine
            slips = []
        else:
            exported += _read_assignments(command.words)


def _expand_image(words: Sequence[PlacedText], known: Sequence[Setting]) -> Sequence[PlacedText]:
    """Replace a variable such as `$IMG_NAME` by the image that the script assigned to it, if the image starts an
    engine.
    """
    if not any(_program(word.value) in TOOLS for word in words[:6]):
        return words
    images = {each.name: each.value or "" for each in known if engine_of_image(each.value or "")}
    values = [images.get(word.value.strip("${}")) if word.value.startswith("$") else None for word in words]
    return [
        PlacedText(value, (), word.start, word.end) if value else word
        for word, value in zip(words, values, strict=True)
    ]


def _join_broken_lines(
    found: Sequence[Command], source: SourceFile, shell: ShellKind
) -> Iterator[tuple[Command, list[Observation]]]:
    """Join a line that begins with an option with the command before it, and report the missing continuation."""
    remaining = list(found)
    while remaining:
        command, missing = remaining.pop(0), []
        while remaining and "\n" in command.closed_by and remaining[0].words[0].value.startswith("--"):
            following = remaining.pop(0)
            end, start = command.words[-1].end, following.words[0].start
            missing.append(Observation("line-ends-early", start, edits=_join_lines(source, end, start, ESCAPES[shell])))
            command = Command((*command.words, *following.words), following.closed_by)
        yield command, missing


def _join_lines(source: SourceFile, end: int, start: int, mark: str) -> tuple[TextEdit, ...]:
    """Return edits that join two lines. There are none if anything but blanks is between them."""
    between = source.text[end:start]
    if between.strip() == mark:
        indent = between[between.rindex("\n") + 1 :]
        return (TextEdit(end, start, f" {mark}{source.newline}{indent}"),)
    return () if between.strip() else (TextEdit(end, end, f" {mark}"),)


def _read_assignments(words: Sequence[PlacedText]) -> Iterator[Setting]:
    """Yield the variables that a command sets: `export A=B`, `set A=B`, `$env:A = "B"`."""
    values = [word.value for word in words]
    if found := _POWERSHELL_VARIABLE.match(values[0].partition("=")[0]):
        name = found[1]
        rest = [*([words[0].part_after("=")] if "=" in values[0] else []), *words[1:]]
        value = next((word for word in rest if word.value not in ("=", "")), None)
        yield Setting(name, value.value if value else "", words[0], value, tuple(words), name)
        return
    if values[0].lower() in _ASSIGNMENT_COMMANDS or all(map(_ASSIGNMENT.match, values)):
        yield from (parse_variable(word, (word,)) for word in words if _ASSIGNMENT.match(word.value))


def read_command(
    words: Sequence[PlacedText], form: RecipeForm, slips: list[Observation], depth: int = 0
) -> RecipeEngine | None:
    """Read the engine that a command starts; None if it starts none."""
    before: list[Setting] = []
    begins = 0  # index of the program, after variables, `exec` and the like
    for at, word in enumerate(words):
        name = _program(word.value)
        begins += at == begins and (bool(_ASSIGNMENT.match(word.value)) or name in _PREFIX_COMMANDS)
        rest = words[at + 1 :]
        if _ASSIGNMENT.match(word.value):
            before.append(parse_variable(word, (word,)))
        elif name in TOOLS and (runs := _find_run(rest)) is not None:
            return _add_variables(_read_tool(word, runs, rest, form, slips, depth), before)
        elif name in _SHELLS:
            return _add_variables(_read_shell(rest, form, slips, depth), before)
        elif (began := _find_vllm(words, at)) is not None:
            first = words[at - 1] if word.value == "-m" and at else word
            engine = RecipeEngine(form, "command", first, entry=began[0], program=first.value)
            read_vllm_arguments(words[began[1] :], engine)
            return _add_variables(engine, before)
        elif at == begins and (other := find_other_engine(words[at:])) is not None:
            engine = RecipeEngine(form, "command", word, entry=other[0], program=word.value)
            read_other_engine(other[0], words[at + other[1] :], engine)
            return _add_variables(engine, before)
    return None


def _add_variables(engine: RecipeEngine | None, before: list[Setting]) -> RecipeEngine | None:
    if engine:
        add_shell_variables(engine, before)
    return engine


def add_shell_variables(engine: RecipeEngine, variables: Sequence[Setting]) -> None:
    """Add variables of the shell. A container only gets those that it names."""
    if engine.in_container:
        engine.shell_variables[:0] = variables
        known = {each.name: each for each in variables}
        engine.variables[:] = [known.get(each.name, each) if each.value is None else each for each in engine.variables]
    else:
        engine.variables[:0] = variables


def _program(word: str) -> str:
    name = PureWindowsPath(word).name if "\\" in word else PurePosixPath(word).name
    return name.casefold().removesuffix(".exe")


def _find_vllm(words: Sequence[PlacedText], at: int) -> tuple[str, int] | None:
    """Return how vLLM's server is started at this index, and the index of its first argument; None if it is not."""
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


def _read_shell(
    words: Sequence[PlacedText], form: RecipeForm, slips: list[Observation], depth: int
) -> RecipeEngine | None:
    """Read the engine in the text after `-c`, if this shell has one."""
    for flag, text in pairwise(words):
        if re.fullmatch(r"-[a-z]*c", flag.value):
            return read_script(text, form, slips, depth, words[list(words).index(text) + 1 :])
    return None


def read_script(
    text: PlacedText, form: RecipeForm, slips: list[Observation], depth: int = 0, following: Sequence[PlacedText] = ()
) -> RecipeEngine | None:
    """Read the first engine that a script starts. following: its arguments `$0`, `$1`, …"""
    if depth >= MAX_SHELL_DEPTH:
        return None
    found, inner = split_commands(text)
    exported: list[Setting] = []
    first: RecipeEngine | None = None
    for command in found:
        words = list(_expand_arguments(command.words, following))
        if engine := read_command(words, form, slips, depth + 1):
            if first is not None:  # another branch of the script, which may run instead
                first.has_branches = True
                first.options += [each for each in engine.options if first.option(each.name) is None]
                continue
            engine.variables[:0] = exported
            slips += inner
            first = engine
        exported += _read_assignments(command.words) if first is None else ()
    return first


def _expand_arguments(words: Sequence[PlacedText], following: Sequence[PlacedText]) -> Iterator[PlacedText]:
    """Replace `$0` and `$@` by arguments. Compose and units write `$$` for a `$` that they do not interpret."""
    for word in words:
        name = word.value.replace("$$", "$")
        if name == "$0" and following:
            yield following[0]
        elif name in ("$@", "$*"):
            yield from following[1:]
        else:
            yield word


def _find_run(words: Sequence[PlacedText]) -> int | None:
    """Return the index of `run` or `create` in `docker run …`, `docker container run …`, `podman create …`."""
    return next((at for at, word in enumerate(words[:6]) if word.value in ("run", "create")), None)


def _read_tool(
    tool: PlacedText, runs: int, words: Sequence[PlacedText], form: RecipeForm, slips: list[Observation], depth: int
) -> RecipeEngine | None:
    engine = RecipeEngine(form, "container", tool, program=tool.value)
    inside = read_container(words[runs + 1 :], engine)
    engine.positions = {"run": words[runs]}
    return read_container_command(engine, inside, slips, depth)


def read_entrypoint(
    engine: RecipeEngine, entry: Sequence[PlacedText] | None, inside: Sequence[PlacedText], slips: list[Observation]
) -> RecipeEngine | None:
    """Read what a container runs. entry: the entrypoint in its file; None: see `read_container_command`. Return None if
    it starts no engine.
    """
    if entry is None:
        return read_container_command(engine, inside, slips)
    found = read_command([*entry, *inside], engine.form, slips)
    if found is None:
        return None
    _copy_engine(engine, found)
    return engine


def _copy_engine(engine: RecipeEngine, found: RecipeEngine) -> None:
    engine.kind, engine.entry, engine.model, engine.model_first = (
        found.kind,
        found.entry,
        found.model,
        found.model_first,
    )
    engine.words, engine.has_branches = found.words, found.has_branches
    engine.options, engine.strays = found.options, found.strays
    engine.variables = [*engine.variables, *found.variables]


def read_container_command(
    engine: RecipeEngine, inside: Sequence[PlacedText], slips: list[Observation], depth: int = 0
) -> RecipeEngine | None:
    """Read what a container runs, by its entrypoint or that of its image. Return None if it starts no engine."""
    entry, image = engine.container_setting("--entrypoint"), engine.container_setting(IMAGE)
    if entry and entry.value_text:
        inside = [entry.value_text, *inside]
    found = read_command(inside, engine.form, slips, depth) if inside else None
    named = (image.value or "") if image else ""
    takes_options = any(word.value.partition("=")[0].replace("_", "-") in names("engine") for word in inside)
    unknown = "$" in named and any(
        word.value.partition("=")[0].replace("_", "-") in _TYPICAL_OPTIONS for word in inside
    )
    own = has_entrypoint(named) or unknown or (found is None and entry is None and is_derived(named) and takes_options)
    other = engine_of_image(named)
    if found is None and other and entry is None:
        read_other_engine(other, inside, engine)
        return engine
    if own and entry is None and inside and inside[0].value == "serve":
        engine.entry, engine.positions["again 0"] = "twice", inside[0]
        read_vllm_arguments(inside[1:], engine)
        return engine
    if found is None and not (own and entry is None):
        return None
    if found is None:
        read_vllm_arguments(inside, engine)
        return engine
    _copy_engine(engine, found)
    if (
        own and entry is None and found.kind == "vllm" and is_official(named)
    ):  # the image's own `vllm serve` gets these arguments
        engine.entry = "twice"
        engine.positions |= {f"again {n}": word for n, word in enumerate(_repeated_words(inside, found))}
    return engine


def _repeated_words(inside: Sequence[PlacedText], found: RecipeEngine) -> list[PlacedText]:
    """Return the words of the command that the image's entrypoint has already."""
    own = {id(text) for setting in found.options for text in setting.texts} | {id(found.model)}
    ends = next((at for at, word in enumerate(inside) if id(word) in own), len(inside))
    return list(inside[:ends])


def has_entrypoint(image: str) -> bool:
    """Tell whether an image starts `vllm serve` by itself, like vLLM's own image, from any registry."""
    return image_name(image).startswith("vllm-openai") or image.removeprefix("docker.io/").startswith("vllm/vllm")


def is_official(image: str) -> bool:
    """Tell whether an image is vLLM's own."""
    return image.removeprefix("docker.io/").startswith("vllm/vllm-openai")


def is_derived(image: str) -> bool:
    """Tell by its name whether an image was built on vLLM's. Its options and version are not known."""
    return "vllm" in image_name(image).casefold() and not has_entrypoint(image)


_LINE = re.compile(r"(?:\\\r?\n|[^\n])+")
_CALL = re.compile(r"\bcurl\b")
_SLEEP = re.compile(r"/sleep(?![\w/-])(?!\?\S*level=)")
_LEVEL = re.compile(r"\{[^{}\n]*\blevel\W{1,6}([02-9])\b")


def sleep_levels(text: str) -> Iterator[tuple[int, str]]:
    """Yield the offset and level of each request to /sleep that has a level in its body; level 1 is vLLM's default."""
    for line in _LINE.finditer(text) if "/sleep" in text else ():
        if _CALL.search(line[0]) and _SLEEP.search(line[0]) and (level := _LEVEL.search(line[0])):
            yield line.start() + level.start(), level[1]
