"""Reads and edits manifests of Kubernetes: each container that runs an engine, with the settings of its pod and
services.
"""

from collections.abc import Iterator, Sequence

from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.arguments import IMAGE
from winhost.recipes.command_editor import replace_value
from winhost.recipes.read_commands import read_entrypoint
from winhost.recipes.read_compose import add_to_command, read_items, remove_from_command
from winhost.recipes.recipe_model import Editor, Recipe, RecipeEngine, RecipeForm, Setting
from winhost.recipes.recipe_text import PlacedText, SourceFile
from winhost.recipes.yaml_nodes import YamlNode, add_pair, find_duplicate_keys, parse_documents, remove_entry

# Kinds whose pods are complete; a controller completes those of other kinds (Ray's, KServe's).
_COMPLETE_KINDS = ("Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob", "LeaderWorkerSet")
_MAX_DEPTH = 16  # keys around the containers of a pod
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
GPU = "nvidia.com/gpu"
_OTHER_ACCELERATORS = ("gpu", "mig-", "tpu", "npu")
SHM = "/dev/shm"  # noqa: S108 - its name


def read_kubernetes(source: SourceFile) -> Recipe:
    """Read every container that runs an engine. Raises NotYaml."""
    found: list[YamlNode] = []
    slips: list[Observation] = []
    for document in parse_documents(source):
        slips += find_duplicate_keys(document)
        found += document.get("items").items() if document.get("kind").value == "List" else [document]
    services = {each.get("metadata", "name").value: each for each in found if each.get("kind").value == "Service"}
    engines = []
    for each in found:
        kind, name = each.get("kind").value, each.get("metadata", "name").value
        for pod in _pods(each, set()):
            for container in pod.get("containers").items():
                if (engine := _engine(container, pod)) is not None:
                    engine.label = f"{kind} {name}"
                    engine.partial = kind not in _COMPLETE_KINDS
                    _services(engine, services, pod.get("enableServiceLinks"))
                    engines.append(engine)
    return Recipe(RecipeForm.KUBERNETES, tuple(engines), slips=tuple(slips))


def _pods(node: YamlNode, seen: set[int], depth: int = 0) -> Iterator[YamlNode]:
    """Yield every mapping with a list of containers, in any kind of object: a Job, a RayService, an
    InferenceService.
    """
    if id(node.node) in seen or depth > _MAX_DEPTH or not (node.is_map or node.is_list):
        return
    seen.add(id(node.node))
    if node.get("containers").is_list:
        yield node
    for inner in (*(value for _, value in node.pairs()), *node.items()):
        yield from _pods(inner, seen, depth + 1)


def _engine(container: YamlNode, pod: YamlNode) -> RecipeEngine | None:
    slips: list[Observation] = []
    engine = RecipeEngine(RecipeForm.KUBERNETES, "", _container_position(container), in_container=True)
    engine.container += [*_container(container, pod)]
    engine.variables += list(_environment(container.get("env")))
    every = [each.text for name in ("command", "args") for each in container.get(name).items() if each.is_scalar]
    entries = len([each for each in container.get("command").items() if each.is_scalar])
    words = read_items(every, slips)
    entry, inside = (words, []) if entries else (None, words)  # an empty list is the image's
    if read_entrypoint(engine, entry, inside, slips) is None:
        return None
    engine.slips += slips
    engine.probes = {name: dict(_flatten(container.get(name))) for name in PROBES if container.get(name)}
    engine.slips += _find_non_texts(container)
    engine.positions |= _positions(container)
    engine.editor = KubernetesEditor(container, engine)
    return engine


def _container_position(container: YamlNode) -> PlacedText:
    name = container.get("name")
    return name.text if name.is_scalar else PlacedText("", (), container.start, container.start)


