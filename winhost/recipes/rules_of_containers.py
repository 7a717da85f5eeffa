"""Rules on containers: image, GPUs, /dev/shm, memory, ports and shutdown."""

import math
import re
from collections.abc import Iterator, Sequence

from packaging.version import Version

from winhost.findings.finding import Observation, TextEdit
from winhost.model.units import Bytes, GiB
from winhost.recipes.arguments import IMAGE, container_options, is_behind_image, is_flag_cluster
from winhost.recipes.command_editor import replace_value
from winhost.recipes.read_commands import has_entrypoint
from winhost.recipes.recipe_case import RecipeCase
from winhost.recipes.recipe_model import RecipeForm, Setting
from winhost.recipes.recipe_rows import UNKNOWN_VERSION
from winhost.recipes.sizes import docker_size, format_size, kubernetes_size, seconds
from winhost.recipes.spelling import suggest
from winhost.serving.computed import MIN_SHM, SHM_MARGIN, SHM_STEP
from winhost.serving.vllm_options import names

DOCKER_SHM: Bytes = 64 * 1024**2
DOCKER_GRACE, POD_GRACE, MIN_GRACE = 10, 30, 30
FIRST_DRAINING, DRAINING = Version("0.18.1"), 20  # the first version with --shutdown-timeout, and its recommended value
# NCCL's buffers and the engine's rings of two GPUs take about 1.2 GiB; less than that fails.
_MIN_SHM_PER_GPU: Bytes = 600 * 1024**2


def check_container_options(case: RecipeCase) -> Iterator[Observation]:
    """Report options that docker does not have, and options on the wrong side of the image."""
    known, engine = container_options(), case.engine
    if engine.form is not RecipeForm.COMMAND or not engine.in_container:
        return
    options_of_vllm = names("engine") if case.other_engine is None else ()
    for setting in engine.container:
        written = setting.written
        if setting.name in known.flags | known.valued or not written.startswith("-") or is_flag_cluster(written):
            continue
        words = {"name": written, "tool": engine.program, "near": suggest(written, known.flags | known.valued)}
        wrong_side = written.replace("_", "-") in options_of_vllm
        yield Observation(
            "engine-option-before-image" if wrong_side else "unknown-container-option", setting.text.start, words
        )
    for setting in engine.options if case.other_engine is None else ():
        if is_behind_image(engine, setting):
            words = {"name": setting.written, "tool": engine.program}
            yield Observation("container-option-behind-image", setting.text.start, words)


def check_image(case: RecipeCase) -> Iterator[Observation]:
    """Report an image whose tag is no version."""
    found = case.engine.container_setting(IMAGE)
    value = found.value or "" if found else ""
    if found is None or found.value_text is None or "@sha256:" in value or "$" in value:
        return
    tag = value.rpartition("/")[2].partition(":")[2]
    if tag and not tag.startswith(("latest", "nightly", "main")):
        return
    whole = value.removesuffix(f":{tag}") if tag else value
    version = f"v{case.target.stated}" if case.target.stated else "v0.33.0"
    better = f"{whole}:{version}"
    edits = replace_value(found.value_text, better) if case.target.stated and has_entrypoint(value) else ()
    yield Observation("image-without-version", found.value_text.start, {"value": value, "better": better}, edits)


def check_gpus(case: RecipeCase) -> Iterator[Observation]:
    """Check that the container gets GPUs, and that their number and form are right."""
    engine = case.engine
    gpu_settings = [each for each in engine.container if _gives_gpu(each)]
    if engine.in_container and not gpu_settings and not case.on_other_platform:
        if _needs_gpu(case):
            yield _gpu_missing(case, "no-gpu")
        elif engine.kind == "ollama":  # its image runs on processors as well
            yield _gpu_missing(case, "on-processor")
    for setting in gpu_settings:
        yield from _check_gpu_setting(setting, case)


def _gives_gpu(setting: Setting) -> bool:
    value = setting.value or ""
    if setting.name == "--runtime":
        return value.startswith("nvidia")
    if setting.name == "--device":
        return "nvidia" in value or "/dev/dxg" in value
    return setting.name in ("--gpus", "--gpus requested")


