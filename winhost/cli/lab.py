"""winhost lab: hosts to rehearse on."""

from pathlib import Path

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostGroup
from winhost.cli.options import force_option
from winhost.cli.outputs import Output, answers

# Said twice, here and in winhost.lab.running_lab, so that --help need not load the lab.
engine_option = click.option(
    "--engine",
    type=click.Choice(("contract", "pwsh")),
    default="contract",
    show_default=True,
    help="pwsh runs the real scripts in the PowerShell on PATH or in WINHOST_PWSH.",
)


def _number(context: click.Context, option: click.Parameter, value: float) -> float:
    if value != value:  # what is no number is in every range
        raise click.BadParameter("nan is not a number")
    return value


@click.group(cls=WinhostGroup)
def lab() -> None:
    """Simulated hosts behind a real remoting endpoint.

    They answer real PowerShell remoting on loopback, keep state, and obey the rules of Windows that bite; everything
    made from them says `synthetic`. They answer at the level of the agent's JSON contract and run no PowerShell, unless
    they are started with `--engine pwsh`: then the real scripts run here, against stand-ins for the cmdlets of Windows.
    """


@lab.command()
@click.argument("hosts", nargs=-1, required=True, metavar="HOST_OR_FACTS...", **completion.LAB_HOSTS)
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Where fleet.yaml goes.")
@force_option
@click.option("--tls", is_flag=True, help="Serve HTTPS with a throw-away certificate.")
@engine_option
@click.option(
    "--speed",
    type=click.FloatRange(0.001, 1_000_000),
    callback=_number,
    default=1.0,
    show_default=True,
    help="Lab seconds per real second.",
)
def up(hosts: tuple[str, ...], output: Path | None, force: bool, tls: bool, engine: str, speed: float) -> None:
    """Serve hosts until Ctrl-C, and write the fleet.yaml that leads to them.

    HOST_OR_FACTS is an example's name (`winhost lab list`), a host file, or facts that detect wrote of a real host, or
    a folder of them: rehearse a plan on the twin of your own.
    """
    import signal
    import time
    from contextlib import nullcontext
    from tempfile import TemporaryDirectory

    from winhost.cli.output import say
    from winhost.cli.overwrite import refuse_other_kind
    from winhost.lab.running_lab import ALL, Lab

    if output:
        refuse_other_kind(output / "fleet.yaml", "lab's fleet", force)
    files = [file for host in hosts for file in _files(host)]
    # Who stops a service does not press Ctrl-C, and nothing is to be left then either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    place = nullcontext(str(output)) if output else TemporaryDirectory(prefix="winhost-lab-")
    with place as folder, Lab(files, Path(folder), scale=1 / speed, tls=ALL if tls else (), engine=engine) as running:
        click.echo(running.fleet_file.read_text(encoding="utf-8"), nl=False)
        say(f"Simulated, and up: {', '.join(running.hosts)}. In another terminal:", err=True)
        say(f"  winhost detect '*' --fleet {running.fleet_file}", err=True)
        try:
            click.echo("Ctrl-C ends them.", err=True)
            while True:
                time.sleep(1)  # the one way to wait that Ctrl-C ends on Windows, too
        except KeyboardInterrupt:
            click.echo("The lab is closed.", err=True)


def _files(word: str) -> list[Path]:
    """Raises UsageError: UnknownHostFile, or NothingOfTheKind for a folder without facts."""
    from winhost.cli.named_files import files_of
    from winhost.lab.hostfile import find
    from winhost.model.facts import Facts
    from winhost.model.shipped import example_hosts

    folder = word not in example_hosts() and Path(word).is_dir()
    return files_of([Path(word)], Facts) if folder else [find(word)]


@lab.command("list")
@answers(wide=True)
def list_hosts(output: Output) -> None:
    """List the example hosts and situations that winhost ships."""
    from winhost.cli.answers import ListedLabHost
    from winhost.cli.envelope import show_list
    from winhost.lab.hostfile import HostFile, host_files
    from winhost.model.yamlfile import load

    told = ((path.stem, load(path, HostFile)) for path in host_files())
    rows = [ListedLabHost(name, file.about, file.base, file.origin) for name, file in told]
    show_list("lab", output.shape, rows, ("name", "about"), ("base", "origin"))
