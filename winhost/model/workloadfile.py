"""Reads `workload.yaml`, and checks keys that depend on each other."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path

from winhost.model.errors import did_you_mean, visible
from winhost.model.workload import Deploy, LoadFormat, Mirror, Model, Needs, Workload, WorkloadFile, standby_of
from winhost.model.yamlfile import Mistake, load_with_positions


def load_workload(path: Path, *, in_cluster: bool = False) -> Workload:
    """Read a workload.yaml. in_cluster: the workload runs in a cluster, even if the file does not say so.

    Raises UsageError (FileFaults) with all of its faults.
    """
    check = partial(_find_mistakes, in_cluster=in_cluster)
    workload = load_with_positions(
        path, WorkloadFile, check, "draft one: winhost workload init ORG/NAME -o my.yaml"
    ).value
    return replace(workload, deploy=Deploy.KUBERNETES) if in_cluster else workload


def _find_mistakes(file: WorkloadFile, *, in_cluster: bool = False) -> Iterator[Mistake]:
    yield from _check_needs(file.needs)
    if file.proxy_protocol:
        yield from _check_proxies(file.trusted_proxies)
    in_pods = in_cluster or file.deploy is Deploy.KUBERNETES
    if in_cluster and file.deploy is Deploy.UNITS:
        yield ("deploy",), "is units, and this is for a cluster: write deploy: kubernetes, or leave it out"
    if in_pods and file.kv_mirror and file.kv_mirror.through is Mirror.LMCACHE:
        yield ("kv_mirror", "through"), "lmcache needs a server beside the engine, which no manifest has: take tiers"
    if file.kv_mirror and file.kv_mirror.keep and file.kv_mirror.through is Mirror.LMCACHE:
        yield ("kv_mirror", "keep"), "is for tiers: an LMCache server keeps staging, in memory"
    yield from _check_availability(file, in_pods)
    yield from _check_standby(file, in_pods)
    for model in file.models:
        for check in (
            _check_sizes,
            _check_shape,
            _check_parallel,
            _check_sleep,
            _check_model_in_pods if in_pods else _check_model_on_one_machine,
        ):
            for loc, message in check(model):
                yield ("models", model.name, *loc), message


def _check_standby(file: WorkloadFile, in_pods: bool) -> Iterator[Mistake]:
    models = {model.name: model for model in file.models}
    for position, name in enumerate(file.availability.standby):
        loc, model = ("availability", "standby", position), models.get(name)
        if model is None:
            yield loc, f"'{visible(name)}' is no model of this file{did_you_mean(name, models)}"
        elif "gpt-oss" in model.id.lower():
            yield loc, f"{name} is gpt-oss, whose answers vLLM cannot continue (harmony)"
        if name in file.availability.standby[:position]:
            yield loc, f"'{visible(name)}' is there twice"
        if standby_of(name) in models:
            yield loc, f"the second engine is called {standby_of(name)}, as a model here is: give that another name"
    if file.availability.standby and in_pods:
        message = "is for a Linux whose engines are units, not for deploy: kubernetes, which starts one that ended anew"
        yield ("availability", "standby"), message


def _check_availability(file: WorkloadFile, in_pods: bool) -> Iterator[Mistake]:
    if file.availability.idle and not any(model.sleeps for model in file.models):
        yield ("availability", "idle"), "is for models with state: sleeping, and none is: resident ones stay awake"
    if file.availability.test_on_boot and (in_pods or not file.availability.start_on_boot):
        yield ("availability", "test_on_boot"), "is for start_on_boot: true, on one machine"
    if file.availability.yield_to is None:
        return
    if in_pods:
        yield ("availability", "yield_to"), "is for a Linux on one machine with the desktop, not for deploy: kubernetes"
    if staying := [model.name for model in file.models if not model.sleeps]:
        why = f"and {staying[0]} is resident: nothing takes it off its GPU"
        yield ("availability", "yield_to"), f"is for models with state: sleeping alone, {why}"


def _check_proxies(proxies: tuple[str, ...]) -> Iterator[Mistake]:
    if not proxies:
        yield ("proxy_protocol",), "is for proxies: name them in trusted_proxies"
    for position, each in enumerate(proxies):
        if any(ip_address(own) in ip_network(each) for own in ("127.0.0.1", "::1")):
            message = (
                "has the gateway's own machine in it, from where checks reach the gateway without the header of "
                "proxy_protocol: leave that out, and such a proxy says in X-Forwarded-For for whom it asks"
            )
            yield ("trusted_proxies", position), message


def _check_needs(needs: Needs) -> Iterator[Mistake]:
    seen: set[str] = set()
    for kind, names in (("must", needs.must), ("nice", needs.nice)):
        for position, name in enumerate(names):
            if name in seen:
                yield ("needs", kind, position), f"'{name}' is asked for twice"
            seen.add(name)


def _check_sizes(model: Model) -> Iterator[Mistake]:
    if model.parameters is None and model.weights is None and model.memory is None:
        yield (), "says nothing of its size: give parameters, or weights, or memory"
    if model.unquantized is not None and model.quantization is None:
        yield ("unquantized",), "tells something only with quantization"
    if model.memory is None:
        return
    for key in ("kv", "activations", "lora"):
        if getattr(model, key) is not None:
            yield (key,), "cannot be said beside memory, which is everything on a GPU"


def _check_shape(model: Model) -> Iterator[Mistake]:
    shape, embedding = model.shape, model.embedding
    for group in (("layers", "kv_heads", "head_dim"), ("vocabulary", "hidden")):
        missing = [key for key in group if getattr(shape, key) is None]
        if 0 < len(missing) < len(group):
            yield ("shape",), f"lacks {' and '.join(missing)}: {', '.join(group)} tell something only together"
    if embedding and model.parameters is not None and embedding.parameters >= model.parameters:
        message = f"{embedding.parameters:,} parameters of embeddings are not less than the {model.parameters:,} of all"
        yield ("shape", "vocabulary"), message
    if shape.tied_embeddings is not None and shape.vocabulary is None:
        yield ("shape", "tied_embeddings"), "tells something only with vocabulary and hidden"


def _check_parallel(model: Model) -> Iterator[Mistake]:
    tensor, heads = model.parallel.tensor, model.shape.kv_heads
    if heads is not None and heads % tensor and tensor % heads:
        message = f"{tensor} GPUs cannot share {heads} KV heads: one must be a multiple of the other"
        yield ("parallel", "tensor"), message
    stages, layers = model.parallel.pipeline, model.shape.layers
    if layers is not None and stages > layers:
        yield ("parallel", "pipeline"), f"{stages} stages cannot share {layers} layers"


def _check_sleep(model: Model) -> Iterator[Mistake]:
    for key, stated in (("sleep_level", model.sleep_level), ("suspend", model.suspend)):
        if stated and not model.sleeps:
            yield (key,), "is for models with state: sleeping"
    if model.suspend and model.engine_gpus * model.parallel.data > 1:
        yield ("suspend",), "is for models on one GPU: over several nobody has seen it work"


def _check_model_in_pods(model: Model) -> Iterator[Mistake]:
    if model.sleeps:
        message = "takes turns on a GPU with others, and Kubernetes gives each GPU to one pod: use deploy: units"
        yield ("state",), message
    if model.load_format is LoadFormat.PACKED:
        yield ("load_format",), "packed takes a step that packs, which no manifest has: use deploy: units"
    spread = model.parallel
    if spread.pipeline % spread.nodes:
        yield ("parallel", "nodes"), f"{spread.nodes} machines cannot share {spread.pipeline} stages evenly"
    if spread.nodes > 1 and spread.data > 1:
        yield ("parallel", "data"), "copies that span machines are not written: leave data out, or nodes"


def _check_model_on_one_machine(model: Model) -> Iterator[Mistake]:
    if model.body.media:
        message = "is for deploy: kubernetes: an engine here has no network, so media come in requests, as data: URLs"
        yield ("body", "media"), message
    if model.parallel.nodes > 1:
        yield ("parallel", "nodes"), "is for deploy: kubernetes"
