"""What a workload takes on the cards, and which model goes on which of them."""

from collections.abc import Iterable, Iterator, Sequence

from winhost.model.units import Bytes, gib
from winhost.model.workload import AvailableMemory, Video, Workload
from winhost.sizing.engines import Engine, MemoryPart, Missing
from winhost.sizing.memory_places import SHARED_WITH_WINDOWS, BudgetLine, line_of
from winhost.sizing.placement import Claim, Placement, place_on_cards

VIDEO = "video streams"
SHARE = 95  # percent of a card's memory that engines can have; Linux and the driver need the rest
SHARE_WSL = 90
SHARE_WSL_SEVERAL = 80  # where one engine spans several cards


def card_share(workload: Workload, available_memory: AvailableMemory, card: int) -> MemoryPart:
    """How much of a card engines can have."""
    percent, evidence = SHARE, "native-card-share"
    if available_memory.path in SHARED_WITH_WINDOWS:
        several = any(model.engine_cards > 1 for model in workload.models)
        percent, evidence = SHARE_WSL, "wsl-utilization"
        if several:
            percent, evidence = SHARE_WSL_SEVERAL, "wsl-multi-gpu-residency"
    vram = available_memory.cards[card]
    bytes_ = vram * percent // 100
    return MemoryPart(f"gpu{card}", bytes_, bytes_, f"{percent} % of {gib(vram)}", (evidence,))


def placement_of(workload: Workload, engines: Sequence[Engine], capacities: Sequence[Bytes]) -> Placement:
    """By what is counted, or where that has no room, by the least of it."""
    found = place_on_cards([*map(_claim, engines), *_claims_of_video(workload.video)], capacities)
    if found.fits:
        return found
    least = place_on_cards([*map(_least_claim, engines), *_claims_of_video(workload.video)], capacities)
    if not least.fits:
        return found
    return Placement(least.cards, found.homeless, fits=False, proven=found.proven)


def _claim(each: Engine) -> Claim:
    return _claimed(each, each.stays.bytes, each.awake)


def _least_claim(each: Engine) -> Claim:
    return _claimed(each, each.stays.least, sum(part.least for part in each.turn))


def _claimed(each: Engine, stays: Bytes, turn: Bytes) -> Claim:
    name, cards = each.model.name, each.model.cards
    return Claim(name, cards, stays, turn) if each.model.sleeps else Claim(name, cards, stays + turn)


def _claims_of_video(video: Video | None) -> list[Claim]:
    return [Claim(VIDEO, 1, video.streams * (video.each or 0))] if video else []


def missing_of_video(video: Video | None) -> tuple[Missing, ...]:
    if video is None or video.each is not None:
        return ()
    return (Missing(None, "memory of video streams", "it depends on codec and resolution", ("video.each",)),)


def card_lines(workload: Workload, engines: Sequence[Engine], placement: Placement, cards: int) -> Iterator[BudgetLine]:
    for card in range(cards):
        where = f"gpu{card}"
        here = [each for each in engines if card in placement.cards.get(each.model.name, ())]
        for each in here:
            parts = (each.stays,) if each.model.sleeps else (*each.turn, each.stays)
            yield from (line_of(part, where, each.model.name) for part in parts)
        yield from _turn(here, where)
        if workload.video and workload.video.each and card in placement.cards[VIDEO]:
            streams, size = workload.video.streams, workload.video.each
            how = f"{streams} streams of {gib(size)} each, as stated"
            yield BudgetLine(VIDEO, where, streams * size, streams * size, how, (), estimate=False)


def _turn(here: Iterable[Engine], where: str) -> Iterator[BudgetLine]:
    """The largest of those that take turns on a card: one of them is awake."""
    sleepers = [each for each in here if each.model.sleeps]
    if not sleepers:
        return
    largest = max(sleepers, key=lambda each: each.awake)
    among = f"; the largest of {len(sleepers)} that take turns" if len(sleepers) > 1 else ""
    for part in largest.turn:
        line = line_of(part, where, largest.model.name)
        evidence = (*line.evidence, "sleepers-take-turns")
        yield BudgetLine(
            line.what, where, line.bytes, line.least, line.how + among, evidence, line.estimate, line.model
        )
