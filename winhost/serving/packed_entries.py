"""Packed models on the Linux that serves: winhost's loader for the engine, and the step that packs on its GPU."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from winhost.core.answers import Json
from winhost.model.errors import visible
from winhost.model.reason import Finding, Severity
from winhost.serving.containers import docker_options, docker_program, docker_variables, restricted_run
from winhost.serving.engine_files import ServedEngine
from winhost.serving.engine_names import MODEL, model_folder, packed_folder
from winhost.serving.engine_spec import Mount
from winhost.serving.entries import PythonWheels, entry, file_entry
from winhost.serving.packed_weights import ENTRY_POINTS, METADATA, package_texts
from winhost.serving.profile import LOADER, Kind
from winhost.serving.profile_lines import ProfileLine

_PACKED = "/packed"  # the target folder in the container that packs
# Root without capabilities and without a network, with a read-only file system except for one folder.
_SANDBOX = (
    *("PrivateNetwork=yes", "PrivateTmp=yes", "NoNewPrivileges=yes", "CapabilityBoundingSet=", "ProtectSystem=strict"),
    *("ProtectHome=yes", "ProtectKernelTunables=yes", "ProtectControlGroups=yes"),
)


def loader_folder() -> str:
    """Return the folder of the loader. It is named by its content, so that running engines keep theirs."""
    digest = hashlib.sha256(repr((sorted(package_texts().items()), METADATA, ENTRY_POINTS)).encode()).hexdigest()
    return f"/opt/winhost/weights-{digest[:16]}"


def loader_entries(nvcomp: PythonWheels) -> Iterator[Json]:
    """Yield the entries that install the loader. nvcomp: the environment with nvCOMP's wheels, which any Python of that
    machine and of its containers can read.
    """
    yield from nvcomp.entries("nvCOMP")
    folder, why = loader_folder(), "vLLM loads packed weights with it."
    package: dict[str, Any] = {"files": dict(package_texts()), "only_root": True}
    yield entry("LinuxFolder", "Loader of packed weights", {"path": f"{folder}/winhost_weights"}, package, why)
    for name, text in (("METADATA", METADATA), ("entry_points.txt", ENTRY_POINTS)):
        path = f"{folder}/winhost_weights.dist-info/{name}"
        yield file_entry(f"Loader of packed weights: {name}", path, text, "vLLM finds the loader by it.")


def loader_lines(nvcomp: PythonWheels) -> Iterator[ProfileLine]:
    """Yield the lines by which an engine finds the loader. A container mounts the same folders."""
    folders = (loader_folder(), nvcomp.site)
    for folder in folders:
        yield _line("container", "mount", Mount(folder, folder, read_only=True))
    yield _line("env", "PYTHONPATH", ":".join(folders))


def _line(kind: Kind, name: str, value: str | Mount) -> ProfileLine:
    reason = Finding(
        code=LOADER.code,
        severity=Severity.NOTE,
        observed="load_format packed",
        subject="",
        remedy=None,
        evidence=LOADER.evidence,
        sentence=LOADER.why,
    )
    return ProfileLine(kind, name, value, reason, "by what is in it")


def packed_entry(engine: ServedEngine, files: Mapping[str, Any]) -> Json:
    """Make the entry that packs a model's weights. files: the desired ModelFiles of the original. Raises ValueError."""
    name = engine.served.model
    lines = [
        line for line in files["files"] or () if line.endswith(".safetensors") and "/" not in line.split(" ", 2)[2]
    ]
    if not lines or not all(line.startswith("sha256:") for line in lines):
        raise ValueError(f"{visible(name)} has no safetensors files, and load_format: packed packs those alone")
    source, folder = model_folder(name), packed_folder(name)
    desired: dict[str, Any] = {"source": source, "files": lines, "command": [*_pack_command(engine, source, folder)]}
    why = "Its GPU packs the weights, which then load sooner; the original stays."
    return entry("PackedModel", f"Packed weights of {name}", {"folder": folder}, desired, why)


def _pack_command(engine: ServedEngine, source: str, folder: str) -> Iterator[str]:
    """Yield the command that packs on the engine's GPUs: by the engine's own Python, or in a container of its image."""
    spec = engine.spec
    environment = {**spec.gpu_environment, "PYTHONPATH": spec.environment["PYTHONPATH"]}
    pack = ("-m", "winhost_weights", "pack")
    if engine.container_client is None:
        yield from ("systemd-run", "--quiet", "--wait", "--pipe", "--collect")
        yield from (f"--property={each}" for each in (*_SANDBOX, f"ReadWritePaths={folder}"))
        yield from (f"--setenv={name}={value}" for name, value in environment.items())
        yield from (spec.environment_program("python3"), *pack, source, folder)
        return
    loader = (each for each in spec.container.mounts if each.source.startswith("/opt/winhost/"))
    mounts = (*loader, Mount(source, MODEL, read_only=True), Mount(folder, _PACKED))
    yield PurePosixPath(engine.container_client).name
    yield from restricted_run("--network=none", "--user=0:0")
    yield from docker_options(replace(spec.container.gpu_access, mounts=mounts))
    yield from docker_variables(environment)
    yield from docker_program(spec, "python3", *pack, MODEL, _PACKED)
