"""The files that an engine is started by: a compose project or a `docker run`, and the unit around it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files

from winhost.core.dataclass import dataclass
from winhost.gateway.turn_settings import IMAGES
from winhost.model.workload import Mirror
from winhost.serving.choice import Served
from winhost.serving.containers import (
    START,
    compose_engine,
    compose_text,
    docker_engine,
    docker_options,
    docker_variables,
    hardened,
    restricted_run,
)
from winhost.serving.engine_names import CACHE, MODEL, SOCKETS, UNITS, kv_folder, lmcache, slug, socket_folder
from winhost.serving.engine_spec import EngineSpec
from winhost.serving.gateway_entries import GROUP

_READY, _IMAGE = "ready.py", "process_image.py"
START_SECONDS = 3600
"""The time limit of an engine's start: it loads a model and compiles its graphs."""

# CRIU needs these to read a process and to restore one; the engine itself has none of them.
_CRIU_CAPABILITIES = " ".join(
    f"CAP_{name}"
    for name in (
        "CHECKPOINT_RESTORE", "SYS_PTRACE", "SYS_ADMIN", "SYS_RESOURCE", "SETUID", "SETGID", "SETPCAP", "NET_ADMIN",
        "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SYS_CHROOT", "SYS_NICE", "IPC_LOCK",
        "SYS_TIME",
    )
)  # fmt: skip
# systemd implements these by filters of system calls, in whole or in part. CRIU saves nothing while CRIU itself runs
# under such a filter; there process_image.py gives the engine a filter against io_uring and other address families.
_SECCOMP_SETTINGS = (
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelLogs=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "RestrictSUIDSGID=yes",
    "RestrictRealtime=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "LockPersonality=yes",
)


