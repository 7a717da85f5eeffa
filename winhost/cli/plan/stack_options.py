"""Options of `winhost plan`, `up` and `render` about what serves a workload, and about its cluster."""

import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from ipaddress import ip_address
from pathlib import Path

import click
from click.core import ParameterSource

from winhost.cli import options
from winhost.cli.options import declared, flag, option, option_name, repeated
from winhost.core.dataclass import dataclass
from winhost.model.cluster_defaults import K3S, KEYS, NAMESPACE


@dataclass(frozen=True)
class GatewayOptions:
    """The options for the keys and TLS of a gateway, planned with a workload or set up by hand."""

    api_key: tuple[str, ...] = repeated(
        "NAME=REF",
        "An API key of the gateway: whose it is, and a secret reference to it, for example alice=env:ALICE_KEY.",
    )
    metrics_key: tuple[str, ...] = repeated(
        "NAME=REF",
        "A key for the gateway's /metrics, which no other key reads. NAME:MODEL,…=REF: of these models alone.",
    )
    yield_key: tuple[str, ...] = repeated(
        "NAME=REF", "A key that may ask all models to leave their GPUs for a while, and nothing else."
    )
    certificate: str | None = option(
        "PATH", "The gateway's certificate, in PEM on the Linux that serves, for TLS; it needs --certificate-key."
    )
    certificate_key: str | None = option("PATH", "The key of that certificate, also on the Linux that serves.")
    listen: str | None = option(
        "ADDRESS:PORT",
        "Where the gateway listens. Default: 127.0.0.1:8443, or 0.0.0.0:8443 for a workload with exposure: lan.",
    )
    plain_http: bool = flag(
        "Let the gateway listen beyond its machine without TLS: others on the network can read keys, prompts and "
        "answers. A plan asks for the approval `network`."
    )

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        """The keys as NAME=REF, by their kind, which the option begins with."""
        return {"api": self.api_key, "metrics": self.metrics_key, "yield": self.yield_key}

    @property
    def tls(self) -> tuple[str, str] | None:
        """The certificate and its key. Raises click's UsageError if only one is named, or one is empty."""
        if self.certificate is None and self.certificate_key is None:
            return None
        if not (self.certificate and self.certificate_key):
            raise click.UsageError(
                "--certificate and --certificate-key go together: --certificate /etc/ssl/llm.pem "
                "--certificate-key /etc/ssl/llm.key"
            )
        return self.certificate, self.certificate_key

    def listening(self, default: str) -> tuple[str, int]:
        """Return the address and port of the endpoint. default: for a command without --listen.

        Raises click's UsageError for another form, and for an address beyond its machine without TLS or --plain-http.
        """
        try:
            address, port = options.ADDRESS_PORT.convert(self.listen or default, None, None)
        except click.BadParameter as error:
            error.param_hint = "'--listen'"
            raise
        if not ip_address(address).is_loopback and self.tls is None and not self.plain_http:
            raise click.UsageError(
                f"{address} is beyond this machine: name a certificate on the Linux that serves, as --certificate "
                "/etc/ssl/llm.pem --certificate-key /etc/ssl/llm.key, or say --plain-http, and others can read keys "
                "and prompts"
            )
        return address, port


