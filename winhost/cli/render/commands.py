"""Arguments, options and help of `winhost render`."""

from pathlib import Path

import click

from winhost.cli import options
from winhost.cli.groups import WinhostGroup, implemented_in
from winhost.cli.options import declared, flag, option, options_object, repeated
from winhost.cli.plan.stack_options import NODE_FIELDS, ClusterOptions, StackOptions
from winhost.core.dataclass import dataclass

# Options that only a plan supports.
_PLAN_OPTIONS = ("workload", "engine_program", "engine_lock", "python", "index")


@click.group(cls=WinhostGroup)
def render() -> None:
    """Print the files for serving a workload in your own deployment."""


@dataclass(frozen=True)
class MachineOptions:
    """The machine that will serve: its facts, or the values that options state instead."""

    facts_file: Path | None = declared(options.facts_file)
    gpus: str | None = option(
        "NUMBERxSIZE", "Instead of facts: the number of equal GPUs, and the memory of each, such as 2x48GiB."
    )
    memory: int | None = option(
        "SIZE", "Instead of facts: the memory of the machine, such as 256GiB.", type=options.SIZE
    )
    path: str | None = declared(options.linux_path)


@render.command()
@click.argument("workload", metavar="WORKLOAD", type=options.PATH)
@options_object(MachineOptions, "machine")
@options_object(StackOptions, "stack", leave_out=(*_PLAN_OPTIONS, "allow"))
@options.force
@options.output_options("FILE", "The compose file to write; without it, winhost prints the text.")
@implemented_in("render.render")
def compose() -> None:
    """Print one compose project that serves WORKLOAD: engines, models and the gateway.

    Name the machine by --facts, or by --gpus and --memory. A digest pins the engine's image, and a commit each model;
    engines have no port, and development mode is off. Changes no machine. Without --api-key, winhost makes a key and
    stores it on this computer.
    """


@render.command()
@click.argument("workload", metavar="WORKLOAD", type=options.PATH)
@options_object(MachineOptions, "machine")
@options_object(
    StackOptions, "stack", leave_out=(*_PLAN_OPTIONS, "engine_archive", "listen", "certificate", "certificate_key")
)
@options_object(ClusterOptions, "cluster", leave_out=NODE_FIELDS)
@options.force
@options.output_options(
    "FOLDER", "The folder to write, for kubectl apply -k; without it, winhost prints one YAML stream."
)
@implemented_in("render.render")
def kubernetes() -> None:
    """Print manifests that serve WORKLOAD in a cluster: engines, models, the gateway, NVIDIA's device plugin.

    The workload has deploy: kubernetes. Name the machine that will be the node by --facts, or by --gpus and --memory.
    Digests pin images, and commits and hashes pin models; the manifests contain hashes of keys and references to
    tokens. Only the gateway can reach an engine. Changes no machine. Without --api-key, winhost makes a key and stores
    it on this computer.
    """


gateway_ca_option = click.option(
    "--gateway-ca",
    metavar="PATH",
    help="The certificate of a gateway with TLS, or of its authority: a path on the machine that connects to it.",
)
gateway_name_option = click.option("--gateway-name", metavar="NAME", help="The name in the gateway's certificate.")
unprotected_option = click.option(
    "--plain-http",
    is_flag=True,
    help="The gateway is on another machine and has no TLS: others on the network can read keys and prompts.",
)


@dataclass(frozen=True)
class ProxyOptions:
    """A proxy, its workload, and the connection to the gateway behind it."""

    program: str = declared(
        click.argument("program", metavar="haproxy|nginx|caddy", type=click.Choice(("haproxy", "nginx", "caddy")))
    )
    workload: Path = declared(click.argument("workload", metavar="WORKLOAD", type=options.PATH))
    gateway: tuple[str, int] = option(
        "ADDRESS:PORT", "The address of the gateway for the proxy.", default="127.0.0.1:8443", type=options.ADDRESS_PORT
    )
    gateway_ca: str | None = declared(gateway_ca_option)
    gateway_name: str | None = declared(gateway_name_option)
    plain_http: bool = declared(unprotected_option, False)
    listen: tuple[str, int] = option(
        "ADDRESS:PORT", "The address on which the proxy listens.", default="0.0.0.0:443", type=options.ADDRESS_PORT
    )
    certificate: str = option(
        "PATH",
        "The proxy's certificate on its machine. HAProxy: with the key in the same file, or in PATH.key.",
        required=True,
    )
    key: str | None = option("PATH", "nginx and Caddy: the key of the certificate.", name="--certificate-key")
    allow: tuple[str, ...] = repeated(
        "NETWORK", "A network of clients, for example 10.20.0.0/16. Default: everyone who can reach the proxy."
    )


@render.command()
@options_object(ProxyOptions, "options")
@options.force
@options.output_options("FILE", "The file to write; without it, the text goes to the terminal.")
@implemented_in("render.render")
def proxy() -> None:
    """Print the configuration of your own proxy in front of the gateway: Debian's HAProxy, nginx or Caddy.

    WORKLOAD lists the proxy in trusted_proxies, so that the gateway trusts the client address that it sends. The proxy
    forwards streams event by event, and ends a request when its client disconnects. Changes nothing.
    """


@dataclass(frozen=True)
class MonitoringOptions:
    """The gateways to monitor, and how Prometheus reaches them."""

    gateways: tuple[tuple[str, int], ...] = repeated(
        "ADDRESS:PORT",
        "The address of a gateway for Prometheus.",
        name="--gateway",
        default=("127.0.0.1:8443",),
        type=options.ADDRESS_PORT,
    )
    tls: bool = flag("The gateways have TLS.")
    gateway_ca: str | None = declared(gateway_ca_option)
    gateway_name: str | None = declared(gateway_name_option)
    plain_http: bool = declared(unprotected_option, False)
    key_file: str = option(
        "PATH", "The file with a metrics key, on the machine of Prometheus.", default="/etc/prometheus/winhost-key"
    )


@render.command()
@options_object(MonitoringOptions, "options")
@options.force
@options.output_options("FOLDER", "The folder to write.", required=True)
@implemented_in("render.render")
def monitoring() -> None:
    """Write the files with which Prometheus and Grafana monitor gateways: scrape targets, alert rules, and a dashboard.

    A metrics key (--metrics-key of plan, render and serve gateway) reads the metrics of the gateway, its engines and
    GPUs. Changes nothing except the files.
    """
