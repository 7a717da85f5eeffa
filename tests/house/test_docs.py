"""What README, docs/ and CONTRIBUTING say is there: links, commands, settings, codes, consents, folders."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from tests.rows import each_row
from winhost.cli import winhost
from winhost.knowledge import catalogue
from winhost.model.plan import RISKS
from winhost.model.yamlfile import kinds_at
from winhost.paths.vocabulary import VOCABULARIES
from winhost.paths.wsl2 import Wsl2Settings

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8") for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
}
CODE = {str(path): path.read_text("utf-8") for path in ROOT.glob("winhost/**/*.py")}
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
SETTING = re.compile(r"--set ([a-z_.]+)=")
DOTTED = re.compile(r"\[?([a-z0-9-]+)\.([a-z0-9-]+)\]?")
NO_CODES = {"wsl.exe", "wsl.conf"}


def commands(page: str) -> Iterator[str]:
    """What a reader would type of us, without prompt and remark."""
    for kind, block in FENCED.findall(PAGES[page]):
        for line in block.splitlines():
            if kind != "sh" and not line.startswith("$ "):
                continue
            words = shlex.split(line.removeprefix("$ "), comments=True)
            yield shlex.join(words[words.index("winhost") :]) if "winhost" in words else ""


def anchor(heading: str) -> str:
    """As a forge makes them."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@each_row(("page", "to"), [(page, to) for page in PAGES for to in LINK.findall(PAGES[page])])
def test_a_link_leads_somewhere(page: str, to: str) -> None:
    if to.startswith("https://"):
        return
    file, _, place = to.partition("#")
    target = (ROOT / page).parent / file if file else ROOT / page
    assert target.exists()
    if place:
        assert place in {anchor(heading) for heading in HEADING.findall(target.read_text("utf-8"))}


def take(words: list[str]) -> None:
    """Parse what follows `winhost`, and do nothing. Raises click.ClickException."""
    context = click.Context(winhost)
    while isinstance(context.command, click.Group):
        _, inner, words = context.command.resolve_command(context, words)
        context = click.Context(inner, parent=context)
    context.command.make_context("", words).close()


@each_row(("page", "command"), [(p, command) for p in PAGES for command in commands(p) if command])
def test_a_command_of_an_example_is_taken(page: str, command: str) -> None:
    take(shlex.split(command)[1:])


def test_examples_are_found() -> None:
    assert sum(1 for page in PAGES for command in commands(page) if command) > 30


@each_row(
    ("page", "text"),
    [(p, text) for p in PAGES for text in INLINE.findall(FENCED.sub("", PAGES[p])) if text.startswith("winhost ")],
)
def test_a_command_in_a_sentence_has_its_options(page: str, text: str) -> None:
    _, *words = text.split()
    command: click.Command = winhost
    while isinstance(command, click.Group) and words and words[0][0].islower():
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    known = {name for param in command.params for name in param.opts}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known | {"--help"}


def test_every_setting_that_is_named_can_be_set() -> None:
    named = {name for text in (*PAGES.values(), *CODE.values()) for name in SETTING.findall(text)}
    assert len(named) > 5
    known = [words.settings for words in VOCABULARIES.values()]
    assert [name for name in named if not any(kinds_at(each, tuple(name.split("."))) for each in known)] == []


@each_row("page", PAGES)
def test_every_reason_that_is_named_is_one(page: str) -> None:
    prefixes = {code.partition(".")[0] for code in catalogue.entries()}
    named = {match[0].strip("[]"): match for text in INLINE.findall(PAGES[page]) if (match := DOTTED.fullmatch(text))}
    reasons = {name for name, match in named.items() if match[1] in prefixes} - NO_CODES
    settings = {name for name in reasons if kinds_at(Wsl2Settings, tuple(name.split(".")))}
    for code in reasons - settings:
        assert catalogue.entry(code)


def test_the_readme_names_every_approval() -> None:
    (promise,) = re.findall(r"separate approval: (.+?)\.\s", PAGES["README.md"], re.DOTALL)
    assert INLINE.findall(promise) == list(RISKS)


def test_the_map_of_the_house_is_the_house() -> None:
    (rooms,) = (block for kind, block in FENCED.findall(PAGES["CONTRIBUTING.md"]) if "winhost/\n" in block)
    packages = {path.parent.name for path in ROOT.glob("winhost/*/__init__.py")}
    assert set(re.findall(r"^  (\w+)/", rooms, re.MULTILINE)) == packages
    top = re.findall(r"^(\w+)/", rooms, re.MULTILINE)
    assert set(top) == {"winhost", "playbooks", "templates", "examples", "docs", "bench", "tests"}
    assert [room for room in top if not (ROOT / room).is_dir()] == []
