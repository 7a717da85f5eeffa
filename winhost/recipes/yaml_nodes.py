"""Reads YAML as nodes with the offset of each character of a scalar, and makes edits of the file in place."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from winhost.core.dataclass import dataclass
from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.recipe_text import PlacedText, SourceFile

_MERGE = "tag:yaml.org,2002:merge"
_MAX_DEPTH = 60
MAX_CHARACTERS = 512 * 1024  # the parser with offsets is slow


class NotYaml(Exception):
    """A text is no YAML or JSON. offset: of the problem in the text."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(problem)
        self.offset = offset


@dataclass(frozen=True)
class YamlNode:
    """A node of a document. key: the node of its key, for a value in a mapping."""

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
        """The last part of the tag, such as `int`."""
        return str(self.node.tag).rpartition(":")[2]

    @property
    def start(self) -> int:
        """The offset of the node; for a value in a mapping, that of its key."""
        offset: int = (self.key or self.node).start_mark.index
        return offset

    @property
    def value(self) -> str:
        """The text of a scalar; empty for other nodes."""
        return str(self.node.value) if self.is_scalar else ""

    def pairs(self, depth: int = 0) -> Iterator[tuple[str, "YamlNode"]]:
        """Yield keys and values; for a duplicate key the last value. Those merged by `<<` come last."""
        if not self.is_map or depth > _MAX_DEPTH:
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
        """Return the node under these nested keys; an empty node if one is missing."""
        node = self
        for name in names:
            node = next((value for key, value in node.pairs() if key == name), YamlNode(self.source, None))
        return node

    def items(self) -> list["YamlNode"]:
        return [YamlNode(self.source, each) for each in self.node.value] if self.is_list else []

    @property
    def text(self) -> PlacedText:
        """The scalar with the offset of each of its characters."""
        first, last = self.node.start_mark.index, self.node.end_mark.index
        at = _align(self.value, self.source.text, first, last, self.node.style)
        return PlacedText(self.value, at or (), first, last)

    @property
    def key_text(self) -> PlacedText:
        """The key, or the node itself if it has none."""
        if self.key is None:
            return self.text if self.is_scalar else PlacedText("", (), self.start, self.start)
        return YamlNode(self.source, self.key).text


def find_duplicate_keys(node: YamlNode, seen: set[int] | None = None) -> Iterator[Observation]:
    """Report duplicate keys of mappings, all but the last of each. `<<` may occur several times."""
    seen = set() if seen is None else seen
    if node.node is None or id(node.node) in seen or len(seen) > MAX_CHARACTERS:
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
        yield from find_duplicate_keys(each, seen)


def make_mapping(node: YamlNode, pairs: Sequence[tuple[Any, Any]]) -> YamlNode:
    """Return a mapping with these keys and values, which are written elsewhere in the file."""
    made = yaml.MappingNode(node.node.tag, list(pairs), node.node.start_mark, node.node.end_mark, node.node.flow_style)
    return YamlNode(node.source, made, node.key)


def parse_documents(source: SourceFile) -> list[YamlNode]:
    """Parse every document of a file. Raises NotYaml."""
    if len(source.text) > MAX_CHARACTERS:
        raise NotYaml(f"it is longer than {MAX_CHARACTERS:,} characters", 0)
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


def _align(value: str, text: str, first: int, last: int, style: str | None) -> list[int] | None:
    """Return the offset of each character of a scalar; None if that is not possible. Blanks, which folding changes, get
    the offset where the next character begins.
    """
    i, end = first, last
    if style in ("'", '"'):
        i, end = first + 1, last - 1
    elif style in ("|", ">"):
        i = text.index("\n", first) + 1
    offsets: list[int] = []
    for char in value:
        if char.isspace():
            offsets.append(min(i, end))
            i = _skip_blank(text, i, end, style)
            continue
        i = _skip_to_character(text, i, end, style)
        i += style == "'" and text[i : i + 2] == "''"
        if i >= end or text[i] != char:
            return None
        offsets.append(i)
        i += 1
    return offsets


def _skip_blank(text: str, i: int, end: int, style: str | None) -> int:
    if i < end and text[i] == "\\" and style == '"':
        return i + 2
    return i + 1 if i < end and text[i].isspace() else i


def _skip_to_character(text: str, i: int, end: int, style: str | None) -> int:
    """Skip blanks, and the backslash of an escape."""
    while i < end and text[i].isspace():
        i += 1
    while style == '"' and text[i : i + 1] == "\\":
        if text[i + 1 : i + 2] not in ("\n", "\r"):
            return i + 1 if text[i + 1 : i + 2] in ('"', "\\", "/") else end
        i += 2
        while i < end and text[i].isspace():
            i += 1
    return i