def _needs_gpu(case: RecipeCase) -> bool:
    """Tell whether an engine needs a GPU: always for vLLM, for others if the image or the command line requires
    CUDA.
    """
    image = case.engine.container_setting(IMAGE)
    text = " ".join(
        [(image.value or "").rpartition(":")[2] if image else "", *(word.value for word in case.engine.words)]
    )
    return case.other_engine is None or re.search(case.other_engine.cuda, text) is not None


def _gpu_missing(case: RecipeCase, code: str) -> Observation:
    engine = case.engine
    advice = {
        RecipeForm.COMPOSE: "Add deploy.resources.reservations.devices with driver, count and capabilities.",
        RecipeForm.KUBERNETES: "Add nvidia.com/gpu to the container's limits.",
        RecipeForm.HELM: "Set requestGPU of the model.",
        RecipeForm.QUADLET: "Add AddDevice=nvidia.com/gpu=all.",
    }.get(engine.form, "Add --gpus=all (podman: --device=nvidia.com/gpu=all).")
    if elsewhere := _gpu_elsewhere(case):
        return Observation("gpu-elsewhere", engine.position.start, {"instead": advice, "elsewhere": elsewhere})
    podman = "podman" in engine.program or engine.form is RecipeForm.QUADLET
    option = ("--device", "nvidia.com/gpu=all") if podman else ("--gpus", "all")
    edits = engine.editor.add_to_container(*option) if engine.form is not RecipeForm.COMPOSE else ()
    return Observation(code, engine.position.start, {"instead": advice}, edits)


_SEVERAL_FILES = re.compile(r"(?:-f|--file)[ =]\S+ +(?:-f|--file)[ =]\S+|COMPOSE_FILE=\S+:\S+")

_UNFINISHED = re.compile(r"#.*\bTODO\b|<your-")


def _gpu_elsewhere(case: RecipeCase) -> str:
    """Say what else may give the container its GPU, or why it may need none; empty if nothing suggests that."""
    engine = case.engine
    if engine.form is RecipeForm.COMPOSE:
        service = re.compile(rf"^ +[\"']?{re.escape(engine.position.value)}[\"']?:", re.MULTILINE)
        for name, text in case.target.other_files.items():
            if service.search(text) and re.search(r"nvidia|\bgpus?\b", text):
                return f"{name} beside it does"
        if _SEVERAL_FILES.search(case.source.text):
            return "the other file that it names may"
        if "built" in engine.positions and engine.container_setting(IMAGE) is None:
            return "another file may, or the image that is built here is for processors"
    if "no resources" in engine.positions:
        return "a patch or the default runtime of the cluster may"
    if case.is_pod and _UNFINISHED.search(case.source.text):
        return "what it leaves to its reader (TODO) may"
    return ""


def _gpu_count(value: str) -> int | None:
    """Return the number of GPUs in a value; None for all GPUs."""
    if value.isdigit():
        return int(value)
    return len(value.split(",")) if "device=" in value and not value.strip('"').endswith("all") else None


def _check_gpu_setting(setting: Setting, case: RecipeCase) -> Iterator[Observation]:
    value, offset, gpus = setting.value or "", setting.text.start, case.engine.gpus
    if setting.name == "--gpus requested":
        yield from _check_gpu_request(setting, case)
    if case.is_pod and _is_quantity(setting) and not re.fullmatch(r"\d+", value):
        yield Observation("gpu-not-whole", offset, {"value": value})
    if setting.name != "--gpus":
        return
    count = _gpu_count(value)
    if count is not None and case.wsl:
        yield from _check_gpus_on_wsl(setting, value, count, case)
    elif count is not None and count < gpus and not case.engine.spans_machines:
        yield Observation("too-few-gpus", offset, {"taken": gpus, "what": f"the container gets {count}"})


def _is_quantity(setting: Setting) -> bool:
    """Tell whether a setting is a number of GPUs, and not the name of a claim or a variable."""
    return setting.name.startswith("--gpus") and "/" in setting.text.value and "$" not in (setting.value or "")


