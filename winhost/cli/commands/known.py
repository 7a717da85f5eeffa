"""Arguments and help of `winhost known`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("subject", required=False, **completion.SUBJECTS)
@answers(wide=True)
def known(**options: Any) -> int:
    """List what winhost knows of versions, from where to where, and when that was checked.

    SUBJECT is one of those that are listed without it, for example wsl or vllm: then each statement about it is listed,
    with the newest version for which it was checked and the day, and with -o wide also its claim and its source. A
    verdict that rests on statements about other versions than that of a host is unverified.
    """
    from winhost.cli.known import known as run

    return run(**options)
