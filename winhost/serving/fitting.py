"""Choose the models of the catalogue that a host's GPUs can serve, best first.

The order, which docs/models.md states as well: 1. models that can be downloaded without a token come before gated ones,
unless there is a token; 2. models that fit by the upper end of what engines were seen to take, before those that fit by
the lower end alone; 3. the better verdict first, as `assess` judges the variant with this workload; 4. models with room
for at least 8,192 tokens in each of 4 sequences before those that have to be cut to one; 5. the larger size class
first: by parameters, in steps of two (20 to 40 billion are one class); 6. in one class the newer model first, then less
quantization, then fewer parameters.

The order uses no benchmark scores: a number of parameters and a date are facts, a rank is an opinion. Memory is what
`assess --workload` computes. More memory never removes a candidate, so it never gives a smaller class; but from 70 GiB
on vLLM batches more, which takes more for activations.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from math import floor, log2
from typing import Any

from winhost.compat.assess import assess
from winhost.compat.needs import fit_paths, fit_without_advice, needs_of
from winhost.compat.target import Target
from winhost.core.dataclass import dataclass
from winhost.hardware.host_gpus import catalogue_entry
from winhost.hub.catalogue import Entry, catalogue, workload_document
from winhost.model.facts import Facts
from winhost.model.path import AvailableMemory, is_requested
from winhost.model.reason import PathVerdict, Verdict
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes
from winhost.model.workload import DType, Model, Needs, Parallel, Quantization, Workload
from winhost.resources.host import HostFacts
from winhost.sizing.budget import Budget, budget
from winhost.sizing.engines import MemoryPart, weights
from winhost.sizing.memories import planned_memory

CONTEXTS = (131_072, 65_536, 32_768, 16_384, 8_192)
SEQUENCES = 4
TENSOR = (1, 2, 4, 8)
BASE = Needs(("gpu-compute", "gpu-memory"))

# The lowest compute capability with kernels. Sources: docs.vllm.ai/en/v0.15.1/features/quantization (AWQ, GPTQ and INT8
# from Turing, FP8 W8A8 from Ada), docs.vllm.ai/en/v0.32.0/features/quantization/llm_compressor/fp8 (below 8.9 FP8 is
# for weights alone, which winhost does not choose), and github.com/vllm-project/recipes, OpenAI/GPT-OSS.md (MXFP4 runs
# on Ampere by Marlin). No source was read for INT4 of compressed-tensors, which needs Marlin, and for NVFP4, which
# needs hardware of its own: these two are set to be safe.
MIN_CAPABILITY = {
    Quantization.AWQ: (7, 5),
    Quantization.GPTQ: (7, 5),
    Quantization.INT4: (8, 0),
    Quantization.INT8: (7, 5),
    Quantization.FP8: (8, 9),
    Quantization.MXFP4: (8, 0),
    Quantization.NVFP4: (10, 0),
}
BF16_CAPABILITY = (8, 0)
_PRECISION: dict[Quantization | None, int] = {
    None: 0,
    **dict.fromkeys((Quantization.FP8, Quantization.INT8), 1),
    **dict.fromkeys((Quantization.AWQ, Quantization.GPTQ, Quantization.INT4), 2),
    **dict.fromkeys((Quantization.NVFP4, Quantization.MXFP4), 2),
}


@dataclass(frozen=True)
class Candidate:
    """A model of the catalogue as it would be served on a variant of a host.

    variant: one of EVERY_VARIANT; model: with the planned context, sequences and GPUs; memory: estimated bytes on each
    of its GPUs, None if not known; verdict: of the variant with this workload; because: codes of the reasons; lacks:
    why it is not offered, as a text; roomy: it has room for the context in rule 4 of the order; sure: False if its
    memory fits by the lower end alone.
    """

    entry: Entry
    variant: str
    model: Model
    memory: Bytes | None
    verdict: Verdict
    because: tuple[str, ...] = ()
    lacks: str = ""
    roomy: bool = True
    sure: bool = True

    @property
    def gpus(self) -> int:
        return self.model.parallel.tensor

    @property
    def context(self) -> int:
        assert self.model.context is not None
        return self.model.context

    @property
    def sequences(self) -> int:
        return self.model.sequences

    @property
    def download(self) -> Bytes:
        """The bytes to download: all files after a refresh, else the weights by a source or computed."""
        return self.entry.download or weight_bytes(self.entry)

    @property
    def possible(self) -> bool:
        return self.verdict is not Verdict.UNSUPPORTED and not self.lacks

    @property
    def workload(self) -> Workload:
        return workload_of(self.model)

    def workload_document(self, revision: str | None = None, token: SecretRef | None = None) -> dict[str, Any]:
        """Return the content of a workload file. revision: the commit that the hub named just now."""
        return workload_document(self.model, revision, token)

    def workload_text(self, revision: str | None = None, token: SecretRef | None = None) -> str:
        """Return the text of a workload file."""
        import yaml  # only where a file is written

        head = f"# {self.entry.id}, {self.entry.stored}, chosen by winhost for {self.variant}\n\n"
        return head + yaml.safe_dump(self.workload_document(revision, token), sort_keys=False)


def workload_of(model: Model) -> Workload:
    return Workload((model,), Needs(("gpu-compute",)))


def size_class(parameters: int) -> int:
    """Return the size class, in steps of two from 2.5 billion parameters on: 10 to 20 billion are one class, 20 to 40
    the next.
    """
    return floor(log2(parameters / 2.5e9))


def weight_bytes(entry: Entry) -> Bytes:
    """Return the bytes of the weights: as a source states them, or computed from parameters and format."""
    found = weights(entry.model)
    assert isinstance(found, MemoryPart)
    return found.bytes


def find_candidates(
    facts: Facts,
    path: str | None = None,
    *,
    token: bool = False,
    entries: Iterable[Entry] | None = None,
    everything: bool = False,
) -> Sequence[Candidate]:
    """List candidates, best first; none if this host cannot serve at all.

    path: a requested path or variant; by default the first variant on which anything fits, in the order in which
    `assess` recommends them. token: there is a token for gated models. everything: models that do not fit follow, with
    the reason.
    """
    offered = tuple(catalogue().entries if entries is None else entries)
    candidates: list[Candidate] = []
    for variant in serving_variants(facts, path):
        candidates = [variant.candidate(entry) for entry in offered]
        if any(each.possible for each in candidates):
            break
    selected = candidates if everything else [each for each in candidates if each.possible]
    return sorted(selected, key=lambda each: _rank(each, token))


def _rank(each: Candidate, token: bool) -> tuple[Any, ...]:
    entry = each.entry
    newest = tuple(-ord(letter) for letter in entry.released)
    return (
        not each.possible,
        entry.gated and not token,
        not each.sure,
        each.verdict.rank,
        not each.roomy,
        -size_class(entry.parameters),
        newest,
        _PRECISION[entry.quantization],
        each.gpus,
        entry.parameters,
        entry.id,
    )


def serving_variants(facts: Facts, path: str | None = None) -> Iterator["ServingVariant"]:
    """Yield the variants that can serve on this host, as `assess` ranks them without a workload."""
    host = HostFacts(facts)
    assessment = assess(host)
    for fit in fit_paths(assessment, BASE, None, path):
        if fit.verdict is Verdict.UNSUPPORTED or not is_requested(path, fit.variant):
            continue
        (variant,) = (each for each in assessment.every_variant if each.path == fit.variant)
        if variant.available_memory is not None and variant.available_memory.gpus:
            yield ServingVariant(host, variant, variant.available_memory)


class ServingVariant:
    """A variant of a host, for which models are planned and judged."""

    def __init__(self, host: HostFacts, variant: PathVerdict, memory: AvailableMemory) -> None:
        self.variant, self.memory = variant, planned_memory(memory, Workload(()))
        self._host = host

    @cached_property
    def capability(self) -> tuple[int, int] | None:
        """The lowest compute capability among the GPUs that winhost's catalogue knows."""
        gpus = Target(self._host, self.variant.path).gpus
        known = [
            model.compute_capability for gpu in gpus if (model := catalogue_entry(gpu)) and model.compute_capability
        ]
        return min(known, default=None)

    def candidate(self, entry: Entry) -> Candidate:
        """Plan the smallest number of GPUs with room for the context, and the longest of CONTEXTS there."""
        lacks = self._missing_kernel(entry)
        plan, found = self._plan(entry)
        memory = max((each.used for each in found.memories if each.gpu is not None and each.used), default=None)
        roomy = plan.sequences >= SEQUENCES
        planned = Candidate(entry, self.variant.path, plan, memory, Verdict.UNSUPPORTED, (), lacks, roomy)
        if not found.fits and found.may_fit is False:
            return replace(planned, because=("gpu-memory.does-not-fit",), lacks=lacks or "memory")
        workload = workload_of(plan)
        judged = fit_without_advice(self.variant, needs_of(workload), workload)
        worst = (each.because for each in judged.lacking if each.verdict is judged.verdict)
        because = tuple(dict.fromkeys(chain.from_iterable(worst)))
        because = because or (self.variant.because if self.variant.verdict is judged.verdict else ())
        return replace(planned, verdict=judged.verdict, because=because, sure=found.fits is not False)

    def _missing_kernel(self, entry: Entry) -> str:
        """Say why these GPUs have no kernels for the model's format; empty if they have, or if that is not known."""
        needed = MIN_CAPABILITY[entry.quantization] if entry.quantization else (0, 0)
        if entry.dtype is DType.BFLOAT16 and entry.quantization is None:
            needed = BF16_CAPABILITY
        if self.capability is None or self.capability >= needed:
            return ""
        return f"{entry.stored} needs compute capability {needed[0]}.{needed[1]}"

    def _plan(self, entry: Entry) -> tuple[Model, Budget]:
        sizes = [size for size in TENSOR if size <= len(self.memory.gpus) and entry.splits_over(size)] or [1]
        contexts = [context for context in CONTEXTS if context <= entry.longest] or [entry.longest]
        planned = plan_of(entry.model, sizes, contexts, self._budget)
        if planned:
            return planned
        model = replace(entry.model, parallel=Parallel(sizes[-1]), context=contexts[-1], sequences=1)
        return model, self._budget(model)

    def _budget(self, model: Model) -> Budget:
        return budget(workload_of(model), self.memory)


def plan_of(
    model: Model, sizes: Sequence[int], contexts: Sequence[int], budget_of: Callable[[Model], Budget]
) -> tuple[Model, Budget] | None:
    """Choose the smallest number of GPUs with room for 4 sequences of the longest possible context, else for one
    sequence of the shortest; if nothing fits for certain, a plan that may fit. contexts: the longest first.
    """
    uncertain: tuple[Model, Budget] | None = None
    smallest: tuple[Model, Budget] | None = None
    for tensor in sizes:
        small = replace(model, parallel=Parallel(tensor), context=contexts[-1], sequences=1)
        memory = budget_of(small)
        if not memory.fits:
            uncertain = uncertain or ((small, memory) if memory.may_fit else None)
            continue
        smallest = smallest or (small, memory)
        for context in contexts:
            large = replace(small, context=context, sequences=SEQUENCES)
            memory = budget_of(large)
            if memory.fits:
                return large, memory
    return smallest or uncertain
