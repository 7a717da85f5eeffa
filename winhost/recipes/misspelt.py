"""Names that are one slip away from a known one: only these are corrected in somebody's file."""

from collections.abc import Iterable

from winhost.model.errors import did_you_mean_or_period

NEVER_SET = frozenset({"VLLM_SERVER_DEV_MODE"})
"""It opens routes without a key: nobody gets it by a correction."""

CUTOFF = 0.85  # names of vLLM share a prefix and most of their words, so 0.6 names unrelated ones


def one_slip(word: str, other: str) -> bool:
    """Damerau-Levenshtein distance 1: a letter added, left out, replaced, or swapped with its neighbour."""
    if abs(len(word) - len(other)) > 1 or word == other:
        return False
    begin = next(
        (at for at, (mine, its) in enumerate(zip(word, other, strict=False)) if mine != its), min(len(word), len(other))
    )
    a, b = word[begin:], other[begin:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


def meant(word: str, known: Iterable[str]) -> str | None:
    """The only known name that is one slip away; None for none or several, and for those that are never set."""
    near = [name for name in known if one_slip(word, name)]
    return near[0] if len(near) == 1 and near[0] not in NEVER_SET else None


def suggested(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'NCCL_DEBUG'?`, or a full stop where no name is close."""
    return did_you_mean_or_period(word, (name for name in known if name not in NEVER_SET), cutoff=CUTOFF)