def quote_like(node: YamlNode, value: str) -> str:
    """Format a value as YAML text. It is quoted if its neighbour is, or if it would be no text otherwise."""
    return f'"{value}"' if node.quoted or not value.replace("-", "").replace("_", "").isalpha() else value


def append_item(node: YamlNode, value: str) -> Sequence[TextEdit]:
    """Return an edit that adds an item at the end of a list, in the style of the last one."""
    items = node.items()
    if not items:
        return ()
    source, last = node.source, items[-1]
    if node.node.flow_style:
        end = last.node.end_mark.index
        return (TextEdit(end, end, f", {quote_like(last, value)}"),)
    start, end = _line_bounds(source, last)
    line = source.text[start:end]
    dash = line[: len(line) - len(line.lstrip())]
    if not line.lstrip().startswith("- "):
        return ()
    return (TextEdit(end, end, f"{_missing_newline(source, end)}{dash}- {quote_like(last, value)}{source.newline}"),)


def _line_bounds(source: SourceFile, node: YamlNode) -> tuple[int, int]:
    """Return the start of the line in which a node begins, and the end of its last line."""
    start, _ = source.line_bounds(node.node.start_mark.index)
    last = node.node.end_mark.index
    whole = source.text[node.node.start_mark.index : last].rstrip()
    _, end = source.line_bounds(node.node.start_mark.index + max(len(whole) - 1, 0))
    return start, end


def _missing_newline(source: SourceFile, end: int) -> str:
    """Return a line end if the file's last line has none."""
    return "" if source.text[:end].endswith("\n") else source.newline


def add_pair(node: YamlNode, name: str, value: str) -> Sequence[TextEdit]:
    """Return an edit that adds a key to a block mapping, after its first key."""
    pairs = [value for _, value in node.pairs() if value.key is not None]
    if not pairs or node.node.flow_style:
        return ()
    source, last = node.source, pairs[0]
    start, end = source.line_bounds(last.start)[0], _line_bounds(source, last)[1]
    column = last.key.start_mark.column
    if source.text[start : last.start].strip(" -") or not source.text[:end].strip():
        return ()
    body = value.replace("\n", f"{source.newline}{' ' * column}")
    return (TextEdit(end, end, f"{_missing_newline(source, end)}{' ' * column}{name}:{body}{source.newline}"),)


def remove_entry(node: YamlNode, parent: YamlNode) -> Sequence[TextEdit]:
    """Return an edit that removes an item or key with its lines; none if it is the only one."""
    source = node.source
    siblings = parent.items() or [value for _, value in parent.pairs()]
    if len(siblings) < 2:
        return ()
    if parent.node.flow_style:
        return _remove_in_flow(node, siblings)
    start, end = source.line_bounds(node.start)[0], _line_bounds(source, node)[1]
    if source.text[start : node.start].strip() not in ("", "-"):
        return ()
    if source.text[start : node.start].strip() == "-" and parent.is_map:
        return ()  # the first key of an item: its dash belongs to the others, too
    return (TextEdit(start, end, ""),)


def _remove_in_flow(node: YamlNode, siblings: list[YamlNode]) -> Sequence[TextEdit]:
    at = next((n for n, each in enumerate(siblings) if each.node is node.node), None)
    return remove_items(siblings, at, at) if at is not None else ()


def remove_items(siblings: list[YamlNode], first: int, last: int) -> Sequence[TextEdit]:
    """Return an edit that removes the items of a list in brackets from one index to another."""
    if last + 1 < len(siblings):
        return (TextEdit(siblings[first].start, siblings[last + 1].start, ""),)
    if not first:
        return ()
    return (TextEdit(siblings[first - 1].node.end_mark.index, siblings[last].node.end_mark.index, ""),)


MARK = "\ufeff"  # the byte order mark as a character


def parse_json(source: SourceFile) -> YamlNode:
    """Parse a JSON text. Raises NotYaml with the offset of the problem."""
    text = source.text.replace(MARK, " ", 1)
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise NotYaml(error.msg[:1].lower() + error.msg[1:], min(error.pos, len(source.text))) from None
    except (RecursionError, ValueError):
        raise NotYaml("it is nested too deeply", 0) from None
    # YAML allows no tabs between values; blanks instead of them keep all offsets.
    found = parse_documents(SourceFile(text.replace("\t", " "), source.encoding, source.bom))
    return YamlNode(source, found[0].node) if found else YamlNode(source, None)
