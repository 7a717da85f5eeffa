"""Place models on GPUs.

The rule is first fit, largest first: models in falling order of what they need on a GPU, each on the first GPUs with
room, GPUs in falling order of their memory. Where that fails, the other choices are tried in the same order, so that a
fit is found where there is one; after `TRIES` choices the search gives up (`proven` is False).
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
    """A claim on `cards` different GPUs: `fixed` bytes on each at all times, `turn` while the model is awake. Of those
    on a GPU that take turns, one is awake: the largest turn counts. apart: claims with
    the same word share no GPU.
    """

    name: str
    cards: int
    fixed: Bytes
    turn: Bytes = 0
    apart: str = ""


@dataclass(frozen=True)
class Placement:
    """Cards by name, as positions in what was given.

    homeless: what needs more cards than there are; fits: whether everything was placed; proven: False where the search
    gave up, so that a fit may exist.
    """

    cards: Mapping[str, tuple[int, ...]]
    homeless: tuple[str, ...]
    fits: bool
    proven: bool


@dataclass(frozen=True)
class _Card:
    position: int
    capacity: Bytes
    fixed: Bytes = 0
    turn: Bytes = 0
    apart: tuple[str, ...] = ()

    def take(self, claim: Claim) -> "_Card":
        apart = (*self.apart, claim.apart) if claim.apart else self.apart
        return _Card(self.position, self.capacity, self.fixed + claim.fixed, max(self.turn, claim.turn), apart)

    def is_free_for(self, claim: Claim) -> bool:
        return claim.apart not in self.apart

    @property
    def left(self) -> Bytes:
        return self.capacity - self.fixed - self.turn

    @property
    def kind(self) -> tuple[Bytes, Bytes, Bytes, tuple[str, ...]]:
        """Cards of one kind are interchangeable."""
        return self.capacity, self.fixed, self.turn, self.apart


class _GaveUp(Exception):
    pass


def place_on_cards(claims: Sequence[Claim], capacities: Sequence[Bytes]) -> Placement:
    """Assign cards to every claim; where not everything fits, those with the most memory left, to show the shortage."""
    count = Counter(claim.apart for claim in claims)
    claims = [claim if count[claim.apart] > 1 else replace(claim, apart="") for claim in claims]
    ordered = sorted(claims, key=lambda claim: (-(claim.fixed + claim.turn), claim.name))
    cards = sorted(
        (_Card(i, capacity) for i, capacity in enumerate(capacities)), key=lambda c: (-c.capacity, c.position)
    )
    homeless = tuple(sorted(_homeless(claims, len(cards))))
    housed = [claim for claim in ordered if claim.name not in homeless]
    search = _Search()
    try:
        found = search.follow(housed, tuple(cards))
    except _GaveUp:
        return Placement(_spread(housed, cards), homeless, fits=False, proven=False)
    if found is None:
        return Placement(_spread(housed, cards), homeless, fits=False, proven=True)
    return Placement(found, homeless, fits=not homeless, proven=True)


def _homeless(claims: Sequence[Claim], cards: int) -> Iterator[str]:
    taken: Counter[str] = Counter()
    for claim in claims:
        taken[claim.apart] += claim.cards
        if max(claim.cards, taken[claim.apart] if claim.apart else 0) > cards:
            yield claim.name


class _Search:
    """Counts what it tries, so that it ends at the same place on every machine."""

    def __init__(self) -> None:
        self._tried = 0

    def follow(self, claims: Sequence[Claim], cards: tuple[_Card, ...]) -> dict[str, tuple[int, ...]] | None:
        if not claims:
            return {}
        first, *others = claims
        for chosen in self._choices(first, cards):
            after = tuple(card.take(first) if card in chosen else card for card in cards)
            rest = self.follow(others, after)
            if rest is not None:
                return {first.name: tuple(sorted(card.position for card in chosen))} | rest
        return None

    def _choices(self, claim: Claim, cards: tuple[_Card, ...]) -> Iterator[tuple[_Card, ...]]:
        seen = set()
        for chosen in combinations(
            [card for card in cards if card.is_free_for(claim) and card.take(claim).left >= 0], claim.cards
        ):
            self._tried += 1
            if self._tried > TRIES:
                raise _GaveUp
            kinds = tuple(sorted(card.kind for card in chosen))
            if kinds not in seen:
                seen.add(kinds)
                yield chosen


def _spread(claims: Sequence[Claim], cards: Sequence[_Card]) -> dict[str, tuple[int, ...]]:
    placed: dict[str, tuple[int, ...]] = {}
    loaded = {card.position: card for card in cards}
    for claim in claims:
        free = [card for card in loaded.values() if card.is_free_for(claim)]
        order = sorted(free, key=lambda card: (-card.take(claim).left, card.position))
        placed[claim.name] = tuple(sorted(card.position for card in order[: claim.cards]))
        loaded |= {at: loaded[at].take(claim) for at in placed[claim.name]}
    return placed
