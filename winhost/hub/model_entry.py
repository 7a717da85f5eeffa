"""A repository or a folder as an entry like those of the catalogue, so that it is fitted to a host in the same way."""

from winhost.hub.catalogue import Entry
from winhost.hub.draft import config_of, served_name
from winhost.hub.hub_listing import listed_files, without_copies
from winhost.hub.hub_repository import HubRepository, not_listed
from winhost.hub.model_folder import ModelFolder
from winhost.hub.weights import Tell, weights_of
from winhost.model.workload import Attention, Embedding

SHORT = 8192  # tokens: the least usual context, for a model that does not say how long


def entry_of(repository: HubRepository | ModelFolder, tell: Tell = lambda done, of: None) -> Entry:
    """What it is now, at its commit. Raises WinhostError (NotListed), also for a model whose shape its config.json does
    not tell: `winhost workload init` drafts a file for such a one.
    """
    about = repository.about()
    name = about.get("id")
    now = repository.at(name if isinstance(name, str) else repository.model, about["sha"])
    if isinstance(now, ModelFolder):
        sizes = now.sizes()
    else:
        lines = without_copies(listed_files(now))
        sizes = {path: int(size) for _, size, path in (line.split(" ", 2) for line in lines)}
    config = config_of(now, sizes)
    weights = weights_of(now, sizes, tell)
    shape = (config.layers, config.kv_heads, config.head_dim, config.heads, config.hidden, config.vocabulary)
    layers, kv_heads, head_dim, heads, hidden, vocabulary = shape
    if weights is None or config.latent or not (layers and kv_heads and head_dim and heads and hidden and vocabulary):
        hint = f"Draft a file and complete it: winhost workload init {now.model} -o workload.yaml"
        raise not_listed(now.model, "its files do not tell what a KV cache or its weights take", hint)
    tied = config.tied is True or not weights.head
    tables = Embedding(vocabulary, hidden, tied)
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
        attention=Attention(layers, kv_heads, head_dim),
        embedding=tables,
        heads=heads,
        intermediate=config.intermediate or hidden,
        longest=config.longest or SHORT,
        experts=config.experts,
        takes=config.more,
        gated=bool(about.get("gated")),
        revision=now.revision or None,
        sources={"all": now.page},
    )
