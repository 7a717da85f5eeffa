"""The page of what is known is what the data says."""

from tests.house.known_page import PAGE, page


def test_the_page_is_made_from_the_data() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.house.known_page"
