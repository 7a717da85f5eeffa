"""Place models on GPUs.

The rule is first fit, largest first: models in falling order of the memory that they need on a GPU, each on the first
GPUs with room, GPUs in falling order of their memory. If that fails, the other choices are tried in the same order, so
that a fit is found if there is one. After `TRIES` choices the search gives up (`proven` is False).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes

TRIES = 5_000


@dataclass(frozen=True)
class Claim:
    """A claim on `gpus` different GPUs: `fixed` bytes on each at all times, `turn` while the model is awake. One of the
    models that take turns on a GPU is awake: the largest turn counts. apart: claims with the same value share no GPU.
    """

    name: str
    gpus: int
    fixed: Bytes
    turn: Bytes = 0
    apart: str = ""


@dataclass(frozen=True)
class Placement:
    """The GPUs of each claim by its name, as positions in the capacities.

    homeless: claims that need more GPUs than there are; fits: everything was placed; proven: False if the search gave
    up, so that a fit may exist.
    """

    gpus: Mapping[str, tuple[int, ...]]
    homeless: tuple[str, ...]
    fits: bool
    proven: bool


@dataclass(frozen=True)
class _Gpu:
    position: int
    capacity: Bytes
    fixed: Bytes = 0
    turn: Bytes = 0
    apart: tuple[str, ...] = ()

    def take(self, claim: Claim) -> "_Gpu":
        apart = (*self.apart, claim.apart) if claim.apart else self.apart
        return _Gpu(self.position, self.capacity, self.fixed + claim.fixed, max(self.turn, claim.turn), apart)

    def is_free_for(self, claim: Claim) -> bool:
        return claim.apart not in self.apart

    @property
    def free_bytes(self) -> Bytes:
        return self.capacity - self.fixed - self.turn

    @property
    def kind(self) -> tuple[Bytes, Bytes, Bytes, tuple[str, ...]]:
        """GPUs of one kind are interchangeable."""
        return self.capacity, self.fixed, self.turn, self.apart


class _SearchLimit(Exception):
    pass


def place_on_gpus(claims: Sequence[Claim], capacities: Sequence[Bytes]) -> Placement:
    """Assign GPUs to every claim. If not all fit, assign those with the most free memory, which shows the shortage."""
    count = Counter(claim.apart for claim in claims)
    claims = [claim if count[claim.apart] > 1 else replace(claim, apart="") for claim in claims]
    ordered = sorted(claims, key=lambda claim: (-(claim.fixed + claim.turn), claim.name))
    gpus = sorted((_Gpu(i, capacity) for i, capacity in enumerate(capacities)), key=lambda c: (-c.capacity, c.position))
    homeless = tuple(sorted(_homeless(claims, len(gpus))))
    housed = [claim for claim in ordered if claim.name not in homeless]
    search = _Search()
    try:
        found = search.follow(housed, tuple(gpus))
    except _SearchLimit:
        return Placement(_spread_out(housed, gpus), homeless, fits=False, proven=False)
    if found is None:
        return Placement(_spread_out(housed, gpus), homeless, fits=False, proven=True)
    return Placement(found, homeless, fits=not homeless, proven=True)


def _homeless(claims: Sequence[Claim], gpus: int) -> Iterator[str]:
    taken: Counter[str] = Counter()
    for claim in claims:
        taken[claim.apart] += claim.gpus
        if max(claim.gpus, taken[claim.apart] if claim.apart else 0) > gpus:
            yield claim.name


class _Search:
    """Counts its tries instead of the time, so that it gives up at the same choice on every machine."""

    def __init__(self) -> None:
        self._tries = 0

    def follow(self, claims: Sequence[Claim], gpus: tuple[_Gpu, ...]) -> dict[str, tuple[int, ...]] | None:
        if not claims:
            return {}
        first, *others = claims
        for chosen in self._choices(first, gpus):
            after = tuple(gpu.take(first) if gpu in chosen else gpu for gpu in gpus)
            placed = self.follow(others, after)
            if placed is not None:
                return {first.name: tuple(sorted(gpu.position for gpu in chosen))} | placed
        return None

    def _choices(self, claim: Claim, gpus: tuple[_Gpu, ...]) -> Iterator[tuple[_Gpu, ...]]:
        seen = set()
        for chosen in combinations(
            [gpu for gpu in gpus if gpu.is_free_for(claim) and gpu.take(claim).free_bytes >= 0], claim.gpus
        ):
            self._tries += 1
            if self._tries > TRIES:
                raise _SearchLimit
            kinds = tuple(sorted(gpu.kind for gpu in chosen))
            if kinds not in seen:
                seen.add(kinds)
                yield chosen


def _spread_out(claims: Sequence[Claim], gpus: Sequence[_Gpu]) -> dict[str, tuple[int, ...]]:
    placed: dict[str, tuple[int, ...]] = {}
    loaded = {gpu.position: gpu for gpu in gpus}
    for claim in claims:
        free = [gpu for gpu in loaded.values() if gpu.is_free_for(claim)]
        order = sorted(free, key=lambda gpu: (-gpu.take(claim).free_bytes, gpu.position))
        placed[claim.name] = tuple(sorted(gpu.position for gpu in order[: claim.gpus]))
        loaded |= {position: loaded[position].take(claim) for position in placed[claim.name]}
    return placed
