"""Rules on containers: their image, their GPUs, /dev/shm, memory, ports, and how they end."""

import math
import re
from collections.abc import Iterator, Sequence

from packaging.version import Version

from winhost.findings.finding import Observation, TextEdit
from winhost.model.units import Bytes, GiB
from winhost.recipes.command_editor import replaced
from winhost.recipes.misspelt import suggested
from winhost.recipes.read_commands import has_entrypoint
from winhost.recipes.recipe_case import RecipeCase
from winhost.recipes.recipe_model import RecipeForm, Setting
from winhost.recipes.recipe_rows import UNKNOWN_VERSION
from winhost.recipes.words import IMAGE, container_options, is_behind_image, is_flag_cluster
from winhost.recipes.written_sizes import docker_size, in_gib, kubernetes_size, seconds
from winhost.serving.computed import SHM_LEAST, SHM_MARGIN, SHM_STEP
from winhost.serving.vllm_options import names

DOCKER_SHM: Bytes = 64 * 1024**2
DOCKER_GRACE, POD_GRACE, LEAST_GRACE = 10, 30, 30
FIRST_DRAINING, DRAINING = Version("0.18.1"), 20  # that knows --shutdown-timeout, and what is advised for it
# NCCL's buffers and the engine's rings of two GPUs take about 1.2 GiB; less than that fails.
_LEAST_PER_GPU: Bytes = 600 * 1024**2


def container_names(case: RecipeCase) -> Iterator[Observation]:
    """Options of docker that it does not have, and options on the wrong side of the image."""
    known, engine = container_options(), case.engine
    if engine.form is not RecipeForm.COMMAND or not engine.in_container:
        return
    options_of_vllm = names("engine") if case.other is None else ()
    for setting in engine.container:
        written = setting.written
        if setting.name in known.flags | known.valued or not written.startswith("-") or is_flag_cluster(written):
            continue
        words = {
            "name": written,
            "tool": engine.program,
            "near": suggested(written, known.flags | known.valued),
        }
        wrong_side = written.replace("_", "-") in options_of_vllm
        yield Observation(
            "engine-option-before-image" if wrong_side else "unknown-container-option", setting.text.start, words
        )
    for setting in engine.options if case.other is None else ():
        if is_behind_image(engine, setting):
            words = {"name": setting.written, "tool": engine.program}
            yield Observation("container-option-behind-image", setting.text.start, words)


def image(case: RecipeCase) -> Iterator[Observation]:
    """An image whose tag says no version."""
    found = case.engine.boxed(IMAGE)
    value = found.value or "" if found else ""
    if found is None or found.shown is None or "@sha256:" in value or "$" in value:
        return
    tag = value.rpartition("/")[2].partition(":")[2]
    if tag and not tag.startswith(("latest", "nightly", "main")):
        return
    whole = value.removesuffix(f":{tag}") if tag else value
    version = f"v{case.target.stated}" if case.target.stated else "v0.33.0"
    better = f"{whole}:{version}"
    edits = replaced(found.shown, better) if case.target.stated and has_entrypoint(value) else ()
    yield Observation("image-without-version", found.shown.start, {"value": value, "better": better}, edits)


def gpus(case: RecipeCase) -> Iterator[Observation]:
    """Check that the container gets GPUs, and the ones it names."""
    engine = case.engine
    given = [each for each in engine.container if _gives_gpu(each)]
    if engine.in_container and not given and not case.on_others:
        if _wants_gpu(case):
            yield _no_gpu(case, "no-gpu")
        elif engine.kind == "ollama":  # whose image has both
            yield _no_gpu(case, "on-processor")
    for setting in given:
        yield from _given(setting, case)


def _gives_gpu(setting: Setting) -> bool:
    value = setting.value or ""
    if setting.name == "--runtime":
        return value.startswith("nvidia")
    if setting.name == "--device":
        return "nvidia" in value or "/dev/dxg" in value
    return setting.name in ("--gpus", "--gpus requested")


