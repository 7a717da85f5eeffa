"""Render an engine's specification as a container of a pod, with its resources and volumes."""

from collections.abc import Iterator, Mapping, Sequence

from winhost.cluster.isolation import container_security
from winhost.cluster.render_request import GPU, literal
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes, GiB, MiB
from winhost.serving.engine_spec import Container, Mount

_SHM = Mount("shm", "/dev/shm")  # noqa: S108 - where a container has it


@dataclass(frozen=True)
class PodMount(Mount):
    """subpath: the folder of the volume that is mounted."""

    subpath: str = ""


def pod_container(
    name: str,
    image: str,
    command: Sequence[str],
    container: Container,
    requests: Mapping[str, str],
    variables: Sequence[Json] = (),
    *,
    writes: bool = True,
) -> dict[str, Json]:
    """Return the container of a pod with the mounts, GPUs, memory limit and /dev/shm of `container`.

    requests: the CPUs and the memory that its node must have, as quantities; variables: as `pod_variables` yields them;
    writes: it may write into the file system of its image.
    """
    limits: dict[str, Json] = {GPU: container.gpus} if container.gpus else {}
    if container.memory is not None:
        limits["memory"] = quantity(container.memory)
    mounts = (*((_SHM,) if container.shm else ()), *container.mounts)
    return {
        "name": name,
        "image": image,
        "command": [*command],
        **({"env": [*variables]} if variables else {}),
        "resources": {"requests": {**requests}, "limits": limits},
        "securityContext": container_security(writes=writes),
        "volumeMounts": [*map(_volume_mount, mounts)],
    }


def pod_variables(environment: Mapping[str, str], fields: Sequence[str] = ()) -> Iterator[Json]:
    """Yield the environment variables of a container. fields: variables whose value names a field of the pod, such as
    `status.podIP`.
    """
    for name, value in environment.items():
        if name in fields:
            yield {"name": name, "valueFrom": {"fieldRef": {"fieldPath": value}}}
        else:
            yield {"name": name, "value": literal(value)}


def pod_volumes(container: Container, sources: Mapping[str, Mapping[str, Json]]) -> list[Json]:
    """Return the volumes of a container. sources: what each volume of its mounts is, by its name."""
    memory: dict[str, Json] = {"medium": "Memory", "sizeLimit": quantity(container.shm or 0)}
    shm: list[Json] = [{"name": _SHM.source, "emptyDir": memory}] if container.shm else []
    names = dict.fromkeys(mount.source for mount in container.mounts)
    return [*shm, *({"name": name, **sources[name]} for name in names)]


def quantity(size: Bytes) -> str:
    """Write a size in the units of Kubernetes, rounded down to whole MiB."""
    return f"{size // GiB}Gi" if size % GiB == 0 else f"{size // MiB}Mi"


def _volume_mount(mount: Mount) -> Json:
    subpath: dict[str, Json] = {"subPath": mount.subpath} if isinstance(mount, PodMount) else {}
    read_only: dict[str, Json] = {"readOnly": True} if mount.read_only else {}
    return {"name": mount.source, "mountPath": mount.target, **subpath, **read_only}
