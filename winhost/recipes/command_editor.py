"""Edits a command line in place, line by line, for its shell."""

from collections.abc import Sequence

from winhost.findings.finding import TextEdit
from winhost.recipes.recipe_model import Editor, RecipeEngine, Setting
from winhost.recipes.recipe_text import PlacedText, SourceFile
from winhost.recipes.shell_words import ESCAPES, ShellKind


def replace_value(text: PlacedText | None, new: str) -> tuple[TextEdit, ...]:
    """Return an edit that replaces a value and keeps its quotes; none if the value is not in one piece."""
    return (TextEdit(text.offsets[0], text.offsets[-1] + 1, new),) if text is not None and text.is_contiguous else ()


class CommandEditor(Editor):
    """Edits the command of one engine. In a nested script, such as after `-c`, it only adds words that need no
    quotes.
    """

    def __init__(self, source: SourceFile, engine: RecipeEngine, shell: ShellKind) -> None:
        self._source, self._engine, self._shell = source, engine, shell
        self._mark = ESCAPES[shell]

    def remove(self, setting: Setting) -> Sequence[TextEdit]:
        return remove_words(self._source, setting.texts, self._mark)

    def add_option(self, words: str) -> Sequence[TextEdit]:
        if self._engine.has_branches:
            return ()
        own = [text for setting in self._engine.options for text in setting.texts]
        own += [each for each in (self._engine.model, *self._engine.strays) if each]
        return self._append_after(own or self._image(), words)

    def add_variable(self, name: str, value: str) -> Sequence[TextEdit]:
        if self._engine.in_container:
            return self.add_to_container("--env", f"{name}={value}")
        offset = self._engine.position.start
        if self._shell is ShellKind.SH:
            return (TextEdit(offset, offset, f"{name}={value} "),)
        start, _ = self._source.line_bounds(offset)
        line = f'$env:{name}="{value}"' if self._shell is ShellKind.POWERSHELL else f"set {name}={value}"
        return (TextEdit(start, start, line + self._source.newline),)

    def add_to_container(self, name: str, value: str) -> Sequence[TextEdit]:
        run = self._engine.positions.get("run")
        return (TextEdit(run.end, run.end, f" {name}={value}"),) if run is not None and run.offsets else ()

    def _image(self) -> list[PlacedText]:
        image = self._engine.container_setting("image")
        return [image.text] if image else []

    def _append_after(self, words: list[PlacedText], new: str) -> Sequence[TextEdit]:
        placed = [word for word in words if word.offsets]
        if not placed:
            return ()
        end = max(word.end for word in placed)
        start, _ = self._source.line_bounds(end - 1)
        line = self._source.text[start:end]
        indent = line[: len(line) - len(line.lstrip())]
        if indent and self._is_continued(start):
            return (TextEdit(end, end, f" {self._mark}{self._source.newline}{indent}{new}"),)
        return (TextEdit(end, end, f" {new}"),)

    def _is_continued(self, start: int) -> bool:
        return self._source.text[:start].rstrip("\r\n").endswith(self._mark)


def remove_words(source: SourceFile, texts: Sequence[PlacedText], mark: str) -> Sequence[TextEdit]:
    """Return edits that remove words; also their line and its continuation character, if nothing else is on the
    line.
    """
    if not all(text.offsets or text.start < text.end for text in texts) or not texts[0].offsets:
        return ()
    first, last = min(text.start for text in texts), max(text.end for text in texts)
    start, end = source.line_bounds(first)[0], source.line_bounds(max(first, last - 1))[1]
    before, after = source.text[start:first], source.text[last:end]
    if not before.strip() and after.strip() not in ("", mark):
        return (TextEdit(first, last + len(after) - len(after.lstrip(" \t")), ""),)
    if before.strip():
        return (TextEdit(start + len(before.rstrip(" \t")), last, ""),)
    if after.strip() == mark:
        return (TextEdit(start, end, ""),)
    ahead = source.text[:start].rstrip("\r\n")
    if not ahead.endswith(mark):
        return (TextEdit(first, last, ""),)
    return (TextEdit(len(ahead[: -len(mark)].rstrip(" \t")), last, ""),)
