"""Choose the models of the catalogue that a host's GPUs can serve, best first.

The order, which docs/models.md states as well: 1. models that can be downloaded without a token come before gated ones,
unless there is a token; 2. models that fit by the upper end of what engines were seen to take, before those that fit by
the lower end alone; 3. the better verdict first, as `assess` judges the way with this workload; 4. models with room for
at least 8,192 tokens in each of 4 sequences before those that have to be cut to one; 5. the larger size class first: by
parameters, in steps of two (20 to 40 billion are one class); 6. in one class the newer model first, then less
quantization, then fewer parameters.

No benchmark scores: a number of parameters and a date are facts, a rank is an opinion. Memory is what `assess
--workload` computes. More memory never takes a candidate away, so it never gives a smaller class; but from 70 GiB on
vLLM batches more, which takes more for activations.
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
from winhost.model.workload import (
    DType,
    Model,
    Needs,
    Parallel,
    Quantization,
    Workload,
)
from winhost.resources.host import HostFacts
from winhost.sizing.budget import Budget, budget
from winhost.sizing.engines import MemoryPart, weights
from winhost.sizing.memories import planned_memory

CONTEXTS = (131_072, 65_536, 32_768, 16_384, 8_192)
SEQUENCES = 4
TENSOR = (1, 2, 4, 8)
BASE = Needs(("gpu-compute", "gpu-memory"))

# The least compute capability with kernels. Sources: docs.vllm.ai/en/v0.15.1/features/quantization (AWQ, GPTQ and
# INT8 from Turing, FP8 W8A8 from Ada), docs.vllm.ai/en/v0.32.0/features/quantization/llm_compressor/fp8 (below 8.9 FP8
# is for weights alone, which winhost does not choose by itself), and github.com/vllm-project/recipes, OpenAI/GPT-OSS.md
# (MXFP4 runs on Ampere by Marlin). INT4 of compressed-tensors needs Marlin, NVFP4 its own hardware: not read, careful.
LEAST_CAPABILITY = {
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
    """A model of the catalogue as it would be served on a host by one way.

    variant: one of EVERY_VARIANT; model: with the planned context, sequences and GPUs; memory: estimated bytes on each
    of its GPUs, None where nothing is known; verdict: of the way with this workload; because: codes of the reasons;
    lacks: why it is not offered, for people; roomy: it has the context that the order asks for; sure: its memory does
    not fit by the lower end alone of what has been seen.
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
        """The content of a workload file. revision: the commit that the hub named just now."""
        return workload_document(self.model, revision, token)

    def workload_text(self, revision: str | None = None, token: SecretRef | None = None) -> str:
        """The workload file itself."""
        import yaml  # only where a file is written

        head = f"# {self.entry.id}, {self.entry.stored}, chosen by winhost for {self.variant}\n\n"
        return head + yaml.safe_dump(self.workload_document(revision, token), sort_keys=False)


def workload_of(model: Model) -> Workload:
    return Workload((model,), Needs(("gpu-compute",)))


def size_class(parameters: int) -> int:
    """Class sizes in steps of two from 2.5 billion parameters on: 10 to 20 billion are one class, 20 to 40 the next."""
    return floor(log2(parameters / 2.5e9))


def weight_bytes(entry: Entry) -> Bytes:
    """The bytes of the weights by a source, or computed from parameters and how they are stored."""
    found = weights(entry.model)
    assert isinstance(found, MemoryPart)
    return found.bytes


def fitting(
    facts: Facts,
    path: str | None = None,
    *,
    token: bool = False,
    entries: Iterable[Entry] | None = None,
    everything: bool = False,
) -> Sequence[Candidate]:
    """List candidates, best first; none where this host cannot serve in any way.

    path: a path or variant that is asked for; without it, the first way on which anything fits, in the order in which
    `assess` recommends them. token: there is a token for gated models. everything: those that do not fit follow, with
    what they lack.
    """
    offered = tuple(catalogue().entries if entries is None else entries)
    found: list[Candidate] = []
    for way in ways(facts, path):
        found = [way.candidate(entry) for entry in offered]
        if any(each.possible for each in found):
            break
    kept = found if everything else [each for each in found if each.possible]
    return sorted(kept, key=lambda each: _rank(each, token))


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


def ways(facts: Facts, path: str | None = None) -> Iterator["Way"]:
    """Yield the ways to serve on this host, as `assess` ranks them without a workload."""
    host = HostFacts(facts)
    assessment = assess(host)
    for fit in fit_paths(assessment, BASE, None, path):
        if fit.verdict is Verdict.UNSUPPORTED or not is_requested(path, fit.variant):
            continue
        (variant,) = (each for each in assessment.every_variant if each.path == fit.variant)
        if variant.available_memory is not None and variant.available_memory.gpus:
            yield Way(host, variant, variant.available_memory)


class Way:
    """A variant on a host, which judges models one by one."""

    def __init__(self, host: HostFacts, variant: PathVerdict, memory: AvailableMemory) -> None:
        self.variant, self.memory = variant, planned_memory(memory, Workload(()))
        self._host = host

    @cached_property
    def capability(self) -> tuple[int, int] | None:
        """The least compute capability among its GPUs, as far as winhost's catalogue knows them."""
        gpus = Target(self._host, self.variant.path).gpus
        known = [
            model.compute_capability for gpu in gpus if (model := catalogue_entry(gpu)) and model.compute_capability
        ]
        return min(known, default=None)

    def candidate(self, entry: Entry) -> Candidate:
        """Plan the smallest number of GPUs with room for the context, and the longest usual context there."""
        lacks = self._kernel(entry)
        plan, found = self._planned(entry)
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

    def _kernel(self, entry: Entry) -> str:
        """Say why these GPUs have no kernels for the way it is stored; empty where they have, or are not known."""
        needed = LEAST_CAPABILITY[entry.quantization] if entry.quantization else (0, 0)
        if entry.dtype is DType.BFLOAT16 and entry.quantization is None:
            needed = BF16_CAPABILITY
        if self.capability is None or self.capability >= needed:
            return ""
        return f"{entry.stored} needs compute capability {needed[0]}.{needed[1]}"

    def _planned(self, entry: Entry) -> tuple[Model, Budget]:
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
    model: Model, sizes: Sequence[int], contexts: Sequence[int], take: Callable[[Model], Budget]
) -> tuple[Model, Budget] | None:
    """Choose the smallest number of GPUs with room for 4 sequences of the longest of these contexts, else for one of
    the shortest; where nothing fits for sure, what may fit. contexts: the longest first.
    """
    doubtful: tuple[Model, Budget] | None = None
    cut: tuple[Model, Budget] | None = None
    for tensor in sizes:
        small = replace(model, parallel=Parallel(tensor), context=contexts[-1], sequences=1)
        found = take(small)
        if not found.fits:
            doubtful = doubtful or ((small, found) if found.may_fit else None)
            continue
        cut = cut or (small, found)
        for context in contexts:
            wide = replace(small, context=context, sequences=SEQUENCES)
            found = take(wide)
            if found.fits:
                return wide, found
    return cut or doubtful
