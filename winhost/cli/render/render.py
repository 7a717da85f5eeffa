"""winhost render, and winhost serve watcher: files with which users deploy a workload themselves."""

from ipaddress import ip_address, ip_network
from pathlib import Path

import click

from winhost import __version__
from winhost.cli.envelope import answer, show_results
from winhost.cli.errors import Faults, os_errors, usage_errors
from winhost.cli.named_files import facts_named
from winhost.cli.options import Output
from winhost.cli.output import say, write_file
from winhost.cli.plan.stack_options import ClusterOptions, StackOptions
from winhost.cli.plan.stack_parts import BY_DIGEST, StackParts, show_made_keys
from winhost.cli.render.commands import MachineOptions, MonitoringOptions, ProxyOptions
from winhost.cli.shells import command_line
from winhost.compat.stated import stated_linux
from winhost.core.dataclass import dataclass
from winhost.hub.repositories import HUB
from winhost.model.errors import UsageError, visible
from winhost.model.workloadfile import load_workload
from winhost.resources.host import HostFacts
from winhost.resources.windows.windows_scripts import watcher_script
from winhost.serving.compose_project import ComposeRequest, compose_project
from winhost.serving.deployed import endpoint
from winhost.serving.monitoring import MonitoringRequest, monitoring_files
from winhost.serving.proxy_config import INSTALL_NOTES, ProxyRequest, proxy_config


@dataclass(frozen=True)
class Rendered:
    """Rendered files. host: the host whose facts they are for, or the proxy; file: what was written, if anything; text:
    the content.
    """

    host: str
    file: str | None
    notes: tuple[str, ...]
    text: str


def compose(machine: MachineOptions, stack: StackOptions, force: bool, output: Output) -> int:
    faults = Faults()
    facts = faults.of(lambda: facts_of(machine))
    parts = StackParts(stack)
    parts.check(faults)
    faults.of(lambda: parts.options.tls)
    faults.of(lambda: parts.listen)
    image = faults.of(lambda: parts.image, BY_DIGEST)
    faults.refuse()
    assert facts is not None
    assert image is not None
    request = ComposeRequest(
        parts.workload,
        image.saved.name if image.saved else image.pinned,
        parts.key_lines(facts.host),
        parts.listen,
        parts.options.tls,
        parts.options.plain_http,
        machine.path,
        parts.options.hub if parts.options.hub != HUB else None,
    )
    with usage_errors():
        made = compose_project(facts, request, __version__)
    _show_rendered(Rendered(made.host, _written(output.path, made.text, force), made.notes, made.text), output)
    show_made_keys(parts.made_keys, output.shape)
    return 0


def facts_of(machine: MachineOptions) -> HostFacts:
    """The facts of a file, or those that options state instead. Raises UsageError."""
    facts, gpus, memory = facts_named(machine.facts_file), machine.gpus, machine.memory
    if facts is not None:
        if gpus or memory:
            raise click.UsageError("--gpus and --memory stand in for --facts: name the one or the others")
        return facts
    if gpus is None or memory is None:
        raise click.UsageError(
            "which machine is to serve? Name --facts FILE, which winhost detect HOST -o FOLDER writes, or "
            "--gpus 2x48GiB --memory 256GiB"
        )
    with usage_errors("'--gpus'"):
        return stated_linux(gpus, memory)


def _written(path: Path | None, text: str, force: bool) -> str | None:
    if path is None:
        return None
    with os_errors():
        write_file(path, text, "rendered", force)
    return str(path)


def _write_folder(folder: Path, files: dict[str, str], force: bool) -> None:
    with os_errors():
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_file(folder / name, text, "rendered", force)


def _show_rendered(rendered: Rendered, output: Output) -> int:
    def show(_: Rendered) -> None:
        if rendered.file is None:
            click.echo(rendered.text, nl=False)
        else:
            say(f"Written to {visible(rendered.file)}")
        for each in rendered.notes:
            say(f"note: {each}", hang=2, err=True)

    return show_results("rendered", output.shape, [(rendered.host, rendered)], show)


