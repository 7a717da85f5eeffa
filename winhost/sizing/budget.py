"""The memory of a workload on a path, line by line: on each card, in the target's RAM, in /dev/shm, on the host.

Pure: a workload and the room that a path gives in, the sums out. All that is counted is the upper end of what is known;
`least` beside it is the lower end. What nobody stated is missing, and a place that would hold it is not said to fit.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from winhost.model.units import Bytes, GiB, MiB, gib
from winhost.model.workload import AvailableMemory, Mirror, Video, Workload
from winhost.sizing.engines import Engine, MemoryPart, Missing, engine
from winhost.sizing.placement import Claim, Placement, place

RAM = "ram"
SHM = "shm"
PINNED = "pinned"
HOST = "host"
HOST_PER_CARDS = "host-per-cards"
VIDEO = "video streams"

NOT_KNOWN = ", not known"  # behind what tells a capacity that nobody knows

SHARED_WITH_WINDOWS = ("wsl2", "wslc")
BESIDE_WINDOWS = (*SHARED_WITH_WINDOWS, "dda", "gpu-p")

SHARE = 95  # percent of a card's memory that engines can have; Linux and the driver need the rest
SHARE_WSL = 90
SHARE_WSL_SEVERAL = 80  # where one engine spans several cards

SYSTEM = 2 * GiB
SYSTEM_LEAST = GiB
PROCESS_RAM = 2 * GiB  # of the API server and core of each copy, and of each worker, of which there is one a card
PROCESS_RAM_LEAST = GiB
LOADING = 5 * GiB  # one file of weights; engines start one after the other
WINDOWS = 2 * GiB
WINDOWS_USABLE = 4 * GiB

NCCL_SHM = 256 * MiB  # a card
QUEUE_OUT = 10 * 16 * MiB  # slots by size: from the engine to all workers of a copy
QUEUE_BACK = 10 * 24 * MiB  # from each worker
QUEUE_OWN = 24 * MiB  # of each copy's workers among themselves


@dataclass(frozen=True)
class BudgetLine:
    """One thing in one place. bytes are counted; least is what it may turn out to be; how is the computation."""

    what: str
    where: str
    bytes: Bytes
    least: Bytes
    how: str
    evidence: tuple[str, ...]
    estimate: bool
    model: str | None = None


@dataclass(frozen=True)
class MemoryPlace:
    """Where memory is: `gpu0`, `ram`, `shm`, `pinned`, `host`, or `host-per-cards`; sizes in bytes.

    how tells the capacity. fits: whether all that is counted has room, None where that cannot be said; may_fit: whether
    the least of it has.
    """

    where: str
    card: int | None
    capacity: Bytes | None
    how: str
    evidence: tuple[str, ...]
    used: Bytes
    least: Bytes
    margin: Bytes | None
    fits: bool | None
    may_fit: bool | None


@dataclass(frozen=True)
class Budget:
    """A workload in a room. fits: False where it does not, None where that cannot be said."""

    variant: str
    lines: tuple[BudgetLine, ...]
    places: tuple[MemoryPlace, ...]
    placement: Placement
    missing: tuple[Missing, ...]
    fits: bool | None

    def at(self, where: str) -> MemoryPlace | None:
        """The place of this name, where anything is counted there."""
        return next((place for place in self.places if place.where == where), None)


def budget(workload: Workload, room: AvailableMemory) -> Budget:
    """Everything that a workload takes in a room, and whether it fits."""
    engines = [engine(model) for model in workload.models]
    shares = [_share(workload, room, card) for card in range(len(room.cards))]
    placement = _placement(workload, engines, [capacity.bytes for capacity in shares])
    shm = tuple(_shared_memory(workload))
    lines = (
        *_on_cards(workload, engines, placement, len(room.cards)),
        *_in_ram(workload, engines, room, shm),
        *shm,
        *_pinned(workload, engines, room),
        *_on_host(workload, room),
    )
    places = tuple(_places(workload, room, lines, shares, _Doubts(workload, engines, placement)))
    missing = tuple(lack for each in engines for lack in each.missing) + _missing_of_video(workload.video)
    verdicts = [not placement.homeless, *(place.fits for place in places)]
    fits = False if False in verdicts else None if None in verdicts else True
    return Budget(room.variant, lines, places, placement, missing, fits)


def wsl_default_ram(host_ram: Bytes) -> Bytes:
    """What WSL gets where .wslconfig says nothing: half of the machine's memory."""
    return host_ram // 2


