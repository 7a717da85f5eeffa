"""winhost render, and winhost serve watcher: write files with which users deploy a workload themselves."""

from ipaddress import ip_address, ip_network
from pathlib import Path

import click

from winhost import __version__
from winhost.cli.envelope import print_document, show_results
from winhost.cli.errors import Faults, os_errors, usage_errors
from winhost.cli.named_files import read_named_facts
from winhost.cli.options import Output
from winhost.cli.output import say, write_file
from winhost.cli.plan.stack_options import ClusterOptions, StackOptions
from winhost.cli.plan.stack_parts import DIGEST_HINT, StackParts, show_made_keys
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
    """Rendered files. host: the host for whose facts they are, or the proxy; file: the written file or folder, if any;
    text: the content.
    """

    host: str
    file: str | None
    notes: tuple[str, ...]
    text: str


def compose(machine: MachineOptions, stack: StackOptions, force: bool, output: Output) -> int:
    faults = Faults()
    facts = faults.collect(lambda: read_or_state_facts(machine))
    parts = StackParts(stack)
    parts.check(faults)
    faults.collect(lambda: parts.options.tls)
    faults.collect(lambda: parts.listen)
    image = faults.collect(lambda: parts.image, DIGEST_HINT)
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
        project = compose_project(facts, request, __version__)
    _show_rendered(
        Rendered(project.host, _write_if_named(output.path, project.text, force), project.notes, project.text), output
    )
    show_made_keys(parts.made_keys, output.shape)
    return 0


def read_or_state_facts(machine: MachineOptions) -> HostFacts:
    """Read the facts file, or make facts from the options that state them instead. Raises UsageError."""
    facts, gpus, memory = read_named_facts(machine.facts_file), machine.gpus, machine.memory
    if facts is not None:
        if gpus or memory:
            raise click.UsageError("--gpus and --memory replace --facts: use one or the other")
        return facts
    if gpus is None or memory is None:
        raise click.UsageError(
            "which machine will serve? Name --facts FILE, which winhost detect HOST -o FOLDER writes, or "
            "--gpus 2x48GiB --memory 256GiB"
        )
    with usage_errors("'--gpus'"):
        return stated_linux(gpus, memory)


def _write_if_named(path: Path | None, text: str, force: bool) -> str | None:
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
    from winhost.cli.plan.stack import (  # loads clusters, which other renderings do not need
        check_cluster_options,
        check_images,
        cluster_request,
    )
    from winhost.cluster.rendering import folder, render, stream  # likewise

    faults = Faults()
    facts = faults.collect(lambda: read_or_state_facts(machine))
    parts = StackParts(stack, cluster, in_cluster=True)
    parts.check(faults)
    check_cluster_options(parts, faults)
    parts.check_allowed(facts, faults)
    check_images(parts, faults)
    faults.refuse()
    assert facts is not None
    with usage_errors():
        manifests = render(facts, cluster_request(parts, facts, machine.path))
    if output.path is not None:
        _write_folder(output.path, folder(manifests), force)
    written_path = None if output.path is None else str(output.path)
    _show_rendered(Rendered(facts.host, written_path, manifests.notes, stream(manifests)), output)
    show_made_keys(parts.made_keys, output.shape)
    return 0


_MONITORING_NOTES = (
    "On the machine of Prometheus, with the key: CHECK",
    "The dashboard is untested in Grafana (unverified): import winhost-dashboard.json and choose the Prometheus.",
)


def monitoring(options: MonitoringOptions, force: bool, output: Output) -> int:
    tls = options.tls or bool(options.gateway_ca or options.gateway_name)
    elsewhere = [address for address, _ in options.gateways if not ip_address(address).is_loopback]
    if elsewhere and not (tls or options.plain_http):
        raise click.UsageError(
            f"{elsewhere[0]} is another machine, and without TLS others on the network can read the metrics key: "
            "add --tls, or accept that with --plain-http"
        )
    endpoints, folder = tuple(endpoint(*gateway) for gateway in options.gateways), output.required_path
    files = monitoring_files(
        MonitoringRequest(endpoints, options.key_file, tls, options.gateway_ca, options.gateway_name)
    )
    _write_folder(folder, files, force)
    check = command_line(("promtool", "check", "config", str(folder / "prometheus.yml")))
    notes = tuple(note.replace("CHECK", check) for note in _MONITORING_NOTES)
    return _show_rendered(Rendered(endpoints[0], str(folder), notes, files["prometheus.yml"]), output)


def proxy(options: ProxyOptions, force: bool, output: Output) -> int:
    workload = load_workload(options.workload)
    with usage_errors():
        allowed = tuple(str(ip_network(each)) for each in options.allow)
        to_gateway = (options.gateway_ca, options.gateway_name, options.plain_http, allowed)
        request = ProxyRequest(workload, options.gateway, options.listen, options.certificate, options.key, *to_gateway)
        text = proxy_config(options.program, request)
    notes = () if output.path is None else (INSTALL_NOTES[options.program],)
    return _show_rendered(Rendered(options.program, _write_if_named(output.path, text, force), notes, text), output)


_WATCHER_NOTE = (
    "docs/wsl2.md has the commands for its key and its task. A plan of path wsl2 installs it for yield_to.accounts."
)


def watcher(workload_file: Path, url: str | None, output: Output) -> int:
    from winhost.cli.plan.stack import settings_text  # loads all that plans

    yield_settings = load_workload(workload_file).availability.yield_to
    if yield_settings is None:
        raise UsageError(
            "NothingToWatch",
            what=f"{visible(str(workload_file))} has no availability.yield_to",
            meaning="It states when models leave their GPUs to the desktop, and the watcher checks these conditions.",
            hint="Add it, for example: availability: {yield_to: {full_screen: true}}",
        )
    url = url or yield_settings.url or "http://127.0.0.1:8443"
    if not url.startswith(("https://", "http://127.0.0.1:", "http://localhost:", "http://[::1]:")):
        raise click.BadParameter(
            "http is allowed for this machine only, as http://127.0.0.1:8443", param_hint="'--url'"
        )
    folder = output.required_path
    texts = {"watch.ps1": watcher_script(), "settings.json": settings_text(yield_settings, url) + "\n"}
    if existing := [name for name in texts if (folder / name).exists()]:
        raise click.BadParameter(f"{existing[0]} is there already; name another folder", param_hint="'-o'")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text.replace("\n", "\r\n"), encoding="ascii", newline="")
    if output.shape in ("json", "yaml"):
        results = [Rendered("watcher", str(folder / name), (_WATCHER_NOTE,), text) for name, text in texts.items()]
        print_document("rendered", results, output.shape)
        return 0
    say(f"{folder}: watch.ps1 and settings.json. {_WATCHER_NOTE}", hang=2)
    return 0
