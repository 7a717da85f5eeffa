"""YAML by its nodes, with the position of each character of a scalar, so that a file can be changed where it stands."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from winhost.core.dataclass import dataclass
from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.recipe_text import PlacedText, SourceFile

_MERGE = "tag:yaml.org,2002:merge"
_DEEPEST = 60
MOST = 512 * 1024  # characters; the parser that knows offsets is slow


class NotYaml(Exception):
    """offset: where in the text."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(problem)
        self.offset = offset


@dataclass(frozen=True)
class YamlNode:
    """A node of a document. key: where its key is written, of a value in a mapping."""

    source: SourceFile
    node: Any
    key: Any = None

    def __bool__(self) -> bool:
        return self.node is not None and not (self.is_scalar and self.node.tag.endswith(":null"))

    @property
    def is_scalar(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode)

    @property
    def is_map(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def quoted(self) -> bool:
        return self.is_scalar and self.node.style is not None

    @property
    def tag(self) -> str:
        """`int` of a number, …"""
        return str(self.node.tag).rpartition(":")[2]

    @property
    def start(self) -> int:
        """The position where it is written; for a value in a mapping, that of its key."""
        at: int = (self.key or self.node).start_mark.index
        return at

    @property
    def value(self) -> str:
        """The text of a scalar; empty for other nodes."""
        return str(self.node.value) if self.is_scalar else ""

    def pairs(self, depth: int = 0) -> Iterator[tuple[str, "YamlNode"]]:
        """Keys and values, of a key that is written twice the last; those that come by `<<` last."""
        if not self.is_map or depth > _DEEPEST:
            return
        merged: list[Any] = []
        last = {key.value: key for key, _ in self.node.value if isinstance(key, yaml.ScalarNode)}
        for key, value in self.node.value:
            if key.tag == _MERGE:
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
            elif isinstance(key, yaml.ScalarNode) and last[key.value] is key:
                yield str(key.value), YamlNode(self.source, value, key)
        for each in merged:
            yield from YamlNode(self.source, each).pairs(depth + 1)

    def get(self, *names: str) -> "YamlNode":
        """Return the node under these nested keys; an empty node where one is missing."""
        found = self
        for name in names:
            found = next((value for key, value in found.pairs() if key == name), YamlNode(self.source, None))
        return found

    def items(self) -> list["YamlNode"]:
        return [YamlNode(self.source, each) for each in self.node.value] if self.is_list else []

    @property
    def text(self) -> PlacedText:
        """A scalar with the offset of each of its characters."""
        first, last = self.node.start_mark.index, self.node.end_mark.index
        at = _aligned(self.value, self.source.text, first, last, self.node.style)
        return PlacedText(self.value, at or (), first, last)

    @property
    def key_text(self) -> PlacedText:
        """Its key, or itself where it has none."""
        if self.key is None:
            return self.text if self.is_scalar else PlacedText("", (), self.start, self.start)
        return YamlNode(self.source, self.key).text


def keys_twice(node: YamlNode, seen: set[int] | None = None) -> Iterator[Observation]:
    """Keys that a mapping has twice, of each all but the last. A key for `<<` may come again."""
    seen = set() if seen is None else seen
    if node.node is None or id(node.node) in seen or len(seen) > MOST:
        return
    seen.add(id(node.node))
    own = [each for each in node.node.value if each[0].tag != _MERGE] if node.is_map else []
    last = {key.value: key for key, _ in own if isinstance(key, yaml.ScalarNode)}
    for key, _ in own:
        if isinstance(key, yaml.ScalarNode) and last[key.value] is not key:
            line = node.source.position(last[key.value].start_mark.index)[0]
            yield Observation("key-twice", key.start_mark.index, {"key": str(key.value), "line": str(line)})
    for each in [
        *node.items(),
        *(YamlNode(node.source, value) for _, value in (node.node.value if node.is_map else ())),
    ]:
        yield from keys_twice(each, seen)


def with_pairs(node: YamlNode, pairs: Sequence[tuple[Any, Any]]) -> YamlNode:
    """A mapping with these keys and values, each as it is written elsewhere in the file."""
    made = yaml.MappingNode(node.node.tag, list(pairs), node.node.start_mark, node.node.end_mark, node.node.flow_style)
    return YamlNode(node.source, made, node.key)


def documents(source: SourceFile) -> list[YamlNode]:
    """Every document of a file. Raises NotYaml."""
    if len(source.text) > MOST:
        raise NotYaml(f"it is longer than {MOST:,} characters", 0)
    if bad := next((at for at, char in enumerate(source.text) if "\ud800" <= char <= "\udfff"), None):
        raise NotYaml("it has bytes that are no text", bad)
    try:
        return [YamlNode(source, node) for node in yaml.compose_all(source.text, yaml.SafeLoader) if node]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotYaml(error.problem or error.context or "it is no YAML", mark.index if mark else 0) from None
    except yaml.reader.ReaderError as error:
        raise NotYaml("it has a character that YAML does not allow", error.position) from None
    except (RecursionError, ValueError, yaml.YAMLError):
        raise NotYaml("it is nested too deeply, or is no YAML", 0) from None


def _aligned(value: str, text: str, first: int, last: int, style: str | None) -> list[int] | None:
    """The offset of each character of a scalar: blanks are where the next sign begins, as folding changes them."""
    i, end = first, last
    if style in ("'", '"'):
        i, end = first + 1, last - 1
    elif style in ("|", ">"):
        i = text.index("\n", first) + 1
    offsets: list[int] = []
    for char in value:
        if char.isspace():
            offsets.append(min(i, end))
            i = _past_blank(text, i, end, style)
            continue
        i = _next_sign(text, i, end, style)
        i += style == "'" and text[i : i + 2] == "''"
        if i >= end or text[i] != char:
            return None
        offsets.append(i)
        i += 1
    return offsets


def _past_blank(text: str, i: int, end: int, style: str | None) -> int:
    if i < end and text[i] == "\\" and style == '"':
        return i + 2
    return i + 1 if i < end and text[i].isspace() else i


def _next_sign(text: str, i: int, end: int, style: str | None) -> int:
    """Past blanks, and past the sign of an escape."""
    while i < end and text[i].isspace():
        i += 1
    while style == '"' and text[i : i + 1] == "\\":
        if text[i + 1 : i + 2] not in ("\n", "\r"):
            return i + 1 if text[i + 1 : i + 2] in ('"', "\\", "/") else end
        i += 2
        while i < end and text[i].isspace():
            i += 1
    return i


def quoted_like(node: YamlNode, value: str) -> str:
    """A value as a text of YAML, quoted where its neighbour is, or where it would be no text."""
    return f'"{value}"' if node.quoted or not value.replace("-", "").replace("_", "").isalpha() else value


def item_after(node: YamlNode, value: str) -> Sequence[TextEdit]:
    """A new item at the end of a list, written as its last one is."""
    items = node.items()
    if not items:
        return ()
    source, last = node.source, items[-1]
    if node.node.flow_style:
        end = last.node.end_mark.index
        return (TextEdit(end, end, f", {quoted_like(last, value)}"),)
    start, end = _line_end(source, last)
    line = source.text[start:end]
    dash = line[: len(line) - len(line.lstrip())]
    if not line.lstrip().startswith("- "):
        return ()
    return (TextEdit(end, end, f"{_before(source, end)}{dash}- {quoted_like(last, value)}{source.newline}"),)


def _line_end(source: SourceFile, node: YamlNode) -> tuple[int, int]:
    """The line that a node begins in, and where the node's last line ends."""
    start, _ = source.line_of(node.node.start_mark.index)
    last = node.node.end_mark.index
    whole = source.text[node.node.start_mark.index : last].rstrip()
    _, end = source.line_of(node.node.start_mark.index + max(len(whole) - 1, 0))
    return start, end


def _before(source: SourceFile, end: int) -> str:
    """A line end where the file's last line has none."""
    return "" if source.text[:end].endswith("\n") else source.newline


def pair_after(node: YamlNode, name: str, value: str) -> Sequence[TextEdit]:
    """A new key at the end of a mapping, or behind its first key where `value` has lines of its own."""
    pairs = [value for _, value in node.pairs() if value.key is not None]
    if not pairs or node.node.flow_style:
        return ()
    source, last = node.source, pairs[0]
    start, end = source.line_of(last.start)[0], _line_end(source, last)[1]
    column = last.key.start_mark.column
    if source.text[start : last.start].strip(" -") or not source.text[:end].strip():
        return ()
    body = value.replace("\n", f"{source.newline}{' ' * column}")
    return (TextEdit(end, end, f"{_before(source, end)}{' ' * column}{name}:{body}{source.newline}"),)


def without(node: YamlNode, parent: YamlNode) -> Sequence[TextEdit]:
    """An item or a key that goes, with its lines, as long as others stay."""
    source = node.source
    siblings = parent.items() or [value for _, value in parent.pairs()]
    if len(siblings) < 2:
        return ()
    if parent.node.flow_style:
        return _without_in_flow(node, siblings)
    start, end = source.line_of(node.start)[0], _line_end(source, node)[1]
    if source.text[start : node.start].strip() not in ("", "-"):
        return ()
    if source.text[start : node.start].strip() == "-" and parent.is_map:
        return ()  # the first key of an item: its dash belongs to the others, too
    return (TextEdit(start, end, ""),)


def _without_in_flow(node: YamlNode, siblings: list[YamlNode]) -> Sequence[TextEdit]:
    at = next((n for n, each in enumerate(siblings) if each.node is node.node), None)
    return without_items(siblings, at, at) if at is not None else ()


def without_items(siblings: list[YamlNode], first: int, last: int) -> Sequence[TextEdit]:
    """Items of a list in brackets that go, from one to another."""
    if last + 1 < len(siblings):
        return (TextEdit(siblings[first].start, siblings[last + 1].start, ""),)
    if not first:
        return ()
    return (TextEdit(siblings[first - 1].node.end_mark.index, siblings[last].node.end_mark.index, ""),)


MARK = "\ufeff"  # the byte order mark as a character


def json_document(source: SourceFile) -> YamlNode:
    """The value of a text. Raises NotYaml, with what is wrong where."""
    text = source.text.replace(MARK, " ", 1)
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise NotYaml(error.msg[:1].lower() + error.msg[1:], min(error.pos, len(source.text))) from None
    except (RecursionError, ValueError):
        raise NotYaml("it is nested too deeply", 0) from None
    # YAML takes no tab between values; a blank in its place leaves every other character where it is.
    found = documents(SourceFile(text.replace("\t", " "), source.encoding, source.bom))
    return YamlNode(source, found[0].node) if found else YamlNode(source, None)
