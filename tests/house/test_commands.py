"""Every command explains itself, in the words that the overview uses."""

import pytest
from click.testing import CliRunner

from winhost.cli import COMMANDS, winhost


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_quotes_the_command(name: str) -> None:
    command = winhost.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    assert (command.help or "").split("\n\n")[0].replace("\n", " ").strip() == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_its_help(name: str) -> None:
    command = winhost.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    silent = [p.name for p in command.params if p.param_type_name == "option" and not getattr(p, "help", None)]
    assert silent == []


def test_a_mistyped_command_is_corrected() -> None:
    done = CliRunner().invoke(winhost, ["asess"])
    assert done.exit_code == 2
    assert "did you mean 'assess'" in done.output