def kubernetes(
    machine: MachineOptions, stack: StackOptions, cluster: ClusterOptions, force: bool, output: Output
) -> int:
    from winhost.cli.plan.stack import (  # loads clusters, which other renderings must not
        check_cluster_options,
        check_images,
        cluster_request,
    )
    from winhost.cluster.rendering import folder, render, stream  # likewise

    faults = Faults()
    facts = faults.of(lambda: facts_of(machine))
    parts = StackParts(stack, cluster, in_cluster=True)
    parts.check(faults)
    check_cluster_options(parts, faults)
    parts.check_allowed(facts, faults)
    check_images(parts, faults)
    faults.refuse()
    assert facts is not None
    with usage_errors():
        made = render(facts, cluster_request(parts, facts, machine.path))
    if output.path is not None:
        _write_folder(output.path, folder(made), force)
    written = None if output.path is None else str(output.path)
    _show_rendered(Rendered(facts.host, written, made.notes, stream(made)), output)
    show_made_keys(parts.made_keys, output.shape)
    return 0


_NOTES = (
    "Where Prometheus runs and has the key: CHECK",
    "The dashboard was never seen in a Grafana: import winhost-dashboard.json and choose the Prometheus (unverified).",
)


def monitoring(asked: MonitoringOptions, force: bool, output: Output) -> int:
    tls = asked.tls or bool(asked.gateway_ca or asked.gateway_name)
    elsewhere = [address for address, _ in asked.gateways if not ip_address(address).is_loopback]
    if elsewhere and not (tls or asked.plain_http):
        raise click.UsageError(
            f"{elsewhere[0]} is another machine, and without TLS others can read the key for metrics on its way: "
            "give --tls, or agree with --plain-http"
        )
    endpoints, folder = tuple(endpoint(*gateway) for gateway in asked.gateways), output.required_path
    files = monitoring_files(MonitoringRequest(endpoints, asked.key_file, tls, asked.gateway_ca, asked.gateway_name))
    _write_folder(folder, files, force)
    check = command_line(("promtool", "check", "config", str(folder / "prometheus.yml")))
    notes = tuple(note.replace("CHECK", check) for note in _NOTES)
    return _show_rendered(Rendered(endpoints[0], str(folder), notes, files["prometheus.yml"]), output)


def proxy(asked: ProxyOptions, force: bool, output: Output) -> int:
    served = load_workload(asked.workload)
    with usage_errors():
        allowed = tuple(str(ip_network(each)) for each in asked.allow)
        to_gateway = (asked.gateway_ca, asked.gateway_name, asked.plain_http, allowed)
        request = ProxyRequest(served, asked.gateway, asked.listen, asked.certificate, asked.key, *to_gateway)
        text = proxy_config(asked.program, request)
    notes = () if output.path is None else (INSTALL_NOTES[asked.program],)
    return _show_rendered(Rendered(asked.program, _written(output.path, text, force), notes, text), output)


_NOTE = "Its key and its task: docs/wsl2.md has the commands. A plan of path wsl2 installs it for yield_to.accounts."


def watcher(workload_file: Path, url: str | None, output: Output) -> int:
    from winhost.cli.plan.stack import settings_text  # loads all that plans

    wanted = load_workload(workload_file).availability.yield_to
    if wanted is None:
        raise UsageError(
            "NothingToWatch",
            what=f"{visible(str(workload_file))} has no availability.yield_to",
            meaning="It says when models leave their GPUs to the desktop, which is what the watcher looks for.",
            hint="Add it, for example: availability: {yield_to: {full_screen: true}}",
        )
    url = url or wanted.url or "http://127.0.0.1:8443"
    if not url.startswith(("https://", "http://127.0.0.1:", "http://localhost:", "http://[::1]:")):
        raise click.BadParameter("http is for this machine alone, as http://127.0.0.1:8443", param_hint="'--url'")
    folder = output.required_path
    texts = {"watch.ps1": watcher_script(), "settings.json": settings_text(wanted, url) + "\n"}
    if there := [name for name in texts if (folder / name).exists()]:
        raise click.BadParameter(f"{there[0]} is there already; name another folder", param_hint="'-o'")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text.replace("\n", "\r\n"), encoding="ascii", newline="")
    if output.shape in ("json", "yaml"):
        found = [Rendered("watcher", str(folder / name), (_NOTE,), text) for name, text in texts.items()]
        answer("rendered", found, output.shape)
        return 0
    say(f"{folder}: watch.ps1 and settings.json. {_NOTE}", hang=2)
    return 0