def key_pair(text: str) -> tuple[str, str]:
    """Split NAME=REF. Raises click's UsageError."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        # The text is not shown, because it may be the key itself.
        raise click.UsageError("a key is named as NAME=REF, for example alice=env:ALICE_KEY")
    return name, value


@dataclass(frozen=True)
class StackOptions(GatewayOptions):
    """The options about what serves a workload."""

    workload: Path | None = option(
        "FILE",
        "Serve this workload as well: engines, models, the gateway, and as the last step a completion of each model.",
        section="Options",
    )
    engine_image: str | None = option(
        "IMAGE",
        "The image of vLLM. Default: $WINHOST_ENGINE_IMAGE, "
        "or docker.io/vllm/vllm-openai, of the version that the workload "
        "states, else the newest that winhost knows. The registry is asked for the digest of its tag.",
        envvar="WINHOST_ENGINE_IMAGE",
    )
    digest: str | None = option(
        "SHA256", "The digest of that image for this platform, sha256:…, instead of asking the registry."
    )
    engine_archive: Path | None = option(
        "FILE",
        "A file with that image, made by docker save or winhost fetch, instead of a registry. Before "
        "the plan is applied, put it into /srv/winhost-offline/containers on the Linux that serves.",
    )
    engine_program: str | None = option(
        "PATH", "No containers: this program on the Linux that serves, such as /opt/vllm/bin/vllm."
    )
    engine_version: str | None = option(
        "VERSION",
        "The version of vLLM in that image or program, where neither the workload nor the image's tag says it.",
    )
    engine_lock: Path | None = option(
        "FILE",
        "No containers: vLLM in a Python environment of its own, from the wheels in this file: a requirements "
        "file with hashes, as uv pip compile --generate-hashes writes it.",
    )
    python: str | None = option(
        "VERSION",
        "The version of Python on the Linux that serves, such as 3.12, where its facts do not say. For wheels.",
    )
    index: str | None = option("URL", "Another index of Python packages than https://pypi.org/simple.")
    allow: tuple[str, ...] = repeated(
        "NETWORK", "A network that may reach an endpoint beyond the machine itself, for example 10.20.0.0/16."
    )
    hub: str | None = declared(options.hub)

    def with_workload(self) -> "StackOptions | None":
        """Return the options if a workload is named, else None. Raises UsageError for options that need a workload."""
        if self.workload is None and (typed := self._typed()):
            option = typed[0].replace("_", "-")
            raise click.UsageError(f"--{option} is for what a workload is served by: name it with --workload")
        return self if self.workload else None

    def command(self, existing: Collection[str] = ()) -> tuple[str, ...]:
        """Return the options as they were typed, for another command. existing: options that it has already."""
        arguments: list[str] = []
        for name in self._typed():
            option, value = f"--{name.replace('_', '-')}", getattr(self, name)
            for each in () if option in existing else value if isinstance(value, tuple) else (value,):
                arguments += [option] if each is True else [option, str(each)]
        return tuple(arguments)

    def _typed(self) -> list[str]:
        """Return the fields whose options were typed, in that order."""
        context = click.get_current_context()
        names = {each.name for each in fields(self)}
        return [
            name
            for name, value in context.params.items()
            if name in names
            and value not in (None, (), False)
            and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ]


_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
PLUGIN = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"


def _name(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None and _LABEL.fullmatch(value) is None:
        raise click.BadParameter("small letters, digits and dashes are expected", context, option)
    return value


@dataclass(frozen=True)
class ClusterOptions:
    """The options of a workload in a cluster, and of a Linux that becomes a node of it."""

    join: str | None = option("URL", "Join this k3s cluster, https://…:6443, instead of starting one.")
    join_token: str | None = option(
        "REF", "A secret reference to the token of that cluster, for example env:K3S_TOKEN."
    )
    k3s_version: str = option(
        "VERSION", "The release of k3s. winhost asks for its hashes, and the plan contains them.", default=K3S
    )
    k3s_mirror: str | None = option("URL", "Where releases of k3s are, instead of GitHub: a folder for each version.")
    k3s_images: bool = flag("Bring the images of k3s itself, for a Linux that reaches no registry.")
    namespace: str = option("NAME", "The namespace of everything.", default=NAMESPACE, callback=_name)
    keys_secret: str | None = option(
        "NAME",
        "A Secret in that namespace that already has the gateway's keys, instead of --api-key: lines of hashes "
        f"under the name keys. Default: {KEYS}, made from --api-key.",
        callback=_name,
    )
    tls_secret: str | None = option(
        "NAME", "A Secret of type kubernetes.io/tls, for TLS of the gateway.", callback=_name
    )
    storage_class: str | None = option(
        "NAME", "The storage class of the volumes for models. Default: that of the cluster.", callback=_name
    )
    device_plugin: str = option(
        "IMAGE",
        "The image of NVIDIA's device plugin, with its digest, or with a tag whose digest winhost asks for. "
        f"Default: version {PLUGIN.rpartition(':v')[2]}, from NVIDIA's registry.",
        default=PLUGIN,
        show_default=False,
    )
    no_device_plugin: bool = flag("The cluster already has one, such as that of NVIDIA's operator.")
    ray: bool = flag(
        "For a model on several nodes: connect them by Ray, which the image must contain. Default: by vLLM "
        "itself, from 0.19 on."
    )
    ffmpeg_image: str | None = option(
        "IMAGE", "An image with FFmpeg and NVENC, with its digest or a tag. Needed for a workload with video."
    )

    @property
    def changed_fields(self) -> list[str]:
        """The fields whose value is not the default."""
        defaults = ClusterOptions()
        return [each.name for each in fields(self) if getattr(self, each.name) != getattr(defaults, each.name)]


NODE_FIELDS = ("join", "join_token", "k3s_version", "k3s_mirror", "k3s_images")


@dataclass(frozen=True)
class NewVmOptions:
    """The options for a new VM that gets the GPUs. Each is a setting of path dda."""

    new_vm: str | None = option(
        "NAME", "Make a VM of this name for the GPUs, instead of one that exists.", setting="name"
    )
    cpus: str | None = option("NUMBER", "The number of its virtual processors.", setting="cpus")
    memory: str | None = option("SIZE", "Its memory, for example 64GiB.", setting="memory")
    disk: str | None = option("SIZE", "Its disk as the guest sees it, for example 200GiB.", setting="disk")
    image: str | None = option(
        "IMAGE",
        "The image of its disk: ubuntu-24.04 (default) or ubuntu-26.04, or that of a day, as ubuntu-24.04@20260814; or "
        "a qcow2 or raw image, as ./FILE or https://….",
        setting="image.name",
    )
    image_sha256: str | None = option(
        "SHA256", "The SHA-256 of the image. Default: as Canonical signed it.", setting="image.sha256"
    )
    image_mirror: str | None = option(
        "URL|FOLDER", "A mirror of Ubuntu's releases, or a folder with a copy.", setting="image.mirror"
    )
    vhdx: str | None = option(
        "SOURCE", "A prepared VHDX instead: a path on the host, https://…, or ./FILE.", setting="vhdx.source"
    )
    vhdx_sha256: str | None = option(
        "SHA256", "The SHA-256 of that file. Default for ./FILE: as it is now.", setting="vhdx.sha256"
    )
    upload: str | None = option(
        "HOW",
        "How its disk gets to the host: wire (default), http (the host fetches it), sftp or smb.",
        setting="upload",
    )
    switch: str | None = option(
        "NAME", "Its virtual switch. Default: the only external one, else a network with NAT.", setting="switch"
    )
    ssh_key: str | None = option(
        "FILE.pub", "Set up its Linux, with cloud-init, for this public key.", setting="guest.key"
    )
    user: str | None = option(
        "NAME", "The user that logs on to its Linux with that key. Default: winhost.", setting="guest.user"
    )
    vlan: str | None = option("NUMBER", "Its VLAN on that switch.", setting="vlan")
    address: str | None = option(
        "ADDRESS",
        "Its address, as 192.0.2.10/24. Default: dhcp; behind NAT one that winhost chooses.",
        setting="address",
    )
    gateway: str | None = option("ADDRESS", "The gateway of its network.", setting="gateway")
    dns: str | None = option("ADDRESSES", "Its name servers, with commas between them.", setting="dns")

    @property
    def chosen_settings(self) -> dict[str, str]:
        """The settings that the options choose, by name."""
        values = {each.metadata["setting"]: getattr(self, each.name) for each in fields(self)}
        chosen = {setting: value for setting, value in values.items() if value is not None}
        return chosen | ({"guest.key": f"@{self.ssh_key}"} if self.ssh_key is not None else {})

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings in the form of `--set`."""
        return tuple(f"new_vm.{setting}={value}" for setting, value in self.chosen_settings.items())


NEW_VM_OPTIONS: Mapping[str, str] = {each.metadata["setting"]: option_name(each) for each in fields(NewVmOptions)}
"""Setting within `new_vm` → its option."""