# --- On the cards ----------------------------------------------------------------------------------------------------


def _share(workload: Workload, room: AvailableMemory, card: int) -> MemoryPart:
    """How much of a card engines can have."""
    percent, evidence = SHARE, "native-card-share"
    if room.path in SHARED_WITH_WINDOWS:
        several = any(model.engine_cards > 1 for model in workload.models)
        percent, evidence = SHARE_WSL, "wsl-utilization"
        if several:
            percent, evidence = SHARE_WSL_SEVERAL, "wsl-multi-gpu-residency"
    vram = room.cards[card]
    bytes_ = vram * percent // 100
    return MemoryPart(f"gpu{card}", bytes_, bytes_, f"{percent} % of {gib(vram)}", (evidence,))


def _placement(workload: Workload, engines: Sequence[Engine], capacities: Sequence[Bytes]) -> Placement:
    """By what is counted, or where that has no room, by the least of it."""
    found = place([*map(_claim, engines), *_claims_of_video(workload.video)], capacities)
    if found.fits:
        return found
    least = place([*map(_least_claim, engines), *_claims_of_video(workload.video)], capacities)
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


def _missing_of_video(video: Video | None) -> tuple[Missing, ...]:
    if video is None or video.each is not None:
        return ()
    return (Missing(None, "memory of video streams", "it depends on codec and resolution", ("video.each",)),)


def _on_cards(workload: Workload, engines: Sequence[Engine], placement: Placement, cards: int) -> Iterator[BudgetLine]:
    for card in range(cards):
        where = f"gpu{card}"
        here = [each for each in engines if card in placement.cards.get(each.model.name, ())]
        for each in here:
            parts = (each.stays,) if each.model.sleeps else (*each.turn, each.stays)
            yield from (_line(part, where, each.model.name) for part in parts)
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
        line = _line(part, where, largest.model.name)
        evidence = (*line.evidence, "sleepers-take-turns")
        yield BudgetLine(
            line.what, where, line.bytes, line.least, line.how + among, evidence, line.estimate, line.model
        )


def _line(part: MemoryPart, where: str, model: str | None = None) -> BudgetLine:
    return BudgetLine(part.what, where, part.bytes, part.least, part.how, part.evidence, part.estimate, model)


# --- In the target's memory ------------------------------------------------------------------------------------------


def _in_ram(
    workload: Workload, engines: Sequence[Engine], room: AvailableMemory, shm: Sequence[BudgetLine]
) -> Iterator[BudgetLine]:
    system = f"the target itself, {gib(SYSTEM_LEAST)} to {gib(SYSTEM)}"
    yield BudgetLine("system", RAM, SYSTEM, SYSTEM_LEAST, system, ("target-ram",), estimate=True)
    for each in engines:
        yield _processes(each)
    loading = f"a file of weights on its way to the card, {gib(LOADING)} at most; engines start one after the other"
    yield BudgetLine("loading", RAM, LOADING, 0, loading, ("loading-file",), estimate=True)
    yield from _backups(workload, engines, room, RAM)
    if workload.kv_mirror and workload.kv_mirror.through is Mirror.LMCACHE:
        yield from _staging(workload, RAM, "LMCache server", "lmcache-server")
    if shm:
        used, least = _sum(shm)
        yield BudgetLine(
            "shared memory", RAM, used, least, "what is in /dev/shm; its pages are RAM", ("shm-is-ram",), estimate=True
        )