def _check_gpu_request(setting: Setting, case: RecipeCase) -> Iterator[Observation]:
    """Compare a pod's request of GPUs with its limit."""
    value, limit = setting.value or "", case.engine.container_setting("--gpus")
    if limit is None:
        yield Observation("limits-lack-gpu", setting.text.start)
    elif limit.text.value == setting.text.value and value != limit.value and value.isdigit():
        yield Observation("request-differs", setting.text.start, {"value": value, "limit": limit.value})


def _check_gpus_on_wsl(setting: Setting, value: str, count: int, case: RecipeCase) -> Iterator[Observation]:
    """Report that a recipe chooses some of the GPUs in WSL, where a container always gets all GPUs of the host."""
    offset, gpus = setting.text.start, case.target.gpus
    numbers = [int(each) for each in re.findall(r"\b\d{1,3}\b", value)] if "device=" in value else []
    there = len(gpus) if gpus is not None else max(numbers, default=-1) + 1  # GPU 1 is one of two
    if case.is_pod:
        if count > 1:
            yield Observation(
                "too-many-requested", offset, {"value": f"{count} GPUs"}, replace_value(setting.value_text, "1")
            )
    elif count < there:
        yield Observation("gpus-on-wsl", offset, {"value": value}, replace_value(setting.value_text, "all"))
    elif gpus is None:
        yield Observation("gpus-all-on-wsl", offset, {"value": value})


def check_visible_gpus(case: RecipeCase) -> Iterator[Observation]:
    """Report that a variable, or the devices of the container, name fewer GPUs than the engine uses."""
    engine = case.engine
    for setting, named, what in _named_gpus(case):
        every = "all" in named or any("$" in name for name in named)
        if engine.has_command and not engine.spans_machines and named and not every and len(named) < engine.gpus:
            words = {"taken": engine.gpus, "what": f"{what} {len(named)}"}
            yield Observation("too-few-gpus", setting.text.start, words)


def _named_gpus(case: RecipeCase) -> Iterator[tuple[Setting, set[str], str]]:
    """Yield the settings that name single GPUs, with the names. NVIDIA's variable and devices have no effect in WSL, in
    pods, and with --gpus.
    """
    engine, variables = case.engine, ["CUDA_VISIBLE_DEVICES"]
    if not (case.wsl or case.is_pod or engine.container_setting("--gpus")):
        variables.append("NVIDIA_VISIBLE_DEVICES")
        found = [
            (each, named[1] or named[2]) for each in engine.container_settings("--device") if (named := _is_gpu(each))
        ]
        if found and not engine.container_setting("--runtime"):
            yield found[0][0], {name for _, name in found}, "the container gets"
    for variable in filter(None, map(engine.variable, variables)):
        chosen = {each.strip() for each in (variable.value or "").split(",") if each.strip()}
        if not chosen & {"none", "void"}:
            yield variable, chosen, f"{variable.name} names"


def _is_gpu(device: Setting) -> re.Match[str] | None:
    return re.match(r"nvidia\.com/gpu=([\w:.-]+)|/dev/nvidia(\d+)(?:$|:)", device.value or "")


def check_shm(case: RecipeCase) -> Iterator[Observation]:
    """Check the size of /dev/shm, through which the processes of an engine exchange data."""
    engine = case.engine
    if not engine.in_container or engine.form is RecipeForm.ENVIRONMENT:
        return
    if on_disk := engine.container_setting("shm on disk"):
        yield Observation("shm-on-disk", on_disk.text.start)
        return
    found, ipc = engine.container_setting("--shm-size"), engine.container_setting("--ipc")
    if ipc is not None and ipc.value == "host":
        if found is not None and not case.is_pod:
            edits = engine.editor.remove(found)
            yield Observation("shm-with-host-ipc", found.text.start, {"value": f"{found.written}={found.value}"}, edits)
    elif found is None:
        yield from _shm_missing(case)
    elif found.value is None:
        yield Observation("shm-unlimited", found.text.start)
    elif "$" not in found.value:
        yield from _check_shm_size(found, found.value, case)