@dataclass(frozen=True)
class ServedEngine:
    """One model's engine and how it is started.

    runtime: `docker`, `podman`, `compose`, or the path of vLLM's own program; image: of a container, pinned; after:
    units that start first, because engines that start at the same time miscount memory; turns: the gateway starts and
    stops it; mirror: how its KV cache is mirrored; image_on_disk: its process is saved to disk and restored from there.
    """

    served: Served
    runtime: str
    image: str | None
    after: tuple[str, ...] = ()
    turns: bool = False
    mirror: Mirror | None = None
    image_on_disk: bool = False

    @property
    def container_client(self) -> str | None:
        """The path of Docker's or Podman's program; None where vLLM runs without a container."""
        clients = {"docker": "/usr/bin/docker", "compose": "/usr/bin/docker", "podman": "/usr/bin/podman"}
        return clients.get(self.runtime)

    @property
    def spec(self) -> EngineSpec:
        return replace(self.served.spec, image=self.image, program=None if self.container_client else self.runtime)

    @property
    def user(self) -> str:
        """The user of an engine without a container, and of its standby, which shares its files. It exists only while
        they run, except with an image on disk.
        """
        return f"winhost-{slug(self.served.served_name)[:23]}"  # useradd(8): 32 characters

    @property
    def quoted_model(self) -> str:
        """The model's name, escaped for a unit."""
        return _quoted(self.served.model)[1:-1]

    @property
    def gpu_options(self) -> str:
        """The options with which another container gets the same GPUs."""
        options = docker_options(self.spec.container.gpu_access) + docker_variables(self.spec.gpu_environment)
        return " ".join(map(_quoted, options))

    @property
    def gpu_environment(self) -> list[str]:
        """The lines of another unit that give its process the same GPUs."""
        return _environment_lines(self.spec.gpu_environment)

    @property
    def folder(self) -> str:
        """The folder of its files. A hash of their content is part of its name, so that a change makes a new folder."""
        digest = hashlib.sha256(
            json.dumps([self._compose, *self._programs.values(), self.spec.arguments(MODEL)]).encode("utf-8")
        ).hexdigest()[:16]
        return f"/opt/winhost/engine-{slug(self.served.model)}-{digest}"

    @property
    def files(self) -> Mapping[str, str]:
        """The texts of its files, by name."""
        compose = {"compose.yaml": self._compose} if self.runtime == "compose" else {}
        return {**compose, **self._programs}

    @property
    def _programs(self) -> Mapping[str, str]:
        names = (_READY, _IMAGE) if self.image_on_disk else (_READY,)
        return {name: files(__package__).joinpath(name).read_text("utf-8") for name in names}

    @property
    def unit(self) -> str:
        """The text of its unit."""
        server = [f"{lmcache(self.served.model)}.service"] if self.mirror is Mirror.LMCACHE else []
        docker = ["docker.service"] if self.runtime in ("docker", "compose") else []
        if self.turns:
            # The gateway may start it before a run has written the units that must start first.
            dependencies = [f"AssertPathExists={UNITS}/{name}" for name in self.after]
            dependencies += [f"Wants={' '.join(self.after)}"] if self.after else []
            restart = [
                "# The gateway starts it when its turn comes: by itself it would take a GPU that another one has."
            ]
            restart, install = [*restart, "Restart=no"], []
        else:
            dependencies, restart = [], ["Restart=on-failure", "RestartSec=15"]
            install = ["", "[Install]", "WantedBy=multi-user.target"]
        if self.container_client is None:
            # The gateway's group may connect. The engine is not in that group, which reaches every engine and the
            # keeper. systemd resets the folder's group before each command, so this command is the last.
            paths = f"{self.served.socket} {socket_folder(self.served.model)}"
            body, group_lines = self._program_lines, [f"ExecStartPost=+/bin/chgrp --no-dereference {GROUP} {paths}"]
        else:
            body, group_lines = self._container_lines(self.container_client), []
        lines = [
            "# Written by winhost: an engine behind winhost-gateway.service, which alone reaches it.",
            "[Unit]",
            f"Description=vLLM for {self.quoted_model}",
            f"After={' '.join(('network-online.target', *docker, *server, *self.after))}",
            *(f"Requires={name}" for name in (*docker, *server)),
            *(f"JoinsNamespaceOf={name}" for name in server if self.container_client is None),
            *dependencies,
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            *body,
            f"ExecStartPost=/usr/bin/python3 -I {self.folder}/{_READY} {self.served.socket}",
            *group_lines,
            *restart,
            # An engine that is starting may ignore a stop until it is killed.
            f"TimeoutStartSec={START_SECONDS}",
            f"TimeoutStopSec={self.spec.container.stop_seconds + 30}",
            "KillMode=mixed",
            *install,
            "",
        ]
        return "\n".join(lines)

    @property
    def _name(self) -> str:
        return f"winhost-engine-{slug(self.served.model)}"

    def _container_lines(self, client: str) -> list[str]:
        """Return the lines that run a container. client: the path of Docker's or Podman's program."""
        folder, kv = socket_folder(self.served.model), kv_folder(self.served.served_name)
        if self.runtime == "compose":
            file = f"--project-name {self._name} --file {self.folder}/compose.yaml"
            start = f"{client} compose {file} up --no-color --no-log-prefix --abort-on-container-exit"
        else:
            command, *arguments = [*restricted_run(name=self._name), *docker_engine(self.spec)]
            start = " ".join([client, command, *map(_quoted, arguments)])
        # A container outlives a killed client of Docker and keeps the GPU's memory: remove it before and after.
        remove = f"-{client} rm --force {self._name}"
        tiers = [f"ExecStartPre=/usr/bin/install -d -m 0700 -o root -g root {kv}"]
        return [
            f"ExecStartPre={remove}",
            f"ExecStartPre=/usr/bin/install -d -m 0755 {SOCKETS}",
            f"ExecStartPre=/usr/bin/install -d -m 2750 -o root -g {GROUP} {folder}",
            *(tiers if self.mirror is Mirror.TIERS else []),
            f"ExecStartPre=/bin/rm -f {self.served.socket}",
            f"ExecStart={start}",
            f"ExecStop=-{client} stop --time {self.spec.container.stop_seconds} {self._name}",
            f"ExecStopPost={remove}",
            f"ExecStopPost=-/bin/rm -f {self.served.socket}",
        ]

    @property
    def _program_lines(self) -> list[str]:
        """The lines that run vLLM's own program, as a user that exists only while it runs."""
        cache, kv = f"/var/cache/{self._name}", kv_folder(self.served.served_name).rpartition("/")[2]
        environment = {**self.spec.environment, "HOME": cache, "VLLM_CACHE_ROOT": f"{cache}/vllm"}
        program = [self.runtime]
        if self.spec.packed:  # the commands of an environment that winhost made ignore PYTHONPATH, which has the loader
            program = [self.spec.environment_program("python3"), "-m", "vllm.entrypoints.cli.main"]
        arguments = map(_quoted, self.spec.arguments(self.spec.folder))
        command = " ".join([*map(_quoted, program), "serve", *arguments])
        tiers = [f"StateDirectory={kv}", "StateDirectoryMode=0700"]
        return [
            *(self._image_lines(command) if self.image_on_disk else [f"ExecStart={command}"]),
            *_environment_lines(environment),
            *([f"User={self.user}"] if self.mirror or self.image_on_disk else []),
            *([] if self.image_on_disk else ["DynamicUser=yes"]),
            *(tiers if self.mirror is Mirror.TIERS else []),
            f"RuntimeDirectory=winhost-engines/{slug(self.served.model)}",
            "RuntimeDirectoryMode=0750",
            f"CacheDirectory={self._name}",
            "UMask=0007",
            # Its processes listen on addresses of the machine; in a network of its own nobody else reaches these.
            "PrivateNetwork=yes",
            "PrivateTmp=yes",
            "NoNewPrivileges=yes",
            f"CapabilityBoundingSet={_CRIU_CAPABILITIES if self.image_on_disk else ''}",
            "ProtectSystem=strict",
            "ProtectHome=yes",
            "ProtectControlGroups=yes",
            *([] if self.image_on_disk else _SECCOMP_SETTINGS),
            "LimitMEMLOCK=infinity",
            "LimitNOFILE=65536",
            "LimitCORE=0",
        ]

    def _image_lines(self, command: str) -> list[str]:
        """Return the lines that restore the process from its image. Only root reads and writes the image; the restored
        engine gets the user of the unit.
        """
        folder = f"{IMAGES}/{slug(self.served.model)}"
        starts = f"/usr/bin/python3 -I {self.folder}/{_IMAGE} {folder} {self.spec.folder} {self.user}"
        return [
            f"ExecStartPre=+/usr/bin/install -d -m 0700 -o root -g root {IMAGES} {folder}",
            f"ExecStart=!{starts} -- {command}",
            f"ReadWritePaths=-{folder}",
        ]

    @property
    def _compose(self) -> str:
        engine = {
            "container_name": self._name,
            **hardened(str(self.spec.image), "no"),
            "pull_policy": "never",
            **compose_engine(self.spec, START),
        }
        return compose_text({"services": {"engine": engine}, "volumes": {CACHE: {"name": CACHE}}})


def _environment_lines(environment: Mapping[str, str]) -> list[str]:
    return [f"Environment={_quoted(f'{name}={value}')}" for name, value in environment.items()]


def _quoted(text: str) -> str:
    """Quote an argument for a unit's command line, so that systemd expands nothing in it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return '"' + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in escaped) + '"'
