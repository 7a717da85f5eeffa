"""winhost lab: serve and list simulated hosts."""

import signal
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from winhost.cli.envelope import show_list
from winhost.cli.named_files import expand_files
from winhost.cli.options import Output
from winhost.cli.output import refuse_other_kind, show_command
from winhost.core.dataclass import dataclass
from winhost.lab.hostfile import HostFile, find, host_files
from winhost.model.facts import Facts
from winhost.model.shipped import example_hosts
from winhost.model.yamlfile import load


@dataclass(frozen=True)
class ListedLabHost:
    """A host that the lab can simulate. base: the host that its file is based on."""

    name: str
    about: str
    base: str | None = None
    origin: str = "synthetic"


def up(hosts: tuple[str, ...], output: Path | None, force: bool, tls: bool, engine: str, speed: float) -> None:
    from winhost.lab.running_lab import ALL_HOSTS, Lab  # loads all servers, which a list of hosts must not

    if output:
        refuse_other_kind(output / "fleet.yaml", "lab's fleet", force)
    files: list[Path] = []
    for host in hosts:
        folder = host not in example_hosts() and Path(host).is_dir()
        files += expand_files([Path(host)], Facts) if folder else [find(host)]
    # Service managers send SIGTERM. The temporary folder has to be removed then, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    state_folder = nullcontext(str(output)) if output else TemporaryDirectory(prefix="winhost-lab-")
    with (
        state_folder as folder_name,
        Lab(files, Path(folder_name), scale=1 / speed, tls=ALL_HOSTS if tls else (), engine=engine) as running,
    ):
        click.echo(running.fleet_file.read_text(encoding="utf-8"), nl=False)
        names = ", ".join((*running.hosts, *running.linux_hosts))
        # The path is absolute, because the other terminal may be in another folder.
        arguments = ("winhost", "detect", "*", "--fleet", str(running.fleet_file.absolute()))
        show_command(f"Simulated hosts running: {names}. In another terminal:", *arguments, err=True)
        try:
            click.echo("Press Ctrl-C to stop them.", err=True)
            while True:
                time.sleep(1)  # Ctrl-C interrupts this wait on Windows, too
        except KeyboardInterrupt:
            click.echo("The simulator has stopped.", err=True)


def list_hosts(output: Output) -> None:
    files = ((path.stem, load(path, HostFile)) for path in host_files())
    rows = [ListedLabHost(name, file.about, file.base, file.origin) for name, file in files]
    show_list("lab", output.shape, rows, ("name", "about"), ("base", "origin"))
