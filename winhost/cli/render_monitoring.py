"""winhost render monitoring: files for a Prometheus and a Grafana of one's own."""

from ipaddress import ip_address

import click

from winhost.cli.outputs import Output
from winhost.cli.render_compose import Rendered, show_rendered, write_folder
from winhost.cli.shells import command_line, own_shell
from winhost.serving.monitoring import MonitoringRequest, monitoring_files

_NOTES = (
    "Where Prometheus runs and has the key: CHECK",
    "The dashboard was never seen in a Grafana: import winhost-dashboard.json and choose the Prometheus (unverified).",
)


def monitoring(
    gateways: tuple[tuple[str, int], ...],
    tls: bool,
    gateway_ca: str | None,
    gateway_name: str | None,
    plain_http: bool,
    key_file: str,
    force: bool,
    output: Output,
) -> int:
    """Write what Prometheus and Grafana need to watch gateways."""
    tls = tls or bool(gateway_ca or gateway_name)
    elsewhere = [address for address, _ in gateways if not ip_address(address).is_loopback]
    if elsewhere and not (tls or plain_http):
        raise click.UsageError(
            f"{elsewhere[0]} is another machine, and without TLS others can read the key for metrics on its way: "
            "give --tls, or agree with --plain-http"
        )
    places = tuple(f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for address, port in gateways)
    files = monitoring_files(MonitoringRequest(places, key_file, tls, gateway_ca, gateway_name))
    assert output.path
    write_folder(output.path, files, force)
    check = command_line(("promtool", "check", "config", str(output.path / "prometheus.yml")), own_shell())
    notes = tuple(note.replace("CHECK", check) for note in _NOTES)
    show_rendered(Rendered(places[0], str(output.path), notes, files["prometheus.yml"]), output)
    return 0
