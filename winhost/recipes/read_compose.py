"""Compose files: each service that runs vLLM."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.command_editor import removed_words, replaced
from winhost.recipes.read_commands import with_entry
from winhost.recipes.recipe_model import Editor, Recipe, RecipeEngine, RecipeForm, Setting
from winhost.recipes.recipe_text import PlacedText, SourceFile
from winhost.recipes.shell_words import commands
from winhost.recipes.words import IMAGE, add_to, variable
from winhost.recipes.yaml_nodes import (
    YamlNode,
    documents,
    item_after,
    keys_twice,
    pair_after,
    with_pairs,
    without,
    without_items,
)

# Keys of a service, and the option of `docker run` that says the same.
SAME = {
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
_WHOLE_COMMAND = re.compile(r"\S+[ \t]+(?:\S+[ \t]+)*?(?:serve|vllm\.entrypoints\S*)[ \t]", re.DOTALL)
_DEVICES = ("deploy", "resources", "reservations", "devices")


def read_compose(source: SourceFile) -> Recipe:
    """Every service with vLLM in it. Raises NotYaml."""
    engines, slips = list[RecipeEngine](), list[Observation]()
    for document in documents(source):
        slips += keys_twice(document)
        services = dict(document.get("services").pairs())
        bases = {name for service in services.values() if (name := _base(service))}
        for name, service in services.items():
            whole = _extended(service, services)
            if (engine := _service(whole)) is not None:
                engine.where = f"service {name}"
                engine.partial = name in bases or _is_partial(whole)
                engines.append(engine)
    return Recipe(RecipeForm.COMPOSE, tuple(engines), slips=tuple(slips))


def _base(service: YamlNode) -> str:
    """The service of the same file that it extends; nothing where there is none."""
    extends = service.get("extends")
    return extends.value or ("" if extends.get("file") else extends.get("service").value)


def _extended(service: YamlNode, services: Mapping[str, YamlNode]) -> YamlNode:
    """A service with the keys that it has of those that it extends."""
    names, seen = {name for name, _ in service.pairs()}, {_base(service)}
    pairs = list(service.node.value) if service.is_map else []
    base = services.get(_base(service))
    while base is not None and base.is_map:
        pairs += [(value.key, value.node) for name, value in base.pairs() if name not in names]
        names |= {name for name, _ in base.pairs()}
        following = _base(base)
        base = services.get(following) if following not in seen else None
        seen.add(following)
    return with_pairs(service, pairs) if len(seen) > 1 else service


def _is_partial(service: YamlNode) -> bool:
    """Compose takes no service without an image and a build: other files have the rest of it."""
    build = service.get("build")
    built = build.is_scalar or any(build.get(key) for key in ("context", "dockerfile", "dockerfile_inline"))
    return bool(service.get("extends", "file")) or not (service.get("image") or built)


def _service(service: YamlNode) -> RecipeEngine | None:
    slips: list[Observation] = []
    engine = RecipeEngine(RecipeForm.COMPOSE, "", service.key_text, in_container=True)
    for name, value in service.pairs():
        for setting in _settings(name, value):
            add_to(engine, setting)
    _devices(service, engine)
    engine.variables += list(environment(service.get("environment")))
    slips += _quoted(engine.variables)
    entry, command = service.get("entrypoint"), service.get("command")
    first = words_of(entry, slips) if entry else None
    inside = words_of(command, slips) if not (entry.is_list and command.is_list) else []
    if entry.is_list and command.is_list:  # read as one, because what is behind `sh -c` may stand in the other
        first = item_words([each.text for each in (*entry.items(), *command.items()) if each.is_scalar], slips)
    if with_entry(engine, first, inside, slips) is None:
        return None
    engine.slips += slips
    told = {"profiles": service.get("profiles"), "replicas": service.get("deploy", "replicas"), "entrypoint": entry}
    engine.places |= {key: node.key_text for key, node in told.items() if node}
    if build := service.get("build"):
        recipe = build.get("dockerfile")
        engine.places["built"] = recipe.text if recipe.is_scalar else build.key_text
    engine.editor = ComposeEditor(service, engine)
    return engine


def words_of(node: YamlNode, slips: list[Observation]) -> list[PlacedText]:
    """A command as a list, or as one text that is split as a shell would."""
    if node.is_list:
        return item_words([each.text for each in node.items() if each.is_scalar], slips)
    if not node.is_scalar or not node:
        return []
    words = split_words(node.text, "Compose", slips, compose=True)
    slips += [_folded(word) for word in words if word.value.startswith(" -")]
    return [word.part(1) if word.value.startswith(" -") else word for word in words]


def split_words(
    text: PlacedText, by: str, slips: list[Observation], *, comments: bool = True, compose: bool = False
) -> list[PlacedText]:
    """Split a text as a shell would, without its comments. by: what reads it; the others as `commands` takes them."""
    found, inner = commands(text, comments=comments, compose=compose)
    slips += [slip for slip in inner if slip.code != "continues-into-nothing"]
    return _without_comments([word for command in found for word in command.words], by, slips)


def _without_comments(words: Sequence[PlacedText], by: str, slips: list[Observation]) -> list[PlacedText]:
    """Drop a comment that the format does not know as one, and report it once."""
    at = next((i for i, word in enumerate(words) if word.value.startswith("#")), len(words))
    if at == len(words):
        return list(words)
    slips.append(Observation("comment-is-words", words[at].start, {"by": by}))
    more = next((i for i in range(at, len(words)) if words[i].value.startswith("-")), len(words))
    return [*words[:at], *_without_comments(words[more:], by, [])]


def item_words(items: Sequence[PlacedText], slips: list[Observation]) -> list[PlacedText]:
    """Each item of a list is one word, whatever blanks are in it; what was meant are several."""
    words: list[PlacedText] = []
    for before, text in pairwise([None, *items]):
        assert text is not None
        if before is not None and re.fullmatch(r"-[a-z]*c", before.value):
            words.append(text)
        elif found := _OPTION_AND_VALUE.fullmatch(text.value):
            blank, better = text.part(found.end(1), found.start(2)), f"{found[1]}={found[2]}"
            edits = replaced(blank, "=")
            slips.append(Observation("words-in-one-item", text.start, {"item": text.value, "better": better}, edits))
            words += [text.part(0, found.end(1)), text.part(found.start(2))]
        elif _WHOLE_COMMAND.search(text.value):
            slips.append(Observation("command-in-one-item", text.start))
            words += [word for command in commands(text)[0] for word in command.words]
        else:
            words.append(text)
    return words


def _folded(word: PlacedText) -> Observation:
    """`>` makes one line of several, and a backslash at the end of each then stands before a blank."""
    edits = (TextEdit(word.start, word.start + 1, ""),) if word.at else ()
    return Observation("backslash-in-fold", word.start, edits=edits)


def _settings(name: str, value: YamlNode) -> Iterator[Setting]:
    if name == "deploy":
        limit = value.get("resources", "limits", "memory")
        if limit.is_scalar:
            yield _setting("--memory", limit)
        return
    option = SAME.get(name)
    if option is None or (not value and name != "privileged"):
        return
    if value.is_list and name != "security_opt":
        yield from (_setting(option, each) for each in value.items() if each.is_scalar or name != "gpus")
    else:
        yield _setting(option, value)


def _setting(option: str, value: YamlNode) -> Setting:
    """An entry in the long form of a list is told by what counts in it."""
    if value.is_scalar:
        text = value.text
        return Setting.of(option, value.key_text, text, (text,), value.key_text.value or option)
    if option == "--health-cmd":
        test = value.get("test")
        word = test.value or " ".join(each.value for each in test.items())
        return Setting(option, word, (test or value).key_text, None, (), option)
    told = {name: inner.value for name, inner in value.pairs()}
    ends = {"--publish": ("published", "target"), "--volume": ("source", "target")}.get(option, ())
    word = ":".join(told[end] for end in ends if told.get(end))
    if option == "--publish" and told.get("host_ip"):
        word = f"{told['host_ip']}:{word}"
    at = value.key_text if value.key is not None else PlacedText("", (), value.start, value.start)
    return Setting(option, word, at, None, (), option)


def _devices(service: YamlNode, engine: RecipeEngine) -> None:
    """`deploy.resources.reservations.devices`: the GPUs, as `--gpus` has them."""
    reserved = service.get(*_DEVICES).items()
    for device in [*reserved, *(each for each in service.get("gpus").items() if each.is_map)]:
        told = dict(device.pairs())
        ids = [each.value for each in told["device_ids"].items()] if "device_ids" in told else []
        count = told.get("count")
        word = f"device={','.join(ids)}" if ids else count.value if count is not None else "all"
        shown = count.text if count is not None and not ids else None
        at = PlacedText("", (), device.start, device.start)
        engine.container.append(Setting("--gpus", word, shown or at, shown, (), "devices"))
        if "capabilities" not in told and device in reserved:
            engine.slips.append(Observation("reservation-incomplete", device.start))
        if ids and count is not None:
            engine.slips.append(Observation("counted-and-named", count.start))
    if misplaced := service.get("deploy", "resources", "devices"):
        engine.slips.append(Observation("devices-misplaced", misplaced.start))


def environment(node: YamlNode) -> Iterator[Setting]:
    """A list of `NAME=VALUE`, or a mapping."""
    for each in node.items():
        if each.is_scalar:
            yield variable(each.text, (each.text,))
    for name, value in node.pairs():
        text = value.text if value and value.is_scalar else None
        yield Setting.of(name, value.key_text, text, (value.key_text,), name)


def _quoted(variables: Sequence[Setting]) -> Iterator[Observation]:
    """Find quotes within an item of a list: Compose hands them on, as YAML takes away only those around the whole item.

    In a mapping somebody meant them. What YAML would read as something else without them is left alone.
    """
    for each in variables:
        in_list = any("=" in text.value for text in each.texts[:1])
        bare = re.fullmatch(r"""(["'])([^\s"'#:](?:[^\s"'#]*[^\s"'#:])?)\1""", each.value or "")
        if each.shown and in_list and bare and not each.by_default:
            yield Observation("quotes-in-value", each.shown.start, {"name": each.name}, replaced(each.shown, bare[2]))


class ComposeEditor(Editor):
    """Edits one service."""

    def __init__(self, service: YamlNode, engine: RecipeEngine) -> None:
        self._service, self._engine = service, engine

    def remove(self, setting: Setting) -> Sequence[TextEdit]:
        node = self._service.get("environment")
        for each in (*node.items(), *(value for _, value in node.pairs())):
            if each.key_text.start == setting.texts[0].start if setting.texts else False:
                return without(each, node)
        for name in ("command", "entrypoint"):
            if edits := removed_from(self._service.get(name), setting):
                return edits
        return ()

    def add_option(self, words: str) -> Sequence[TextEdit]:
        return added_option(self._service.get("command"), self._engine, words)

    def add_variable(self, name: str, value: str) -> Sequence[TextEdit]:
        node = self._service.get("environment")
        if node.is_list and node.items():
            return item_after(node, f"{name}={value}")
        if node.is_map:
            return pair_after(node, name, f' "{value}"')
        return pair_after(self._service, "environment", f'\n  {name}: "{value}"') if node.node is None else ()

    def add_to_container(self, name: str, value: str) -> Sequence[TextEdit]:
        key = next((key for key, option in SAME.items() if option == name), None)
        return pair_after(self._service, key, f" {value}") if key and not self._service.get(key) else ()


def removed_from(command: YamlNode, setting: Setting) -> Sequence[TextEdit]:
    """Words that go from a command: items of a list, or words of a text."""
    if command.is_scalar and command:
        inside = [command.node.start_mark.index <= text.start <= command.node.end_mark.index for text in setting.texts]
        return removed_words(command.source, setting.texts, "\\") if inside and all(inside) else ()
    starts = {text.start for text in setting.texts}
    gone = [each for each in command.items() if each.is_scalar and each.text.start in starts]
    if any(_holds(each, text) for each in command.items() for text in setting.texts):
        return removed_words(command.source, setting.texts, "\\")  # within the text of a shell
    if len(gone) != len(setting.texts) or not gone:
        return ()
    if command.node.flow_style:
        items = command.items()
        numbers = [n for n, each in enumerate(items) if each.node in [one.node for one in gone]]
        return without_items(items, numbers[0], numbers[-1]) if len(numbers) == numbers[-1] - numbers[0] + 1 else ()
    edits = [edit for each in gone for edit in without(each, command)]
    return edits if len(edits) == len(gone) else ()


def _holds(item: YamlNode, text: PlacedText) -> bool:
    return bool(item.node.start_mark.index < text.start and text.end <= item.node.end_mark.index)


def added_option(command: YamlNode, engine: RecipeEngine, words: str) -> Sequence[TextEdit]:
    """A new option at the end of a command."""
    if any(slip.code == "words-in-one-item" for slip in engine.slips):
        return ()  # its last word may be a part of an item; once that is mended, the next round adds the option
    own = [text for setting in engine.options for text in setting.texts if text.at]
    own += [engine.model] if engine.model and engine.model.at else []
    last = max(own, key=lambda text: text.end, default=None)
    if command.is_list and (last is None or last.start in {each.node.start_mark.index for each in command.items()}):
        return item_after(command, words)
    if last is None or engine.branched:
        return ()
    return (TextEdit(last.at[-1] + 1, last.at[-1] + 1, f" {words}"),)