def _processes(each: Engine) -> BudgetLine:
    count = each.model.data + each.model.cards
    how = f"{count} processes of {gib(PROCESS_RAM_LEAST)} to {gib(PROCESS_RAM)}"
    used, least = count * PROCESS_RAM, count * PROCESS_RAM_LEAST
    return BudgetLine("processes", RAM, used, least, how, ("target-ram",), estimate=True, model=each.model.name)


def _backups(workload: Workload, engines: Sequence[Engine], room: AvailableMemory, where: str) -> Iterator[BudgetLine]:
    """Pinned, of every model that ever slept, whether it sleeps now or not; else of those that sleep, which may be all
    of them at once."""
    pinned = _pins(workload, room)
    stays = ("kept also while it is awake", "sleep-backup-stays")
    goes = ("given back on waking, but all may sleep at once", "sleep-backup-returned")
    for each in engines:
        if each.backup is None:
            continue
        line = _line(each.backup, where, each.model.name)
        for_how_long, known_from = stays if pinned else goes
        yield replace(line, how=f"{line.how}, {for_how_long}", evidence=(*line.evidence, known_from))
        if pinned:
            how = "pinned blocks are rounded up to powers of two: up to as much again, and 0.95 as much was measured"
            evidence = ("pinned-powers-of-two",)
            yield BudgetLine(
                "rounding", where, each.backup.bytes, 0, how, evidence, estimate=True, model=each.model.name
            )


def _pins(workload: Workload, room: AvailableMemory) -> bool:
    """Under WSL vLLM pins nothing unless it is told to, which a workload that must have pinned memory asks for."""
    return room.path not in SHARED_WITH_WINDOWS or "pinned-memory" in workload.needs.must


def _staging(workload: Workload, where: str, what: str, evidence: str) -> Iterator[BudgetLine]:
    assert workload.kv_mirror is not None
    each = workload.kv_mirror.staging
    for model in workload.models:
        how = f"{gib(each)} stated for each engine" + (f", {model.data} copies" if model.data > 1 else "")
        total = each * model.data
        yield BudgetLine(what, where, total, total, how, (evidence,), estimate=False, model=model.name)


def _shared_memory(workload: Workload) -> Iterator[BudgetLine]:
    for model in workload.models:
        if model.engine_cards > 1:
            used = model.data * (QUEUE_OUT + model.engine_cards * QUEUE_BACK + QUEUE_OWN)
            copies = "" if model.data == 1 else f" for each of {model.data} copies"
            how = f"10 x 16 MiB to all workers, 10 x 24 MiB back from each of {model.engine_cards}, 24 MiB more{copies}"
            yield BudgetLine(
                "message queues", SHM, used, 0, how, ("vllm-message-queue",), estimate=True, model=model.name
            )
            yield _nccl(model.name, model.cards, SHM)
    if workload.kv_mirror and workload.kv_mirror.through is Mirror.TIERS:
        yield from _staging(workload, SHM, "KV tiers", "vllm-tiers-in-shm")


def _nccl(model: str, cards: int, where: str) -> BudgetLine:
    how = f"{gib(NCCL_SHM)} for each of {cards} cards, where they do not reach each other's memory"
    return BudgetLine("NCCL buffers", where, cards * NCCL_SHM, 0, how, ("nccl-shm-pinned",), estimate=True, model=model)


def _pinned(workload: Workload, engines: Sequence[Engine], room: AvailableMemory) -> Iterator[BudgetLine]:
    if _pins(workload, room):
        yield from _backups(workload, engines, room, PINNED)
    for model in workload.models:
        if model.engine_cards > 1:
            yield _nccl(model.name, model.cards, PINNED)


# --- On the host -----------------------------------------------------------------------------------------------------


