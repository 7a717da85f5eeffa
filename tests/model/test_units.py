import pytest

from winhost.model.durations import parse_age
from winhost.model.units import GiB, KiB, MiB, mib, size


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (33312 * MiB, "33,312 MiB"),
        (64 * GiB, "65,536 MiB"),
        (18 * MiB + 768 * KiB, "18.75 MiB"),
        (0, "0 MiB"),
        (MiB + 256 * KiB, "1.25 MiB"),
        (1025, "1,025 bytes"),
        (64 * GiB + 8 * KiB, "67,108,872 KiB"),
    ],
)
def test_windows_are_written_in_mib(n: int, text: str) -> None:
    assert mib(n) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (64 * GiB, "64 GiB"),
        (64 * GiB - 512 * MiB, "63.5 GiB"),
        (33312 * MiB, "33,312 MiB"),
        (100 * GiB, "100 GiB"),
        (10 * MiB, "10 MiB"),
        (8 * KiB, "8 KiB"),
        (4 * GiB + 1, "4,294,967,297 bytes"),
        (0, "0 bytes"),
    ],
)
def test_a_size_is_written_exactly_in_the_largest_unit_that_can(n: int, text: str) -> None:
    assert size(n) == text


def test_an_age_says_how_long() -> None:
    assert [parse_age(text) for text in ("7d", "1d12h", "90", "0d")] == [604_800, 129_600, 90, 0]
    for text in ("", "d", "d5h", "1w", "-1", "x"):
        with pytest.raises(ValueError, match="should be an age"):
            parse_age(text)
