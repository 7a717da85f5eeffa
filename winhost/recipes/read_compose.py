"""Reads and edits Compose files: each service that runs an engine."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.arguments import IMAGE, add_setting, parse_variable
from winhost.recipes.command_editor import remove_words, replace_value
from winhost.recipes.read_commands import read_entrypoint
from winhost.recipes.recipe_model import Editor, Recipe, RecipeEngine, RecipeForm, Setting
from winhost.recipes.recipe_text import PlacedText, SourceFile
from winhost.recipes.shell_words import split_commands
from winhost.recipes.yaml_nodes import (
    YamlNode,
    add_pair,
    append_item,
    find_duplicate_keys,
    make_mapping,
    parse_documents,
    remove_entry,
    remove_items,
)

# The options of `docker run` that correspond to keys of a service.
DOCKER_OPTIONS = {
    "image": IMAGE,
    "shm_size": "--shm-size",
    "ipc": "--ipc",
    "network_mode": "--network",
    "runtime": "--runtime",
    "restart": "--restart",
    "mem_limit": "--memory",
    "stop_grace_period": "--stop-timeout",
    "privileged": "--privileged",
    "ports": "--publish",
    "volumes": "--volume",
    "devices": "--device",
    "gpus": "--gpus",
    "user": "--user",
    "pid": "--pid",
    "ulimits": "--ulimit",
    "security_opt": "--security-opt",
    "healthcheck": "--health-cmd",
    "env_file": "--env-file",
}
_OPTION_AND_VALUE = re.compile(r"(--?[A-Za-z][\w.-]*)[ \t]+(\S.*)", re.DOTALL)
_COMMAND_IN_ITEM = re.compile(r"\S+[ \t]+(?:\S+[ \t]+)*?(?:serve|vllm\.entrypoints\S*)[ \t]", re.DOTALL)
_DEVICES = ("deploy", "resources", "reservations", "devices")


def read_compose(source: SourceFile) -> Recipe:
    """Read every service that runs an engine. Raises NotYaml."""
    engines, slips = list[RecipeEngine](), list[Observation]()
    for document in parse_documents(source):
        slips += find_duplicate_keys(document)
        services = dict(document.get("services").pairs())
        bases = {name for service in services.values() if (name := _base_name(service))}
        for name, service in services.items():
            whole = _extend(service, services)
            if (engine := _read_service(whole)) is not None:
                engine.label = f"service {name}"
                engine.partial = name in bases or _is_partial(whole)
                engines.append(engine)
    return Recipe(RecipeForm.COMPOSE, tuple(engines), slips=tuple(slips))


def _base_name(service: YamlNode) -> str:
    """Return the name of the service in the same file that a service extends; empty if there is none."""
    extends = service.get("extends")
    return extends.value or ("" if extends.get("file") else extends.get("service").value)


def _extend(service: YamlNode, services: Mapping[str, YamlNode]) -> YamlNode:
    """Return a service with the keys that it inherits from the services that it extends."""
    names, seen = {name for name, _ in service.pairs()}, {_base_name(service)}
    pairs = list(service.node.value) if service.is_map else []
    base = services.get(_base_name(service))
    while base is not None and base.is_map:
        pairs += [(value.key, value.node) for name, value in base.pairs() if name not in names]
        names |= {name for name, _ in base.pairs()}
        following = _base_name(base)
        base = services.get(following) if following not in seen else None
        seen.add(following)
    return make_mapping(service, pairs) if len(seen) > 1 else service


def _is_partial(service: YamlNode) -> bool:
    """Tell whether other files complete a service: Compose requires an image or a build."""
    build = service.get("build")
    built = build.is_scalar or any(build.get(key) for key in ("context", "dockerfile", "dockerfile_inline"))
    return bool(service.get("extends", "file")) or not (service.get("image") or built)


def _read_service(service: YamlNode) -> RecipeEngine | None:
    slips: list[Observation] = []
    engine = RecipeEngine(RecipeForm.COMPOSE, "", service.key_text, in_container=True)
    for name, value in service.pairs():
        for setting in _settings(name, value):
            add_setting(engine, setting)
    _read_devices(service, engine)
    engine.variables += list(read_environment(service.get("environment")))
    slips += _find_quotes(engine.variables)
    entry, command = service.get("entrypoint"), service.get("command")
    first = read_words(entry, slips) if entry else None
    inside = read_words(command, slips) if not (entry.is_list and command.is_list) else []
    if entry.is_list and command.is_list:  # read together, because the script of `sh -c` may be in the other list
        first = read_items([each.text for each in (*entry.items(), *command.items()) if each.is_scalar], slips)
    if read_entrypoint(engine, first, inside, slips) is None:
        return None
    engine.slips += slips
    positions = {
        "profiles": service.get("profiles"),
        "replicas": service.get("deploy", "replicas"),
        "entrypoint": entry,
    }
    engine.positions |= {key: node.key_text for key, node in positions.items() if node}
    if build := service.get("build"):
        recipe = build.get("dockerfile")
        engine.positions["built"] = recipe.text if recipe.is_scalar else build.key_text
    engine.editor = ComposeEditor(service, engine)
    return engine


def read_words(node: YamlNode, slips: list[Observation]) -> list[PlacedText]:
    """Return the words of a command: the items of a list, or a text that is split like in a shell."""
    if node.is_list:
        return read_items([each.text for each in node.items() if each.is_scalar], slips)
    if not node.is_scalar or not node:
        return []
    words = split_words(node.text, "Compose", slips, compose=True)
    slips += [_backslash_in_fold(word) for word in words if word.value.startswith(" -")]
    return [word.part(1) if word.value.startswith(" -") else word for word in words]


def split_words(
    text: PlacedText, by: str, slips: list[Observation], *, comments: bool = True, compose: bool = False
) -> list[PlacedText]:
    """Split a text like a shell, without comments. by: the format, for reports; the others: see `split_commands`."""
    found, inner = split_commands(text, comments=comments, compose=compose)
    slips += [slip for slip in inner if slip.code != "continues-into-nothing"]
    return _drop_comments([word for command in found for word in command.words], by, slips)


def _drop_comments(words: Sequence[PlacedText], by: str, slips: list[Observation]) -> list[PlacedText]:
    """Drop a comment that the format does not treat as one, and report it once."""
    at = next((i for i, word in enumerate(words) if word.value.startswith("#")), len(words))
    if at == len(words):
        return list(words)
    slips.append(Observation("comment-is-words", words[at].start, {"by": by}))
    more = next((i for i in range(at, len(words)) if words[i].value.startswith("-")), len(words))
    return [*words[:at], *_drop_comments(words[more:], by, [])]


def read_items(items: Sequence[PlacedText], slips: list[Observation]) -> list[PlacedText]:
    """Return the words of a list. An item with blanks is one word, so that several words in an item are reported and
    split.
    """
    words: list[PlacedText] = []
    for before, text in pairwise([None, *items]):
        assert text is not None
        if before is not None and re.fullmatch(r"-[a-z]*c", before.value):
            words.append(text)
        elif found := _OPTION_AND_VALUE.fullmatch(text.value):
            blank, better = text.part(found.end(1), found.start(2)), f"{found[1]}={found[2]}"
            edits = replace_value(blank, "=")
            slips.append(Observation("words-in-one-item", text.start, {"item": text.value, "better": better}, edits))
            words += [text.part(0, found.end(1)), text.part(found.start(2))]
        elif _COMMAND_IN_ITEM.search(text.value):
            slips.append(Observation("command-in-one-item", text.start))
            words += [word for command in split_commands(text)[0] for word in command.words]
        else:
            words.append(text)
    return words


def _backslash_in_fold(word: PlacedText) -> Observation:
    """Report a backslash in a folded text: `>` joins lines, so that a backslash at a line end precedes a blank."""
    edits = (TextEdit(word.start, word.start + 1, ""),) if word.offsets else ()
    return Observation("backslash-in-fold", word.start, edits=edits)


def _settings(name: str, value: YamlNode) -> Iterator[Setting]:
    if name == "deploy":
        limit = value.get("resources", "limits", "memory")
        if limit.is_scalar:
            yield _setting("--memory", limit)
        return
    option = DOCKER_OPTIONS.get(name)
    if option is None or (not value and name != "privileged"):
        return
    if value.is_list and name != "security_opt":
        yield from (_setting(option, each) for each in value.items() if each.is_scalar or name != "gpus")
    else:
        yield _setting(option, value)


def _setting(option: str, value: YamlNode) -> Setting:
    """Make a setting. The long form of a list entry is reduced to its relevant keys."""
    if value.is_scalar:
        text = value.text
        return Setting.parse(option, value.key_text, text, (text,), value.key_text.value or option)
    if option == "--health-cmd":
        test = value.get("test")
        word = test.value or " ".join(each.value for each in test.items())
        return Setting(option, word, (test or value).key_text, None, (), option)
    entry = {name: inner.value for name, inner in value.pairs()}
    ends = {"--publish": ("published", "target"), "--volume": ("source", "target")}.get(option, ())
    word = ":".join(entry[end] for end in ends if entry.get(end))
    if option == "--publish" and entry.get("host_ip"):
        word = f"{entry['host_ip']}:{word}"
    at = value.key_text if value.key is not None else PlacedText("", (), value.start, value.start)
    return Setting(option, word, at, None, (), option)


def _read_devices(service: YamlNode, engine: RecipeEngine) -> None:
    """Read the GPUs of `deploy.resources.reservations.devices` as `--gpus`."""
    reserved = service.get(*_DEVICES).items()
    for device in [*reserved, *(each for each in service.get("gpus").items() if each.is_map)]:
        entry = dict(device.pairs())
        ids = [each.value for each in entry["device_ids"].items()] if "device_ids" in entry else []
        count = entry.get("count")
        word = f"device={','.join(ids)}" if ids else count.value if count is not None else "all"
        shown = count.text if count is not None and not ids else None
        at = PlacedText("", (), device.start, device.start)
        engine.container.append(Setting("--gpus", word, shown or at, shown, (), "devices"))
        if "capabilities" not in entry and device in reserved:
            engine.slips.append(Observation("reservation-incomplete", device.start))
        if ids and count is not None:
            engine.slips.append(Observation("counted-and-named", count.start))
    if misplaced := service.get("deploy", "resources", "devices"):
        engine.slips.append(Observation("devices-misplaced", misplaced.start))


def read_environment(node: YamlNode) -> Iterator[Setting]:
    """Yield the variables of a list of `NAME=VALUE`, or of a mapping."""
    for each in node.items():
        if each.is_scalar:
            yield parse_variable(each.text, (each.text,))
    for name, value in node.pairs():
        text = value.text if value and value.is_scalar else None
        yield Setting.parse(name, value.key_text, text, (value.key_text,), name)


def _find_quotes(variables: Sequence[Setting]) -> Iterator[Observation]:
    """Report quotes around the value within an item of a list. Compose passes them on, because YAML only removes quotes
    around the whole item.

    Quotes in a mapping are intended. Values that YAML would read differently without quotes are not reported.
    """
    for each in variables:
        in_list = any("=" in text.value for text in each.texts[:1])
        bare = re.fullmatch(r"""(["'])([^\s"'#:](?:[^\s"'#]*[^\s"'#:])?)\1""", each.value or "")
        if each.value_text and in_list and bare and not each.by_default:
            yield Observation(
                "quotes-in-value", each.value_text.start, {"name": each.name}, replace_value(each.value_text, bare[2])
            )


class ComposeEditor(Editor):
    """Edits one service."""

    def __init__(self, service: YamlNode, engine: RecipeEngine) -> None:
        self._service, self._engine = service, engine

    def remove(self, setting: Setting) -> Sequence[TextEdit]:
        node = self._service.get("environment")
        for each in (*node.items(), *(value for _, value in node.pairs())):
            if each.key_text.start == setting.texts[0].start if setting.texts else False:
                return remove_entry(each, node)
        for name in ("command", "entrypoint"):
            if edits := remove_from_command(self._service.get(name), setting):
                return edits
        return ()

    def add_option(self, words: str) -> Sequence[TextEdit]:
        return add_to_command(self._service.get("command"), self._engine, words)

    def add_variable(self, name: str, value: str) -> Sequence[TextEdit]:
        node = self._service.get("environment")
        if node.is_list and node.items():
            return append_item(node, f"{name}={value}")
        if node.is_map:
            return add_pair(node, name, f' "{value}"')
        return add_pair(self._service, "environment", f'\n  {name}: "{value}"') if node.node is None else ()

    def add_to_container(self, name: str, value: str) -> Sequence[TextEdit]:
        key = next((key for key, option in DOCKER_OPTIONS.items() if option == name), None)
        return add_pair(self._service, key, f" {value}") if key and not self._service.get(key) else ()


def remove_from_command(command: YamlNode, setting: Setting) -> Sequence[TextEdit]:
    """Return edits that remove a setting from a command: items of a list, or words of a text."""
    if command.is_scalar and command:
        inside = [command.node.start_mark.index <= text.start <= command.node.end_mark.index for text in setting.texts]
        return remove_words(command.source, setting.texts, "\\") if inside and all(inside) else ()
    starts = {text.start for text in setting.texts}
    removed = [each for each in command.items() if each.is_scalar and each.text.start in starts]
    if any(_contains(each, text) for each in command.items() for text in setting.texts):
        return remove_words(command.source, setting.texts, "\\")  # within the text of a shell
    if len(removed) != len(setting.texts) or not removed:
        return ()
    if command.node.flow_style:
        items = command.items()
        numbers = [n for n, each in enumerate(items) if each.node in [one.node for one in removed]]
        return remove_items(items, numbers[0], numbers[-1]) if len(numbers) == numbers[-1] - numbers[0] + 1 else ()
    edits = [edit for each in removed for edit in remove_entry(each, command)]
    return edits if len(edits) == len(removed) else ()


def _contains(item: YamlNode, text: PlacedText) -> bool:
    return bool(item.node.start_mark.index < text.start and text.end <= item.node.end_mark.index)


def add_to_command(command: YamlNode, engine: RecipeEngine, words: str) -> Sequence[TextEdit]:
    """Return edits that add an option at the end of a command."""
    if any(slip.code == "words-in-one-item" for slip in engine.slips):
        return ()  # its last word may be part of an item; the next round adds the option
    own = [text for setting in engine.options for text in setting.texts if text.offsets]
    own += [engine.model] if engine.model and engine.model.offsets else []
    last = max(own, key=lambda text: text.end, default=None)
    if command.is_list and (last is None or last.start in {each.node.start_mark.index for each in command.items()}):
        return append_item(command, words)
    if last is None or engine.has_branches:
        return ()
    return (TextEdit(last.offsets[-1] + 1, last.offsets[-1] + 1, f" {words}"),)
