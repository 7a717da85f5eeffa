"""WSL's own containers: a preview that shares what WSL 2 is and lacks much of it."""

from winhost.compat.cards import serves
from winhost.compat.rule import BLOCKS, Finding, rule, unsupported, unverified
from winhost.resources.host import HostFacts


@rule("wslc", unknown=BLOCKS)
def wslc_is_a_preview(facts: HostFacts) -> Finding | None:
    """True on every host: never recommended over a path that is stable."""
    return unverified("wslc.preview", observed=facts.os.named)


@rule("wslc", unknown=BLOCKS)
def wslc_without_gpu(facts: HostFacts) -> Finding | None:
    """The Windows driver must run the card."""
    if not any(serves(card) and card.gpu.state.driver_model for card in facts.cards):
        return unsupported("wslc.no-gpu", observed="no card is run by a Windows GPU driver")
    return None