def _wants_gpu(case: RecipeCase) -> bool:
    """Tell whether it needs a GPU to be of use. For engines other than vLLM the image or the command line tells."""
    image = case.engine.boxed(IMAGE)
    told = " ".join(
        [(image.value or "").rpartition(":")[2] if image else "", *(word.value for word in case.engine.words)]
    )
    return case.other is None or re.search(case.other.cuda, told) is not None


def _no_gpu(case: RecipeCase, code: str) -> Observation:
    engine = case.engine
    advice = {
        RecipeForm.COMPOSE: "Add deploy.resources.reservations.devices with driver, count and capabilities.",
        RecipeForm.KUBERNETES: "Add nvidia.com/gpu to the container's limits.",
        RecipeForm.HELM: "Set requestGPU of the model.",
        RecipeForm.QUADLET: "Add AddDevice=nvidia.com/gpu=all.",
    }.get(engine.form, "Add --gpus=all (podman: --device=nvidia.com/gpu=all).")
    if elsewhere := _gpu_elsewhere(case):
        return Observation("gpu-elsewhere", engine.at.start, {"instead": advice, "elsewhere": elsewhere})
    podman = "podman" in engine.program or engine.form is RecipeForm.QUADLET
    option = ("--device", "nvidia.com/gpu=all") if podman else ("--gpus", "all")
    edits = engine.editor.add_to_container(*option) if engine.form is not RecipeForm.COMPOSE else ()
    return Observation(code, engine.at.start, {"instead": advice}, edits)


_SEVERAL_FILES = re.compile(r"(?:-f|--file)[ =]\S+ +(?:-f|--file)[ =]\S+|COMPOSE_FILE=\S+:\S+")

_UNFINISHED = re.compile(r"#.*\bTODO\b|<your-")


def _gpu_elsewhere(case: RecipeCase) -> str:
    """Say what else may give the container its GPU, or make it need none; empty where nothing suggests that."""
    engine = case.engine
    if engine.form is RecipeForm.COMPOSE:
        service = re.compile(rf"^ +[\"']?{re.escape(engine.at.value)}[\"']?:", re.MULTILINE)
        for name, text in case.target.beside.items():
            if service.search(text) and re.search(r"nvidia|\bgpus?\b", text):
                return f"{name} beside it does"
        if _SEVERAL_FILES.search(case.source.text):
            return "the other file that it names may"
        if "built" in engine.places and engine.boxed(IMAGE) is None:
            return "another file may, or the image that is built here is for processors"
    if "no resources" in engine.places:
        return "a patch or the default runtime of the cluster may"
    if case.is_pod and _UNFINISHED.search(case.source.text):
        return "what it leaves to its reader (TODO) may"
    return ""


def _counted(value: str) -> int | None:
    """Return the number of GPUs that are given; None for all of them."""
    if value.isdigit():
        return int(value)
    return len(value.split(",")) if "device=" in value and not value.strip('"').endswith("all") else None


def _given(setting: Setting, case: RecipeCase) -> Iterator[Observation]:
    value, offset, gpus = setting.value or "", setting.text.start, case.engine.gpus
    if setting.name == "--gpus requested":
        yield from _requested(setting, case)
    if case.is_pod and _is_quantity(setting) and not re.fullmatch(r"\d+", value):
        yield Observation("gpu-not-whole", offset, {"value": value})
    if setting.name != "--gpus":
        return
    count = _counted(value)
    if count is not None and case.wsl:
        yield from _given_on_wsl(setting, value, count, case)
    elif count is not None and count < gpus and not case.engine.spread:
        yield Observation("too-few-gpus", offset, {"taken": gpus, "what": f"the container gets {count}"})


def _is_quantity(setting: Setting) -> bool:
    """A number of GPUs, and neither the name of a claim nor a value that a tag or variable has."""
    return setting.name.startswith("--gpus") and "/" in setting.text.value and "$" not in (setting.value or "")


