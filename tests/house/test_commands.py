"""Every command explains itself, in the words that the overview uses."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.rows import each_row
from winhost.cli import COMMANDS, winhost
from winhost.cli.groups import COMMAND_CODES, exit_codes
from winhost.cli.options import Output
from winhost.model.errors import Exit


@each_row("name", COMMANDS)
def test_the_overview_quotes_the_command(name: str) -> None:
    command = winhost.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    assert (command.help or "").split("\n\n")[0].replace("\n", " ").strip() == COMMANDS[name]


def test_the_overview_says_what_each_exit_code_means() -> None:
    said = CliRunner().invoke(winhost, ["--help"]).output.partition("Exit codes")[2]
    assert [int(line.split()[0]) for line in said.splitlines()[1:] if line.strip()] == [*map(int, Exit), 130, 141]


def every_command(group: click.Group = winhost, words: str = "") -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from every_command(command, f"{words}{name} ")
        else:
            yield f"{words}{name}", command


def test_exit_codes_of_a_command_stand_in_its_help_and_in_one_table_alone() -> None:
    commands = dict(every_command())
    assert COMMAND_CODES.keys() <= commands.keys()
    for words, command in commands.items():
        said = CliRunner().invoke(winhost, [*words.split(), "--help"], terminal_width=200).output
        prose, _, listed = said.partition("Exit codes")
        shown = dict(line.strip().split(maxsplit=1) for line in listed.splitlines()[1:])
        assert shown == (
            {str(code): says for code, says in exit_codes(words).items()} if words in COMMAND_CODES else {}
        )
        assert re.findall(r"[Ee]xit (?:codes?|[0-9])", prose) == [], words
        reaches = any(parameter.name == "fleet_file" for parameter in command.params)
        assert ("5" in shown) == reaches, words


@each_row("name", COMMANDS)
def test_every_option_has_its_help(name: str) -> None:
    command = winhost.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    silent = [p.name for p in command.params if p.param_type_name == "option" and not getattr(p, "help", None)]
    assert silent == []


MEANS_SEVERAL = {
    *("--address", "--all", "--details", "--explain", "--full", "--gateway", "--image", "--installer", "--memory"),
    *("--output", "--path", "--port", "--python", "--ssh-key", "--tls", "--user", "--vllm", "--within"),
    *("--certificate", "--certificate-key", "--plain-http"),  # of the gateway, and of a proxy before it
    *("--allow", "--api-key", "--facts", "--listen", "--model", "--workload"),
    *("--gpu", "--set", "--vm"),  # of a plan, and in place of those while a run is under way
}
"""Options that several commands have, and that mean something else there."""
WORDS_OF_CLICK = {"text", "path", "file", "directory", "integer", "float", "integer range", "number", "whole number"}


def test_an_option_is_declared_once() -> None:
    said: dict[tuple[str, str], set[str | None]] = {}
    for _, command in every_command():
        for each in command.params:
            if isinstance(each, click.Option) and each.opts[-1] not in MEANS_SEVERAL:
                key = (each.opts[-1], each.make_metavar(click.Context(command)))
                said.setdefault(key, set()).add(each.help)
    assert {key: helps for key, helps in said.items() if len(helps) > 1} == {}


def test_help_names_the_value_of_an_option_and_says_alike_that_it_may_be_repeated() -> None:
    for words, command in every_command():
        for each in command.params:
            if not isinstance(each, click.Option) or each.name == "outputs":
                continue
            named = each.is_flag or each.count or each.metavar is not None or each.type.name not in WORDS_OF_CLICK
            assert named, (words, each.opts)
            end = len(re.findall(r"May be|may be repeated|Repeat it|more than once", each.help or ""))
            assert (end, str(each.help).endswith("May be repeated.")) == (int(each.multiple), each.multiple), each.help


def test_winhost_itself_says_that_a_file_cannot_be_read() -> None:
    """click would say so before, without how such a file is made."""
    for words, command in every_command():
        for each in command.params:
            if isinstance(each.type, click.Path) and each.type.file_okay and not each.type.exists:
                assert not each.type.readable, (words, each.name)


def test_options_that_only_count_together_have_a_heading() -> None:
    said = CliRunner().invoke(winhost, ["plan", "--help"], terminal_width=200).output
    _, *sections = re.split(r"^(\S.*):$", said, flags=re.MULTILINE)
    options = {
        head: re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)
        for head, text in zip(sections[::2], sections[1::2], strict=True)
    }
    assert "--workload" in options["Options"]
    for head, option in (
        ("Path dda", "--gpu"),
        ("Path dda with a VM that winhost makes", "--new-vm"),
        ("With --workload", "--hub"),
        ("With --workload", "--api-key"),
        ("A workload with deploy: kubernetes", "--join"),
    ):
        assert option in options[head]


@pytest.mark.parametrize(
    ("words", "meant"),
    [("asess", "assess"), ("facts imprt", "import"), ("lint wslconfg", "wslconfig"), ("lab lst", "list")],
)
def test_a_mistyped_command_is_corrected(words: str, meant: str) -> None:
    done = CliRunner().invoke(winhost, words.split())
    assert done.exit_code == 2
    assert f"; did you mean '{meant}'?" in done.output


@pytest.mark.parametrize("group", ["facts", "lint", "serve", "lab"])
def test_the_overview_of_a_group_cuts_no_sentence(group: str) -> None:
    assert (
        "..." not in CliRunner().invoke(winhost, [group, "--help"], terminal_width=80).output.partition("Commands:")[2]
    )


def done_by(callback: Callable[..., Any]) -> Any:
    """The function that a command imports when it runs."""
    if module := vars(callback).get("module"):
        return getattr(import_module(f"winhost.cli.{module}"), callback.__name__)
    source = textwrap.dedent(inspect.getsource(callback))
    (imported,) = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
    return getattr(import_module(str(imported.module)), imported.names[0].name)


def is_object(annotation: Any) -> bool:
    """Whether an argument holds several options."""
    return is_dataclass(annotation) and annotation is not Output


def held_by(kind: Any) -> set[str]:
    """The options that such an object holds, those of objects in it too."""
    return {name for each in fields(kind) for name in (held_by(each.type) if is_object(each.type) else {each.name})}


def test_what_carries_a_command_out_takes_what_its_options_give() -> None:
    """The two stand in different modules, so that neither `--help` nor a tab loads what the command does."""
    for words, command in every_command():
        assert command.callback is not None
        given = {parameter.name for parameter in command.params if parameter.expose_value}
        if "outputs" in given:
            given = given - {"outputs", "as_json"} | {"output"}
        parameters = inspect.signature(done_by(command.callback)).parameters
        held = {name for each in parameters.values() if is_object(each.annotation) for name in held_by(each.annotation)}
        assert {name for name, each in parameters.items() if not is_object(each.annotation)} == given - held, words
