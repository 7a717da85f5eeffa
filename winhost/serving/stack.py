"""The stack that serves a workload on a Linux, as entries of a playbook: from images to the last check."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.gateway.gateway_settings import Limits
from winhost.gateway.turn_settings import IMAGES
from winhost.model.errors import UsageError, visible
from winhost.model.plan import OfflineImage
from winhost.model.units import Bytes, gib
from winhost.model.workload import LoadFormat, Mirror, Model, Workload, add_standbys, is_folder
from winhost.paths.linux import compose_package, criu_packages, video_packages
from winhost.resources.host import HostFacts
from winhost.resources.values import order_networks
from winhost.serving.choice import Served, Serving, serving
from winhost.serving.deployed import PATH, Deployed, DeployedEngine, DeployedGateway, endpoint
from winhost.serving.engine_files import START_SECONDS, ServedEngine
from winhost.serving.engine_names import CACHE, kv_folder, lmcache, model_folder, slug, socket, unit
from winhost.serving.entries import PythonWheels, entry, file_entry
from winhost.serving.gateway_entries import UNIT, gateway_entries, published_model, workload_settings
from winhost.serving.kv_mirror import PRUNE_TIMER, prune_entries
from winhost.serving.levels import ON_DISK, PACKED_PERCENT, format_restart, format_turn_state
from winhost.serving.lmcache_server import lmcache_unit
from winhost.serving.packed_entries import loader_entries, loader_lines, packed_entry
from winhost.serving.sharing import refuse_mirror, refuse_suspending, resident_units, sharing_models, turn_settings

LOOPBACK = ("127.0.0.1", "::1")


@dataclass(frozen=True)
class EngineImage:
    """pinned: REGISTRY/NAME@sha256:…; bytes: of the download, if its registry says so; saved: a file on the Linux that
    serves, from which the image is loaded instead.
    """

    pinned: str
    bytes: Bytes | None = None
    saved: OfflineImage | None = None


@dataclass(frozen=True)
class StackRequest:
    """A workload, and the programs and settings that serve it.

    runtime: `docker`, `podman`, or the path of vLLM's own program; image: None with a program; files: the desired
    `ModelFiles` by model; keys: lines of the gateway's file of keys; allowed: networks that may reach an endpoint
    beyond its machine, None if Windows decides that; path: to that Linux, by default the path that the facts name;
    engine_wheels: the Python environment of the program, if winhost installs it; nvcomp: nvCOMP's wheels, if a model
    has `load_format: packed`.
    """

    workload: Workload
    runtime: str
    image: EngineImage | None
    files: Mapping[str, Mapping[str, Any]]
    keys: tuple[str, ...]
    listen: tuple[str, int]
    tls: tuple[str, str] | None = None
    plain_http: bool = False
    allowed: tuple[str, ...] | None = ()
    path: str | None = None
    engine_wheels: PythonWheels | None = None
    nvcomp: PythonWheels | None = None


@dataclass(frozen=True)
class Stack:
    """entries: resources of a playbook; notes: sentences for the plan; deployed: the content of serving.json."""

    entries: tuple[Json, ...]
    notes: tuple[str, ...]
    deployed: Deployed


def stack(facts: HostFacts, request: StackRequest) -> Stack:
    """Make the stack. Raises as `serving` does, RefusedError (NoSuspend, NoCriu), ValueError."""
    found = serving(facts, request.workload, path=request.path)
    with_second_engine = [each.stands_by for each in found.models if each.stands_by]
    request = replace(request, workload=add_standbys(request.workload, with_second_engine))
    refuse_mirror(request.workload, found)
    if request.image is not None:
        refuse_suspending(request.workload.models, found.host)
    package = compose_package(facts) if request.runtime == "docker" else None
    engines = [*_engines(request, found, "compose" if package is not None else request.runtime)]
    deployed = Deployed(
        tuple(
            DeployedEngine(
                model=each.served.model,
                served_name=each.served.served_name,
                slug=slug(each.served.model),
                unit=unit(each.served.model),
                socket=each.served.socket,
                image=each.image,
                version=str(found.vllm),
                profile=each.served.profile,
                gpus=[*each.served.gpus],
                turns=each.turns,
                stands_by=each.served.stands_by or None,
            )
            for each in engines
        ),
        DeployedGateway(
            UNIT, endpoint(*request.listen), request.tls is not None, request.workload.availability.yield_to is not None
        ),
    )
    entries: list[Json] = []
    if package:
        entries.append(_packages("Docker Compose", package, "It starts the engines as containers."))
    if request.workload.video:
        entries.append(_packages("FFmpeg", video_packages(facts), "The workload decodes or encodes video."))
    if criu := criu_packages(facts, request.workload):
        entries.append(_packages("CRIU", criu, "The workload needs processes that can be saved and restored."))
    # The user must persist, because a restored process keeps its user.
    user: dict[str, Json] = {"there": True, "system": True, "shell": "/usr/sbin/nologin"}
    why = "It runs as this user, before its image is written and after it is restored."
    entries += [
        entry("LinuxUser", f"Engine of {each.served.model}", {"user": each.user}, user, why)
        for each in engines
        if each.image_on_disk
    ]
    if request.image:
        key = {"engine": "podman" if request.runtime == "podman" else "docker", "image": request.image.pinned}
        size: dict[str, Json] = {"bytes": 3 * request.image.bytes} if request.image.bytes else {}
        entries.append(entry("ContainerImage", "vLLM", key, {"present": True, **size}, "The engine, by its digest."))
    entries += request.engine_wheels.entries("vLLM") if request.engine_wheels else ()
    entries += loader_entries(request.nvcomp) if request.nvcomp else ()
    why = "The model at one revision, each file by its hash."
    entries += [
        entry("ModelFiles", f"Files of {name}", {"folder": model_folder(name)}, request.files[name], why)
        for name in _models_with_files(request.workload)
    ]
    entries += [
        packed_entry(each, request.files[each.served.model])
        for each in engines
        if each.spec.packed and not each.served.stands_by
    ]
    entries += [
        file_entry(
            f"Engine of {each.served.model}: {name}", f"{each.folder}/{name}", text, "The engine starts with it."
        )
        for each in engines
        for name, text in each.files.items()
    ]
    entries += _mirrors(request, engines)
    entries += gateway_entries(
        _gateway(request, found), request.keys, request.tls, boot_test=request.workload.availability.test_on_boot
    )
    entries.append(file_entry("What is served", PATH, deployed.text(), "winhost serve reads it."))
    if request.listen[0] not in LOOPBACK and request.allowed is not None:
        port = {"port": str(request.listen[1])}
        allowed: dict[str, Json] = {"allowed": [*order_networks(request.allowed)]}
        why = "Only these networks reach the endpoint."
        entries.append(entry("FirewallPort", "Who reaches the endpoint", port, allowed, why))
    entries += [_unit(engine) for engine in engines]
    entries.append(
        entry("ServingReady", "A completion of each model", {}, {"ready": True}, "Each model answers in the end.")
    )
    return Stack(tuple(entries), tuple(_notes(request, found)), deployed)


def revision_of(model: Model) -> str:
    """Return the revision of a model. Raises UsageError: NoRevision."""
    if model.revision is not None:
        return model.revision
    what = f"{visible(model.name)} has no revision, so its files could be others tomorrow"
    hint = (
        "Write the commit, 40 digits, as revision into the workload. A draft with it: winhost workload init "
        f"{visible(model.id)}\nWithout a network here, ask on another computer: git ls-remote "
        f"https://huggingface.co/{visible(model.id)} HEAD"
    )
    if is_folder(model.id):
        what = f"{visible(model.id)} is a folder of this machine, and what is made here downloads from a hub"
        hint = "Name the model as ORG/NAME, with its revision; only a plan for a Linux takes a folder"
    raise UsageError("NoRevision", what=what, hint=hint)


def _engines(request: StackRequest, found: Serving, runtime: str) -> Iterator[ServedEngine]:
    """Yield the engines in the order of the workload. Those that start with the machine start one after the other,
    because engines that start at the same time count each other's memory. The gateway does the same for models that
    take turns.
    """
    before: tuple[str, ...] = ()
    image = request.image.pinned if request.image else None
    mirror = request.workload.kv_mirror.through if request.workload.kv_mirror else None
    for model, served in zip(request.workload.models, found.models, strict=True):
        turns = model.sleeps or model.starts_anew
        after = resident_units(served, request.workload.models, found) if turns else before
        on_disk = model.image and served.level == 1
        if model.load_format is LoadFormat.PACKED:
            if request.nvcomp is None:
                raise ValueError(
                    f"load_format: packed of {visible(model.name)} needs nvCOMP, which is not planned here"
                )
            served = replace(served, lines=(*served.lines, *loader_lines(request.nvcomp)))
        yield ServedEngine(served, runtime, image, after, turns, mirror, on_disk)
        before = before if turns else (unit(model.name),)


def _packages(title: str, names: str, why: str) -> Json:
    desired: dict[str, Json] = {"installed": True, "to_add": [], "to_change": [], "to_change_foreign": []}
    return entry("AptPackages", title, {"packages": names}, {**desired, "to_remove": []}, why)


def _unit(engine: ServedEngine) -> Json:
    desired: dict[str, Json] = {"text": engine.unit, "enabled": True, "active": True}
    why = "It starts with the machine, and has started when it answers."
    if engine.turns:
        desired, why = {"text": engine.unit, "enabled": False}, "The gateway starts it when its turn comes."
    return entry("EngineUnit", f"Engine of {engine.served.model}", {"unit": unit(engine.served.model)}, desired, why)


def _mirrors(request: StackRequest, engines: list[ServedEngine]) -> Iterator[Json]:
    mirror = request.workload.kv_mirror
    if mirror is None:
        return
    if mirror.through is Mirror.TIERS:
        for title, path, text in prune_entries(_models_with_files(request.workload), mirror.disk_limit):
            yield file_entry(
                title, path, text, "It removes the oldest mirrors once they are larger than the workload allows."
            )
        running: dict[str, Json] = {"enabled": "enabled", "active": True}
        yield entry("SystemdUnit", PRUNE_TIMER, {"unit": PRUNE_TIMER}, running, "Mirrors stay within their size.")
        return
    for each in engines:
        key = {"unit": f"{lmcache(each.served.model)}.service"}
        desired: dict[str, Json] = {"text": lmcache_unit(each, mirror.staging), "enabled": True, "active": True}
        yield entry(
            "EngineUnit", f"LMCache of {each.served.model}", key, desired, "It keeps the KV cache of its engine."
        )


def _models_with_files(workload: Workload) -> list[str]:
    """Return the names of the models without standbys, which share the files of their model."""
    return [model.name for model in workload.models if not model.stands_by]


def _gateway(request: StackRequest, found: Serving) -> dict[str, Json]:
    sharing = [*sharing_models(request.workload.models, found)]
    standbys: dict[str, dict[str, Json]] = {each.name: {} for each in request.workload.models if each.starts_anew}
    for each in request.workload.models:
        if each.stands_by:
            standbys[each.stands_by] = {"engine": {"socket": socket(each.name)}}
    turns, limits = turn_settings(sharing, request.workload.availability.idle)
    models: list[Json] = [
        {
            **published_model(model, {"socket": socket(model.name)}, standbys.get(model.name)),
            **({"turns": turns[model.name]} if model.name in turns else {}),
        }
        for model in request.workload.models
        if not model.stands_by
    ]
    by_turns: dict[str, Json] = {**limits, "start": START_SECONDS} if sharing else {}
    return workload_settings(request.workload, request.listen, models, by_turns, plain_http=request.plain_http)


def _notes(request: StackRequest, found: Serving) -> Iterator[str]:
    yield from _size_notes(request)
    for name, files in _local_files(request).items():
        yield f"before it is applied, the Linux that serves needs the files of {name} at {files['source']}"
    for served in found.models:
        yield f"{served.model}: vLLM {found.vllm}, profile {served.profile}, GPUs {', '.join(map(str, served.gpus))}"
        yield from _notes_of_model(served)
    if request.workload.video:
        yield "video: FFmpeg of the distribution; winhost probe tries NVDEC, and NVENC where the GPU has it"
    if found.together:
        yield "those that take turns would all fit awake at once: state: resident answers without a swap"
    mirror = request.workload.kv_mirror
    if mirror and mirror.through is Mirror.TIERS:
        folders = " ".join(map(kv_folder, _models_with_files(request.workload)))
        yield f"rollback leaves what users asked, up to {gib(mirror.disk_limit)} for each model: rm -r {folders}"
    if request.image:
        program = "podman" if request.runtime == "podman" else "docker"
        yield f"rollback leaves the volume {CACHE} (compiled graphs): {program} volume rm {CACHE}"


def _notes_of_model(served: Served) -> Iterator[str]:
    if served.stands_by:
        yield f"{served.model}: takes over about a second after the other engine of {served.stands_by} died or hung"
    if served.anew:
        yield f"{served.model}: its standby is the same engine, started anew {format_restart(served.anew, Limits.hold)}"
    if served.asleep:
        yield f"{served.model}: between its turns {format_turn_state(served.asleep)}"
    if served.asleep and served.asleep.rung == ON_DISK.name:
        yield (
            f"{served.model}: an image of its process is written once, while nobody waits, and after changes such as "
            "another driver; with 3.3 GiB of weights that was 15 to 25 s without service. It takes about twice the "
            f"weights on disk, in {IMAGES}, and contains prompts and keys that were in memory"
        )
    yield from served.doubts


def _local_files(request: StackRequest) -> Mapping[str, Mapping[str, Any]]:
    return {name: files for name, files in request.files.items() if str(files["source"]).startswith("/")}


def _listed_bytes(files: Mapping[str, Any]) -> Bytes:
    return sum(int(line.split(" ")[1]) for line in files["files"])


def _size_notes(request: StackRequest) -> Iterator[str]:
    saved = request.image.saved if request.image else None
    if saved:
        yield f"before it is applied, put the image's archive to {saved.archive} on the Linux that serves"
    models, local = (sum(map(_listed_bytes, files.values())) for files in (request.files, _local_files(request)))
    image = request.image.bytes if request.image and request.image.bytes else 0
    unknown = "" if image or not request.image else " and the image, whose size its registry was not asked for"
    downloads = models - local
    yield f"to download there: {gib(downloads + (0 if saved else image))} ({gib(downloads)} of models){unknown}"
    packed = [each.name for each in request.workload.models if each.load_format is LoadFormat.PACKED]
    packed_bytes = sum(_listed_bytes(request.files[name]) for name in packed) * PACKED_PERCENT // 100
    stored = gib(models + packed_bytes + 3 * image)
    yield f"to be kept on its disk: about {stored}{', the image unpacked at three times what is sent' if image else ''}"
    if packed:
        yield f"of these {gib(packed_bytes)} for packed weights of {', '.join(packed)}; the originals stay beside them"
    if nvcomp := request.nvcomp:
        yield f"to download there for packed weights: nvCOMP, {gib(nvcomp.bytes)}, NVIDIA's under a licence of its own"
    if wheels := request.engine_wheels:
        what = f"{len(wheels.files)} wheels of {gib(wheels.bytes)} from {wheels.server}, for Python {wheels.python}"
        yield f"to download there for vLLM as well: {what}; newer ones come with another plan"