def _requested(setting: Setting, case: RecipeCase) -> Iterator[Observation]:
    """Compare a pod's request of GPUs with its limit."""
    value, limit = setting.value or "", case.engine.boxed("--gpus")
    if limit is None:
        yield Observation("limits-lack-gpu", setting.text.start)
    elif limit.text.value == setting.text.value and value != limit.value and value.isdigit():
        yield Observation("request-differs", setting.text.start, {"value": value, "limit": limit.value})


def _given_on_wsl(setting: Setting, value: str, count: int, case: RecipeCase) -> Iterator[Observation]:
    """A part of the GPUs, which cannot be chosen there; all that the host has are what the container gets."""
    offset, gpus = setting.text.start, case.target.gpus
    numbers = [int(each) for each in re.findall(r"\b\d{1,3}\b", value)] if "device=" in value else []
    there = len(gpus) if gpus is not None else max(numbers, default=-1) + 1  # GPU 1 is one of two
    if case.is_pod:
        if count > 1:
            yield Observation("too-many-requested", offset, {"value": f"{count} GPUs"}, replaced(setting.shown, "1"))
    elif count < there:
        yield Observation("gpus-on-wsl", offset, {"value": value}, replaced(setting.shown, "all"))
    elif gpus is None:
        yield Observation("gpus-all-on-wsl", offset, {"value": value})


def visible_gpus(case: RecipeCase) -> Iterator[Observation]:
    """A variable, or the devices of the container, name fewer GPUs than the engine takes."""
    engine = case.engine
    for setting, named, what in _named_gpus(case):
        every = "all" in named or any("$" in name for name in named)
        if engine.known and not engine.spread and named and not every and len(named) < engine.gpus:
            words = {"taken": engine.gpus, "what": f"{what} {len(named)}"}
            yield Observation("too-few-gpus", setting.text.start, words)


def _named_gpus(case: RecipeCase) -> Iterator[tuple[Setting, set[str], str]]:
    """Find what names single GPUs. In WSL and in pods NVIDIA's variable and devices choose nothing; --gpus precedes."""
    engine, variables = case.engine, ["CUDA_VISIBLE_DEVICES"]
    if not (case.wsl or case.is_pod or engine.boxed("--gpus")):
        variables.append("NVIDIA_VISIBLE_DEVICES")
        found = [(each, named[1] or named[2]) for each in engine.all_boxed("--device") if (named := _is_gpu(each))]
        if found and not engine.boxed("--runtime"):
            yield found[0][0], {name for _, name in found}, "the container gets"
    for variable in filter(None, map(engine.variable, variables)):
        said = {each.strip() for each in (variable.value or "").split(",") if each.strip()}
        if not said & {"none", "void"}:
            yield variable, said, f"{variable.name} names"


def _is_gpu(device: Setting) -> re.Match[str] | None:
    return re.match(r"nvidia\.com/gpu=([\w:.-]+)|/dev/nvidia(\d+)(?:$|:)", device.value or "")


def shm(case: RecipeCase) -> Iterator[Observation]:
    """The memory at /dev/shm, where the processes of an engine exchange data."""
    engine = case.engine
    if not engine.in_container or engine.form is RecipeForm.ENVIRONMENT:
        return
    if on_disk := engine.boxed("shm on disk"):
        yield Observation("shm-on-disk", on_disk.text.start)
        return
    found, ipc = engine.boxed("--shm-size"), engine.boxed("--ipc")
    if ipc is not None and ipc.value == "host":
        if found is not None and not case.is_pod:
            edits = engine.editor.remove(found)
            yield Observation("shm-with-host-ipc", found.text.start, {"value": f"{found.written}={found.value}"}, edits)
    elif found is None:
        yield from _no_shm(case)
    elif found.value is None:
        yield Observation("shm-unlimited", found.text.start)
    elif "$" not in found.value:
        yield from _shm_of(found, found.value, case)


