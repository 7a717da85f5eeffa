"""Arguments, options and help of `winhost lint`."""

from pathlib import Path
from typing import Any

import click

from winhost.cli.groups import WinhostGroup
from winhost.cli.outputs import answers

file_argument = click.argument("file", metavar="FILE|-", type=click.Path(path_type=Path))
facts_argument = click.argument("facts", metavar="[FACTS]", required=False, type=click.Path(path_type=Path))
facts_option = click.option("--facts", "facts_file", type=click.Path(path_type=Path), help="The same as FACTS.")
version_option = click.option(
    "--wsl", "version", metavar="VERSION", help="The WSL version that will read the file, for example 2.7.14."
)
strict_option = click.option("--strict", is_flag=True, help="Count advice as well as defects.")


@click.group(cls=WinhostGroup)
def lint() -> None:
    """Find what is wrong in files for WSL, vLLM, containers and Ubuntu's installer, and mend it."""


@lint.command()
@file_argument
@facts_argument
@version_option
@facts_option
@strict_option
@answers()
def wslconfig(**options: Any) -> int:
    """Check the .wslconfig of an account.

    FACTS of the host that will read the file supply its WSL version and the settings that a policy forbids.
    """
    from winhost.cli.lint import wslconfig as run

    return run(**options)


@lint.command()
@file_argument
@version_option
@strict_option
@answers()
def wslconf(**options: Any) -> int:
    """Check the /etc/wsl.conf of a distro."""
    from winhost.cli.lint import wslconf as run

    return run(**options)


@lint.command()
@file_argument
@facts_argument
@facts_option
@click.option("--installer", metavar="VERSION", help="The version of the installation media, for example 24.04.4.")
@strict_option
@answers()
def autoinstall(**options: Any) -> int:
    """Check a file for the automatic installation of Ubuntu: autoinstall.yaml, or a cloud-config with such a section.

    FACTS of the machine, or its disk manifest, supply the partitions that the file must list.
    """
    from winhost.cli.lint import autoinstall as run

    return run(**options)


path_option = click.option(
    "--path",
    type=click.Choice(("wsl2", "dda", "bare-metal", "linux")),
    help="Where it is to run. Default: as the facts say (of a Windows client: wsl2; of a server: dda).",
)
recipe_facts_option = click.option(
    "--facts", "facts_file", type=click.Path(path_type=Path), help="The facts of the host that it is to run on."
)
fix_option = click.option("--fix", is_flag=True, help="Write what can be mended by itself to NAME.mended.EXT.")
in_place_option = click.option("--in-place", is_flag=True, help="Mend the file itself; all other bytes of it stay.")
force_option = click.option("--force", is_flag=True, help="Write over a file that is there.")
explain_option = click.option("--explain", "everything", is_flag=True, help="Show what each finding rests on.")


@lint.command(name="serve")
@click.argument("words", metavar="FILE|COMMAND|-", nargs=-1, required=True)
@recipe_facts_option
@path_option
@click.option("--vllm", metavar="VERSION", help="The version of vLLM, where no image's tag tells it: 0.33.0.")
@fix_option
@in_place_option
@force_option
@explain_option
@strict_option
@answers("FILE", "The file that --fix writes.")
def serve(**options: Any) -> int:
    """Check how somebody starts vLLM: what is wrong, missing, dangerous, renamed or without effect.

    FILE is a script, a compose file, a manifest of Kubernetes, a unit of systemd, a quadlet of podman, or a file of
    variables; - is standard input. Of SGLang, llama.cpp, Ollama and FFmpeg it reads what is true of every engine: GPUs,
    shared memory, ports, keys. COMMAND is a command itself, in quotes or behind --: `vllm serve …`, `docker run …`.
    Secrets in it are never shown.
    """
    from winhost.cli.lint import serve as run

    return run(**options)


@lint.command(name="docker-daemon")
@file_argument
@recipe_facts_option
@path_option
@fix_option
@in_place_option
@force_option
@explain_option
@strict_option
@answers("FILE", "The file that --fix writes.")
def docker_daemon(**options: Any) -> int:
    """Check the settings of Docker itself, /etc/docker/daemon.json."""
    from winhost.cli.lint import docker_daemon as run

    return run(**options)


@lint.command(name="cdi")
@file_argument
@recipe_facts_option
@path_option
@explain_option
@strict_option
@answers()
def cdi(**options: Any) -> int:
    """Check a specification of CDI, by which containers get their GPUs."""
    from winhost.cli.lint import cdi as run

    return run(**options)