def recommended_shm(case: RecipeCase) -> Bytes:
    """Return the size of /dev/shm by the formula of the profiles, without the parts that depend on a workload."""
    return max(MIN_SHM, -(-case.engine.gpus * SHM_MARGIN // SHM_STEP) * SHM_STEP)


def _format_shm(size: Bytes, case: RecipeCase) -> str:
    return f"{size // GiB}{'Gi' if case.is_pod else 'g'}"


def _shm_missing(case: RecipeCase) -> Iterator[Observation]:
    gpus = case.engine.gpus_per_copy
    if gpus < 2:
        return
    better = _format_shm(recommended_shm(case), case)
    instead = (
        f"Mount an emptyDir with medium Memory and sizeLimit {better} at /dev/shm."
        if case.is_pod
        else f"Set its size to {better} (--shm-size, shm_size), or share the host's (--ipc=host)."
    )
    edits = case.engine.editor.add_to_container("--shm-size", better)
    words = {"size": format_size(DOCKER_SHM), "taken": gpus, "instead": instead}
    yield Observation("shm-missing", case.engine.position.start, words, edits)


def _check_shm_size(found: Setting, value: str, case: RecipeCase) -> Iterator[Observation]:
    size = kubernetes_size(value) if case.is_pod else docker_size(value)
    better, offset, gpus = _format_shm(recommended_shm(case), case), found.text.start, case.engine.gpus
    mend = replace_value(found.value_text, better)
    if size is None:
        form = " of Kubernetes" if case.is_pod else ""
        yield Observation("shm-bad", offset, {"value": value, "form": form, "better": better}, mend)
    elif size < 1024**2:
        yield Observation("shm-unit", offset, {"value": value, "bytes": format_size(size), "better": better}, mend)
    elif gpus > 1 and size < gpus * _MIN_SHM_PER_GPU:
        words = {
            "size": format_size(size),
            "taken": gpus,
            "needed": format_size(gpus * _MIN_SHM_PER_GPU),
            "better": better,
        }
        yield Observation("shm-small", offset, words, mend)
    memory, size = case.engine.container_setting("--memory"), size or docker_size(value)
    limit = (kubernetes_size if case.is_pod else docker_size)(memory.value or "") if memory else None
    if memory and limit and size and limit <= size:
        yield Observation(
            "memory-below-shm", memory.text.start, {"memory": format_size(limit), "shm": format_size(size)}
        )


def check_ports(case: RecipeCase) -> Iterator[Observation]:
    """Report published ports on which the engine is not reached."""
    engine = case.engine
    network, host = engine.container_setting("--network"), engine.option("--host")
    if case.is_pod or not engine.has_command:
        return
    for port in engine.container_settings("--publish"):
        value = port.value or ""
        inner = value.rpartition(":")[2].partition("/")[0]
        if network is not None and network.value == "host":
            outer = value.rpartition(":")[0].rpartition(":")[2]
            code = "port-not-mapped" if outer not in ("", case.port) else "ports-with-host-network"
            words = {"value": value, "port": case.port, "engine": case.title}
            yield Observation(code, port.text.start, words, engine.editor.remove(port))
        elif (
            case.is_port_known
            and inner.isdigit()
            and inner != case.port
            and len(engine.container_settings("--publish")) == 1
        ):
            edits = _inner_port(port, inner, case.port)
            words = {"value": inner, "port": case.port, "engine": case.title}
            yield Observation("other-port", port.text.start, words, edits)
        elif host is not None and host.value in ("127.0.0.1", "localhost"):
            mend = replace_value(host.value_text, "0.0.0.0")  # noqa: S104 - within a container
            yield Observation("loopback-in-container", host.text.start, {"value": host.value}, mend)
        elif (
            host is None
            and case.other_engine
            and case.other_engine.local
            and not case.other_engine.host_from
            and not _has_shell_variables(case)
        ):
            yield Observation("loopback-in-container", port.text.start, {"value": "127.0.0.1 (its default)"})


def _has_shell_variables(case: RecipeCase) -> bool:
    """Tell whether variables may give another engine more options."""
    return any(word.value.startswith("$") for word in case.engine.words)


def _inner_port(port: Setting, inner: str, right: str) -> Sequence[TextEdit]:
    value = port.value or ""
    return (
        replace_value(port.value_text, value.removesuffix(inner) + right)
        if ":" in value and value.endswith(inner)
        else ()
    )


def check_shutdown(case: RecipeCase) -> Iterator[Observation]:
    """Check that requests can finish when the engine is stopped, and that its container waits for that."""
    engine, drains = case.engine, case.engine.option("--shutdown-timeout")
    killed = engine.in_container and engine.form not in (RecipeForm.SYSTEMD, RecipeForm.ENVIRONMENT)
    if killed and engine.container_setting("--restart") and (removed := engine.container_setting("--rm")):
        yield Observation("restart-with-rm", engine.container[0].text.start, {}, engine.editor.remove(removed))
    found = engine.container_setting("--stop-timeout") if killed else None
    grace = seconds(found.value or "") if found else POD_GRACE if case.is_pod else DOCKER_GRACE
    if grace is None or not killed:
        grace = math.inf  # no limit, or not known
    timeout = engine.number("--shutdown-timeout", 0)
    better = {RecipeForm.COMPOSE: "stop_grace_period: 60s", RecipeForm.KUBERNETES: "terminationGracePeriodSeconds: 60"}
    words = {"seconds": f"{grace:g}", "timeout": timeout, "better": better.get(engine.form, "--stop-timeout=60")}
    offset = found.text.start if found else engine.position.start
    short = engine.sleeps and grace < MIN_GRACE and not case.is_pod
    if timeout and timeout >= grace:
        yield Observation("grace-below-timeout", offset, words, _extend_grace(found, timeout + 30, case))
    elif short:
        yield Observation("short-grace", offset, words, _extend_grace(found, 60, case))
    if drains is None and engine.has_command and (case.version is None or case.version >= FIRST_DRAINING):
        more = grace <= DRAINING and not short
        edits = engine.editor.add_option(f"--shutdown-timeout={DRAINING}")
        if edits and more:  # with only one of the two edits, the engine is killed while it waits
            longer = _extend_grace(found, 60, case)
            edits = (*edits, *longer) if longer else ()
        doubt = case.other_source("--shutdown-timeout") if case.version else UNKNOWN_VERSION
        allow = f", and allow 60 s: {words['better']}" if more else ""
        yield Observation("drops-requests", engine.position.start, {"seconds": DRAINING, "allow": allow}, edits, doubt)


def _extend_grace(found: Setting | None, wanted: int, case: RecipeCase) -> Sequence[TextEdit]:
    value = f"{wanted}s" if case.engine.form is RecipeForm.COMPOSE else str(wanted)
    if found is not None:
        return replace_value(found.value_text, value)
    return case.engine.editor.add_to_container("--stop-timeout", value)


def check_model_cache(case: RecipeCase) -> Iterator[Observation]:
    """Report that a model is downloaded again for each container."""
    engine, option = case.engine, case.engine.option("--model")
    name = (engine.model.value if engine.model else option.value if option else None) or ""
    remote = bool(name) and not name.startswith(("/", ".", "~", "$", "s3:"))
    applies = engine.form in (RecipeForm.COMMAND, RecipeForm.COMPOSE, RecipeForm.QUADLET)
    mounts = engine.container_setting("--volume") or engine.container_setting("--mount")
    if engine.in_container and applies and engine.has_command and remote and not mounts:
        yield Observation("no-cache", engine.position.start)


def check_shell_variables(case: RecipeCase) -> Iterator[Observation]:
    """Report variables that are set in the shell, but not passed to the container."""
    if not case.engine.in_container:
        return
    for setting in case.engine.shell_variables:
        is_for_engine = setting.name.startswith(("VLLM_", "NCCL_", "PYTORCH_", "HF_", "HUGGING", "CUDA_VISIBLE"))
        if is_for_engine and case.engine.variable(setting.name) is None and not case.is_variable_used(setting.name):
            run = case.engine.editor.add_to_container("--env", setting.name)
            yield Observation("not-passed", setting.text.start, {"name": setting.name}, run)


RULES = (
    check_container_options,
    check_image,
    check_gpus,
    check_visible_gpus,
    check_shm,
    check_ports,
    check_shutdown,
    check_model_cache,
    check_shell_variables,
)