def enough(case: RecipeCase) -> Bytes:
    """The size of /dev/shm by the formula of the profiles, without the parts that only a workload tells."""
    return max(SHM_LEAST, -(-case.engine.gpus * SHM_MARGIN // SHM_STEP) * SHM_STEP)


def _written(size: Bytes, case: RecipeCase) -> str:
    return f"{size // GiB}{'Gi' if case.is_pod else 'g'}"


def _no_shm(case: RecipeCase) -> Iterator[Observation]:
    gpus = case.engine.together
    if gpus < 2:
        return
    better = _written(enough(case), case)
    instead = (
        f"Mount an emptyDir with medium Memory and sizeLimit {better} at /dev/shm."
        if case.is_pod
        else f"Set its size to {better} (--shm-size, shm_size), or share the host's (--ipc=host)."
    )
    edits = case.engine.editor.add_to_container("--shm-size", better)
    words = {"size": in_gib(DOCKER_SHM), "taken": gpus, "instead": instead}
    yield Observation("shm-missing", case.engine.at.start, words, edits)


def _shm_of(found: Setting, value: str, case: RecipeCase) -> Iterator[Observation]:
    size = kubernetes_size(value) if case.is_pod else docker_size(value)
    better, offset, gpus = _written(enough(case), case), found.text.start, case.engine.gpus
    mend = replaced(found.shown, better)
    if size is None:
        form = " of Kubernetes" if case.is_pod else ""
        yield Observation("shm-bad", offset, {"value": value, "form": form, "better": better}, mend)
    elif size < 1024**2:
        yield Observation("shm-unit", offset, {"value": value, "bytes": in_gib(size), "better": better}, mend)
    elif gpus > 1 and size < gpus * _LEAST_PER_GPU:
        words = {"size": in_gib(size), "taken": gpus, "needed": in_gib(gpus * _LEAST_PER_GPU), "better": better}
        yield Observation("shm-small", offset, words, mend)
    memory, size = case.engine.boxed("--memory"), size or docker_size(value)
    limit = (kubernetes_size if case.is_pod else docker_size)(memory.value or "") if memory else None
    if memory and limit and size and limit <= size:
        yield Observation("memory-below-shm", memory.text.start, {"memory": in_gib(limit), "shm": in_gib(size)})


def ports(case: RecipeCase) -> Iterator[Observation]:
    """Ports that are published and lead nowhere."""
    engine = case.engine
    network, host = engine.boxed("--network"), engine.option("--host")
    if case.is_pod or not engine.known:
        return
    for port in engine.all_boxed("--publish"):
        value = port.value or ""
        inner = value.rpartition(":")[2].partition("/")[0]
        if network is not None and network.value == "host":
            outer = value.rpartition(":")[0].rpartition(":")[2]
            code = "port-not-mapped" if outer not in ("", case.port) else "ports-with-host-network"
            words = {"value": value, "port": case.port, "engine": case.title}
            yield Observation(code, port.text.start, words, engine.editor.remove(port))
        elif case.port_known and inner.isdigit() and inner != case.port and len(engine.all_boxed("--publish")) == 1:
            edits = _inner_port(port, inner, case.port)
            words = {"value": inner, "port": case.port, "engine": case.title}
            yield Observation("other-port", port.text.start, words, edits)
        elif host is not None and host.value in ("127.0.0.1", "localhost"):
            mend = replaced(host.shown, "0.0.0.0")  # noqa: S104 - within a container
            yield Observation("loopback-in-container", host.text.start, {"value": host.value}, mend)
        elif host is None and case.other and case.other.local and not case.other.host_from and not _from_shell(case):
            yield Observation("loopback-in-container", port.text.start, {"value": "127.0.0.1 (its default)"})


def _from_shell(case: RecipeCase) -> bool:
    """More options of another engine may come from variables."""
    return any(word.value.startswith("$") for word in case.engine.words)


def _inner_port(port: Setting, inner: str, right: str) -> Sequence[TextEdit]:
    value = port.value or ""
    return replaced(port.shown, value.removesuffix(inner) + right) if ":" in value and value.endswith(inner) else ()


def ending(case: RecipeCase) -> Iterator[Observation]:
    """Check that requests may finish when the engine is stopped, and that its container waits that long."""
    engine, drains = case.engine, case.engine.option("--shutdown-timeout")
    killed = engine.in_container and engine.form not in (RecipeForm.SYSTEMD, RecipeForm.ENVIRONMENT)
    if killed and engine.boxed("--restart") and (removed := engine.boxed("--rm")):
        yield Observation("restart-with-rm", engine.container[0].text.start, {}, engine.editor.remove(removed))
    found = engine.boxed("--stop-timeout") if killed else None
    grace = seconds(found.value or "") if found else POD_GRACE if case.is_pod else DOCKER_GRACE
    if grace is None or not killed:
        grace = math.inf  # as long as it takes, or nobody knows
    timeout = engine.number("--shutdown-timeout", 0)
    better = {RecipeForm.COMPOSE: "stop_grace_period: 60s", RecipeForm.KUBERNETES: "terminationGracePeriodSeconds: 60"}
    words = {"seconds": f"{grace:g}", "timeout": timeout, "better": better.get(engine.form, "--stop-timeout=60")}
    offset = found.text.start if found else engine.at.start
    short = engine.sleeps and grace < LEAST_GRACE and not case.is_pod
    if timeout and timeout >= grace:
        yield Observation("grace-below-timeout", offset, words, _longer(found, timeout + 30, case))
    elif short:
        yield Observation("short-grace", offset, words, _longer(found, 60, case))
    if drains is None and engine.known and (case.version is None or case.version >= FIRST_DRAINING):
        more = grace <= DRAINING and not short
        edits = engine.editor.add_option(f"--shutdown-timeout={DRAINING}")
        if edits and more:  # with one of the two alone, the engine is killed while it waits
            longer = _longer(found, 60, case)
            edits = (*edits, *longer) if longer else ()
        doubt = case.elsewhere("--shutdown-timeout") if case.version else UNKNOWN_VERSION
        allow = f", and allow 60 s: {words['better']}" if more else ""
        yield Observation("drops-requests", engine.at.start, {"seconds": DRAINING, "allow": allow}, edits, doubt)


def _longer(found: Setting | None, wanted: int, case: RecipeCase) -> Sequence[TextEdit]:
    value = f"{wanted}s" if case.engine.form is RecipeForm.COMPOSE else str(wanted)
    if found is not None:
        return replaced(found.shown, value)
    return case.engine.editor.add_to_container("--stop-timeout", value)


def no_cache(case: RecipeCase) -> Iterator[Observation]:
    """A model that is fetched anew for each container."""
    engine, option = case.engine, case.engine.option("--model")
    name = (engine.model.value if engine.model else option.value if option else None) or ""
    remote = bool(name) and not name.startswith(("/", ".", "~", "$", "s3:"))
    wanted = engine.form in (RecipeForm.COMMAND, RecipeForm.COMPOSE, RecipeForm.QUADLET)
    kept = engine.boxed("--volume") or engine.boxed("--mount")
    if engine.in_container and wanted and engine.known and remote and not kept:
        yield Observation("no-cache", engine.at.start)


def outside(case: RecipeCase) -> Iterator[Observation]:
    """Variables that are set for the shell, which a container does not get."""
    if not case.engine.in_container:
        return
    for setting in case.engine.outside:
        meant = setting.name.startswith(("VLLM_", "NCCL_", "PYTORCH_", "HF_", "HUGGING", "CUDA_VISIBLE"))
        if meant and case.engine.variable(setting.name) is None and not case.reads(setting.name):
            run = case.engine.editor.add_to_container("--env", setting.name)
            yield Observation("not-passed", setting.text.start, {"name": setting.name}, run)


RULES = (container_names, image, gpus, visible_gpus, shm, ports, ending, no_cache, outside)
