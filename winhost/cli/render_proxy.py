"""winhost render proxy: the configuration of a proxy of one's own before the gateway."""

from ipaddress import ip_network
from pathlib import Path

import click

from winhost.cli.outputs import Output
from winhost.cli.render_compose import Rendered, show_rendered, written
from winhost.model.workloadfile import load_workload
from winhost.serving.proxy_config import PLACES, ProxyRequest, proxy_config


def proxy(
    program: str,
    workload: Path,
    gateway: tuple[str, int],
    gateway_ca: str | None,
    gateway_name: str | None,
    plain_http: bool,
    listen: tuple[str, int],
    certificate: str,
    key: str | None,
    allow: tuple[str, ...],
    force: bool,
    output: Output,
) -> int:
    """Print the configuration of a proxy before the gateway of WORKLOAD."""
    served = load_workload(workload)
    try:
        allowed = tuple(str(ip_network(each)) for each in allow)
        to_gateway = (gateway_ca, gateway_name, plain_http, allowed)
        text = proxy_config(program, ProxyRequest(served, gateway, listen, certificate, key, *to_gateway))
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None
    notes = () if output.path is None else (PLACES[program],)
    show_rendered(Rendered(program, written(output.path, text, force), notes, text), output)
    return 0
