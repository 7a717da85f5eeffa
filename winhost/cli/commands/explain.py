"""Arguments, options and help of `winhost explain`."""

import re
from typing import Any

import click

from winhost.cli import completion, options
from winhost.cli.groups import WinhostCommand, does

_NEGATIVE = re.compile(r"-[0-9]{9,10}")


class ExplainCommand(WinhostCommand):
    """A command to which a negative number is a code of Windows, not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> Any:
        return super().parse_args(
            ctx, [f"0x{int(arg) & 0xFFFFFFFF:08X}" if _NEGATIVE.fullmatch(arg) else arg for arg in args]
        )


@click.command(cls=ExplainCommand)
@click.argument("words", metavar="[CODE|TEXT|FILE|-]...", required=False, nargs=-1, **completion.CODES)
@click.option("--list", "listed", is_flag=True, help="List all codes, or those that start with CODE.")
@options.facts_file
@options.answers()
@does("explain")
def explain() -> None:
    """Explain a reason by its CODE, or an error that you paste.

    For a CODE of winhost: what the reason says and means, its remedy, its evidence with sources, and related reasons.
    The codes for a fact that could not be read are listed once, as *.unknown, and can be explained for each path and
    capability, for example nvlink.unknown. For a CODE that lint prints: what it finds, why, and what to do. For a CODE
    of serve profile --explain: the line, when it is set, why, and its evidence.

    TEXT is what another program printed: an error code of Windows (0xC035001E or -2147023511), or a message of wsl.exe,
    Hyper-V, Linux's kernel, Docker, NCCL or vLLM. FILE is a log of any size; - is standard input, which is also read
    without any argument if a pipe leads to it. The answer is the likely causes, how to tell which one it is, and the
    remedy. --facts rules out the causes that the facts contradict. Secrets in the text are never shown.
    """