def _flatten(node: YamlNode, before: str = "") -> Iterator[tuple[str, object]]:
    """Yield nested keys with their values, such as `httpGet.path`."""
    for name, value in node.pairs():
        if value.is_map and before.count(".") < 3:
            yield from _flatten(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value.value


def _positions(container: YamlNode) -> dict[str, PlacedText]:
    found = {name: container.get(name).key_text for name in PROBES if container.get(name)}
    return found if container.get("resources") else {**found, "no resources": _container_position(container)}


def _find_non_texts(container: YamlNode) -> Iterator[Observation]:
    """Report values that must be text, but that YAML reads as something else."""
    texts = [(each.get("name").value, each.get("value")) for each in container.get("env").items()]
    for name in ("command", "args"):
        texts += [(f"{name}[{number}]", each) for number, each in enumerate(container.get(name).items())]
    for name, value in texts:
        if value.is_scalar and not value.quoted and value.tag not in ("str", "null"):
            quoted = replace_value(value.text, f'"{value.value}"')
            yield Observation("value-is-no-text", value.text.start, {"name": name}, quoted)


def _services(engine: RecipeEngine, services: dict[str, YamlNode], links: YamlNode) -> None:
    """Apply the services of the file to the engine: a service's name becomes variables, its type publishes the port."""
    for name, service in services.items():
        if name == "vllm" and links.value.casefold() != "false":
            engine.slips.append(Observation("service-named-vllm", service.get("metadata", "name").text.start))
        kind = service.get("spec", "type")
        if kind.value in ("NodePort", "LoadBalancer"):
            engine.container.append(Setting("service", kind.value, kind.text, kind.text, (), "type"))


def _container(container: YamlNode, pod: YamlNode) -> Iterator[Setting]:
    """Yield the container's settings under the names of docker's options."""
    for option, node in (
        (IMAGE, container.get("image")),
        ("--memory", container.get("resources", "limits", "memory")),
        ("--gpus", _accelerators(container)),
        ("--gpus requested", container.get("resources", "requests", GPU)),
        ("--privileged", container.get("securityContext", "privileged")),
        ("--stop-timeout", pod.get("terminationGracePeriodSeconds")),
        ("--restart", pod.get("restartPolicy")),
        ("--runtime", pod.get("runtimeClassName")),
    ):
        if node.is_scalar:
            yield Setting(option, node.value, node.key_text, node.text, (node.text,), node.key_text.value)
    if sources := container.get("envFrom"):
        yield Setting("--env-file", "envFrom", sources.key_text, None, (), "envFrom")
    for option, name in (("--network", "hostNetwork"), ("--ipc", "hostIPC"), ("--pid", "hostPID")):
        node = pod.get(name)
        if node.value.casefold() == "true":
            yield Setting(option, "host", node.key_text, node.text, (node.text,), name)
    for port in container.get("ports").items():
        if host := port.get("hostPort"):
            yield Setting("--publish", host.value, host.key_text, host.text, (), "hostPort")
    yield from _mounts(container, pod)


def _accelerators(container: YamlNode) -> YamlNode:
    """Return the node of NVIDIA GPUs, else of another accelerator: a MIG instance, another maker's, or a claim."""
    limits, claims = container.get("resources", "limits"), container.get("resources", "claims")
    others = [value for name, value in limits.pairs() if name.partition("/")[2].startswith(_OTHER_ACCELERATORS)]
    given = [limits.get(GPU), *others, *(each.get("name") for each in claims.items())]
    return next((node for node in given if node.is_scalar), limits.get(GPU))


def _mounts(container: YamlNode, pod: YamlNode) -> Iterator[Setting]:
    volumes = {each.get("name").value: each for each in pod.get("volumes").items()}
    for mount in container.get("volumeMounts").items():
        path, volume = mount.get("mountPath"), volumes.get(mount.get("name").value)
        if not path.is_scalar:
            continue
        if path.value.rstrip("/") == SHM and volume is not None:
            yield from _shm(path, volume)
        elif volume is not None and (host := volume.get("hostPath", "path")).is_scalar:
            word = f"{host.value}:{path.value}"
            yield Setting("--volume", word, host.text, None, (), "hostPath")


def _shm(path: YamlNode, volume: YamlNode) -> Iterator[Setting]:
    """Yield the size of /dev/shm: that of a volume in memory, None if only the memory of the pod or node limits it."""
    size, medium = volume.get("emptyDir", "sizeLimit"), volume.get("emptyDir", "medium")
    if medium.value != "Memory":
        yield Setting("shm on disk", path.value, path.text, None, (), "mountPath")
    elif size.is_scalar:
        yield Setting("--shm-size", size.value, size.key_text, size.text, (size.text,), "sizeLimit")
    else:
        yield Setting("--shm-size", None, path.text, None, (), "mountPath")


def _environment(node: YamlNode) -> Iterator[Setting]:
    for each in node.items():
        name, value = each.get("name"), each.get("value")
        if not name.is_scalar:
            continue
        text = value.text if value.is_scalar else None
        yield Setting(name.value, value.value if text else None, name.text, text, (name.text,), name.value)


class KubernetesEditor(Editor):
    """Edits one container."""

    def __init__(self, container: YamlNode, engine: RecipeEngine) -> None:
        self._container, self._engine = container, engine

    def remove(self, setting: Setting) -> Sequence[TextEdit]:
        env = self._container.get("env")
        for each in env.items():
            if setting.texts and each.get("name").is_scalar and each.get("name").text.start == setting.texts[0].start:
                return remove_entry(each, env)
        found = (remove_from_command(self._container.get(name), setting) for name in ("args", "command"))
        return next((edits for edits in found if edits), ())

    def add_option(self, words: str) -> Sequence[TextEdit]:
        if args := self._container.get("args"):
            return add_to_command(args, self._engine, words)
        command = self._container.get("command")
        return add_to_command(command, self._engine, words) if command else ()

    def add_variable(self, name: str, value: str) -> Sequence[TextEdit]:
        env = self._container.get("env")
        if not env.items() or env.node.flow_style:
            entry = f'\n- name: {name}\n  value: "{value}"'
            return add_pair(self._container, "env", entry) if env.node is None else ()
        source, last = env.source, env.items()[-1]
        start, _ = source.line_bounds(env.items()[0].start)
        line = source.text[start : env.items()[0].start]
        if line.strip() != "-":
            return ()
        end = source.line_bounds(last.start + len(source.text[last.start : last.node.end_mark.index].rstrip()) - 1)[1]
        blank, nl = " " * len(line), source.newline
        return (TextEdit(end, end, f'{line}name: {name}{nl}{blank}value: "{value}"{nl}'),)

    def add_to_container(self, name: str, value: str) -> Sequence[TextEdit]:
        return ()
