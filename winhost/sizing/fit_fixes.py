"""Changes that together make a workload fit, and how much they ask for."""

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction

from winhost.core.dataclass import dataclass
from winhost.sizing.fit_changes import ChangeKind, FitChange


@dataclass(frozen=True)
class Fix:
    """Changes that together make it fit.

    shows: the arithmetic; unknown: what stays unknown even then, so that the fit is not certain.
    """

    changes: tuple[FitChange, ...]
    shows: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "; ".join(change.text for change in self.changes)

    @property
    def tier(self) -> int:
        """The position in TIERS of its largest change."""
        return max(map(self._tier, self.changes))

    def _tier(self, change: FitChange) -> int:
        if change.kind in LESS and self.lost > MOST_LOST:
            return TIERS.index(MUCH_LESS)
        return next(i for i, kinds in enumerate(TIERS) if change.kind in kinds)

    @property
    def lost(self) -> Fraction:
        """The share of sequences times context that the model loses which loses most."""
        left: defaultdict[str | None, Fraction] = defaultdict(lambda: Fraction(1))
        for change in self.changes:
            if change.kind in LESS:
                left[change.model] *= Fraction(int(change.to), int(change.was or change.to))
        return 1 - min(left.values(), default=Fraction(1))


LESS = (ChangeKind.SEQUENCES, ChangeKind.CONTEXT)
MOST_LOST = Fraction(1, 2)  # beyond that, another change is the smaller one
MUCH_LESS: tuple[ChangeKind, ...] = ()  # where fixes rank whose sequences and contexts lose more
TIERS: tuple[tuple[ChangeKind, ...], ...] = (
    (ChangeKind.SHM, ChangeKind.RAM),
    LESS,
    (ChangeKind.TENSOR,),
    (ChangeKind.SLEEP,),
    (ChangeKind.SLEEP_LEVEL,),
    MUCH_LESS,
    (ChangeKind.MOVE,),
    (ChangeKind.QUANTIZATION,),
    (ChangeKind.GPUS, ChangeKind.HOST_RAM),
)


ADVICE = TIERS.index((ChangeKind.QUANTIZATION,))  # from here on it is no smaller change of what is asked for
PURCHASE = ADVICE + 1
_MEMORY = (ChangeKind.SHM, ChangeKind.RAM, ChangeKind.HOST_RAM)


def minimal(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Drop fixes that contain another fix."""
    found = list(dict.fromkeys(fixes))
    return tuple(fix for fix in found if not any(_does_less(other, fix) for other in found))


def _does_less(one: Fix, other: Fix) -> bool:
    """Tell whether the other makes each change of this one, or a larger one of memory."""
    if one == other:
        return False
    to = {(change.kind, change.model): change.to for change in other.changes}
    return all(_within(change, to.get((change.kind, change.model))) for change in one.changes)


def _within(change: FitChange, to: int | str | None) -> bool:
    return to == change.to or (change.kind in _MEMORY and to is not None and int(to) >= int(change.to))
