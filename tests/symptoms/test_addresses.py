"""The width of physical addresses from what Start-VM says, in any language."""

from hypothesis import given
from hypothesis import strategies as st

from tests.rows import each_row
from winhost.symptoms.codes import address_bits

ENGLISH = "The upper MMIO region (0x00000017dffff000) is above it. Make sure that it is below 0x0000001000000000."
GERMAN = "Der obere MMIO-Bereich (0x0000008fe0000000) … Er muss unterhalb von 0x0000008000000000 liegen."


@each_row(
    ("message", "bits"),
    [
        (ENGLISH, 36),
        (GERMAN, 39),
        ("0x0000001000000000", None),  # a limit of what?
        ("(0x0000000800000000) below 0x0000001000000000", None),  # it is below
        ("0x80070057 and 0xC035001E", None),
        ("(0x00000017dffff000) below 0x0000001000000001", None),
        ("", None),
    ],
)
def test_the_limit_is_a_power_of_two_below_the_end(message: str, bits: int | None) -> None:
    assert address_bits(message) == bits


@given(st.integers(36, 52), st.integers(0, 1 << 40), st.text("öß ()", max_size=9))
def test_whatever_the_words(bits: int, beyond: int, words: str) -> None:
    assert address_bits(f"{words}0x{(1 << bits) + beyond:016x}{words} {words}0x{1 << bits:016x}.") == bits
