"""A repository or a folder as an entry like those of the catalogue, so that it is fitted to a host in the same way."""

from winhost.hub.catalogue import Entry
from winhost.hub.draft import config_of, served_name
from winhost.hub.hub_repository import HubRepository, not_listed
from winhost.hub.model_folder import ModelFolder
from winhost.hub.weights import Tell, weights_of
from winhost.model.workload import Shape

SHORT = 8192  # tokens: the least usual context, for a model that does not say how long


def entry_of(repository: HubRepository | ModelFolder, tell: Tell = lambda done, of: None) -> Entry:
    """Make the entry of a model at its current commit. Raises WinhostError (NotListed), also for a model whose
    config.json does not tell its shape: `winhost workload init` drafts a file for such a one.
    """
    now, about = repository.current()
    sizes = now.sizes()
    config = config_of(now, sizes)
    weights = weights_of(now, sizes, tell)
    tied = config.tied is True or (weights is not None and not weights.head)
    shape = Shape(config.layers, config.kv_heads, config.head_dim, config.hidden, config.vocabulary, tied)
    tables = shape.embedding
    if weights is None or config.latent or shape.attention is None or tables is None or not config.heads:
        hint = f"Draft a file and complete it: winhost workload init {now.model} -o workload.yaml"
        raise not_listed(now.model, "its files do not tell what a KV cache or its weights take", hint)
    exact = config.quantized is None and tables.parameters < weights.total
    return Entry(
        id=now.model,
        name=served_name(now.model),
        released="",
        parameters=weights.total,
        dtype=config.served_dtype,
        quantization=config.quantization,
        weights=None if exact else weights.bytes,
        download=sum(sizes.values()),
        shape=shape,
        heads=config.heads,
        intermediate=config.intermediate or tables.hidden,
        longest=config.longest or SHORT,
        experts=config.experts,
        takes=config.more,
        gated=bool(about.get("gated")),
        revision=now.revision or None,
        sources={"all": now.page},
    )