def _on_host(workload: Workload, room: AvailableMemory) -> Iterator[BudgetLine]:
    if room.path in BESIDE_WINDOWS:
        yield BudgetLine("target", HOST, room.ram, room.ram, f"the {gib(room.ram)} that it gets", (), estimate=False)
        needs = WINDOWS_USABLE if workload.keep_windows_usable else WINDOWS
        how = "the least that Windows asks for" + (" with people working on it" if workload.keep_windows_usable else "")
        yield BudgetLine("Windows", HOST, needs, needs, how, ("windows-memory",), estimate=True)
    if room.path in SHARED_WITH_WINDOWS:
        for card, vram in enumerate(room.cards):
            how = "memory of the card, for which Windows wants as much of its own"
            yield BudgetLine(f"gpu{card}", HOST_PER_CARDS, vram, vram, how, ("wsl-vram-above-memory",), estimate=False)


# --- What fits -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Doubts:
    """Of which places it cannot be said what they must hold."""

    workload: Workload
    engines: Sequence[Engine]
    placement: Placement

    def card(self, card: int) -> bool:
        """Whether something on this card is missing."""
        placed = self.placement.cards
        video = bool(_missing_of_video(self.workload.video)) and card in placed.get(VIDEO, ())
        return video or any(each.missing and card in placed.get(each.model.name, ()) for each in self.engines)

    @property
    def backups(self) -> bool:
        """Whether a backup is missing."""
        return any(e.model.sleeps and e.model.sleep_level == 1 and e.backup is None for e in self.engines)


def _places(
    workload: Workload,
    room: AvailableMemory,
    lines: Sequence[BudgetLine],
    shares: Sequence[MemoryPart],
    doubts: _Doubts,
) -> Iterator[MemoryPlace]:
    for card, share in enumerate(shares):
        unproven = not (doubts.placement.fits or doubts.placement.proven)
        yield _place(lines, share.what, share, card, doubts=doubts.card(card), unproven=unproven)
    yield _place(lines, RAM, _capacity(room.ram, "what the target gets"), doubts=doubts.backups)
    others = (
        (SHM, _capacity(room.shm, "size of /dev/shm", "shm-default-half"), False),
        (PINNED, _capacity(room.pinned, *_pinned_bound(room)), doubts.backups and _pins(workload, room)),
        (HOST, _capacity(room.host_ram, "memory of the machine"), False),
        (HOST_PER_CARDS, _capacity(room.host_ram, "memory of the machine"), False),
    )
    for where, capacity, doubtful in others:
        if doubtful or any(line.where == where for line in lines):
            yield _place(lines, where, capacity, doubts=doubtful)


def _pinned_bound(room: AvailableMemory) -> tuple[str, ...]:
    if room.path in SHARED_WITH_WINDOWS:
        return "what may be pinned under WSL", "wsl-pinned-reports", "vllm-pin-switch"
    return ("what may be pinned",)


@dataclass(frozen=True)
class _Capacity:
    bytes: Bytes | None
    how: str
    evidence: tuple[str, ...]


def _capacity(size: Bytes | None, how: str, *evidence: str) -> _Capacity:
    return _Capacity(size, how if size is not None else how + NOT_KNOWN, evidence)


def _place(
    lines: Sequence[BudgetLine],
    where: str,
    capacity: MemoryPart | _Capacity,
    card: int | None = None,
    *,
    doubts: bool,
    unproven: bool = False,
) -> MemoryPlace:
    used, least = _sum(line for line in lines if line.where == where)
    fits = _fits(used, capacity.bytes, doubts)
    return MemoryPlace(
        where=where,
        card=card,
        capacity=capacity.bytes,
        how=capacity.how,
        evidence=capacity.evidence,
        used=used,
        least=least,
        margin=None if capacity.bytes is None else capacity.bytes - used,
        fits=None if unproven and fits is False else fits,
        may_fit=_fits(least, capacity.bytes, doubts),
    )


def _fits(needed: Bytes, capacity: Bytes | None, doubts: bool) -> bool | None:
    if capacity is None:
        return None
    if needed > capacity:
        return False
    return None if doubts else True


def _sum(lines: Iterable[BudgetLine]) -> tuple[Bytes, Bytes]:
    found = list(lines)
    return sum(line.bytes for line in found), sum(line.least for line in found)
