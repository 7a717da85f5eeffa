"""The files that an engine is started by: a compose project or a `docker run`, and the unit around it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import PurePosixPath

from winhost.core.dataclass import dataclass
from winhost.gateway.turn_settings import IMAGES
from winhost.model.workload import Mirror
from winhost.serving.choice import Served
from winhost.serving.containers import START, compose_engine, compose_text, docker_options, docker_words, hardened
from winhost.serving.engine_names import CACHE, MODEL, SOCKETS, UNITS, kv_folder, lmcache, slug, socket_folder
from winhost.serving.engine_spec import EngineSpec
from winhost.serving.gateway_entries import GROUP

_READY, _IMAGE = "ready.py", "process_image.py"
START_SECONDS = 3600
"""The time in which an engine has to start: to load a model and to compile its graphs."""

# What CRIU needs to read a process and to make one; the engine has none of it.
_OF_CRIU = " ".join(
    f"CAP_{name}"
    for name in (
        "CHECKPOINT_RESTORE", "SYS_PTRACE", "SYS_ADMIN", "SYS_RESOURCE", "SETUID", "SETGID", "SETPCAP", "NET_ADMIN",
        "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SYS_CHROOT", "SYS_NICE", "IPC_LOCK",
        "SYS_TIME",
    )
)  # fmt: skip
# By filters of system calls, all or in part. CRIU saves nothing where it has one itself; process_image.py gives the
# engine one that keeps io_uring and other address families from it.
_FILTERED = (
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
    """One model's engine and how it is started. by: `docker`, `podman`, `compose`, or the path of a program such as
    vLLM's of a venv; image: pinned, of a container; after: units that start before it, because two that start at once
    miscount memory; turns: the gateway starts and stops it; mirror: how its KV cache is mirrored; image_on_disk: its
    process is written to disk and starts from there.
    """

    served: Served
    by: str
    image: str | None
    after: tuple[str, ...] = ()
    turns: bool = False
    mirror: Mirror | None = None
    image_on_disk: bool = False

    @property
    def program(self) -> str | None:
        """The engine of containers; None where vLLM runs without."""
        programs = {"docker": "/usr/bin/docker", "compose": "/usr/bin/docker", "podman": "/usr/bin/podman"}
        return programs.get(self.by)

    @property
    def spec(self) -> EngineSpec:
        return replace(self.served.spec, image=self.image)

    @property
    def user(self) -> str:
        """The user of an engine without a container, and of its second one, with which it shares its files; it exists
        only while they run, except with an image on disk.
        """
        return f"winhost-{slug(self.served.served_name)[:23]}"  # useradd(8): 32 characters

    @property
    def quoted_model(self) -> str:
        """The model's name, escaped for a unit."""
        return _word(self.served.model)[1:-1]

    @property
    def gpu_options(self) -> str:
        """The options with which another container gets the same GPUs."""
        given = docker_options(self.spec.container.gpus_alone)
        return " ".join(map(_word, [*given, *_variables("--env=", self.spec.gpu_environment)]))

    @property
    def gpu_environment(self) -> list[str]:
        return [f"Environment={_word(each)}" for each in _variables("", self.spec.gpu_environment)]

    @property
    def folder(self) -> str:
        """The folder of its files, named by what is in it, so that a change is a new one beside the old."""
        digest = hashlib.sha256(
            json.dumps([self._compose, *self._programs.values(), self.spec.arguments(MODEL)]).encode("utf-8")
        ).hexdigest()[:16]
        return f"/opt/winhost/engine-{slug(self.served.model)}-{digest}"

    @property
    def files(self) -> Mapping[str, str]:
        """The texts of its files, by name."""
        compose = {"compose.yaml": self._compose} if self.by == "compose" else {}
        return {**compose, **self._programs}

    @property
    def _programs(self) -> Mapping[str, str]:
        names = (_READY, _IMAGE) if self.image_on_disk else (_READY,)
        return {name: files(__package__).joinpath(name).read_text("utf-8") for name in names}

    @property
    def unit(self) -> str:
        """The text of its unit."""
        server = [f"{lmcache(self.served.model)}.service"] if self.mirror is Mirror.LMCACHE else []
        docker = ["docker.service"] if self.by in ("docker", "compose") else []
        if self.turns:
            # The gateway may start it before a run has written the units that are to start first.
            waits = [f"AssertPathExists={UNITS}/{name}" for name in self.after]
            waits += [f"Wants={' '.join(self.after)}"] if self.after else []
            restart = [
                "# The gateway starts it when its turn comes: by itself it would take a GPU that another one has."
            ]
            restart, install = [*restart, "Restart=no"], []
        else:
            waits, restart = [], ["Restart=on-failure", "RestartSec=15"]
            install = ["", "[Install]", "WantedBy=multi-user.target"]
        if self.program is None:
            # The gateway's group reaches its socket. The engine is not of that group, which reaches every engine and
            # the keeper; systemd gives the folder back to the engine's own group with each command, so this is last.
            reached = f"{self.served.socket} {socket_folder(self.served.model)}"
            body, let_in = self._by_program, [f"ExecStartPost=+/bin/chgrp --no-dereference {GROUP} {reached}"]
        else:
            body, let_in = self._in_container(self.program), []
        lines = [
            "# Written by winhost: an engine behind winhost-gateway.service, which alone reaches it.",
            "[Unit]",
            f"Description=vLLM for {self.quoted_model}",
            f"After={' '.join(('network-online.target', *docker, *server, *self.after))}",
            *(f"Requires={name}" for name in (*docker, *server)),
            *(f"JoinsNamespaceOf={name}" for name in server if self.program is None),
            *waits,
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            *body,
            f"ExecStartPost=/usr/bin/python3 -I {self.folder}/{_READY} {self.served.socket}",
            *let_in,
            *restart,
            # An engine that starts may not obey before it is killed.
            f"TimeoutStartSec={START_SECONDS}",
            f"TimeoutStopSec={self._stop + 30}",
            "KillMode=mixed",
            *install,
            "",
        ]
        return "\n".join(lines)

    @property
    def _stop(self) -> int:
        """Seconds until the engine is killed."""
        stop = self.spec.container.stop
        assert stop is not None, "every profile says when an engine is killed"
        return stop

    @property
    def _name(self) -> str:
        return f"winhost-engine-{slug(self.served.model)}"

    def _in_container(self, program: str) -> list[str]:
        folder, kept = socket_folder(self.served.model), kv_folder(self.served.served_name)
        if self.by == "compose":
            file = f"--project-name {self._name} --file {self.folder}/compose.yaml"
            start = f"{program} compose {file} up --no-color --no-log-prefix --abort-on-container-exit"
        else:
            words = [f"--name={self._name}", "--rm", "--pull=never", "--cap-drop=ALL"]
            words += ["--security-opt=no-new-privileges", *docker_words(self.spec)]
            start = " ".join([program, "run", *map(_word, words)])
        # A container outlives docker's client when that is killed, with the GPU's memory: remove it before and after.
        sweep = f"-{program} rm --force {self._name}"
        tiers = [f"ExecStartPre=/usr/bin/install -d -m 0700 -o root -g root {kept}"]
        return [
            f"ExecStartPre={sweep}",
            f"ExecStartPre=/usr/bin/install -d -m 0755 {SOCKETS}",
            f"ExecStartPre=/usr/bin/install -d -m 2750 -o root -g {GROUP} {folder}",
            *(tiers if self.mirror is Mirror.TIERS else []),
            f"ExecStartPre=/bin/rm -f {self.served.socket}",
            f"ExecStart={start}",
            f"ExecStop=-{program} stop --time {self._stop} {self._name}",
            f"ExecStopPost={sweep}",
            f"ExecStopPost=-/bin/rm -f {self.served.socket}",
        ]

    @property
    def _by_program(self) -> list[str]:
        """A program of the machine itself, as a user that exists only while it runs."""
        cache, kept = f"/var/cache/{self._name}", kv_folder(self.served.served_name).rpartition("/")[2]
        environment = {**self.spec.environment, "HOME": cache, "VLLM_CACHE_ROOT": f"{cache}/vllm"}
        program = [self.by]
        if self.spec.packed:  # the commands of an environment that winhost made see no PYTHONPATH, which has the loader
            program = [str(PurePosixPath(self.by).with_name("python3")), "-m", "vllm.entrypoints.cli.main"]
        words = map(_word, self.spec.arguments(self.spec.folder))
        command = " ".join([*map(_word, program), "serve", *words])
        tiers = [f"StateDirectory={kept}", "StateDirectoryMode=0700"]
        return [
            *(self._from_image(command) if self.image_on_disk else [f"ExecStart={command}"]),
            *(f"Environment={_word(each)}" for each in _variables("", environment)),
            *([f"User={self.user}"] if self.mirror or self.image_on_disk else []),
            *([] if self.image_on_disk else ["DynamicUser=yes"]),
            *(tiers if self.mirror is Mirror.TIERS else []),
            f"RuntimeDirectory=winhost-engines/{slug(self.served.model)}",
            "RuntimeDirectoryMode=0750",
            f"CacheDirectory={self._name}",
            "UMask=0007",
            # Its processes listen on addresses of the machine; here nobody else has these.
            "PrivateNetwork=yes",
            "PrivateTmp=yes",
            "NoNewPrivileges=yes",
            f"CapabilityBoundingSet={_OF_CRIU if self.image_on_disk else ''}",
            "ProtectSystem=strict",
            "ProtectHome=yes",
            "ProtectControlGroups=yes",
            *([] if self.image_on_disk else _FILTERED),
            "LimitMEMLOCK=infinity",
            "LimitNOFILE=65536",
            "LimitCORE=0",
        ]

    def _from_image(self, command: str) -> list[str]:
        """Start from the image as root, who alone reads and writes it; the engine gets the user of the unit."""
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


def _variables(lead: str, environment: Mapping[str, str]) -> list[str]:
    return [f"{lead}{name}={value}" for name, value in environment.items()]


def _word(text: str) -> str:
    """Quote a word for a unit's command line, so that systemd expands nothing in it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return '"' + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in escaped) + '"'
