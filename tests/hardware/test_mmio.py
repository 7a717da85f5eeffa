"""MMIO windows: cases are data, the properties are checked against an allocator written independently for the test."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import read_cases
from tests.rows import each_row
from winhost.hardware import bars, mmio
from winhost.hardware.bars import BarSource, GpuBars, MmioRefused
from winhost.hardware.mmio import HighWindow, LowWindow
from winhost.knowledge import catalogue
from winhost.model.units import Bytes, GiB, KiB, MiB

DATA = Path(__file__).parent.parent / "data" / "mmio"

# --- Cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stretch:
    start: Bytes
    mib: int = 0
    kib: int = 0

    @property
    def length(self) -> Bytes:
        return self.mib * MiB + self.kib * KiB


@dataclass(frozen=True)
class GpuCase:
    """A GPU with its BARs, or with what they are to be found from."""

    name: str = "GPU"
    count: int = 1
    bars64_mib: tuple[int, ...] = ()
    bars32_mib: tuple[int, ...] = ()
    ranges: tuple[dict[str, int], ...] = ()
    device: str | None = None
    vram_mib: int | None = None

    def gpu(self) -> GpuBars:
        if self.bars64_mib:
            return a_gpu([n * MiB for n in self.bars64_mib], [n * MiB for n in self.bars32_mib], self.name)
        vram = None if self.vram_mib is None else self.vram_mib * MiB
        return bars.find_bars(
            self.name, ranges=[Stretch(**each) for each in self.ranges], device=self.device, vram=vram
        )


@dataclass(frozen=True)
class Say:
    """The expected result; None is not checked. Texts are parts of the messages."""

    floor_mib: int | None = None
    least_mib: int | None = None
    size_mib: int | None = None
    orders: int | None = None
    placed: dict[str, int] | None = None
    low_floor_mib: int | None = None
    low_size_mib: int | None = None
    bars64_mib: list[int] | None = None
    bars32_mib: list[int] | None = None
    source: str | None = None
    accepted: bool | None = None
    refused: str | None = None
    need_mib: int | None = None
    given_mib: int | None = None
    why: tuple[str, ...] = ()
    low_why: tuple[str, ...] = ()
    remedy: tuple[str, ...] = ()
    doubts: list[str] | None = None
    over_cap: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    gpus: list[dict[str, Any]]
    say: dict[str, Any]
    base_mib: int | None = None
    address_width: int | None = None
    cap: str | None = None
    cap_mib: int | None = None
    ask: Bytes | None = None
    ask_mib: int | None = None
    ask_low_mib: int | None = None

    def limits(self) -> dict[str, Any]:
        limits: dict[str, Any] = {"address_width": self.address_width}
        if self.base_mib is not None:
            limits["base"] = self.base_mib * MiB
        if self.cap == "none":
            limits["cap"] = None
        if self.cap_mib is not None:
            limits["cap"] = self.cap_mib * MiB
        return limits


@dataclass
class Outcome:
    """Everything that a case can speak about, by the names that `Say` uses."""

    said: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def gpus(self, gpus: Sequence[GpuBars]) -> None:
        self.said["bars64_mib"] = [bar // MiB for bar in gpus[0].bars64]
        self.said["bars32_mib"] = [bar // MiB for bar in gpus[0].bars32]

    def high(self, window: HighWindow) -> None:
        self.said |= {
            "floor_mib": window.floor // MiB,
            "least_mib": window.least // MiB,
            "size_mib": window.size // MiB,
            "orders": window.orders,
            "placed": {each.gpu.name: each.start for each in window.pieces},
            "source": window.gpus[0].source.value,
        }
        self.texts |= {"why": window.why, "over_cap": window.cap_warning or ""}
        self.said["doubts"] = window.doubts

    def low(self, window: LowWindow) -> None:
        self.said |= {"low_floor_mib": window.floor // MiB, "low_size_mib": window.size // MiB}
        self.texts |= {"low_why": window.why}

    def refusal(self, refused: MmioRefused) -> None:
        self.said["refused"] = refused.code
        self.said["need_mib"] = None if refused.need is None else refused.need // MiB
        self.said["given_mib"] = None if refused.given is None else refused.given // MiB
        self.texts |= {"why": refused.sentence, "remedy": refused.remedy}


def run(case: Case) -> Outcome:
    out = Outcome()
    try:
        specs = [GpuCase(**each) for each in case.gpus]
        gpus = [gpu for spec in specs for gpu in [spec.gpu()] * spec.count]
        out.gpus(gpus)
        high, low = mmio.high_window(gpus, **case.limits()), mmio.low_window(gpus)
        out.high(high)
        out.low(low)
        ask(case, high, low, out)
    except MmioRefused as refused:
        out.refusal(refused)
    return out


def ask(case: Case, high: HighWindow, low: LowWindow, out: Outcome) -> None:
    asked = case.ask if case.ask_mib is None else case.ask_mib * MiB
    if asked is not None:
        out.said["accepted"] = mmio.check_high(asked, high) == asked
    if case.ask_low_mib is not None:
        out.said["accepted"] = mmio.check_low(case.ask_low_mib * MiB, low) == case.ask_low_mib * MiB


def cases() -> Iterator[Any]:
    for file in sorted(DATA.glob("*.yaml")):
        for name, raw in read_cases(file).items():
            yield pytest.param(Case(**raw), id=f"{file.stem}: {name}")


@each_row("case", list(cases()))
def test_windows_are_as_the_case_says(case: Case) -> None:
    out, say = run(case), Say(**case.say)
    assert out.said.get("refused") == say.refused, out.texts
    for key, want in vars(say).items():
        if key in ("why", "low_why", "remedy", "over_cap"):
            assert [part for part in want if part not in out.texts.get(key, "")] == [], out.texts
        elif key == "doubts":
            assert want is None or same_doubts(want, out.said["doubts"]), out.said["doubts"]
        elif want is not None:
            assert out.said.get(key) == want, key


def test_every_refusal_of_the_catalogue_has_a_case() -> None:
    refused = {case.values[0].say.get("refused") for case in cases()} - {None}
    assert refused == {code for code in catalogue.reason_entries() if code.startswith("mmio.")}


def same_doubts(parts: Sequence[str], doubts: Sequence[str]) -> bool:
    """Each doubt is expected, and each expected one is there."""
    expected = all(any(part in doubt for part in parts) for doubt in doubts)
    return expected and all(any(part in doubt for doubt in doubts) for part in parts)


# --- The table -------------------------------------------------------------------------------------------------------

GPUS = read_cases(Path(mmio.__file__).parent / "gpus.yaml")["gpus"]
TABLE = {ids: gpu["bars"] for ids, gpu in GPUS.items() if "bars" in gpu}


@each_row("ids", TABLE)
def test_a_table_entry_is_complete_and_found_by_its_device(ids: str) -> None:
    entry = TABLE[ids]
    vendor, device = ids.split(":")
    found = bars.find_bars("GPU", device=f"VEN_{vendor.upper()}&DEV_{device.upper()}&SUBSYS_00000000")
    assert set(entry) == {"bars64_mib", "bars32_mib", "kind", "source"}
    assert entry["kind"] in {"source", "issue", "measured", "inferred"}
    assert [n * MiB for n in entry["bars64_mib"]] == list(found.bars64)
    assert all(bar.bit_count() == 1 for bar in (*found.bars64, *found.bars32))
    assert found.source is BarSource.TABLE
    assert bool(found.doubts) == (entry["kind"] == "inferred")


# --- Properties ------------------------------------------------------------------------------------------------------


def a_gpu(bars64: Sequence[Bytes], bars32: Sequence[Bytes] = (), name: str = "GPU") -> GpuBars:
    return GpuBars(name, tuple(bars64), tuple(bars32), BarSource.SURVEYED)


apertures = st.integers(28, 38).map(lambda bits: 1 << bits)
small_bars = st.sampled_from([512, 16 * KiB, 16 * MiB, 32 * MiB, 64 * MiB])
register_bars = st.integers(20, 27).map(lambda bits: 1 << bits)
gpus64 = st.builds(lambda bar1, more: a_gpu([bar1, *more]), apertures, st.lists(small_bars, max_size=2))
gpus32 = st.builds(lambda bars: a_gpu([], bars), st.lists(register_bars, min_size=1, max_size=2))
some_gpus64 = st.lists(gpus64, min_size=1, max_size=4)
some_gpus32 = st.lists(gpus32, min_size=1, max_size=4)

Window = tuple[Bytes, Bytes]


def guest(wants: Sequence[tuple[Bytes, Bytes]], window: Window) -> list[Bytes] | None:
    """Where a guest puts its (length, alignment) wants, in this order, boundary by boundary; None when one is left."""
    taken: list[Window] = []
    for length, alignment in wants:
        start = window[0] + -window[0] % alignment
        while any(start < end and begin < start + length for begin, end in taken):
            start += alignment
        if start + length > window[1]:
            return None
        taken.append((start, start + length))
    return [begin for begin, _ in taken]


def want(bars: Sequence[Bytes]) -> tuple[Bytes, Bytes]:
    length = sum(max(4 * KiB, bar) for bar in bars)
    alignment = 1
    while alignment * 2 <= length:
        alignment *= 2
    return length, alignment


def high(window: HighWindow, size: Bytes) -> Window:
    return window.base, window.base + size


def low(size: Bytes) -> Window:
    return 4 * GiB - size + min(size // 2, 128 * MiB), 4 * GiB - 18 * MiB - 768 * KiB


CONFIG = (8 * KiB, 4 * KiB)


def with_config(wants: Sequence[tuple[Bytes, Bytes]]) -> list[tuple[Bytes, Bytes]]:
    return [each for want in wants for each in (CONFIG, want)]


@given(some_gpus64)
def test_the_floor_holds_in_every_order_and_one_step_less_does_not(gpus: list[GpuBars]) -> None:
    window = mmio.high_window(gpus, cap=None)
    orders = list(permutations(want(gpu.bars64) for gpu in gpus))
    assert all(guest(order, high(window, window.floor)) for order in orders)
    assert not all(guest(order, high(window, window.floor - 2 * MiB)) for order in orders)


@given(some_gpus64)
def test_the_luckiest_order_needs_the_least_and_no_order_less(gpus: list[GpuBars]) -> None:
    window = mmio.high_window(gpus, cap=None)
    orders = list(permutations(want(gpu.bars64) for gpu in gpus))
    assert any(guest(order, high(window, window.least)) for order in orders)
    assert not any(guest(order, high(window, window.least - 2 * MiB)) for order in orders)


@given(some_gpus64)
def test_orders_of_equal_gpus_are_counted_once(gpus: list[GpuBars]) -> None:
    orders = {*permutations(want(gpu.bars64) for gpu in gpus)}
    assert mmio.high_window(gpus, cap=None).orders == len(orders)


@given(some_gpus64)
def test_what_is_set_holds_for_older_and_newer_guests(gpus: list[GpuBars]) -> None:
    window = mmio.high_window(gpus, cap=None)
    assert window.size >= window.floor
    assert window.size % (2 * MiB) == window.floor % (2 * MiB) == 0
    for order in permutations(want(gpu.bars64) for gpu in gpus):
        assert guest(order, high(window, window.size))
        assert guest(with_config(order), high(window, window.size))


@given(some_gpus64)
def test_the_layout_shown_is_what_the_guest_does_in_the_worst_order(gpus: list[GpuBars]) -> None:
    window = mmio.high_window(gpus, cap=None)
    order = [want(each.gpu.bars64) for each in window.pieces]
    assert sorted(order) == sorted(want(gpu.bars64) for gpu in gpus)
    assert guest(order, high(window, window.floor)) == [each.start for each in window.pieces]
    assert [length for length, _ in order] == [each.length for each in window.pieces]
    assert window.floor - 2 * MiB < max(each.end for each in window.pieces) - window.base <= window.floor


@given(some_gpus64, gpus64)
def test_one_more_gpu_never_needs_less(gpus: list[GpuBars], more: GpuBars) -> None:
    fewer, all_of_them = mmio.high_window(gpus, cap=None), mmio.high_window([*gpus, more], cap=None)
    assert all_of_them.floor >= fewer.floor
    assert all_of_them.size >= fewer.size


@given(some_gpus64, st.randoms(use_true_random=False))
def test_the_order_in_which_gpus_are_named_does_not_matter(gpus: list[GpuBars], random: Any) -> None:
    shuffled = random.sample(gpus, len(gpus))
    one, other = mmio.high_window(gpus, cap=None), mmio.high_window(shuffled, cap=None)
    assert (one.floor, one.size, one.least) == (other.floor, other.size, other.least)


@given(some_gpus64, st.integers(36, 48))
def test_a_window_stays_within_the_address_width_or_is_refused_with_its_numbers(
    gpus: list[GpuBars], width: int
) -> None:
    free = mmio.high_window(gpus, cap=None)
    if free.base + free.floor <= 1 << width:
        bound = mmio.high_window(gpus, cap=None, address_width=width)
        assert free.floor == bound.floor <= bound.size
        assert bound.end <= 1 << width
    else:
        with pytest.raises(MmioRefused) as refused:
            mmio.high_window(gpus, cap=None, address_width=width)
        assert (refused.value.code, refused.value.need) == ("mmio.address-width", free.floor)


@given(some_gpus64, st.integers(-64, 64).map(lambda n: n * MiB))
def test_an_asked_size_is_taken_exactly_when_the_guest_can_use_it(gpus: list[GpuBars], off: Bytes) -> None:
    window = mmio.high_window(gpus, cap=None)
    asked = window.floor + off
    orders = permutations(want(gpu.bars64) for gpu in gpus)
    usable = asked % (2 * MiB) == 0 and all(guest(order, high(window, asked)) for order in orders)
    try:
        taken = mmio.check_high(asked, window) == asked
    except MmioRefused:
        taken = False
    assert taken == usable


@given(some_gpus32)
def test_the_low_floor_holds_in_every_order_and_one_step_less_does_not(gpus: list[GpuBars]) -> None:
    window = mmio.low_window(gpus)
    orders = [with_config(order) for order in permutations(want(gpu.bars32) for gpu in gpus)]
    assert all(guest(order, low(window.floor)) for order in orders)
    less = window.floor - 2 * MiB
    assert window.floor == 128 * MiB or not all(guest(order, low(less)) for order in orders)


@given(some_gpus32)
def test_the_low_size_is_the_recommended_one_where_that_is_enough(gpus: list[GpuBars]) -> None:
    window = mmio.low_window(gpus)
    orders = [with_config(order) for order in permutations(want(gpu.bars32) for gpu in gpus)]
    assert all(guest(order, low(window.size)) for order in orders)
    assert (window.size == GiB) == all(guest(order, low(GiB)) for order in orders)
    assert mmio.check_low(window.size, window) == window.size


@given(some_gpus32)
def test_the_low_layout_lies_between_frame_buffer_and_reserved_top(gpus: list[GpuBars]) -> None:
    window = mmio.low_window(gpus)
    spans = sorted((each.start, each.end) for each in window.pieces)
    assert len(spans) == len(gpus)
    assert low(window.size)[0] <= spans[0][0]
    assert spans[-1][1] <= low(window.size)[1]
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_low_bars_begin_behind_the_frame_buffer_and_the_config_windows_of_all_devices() -> None:
    window = mmio.low_window([a_gpu([], [4 * KiB])] * 2)
    first = low(window.size)[0] + 2 * CONFIG[0]
    assert [each.start for each in window.pieces] == [first, first + 4 * KiB]
