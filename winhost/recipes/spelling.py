"""Suggests and corrects misspelled names. Only a name with a single mistake is corrected in a file."""

from collections.abc import Iterable

from winhost.model.errors import did_you_mean_or_period

NEVER_SUGGESTED = frozenset({"VLLM_SERVER_DEV_MODE"})
"""Names that no correction may set: this one opens routes without a key."""

CUTOFF = 0.85  # names of vLLM share a prefix and many words, so that 0.6 would suggest unrelated ones


def is_one_edit(word: str, other: str) -> bool:
    """Tell whether the Damerau-Levenshtein distance is 1: one letter is added, removed, replaced or swapped with its
    neighbour.
    """
    if abs(len(word) - len(other)) > 1 or word == other:
        return False
    begin = next(
        (at for at, (mine, its) in enumerate(zip(word, other, strict=False)) if mine != its), min(len(word), len(other))
    )
    a, b = word[begin:], other[begin:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


def find_correction(word: str, known: Iterable[str]) -> str | None:
    """Return the only known name that is one edit away; None if there is none or several, or it may not be set."""
    candidates = [name for name in known if is_one_edit(word, name)]
    return candidates[0] if len(candidates) == 1 and candidates[0] not in NEVER_SUGGESTED else None


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'NCCL_DEBUG'?`, or a full stop if no name is similar."""
    return did_you_mean_or_period(word, (name for name in known if name not in NEVER_SUGGESTED), cutoff=CUTOFF)
