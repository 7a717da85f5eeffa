"""Arguments, options and help of `winhost render`."""

from pathlib import Path

import click

from winhost.cli import options
from winhost.cli.groups import WinhostGroup, implemented_in
from winhost.cli.options import declared, flag, option, options_object, repeated
from winhost.cli.plan.stack_options import NODE_FIELDS, ClusterOptions, StackOptions
from winhost.core.dataclass import dataclass

# Options for what only a plan can set up.
_OF_A_PLAN = ("workload", "engine_program", "engine_lock", "python", "index")


@click.group(cls=WinhostGroup)
def render() -> None:
    """Print what serves a workload as files for a deployment of your own."""


@dataclass(frozen=True)
class MachineOptions:
    """The machine that is to serve: its facts, or what is said of it instead."""

    facts_file: Path | None = declared(options.facts_file)
    gpus: str | None = option(
        "NUMBERxSIZE", "Instead of facts: its GPUs, all alike, and the memory of each, such as 2x48GiB."
    )
    memory: int | None = option(
        "SIZE", "Instead of facts: the memory of the machine, such as 256GiB.", type=options.SIZE
    )
    path: str | None = declared(options.linux_path)


@render.command()
@click.argument("workload", metavar="WORKLOAD", type=options.PATH)
@options_object(MachineOptions, "machine")
@options_object(StackOptions, "stack", leave_out=(*_OF_A_PLAN, "allow"))
@options.force
@options.output_options("FILE", "The compose file to write; without it, the text goes to the terminal.")
@implemented_in("render.render")
def compose() -> None:
    """Print all that serves WORKLOAD as one compose project: engines, models and the gateway.

    Name the machine by --facts, or by --gpus and --memory. The engine's image is pinned by digest, models by their
    commit; an engine has no port, and development mode is off. Changes no machine; without --api-key, winhost makes a
    key in its own state on this computer.
    """


@render.command()
@click.argument("workload", metavar="WORKLOAD", type=options.PATH)
@options_object(MachineOptions, "machine")
@options_object(
    StackOptions, "stack", leave_out=(*_OF_A_PLAN, "engine_archive", "listen", "certificate", "certificate_key")
)
@options_object(ClusterOptions, "cluster", leave_out=NODE_FIELDS)
@options.force
@options.output_options(
    "FOLDER", "The folder to write, for kubectl apply -k; without it, one YAML stream goes to the terminal."
)
@implemented_in("render.render")
def kubernetes() -> None:
    """Print all that serves WORKLOAD as manifests for a cluster: engines, models, the gateway, NVIDIA's device plugin.

    The workload has deploy: kubernetes. Name the machine that is to be the node by --facts, or by --gpus and --memory.
    Images are pinned by digest, models by commit and hash; keys are hashes there, tokens are references. Only the
    gateway reaches an engine. Changes no machine; without --api-key, winhost makes a key in its own state on this
    computer.
    """


gateway_ca_option = click.option(
    "--gateway-ca",
    metavar="PATH",
    help="The certificate of a gateway with TLS, or that of its authority, on the machine that connects to it.",
)
gateway_name_option = click.option("--gateway-name", metavar="NAME", help="The name in the gateway's certificate.")
unprotected_option = click.option(
    "--plain-http",
    is_flag=True,
    help="The gateway is on another machine and has no TLS: others on the network can read keys and prompts.",
)


@dataclass(frozen=True)
class ProxyOptions:
    """A proxy, the workload that it serves, and the way to the gateway behind it."""

    program: str = declared(
        click.argument("program", metavar="haproxy|nginx|caddy", type=click.Choice(("haproxy", "nginx", "caddy")))
    )
    workload: Path = declared(click.argument("workload", metavar="WORKLOAD", type=options.PATH))
    gateway: tuple[str, int] = option(
        "ADDRESS:PORT",
        "Where the gateway listens, as the proxy reaches it.",
        default="127.0.0.1:8443",
        type=options.ADDRESS_PORT,
    )
    gateway_ca: str | None = declared(gateway_ca_option)
    gateway_name: str | None = declared(gateway_name_option)
    plain_http: bool = declared(unprotected_option, False)
    listen: tuple[str, int] = option(
        "ADDRESS:PORT", "Where the proxy listens.", default="0.0.0.0:443", type=options.ADDRESS_PORT
    )
    certificate: str = option(
        "PATH",
        "The proxy's certificate on its machine. HAProxy: with its key in the same file, or in PATH.key.",
        required=True,
    )
    key: str | None = option("PATH", "nginx and Caddy: the key of the certificate.", name="--certificate-key")
    allow: tuple[str, ...] = repeated(
        "NETWORK", "A network of clients, for example 10.20.0.0/16. Default: everyone who reaches the proxy."
    )


@render.command()
@options_object(ProxyOptions, "asked")
@options.force
@options.output_options("FILE", "The file to write; without it, the text goes to the terminal.")
@implemented_in("render.render")
def proxy() -> None:
    """Print the configuration of your own proxy before the gateway: HAProxy, nginx or Caddy, as Debian has them.

    WORKLOAD names the proxy in trusted_proxies, so that the gateway believes which client it asks for. The proxy passes
    streams on event by event, and ends the request of a client that goes away. Changes nothing.
    """


@dataclass(frozen=True)
class MonitoringOptions:
    """The gateways to watch, and how Prometheus reaches them."""

    gateways: tuple[tuple[str, int], ...] = repeated(
        "ADDRESS:PORT",
        "Where a gateway listens, as Prometheus reaches it.",
        name="--gateway",
        default=("127.0.0.1:8443",),
        type=options.ADDRESS_PORT,
    )
    tls: bool = flag("The gateways have TLS.")
    gateway_ca: str | None = declared(gateway_ca_option)
    gateway_name: str | None = declared(gateway_name_option)
    plain_http: bool = declared(unprotected_option, False)
    key_file: str = option(
        "PATH", "The file with a key for metrics, on the machine of Prometheus.", default="/etc/prometheus/winhost-key"
    )


@render.command()
@options_object(MonitoringOptions, "asked")
@options.force
@options.output_options("FOLDER", "The folder to write.", required=True)
@implemented_in("render.render")
def monitoring() -> None:
    """Write what Prometheus and Grafana need to watch gateways: scrape targets, rules with alerts, and a dashboard.

    Gateways show metrics of themselves, of engines and of GPUs to a key for metrics (--metrics-key of plan, render and
    serve gateway). Changes nothing but the files.
    """
