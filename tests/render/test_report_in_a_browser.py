"""The report in a real browser, at the widths of a phone, a tablet and a screen, light and dark."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from axe_core_python.selenium import Axe
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.render.pages import page_of, read

WIDTHS = (390, 820, 1440)
THEMES = ("light", "dark")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
OPEN_ALL = "for (const each of document.querySelectorAll('details')) each.open = true"
OVERFLOWING = """
    const edge = document.documentElement.clientWidth;
    return [...document.body.querySelectorAll('*')]
        .filter(each => each.getBoundingClientRect().right > edge + 1 && !each.closest('.bar, svg'))
        .map(each => `${each.tagName}.${each.className}: ${each.textContent.trim().slice(0, 60)}`);
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium with its chromedriver is installed here: the report is not looked at in a browser")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # Without a sandbox, because CI is root in a container; the only page that it opens is our own.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many cards, names that would do harm, a way that works and none, a workload without room."""
    hosts = [read(host) for host in ("server2025-8gpu", "hostile-vm-names", "win11-pro-1gpu")]
    imported = replace(read("card-assigned-elsewhere"), origin="imported", host="W" * 64)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page_of(*hosts, imported, workload="70b-awq-on-2x48gb"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def short_page(page: Path) -> Path:
    """What axe-core can look through in a few seconds: one host with everything that there is to show."""
    path = page.with_name("short.html")
    path.write_text(page_of(read("card-assigned-elsewhere"), workload="70b-awq-on-2x48gb"), encoding="utf-8")
    return path


def look(browser: webdriver.Chrome, page: Path, width: int, theme: str) -> None:
    """Open a page with all that can be unfolded unfolded."""
    browser.get_log("browser")
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())
    browser.execute_script(OPEN_ALL)


def overflow(browser: webdriver.Chrome) -> list[str]:
    """What stands beyond the right edge, or that the page can be moved sideways."""
    beyond: list[str] = browser.execute_script(OVERFLOWING)
    moves = browser.execute_script("return document.documentElement.scrollWidth > document.documentElement.clientWidth")
    return beyond + ["the page"] * moves


def faults(browser: webdriver.Chrome) -> list[tuple[str, str]]:
    """What axe-core holds against it: the rule and where."""
    options = {"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]}
    found: dict[str, Any] = Axe().run(browser, options=options)
    return [(fault["id"], node["html"]) for fault in found["violations"] for node in fault["nodes"]]


each_width = pytest.mark.parametrize("width", WIDTHS)
each_theme = pytest.mark.parametrize("theme", THEMES)


@each_width
@each_theme
def test_nothing_is_complained_of_and_nothing_runs_over(
    browser: webdriver.Chrome, page: Path, width: int, theme: str
) -> None:
    look(browser, page, width, theme)
    assert browser.get_log("browser") == []
    assert overflow(browser) == []


@each_width
def test_the_name_of_a_way_stays_on_one_line(browser: webdriver.Chrome, page: Path, width: int) -> None:
    look(browser, page, width, "light")
    ways = "[...document.querySelectorAll('.stacked td > strong')].map(each => each.getClientRects().length)"
    assert set(browser.execute_script(f"return {ways}")) == {1}


@each_width
@each_theme
def test_contrast_labels_and_order_are_right(
    browser: webdriver.Chrome, short_page: Path, width: int, theme: str
) -> None:
    look(browser, short_page, width, theme)
    assert faults(browser) == []


def test_both_themes_differ_and_one_picture_is_shown_at_each_width(browser: webdriver.Chrome, short_page: Path) -> None:
    seen = set()
    for theme in THEMES:
        for width in WIDTHS:
            look(browser, short_page, width, theme)
            shown = browser.execute_script(
                "return [...document.querySelectorAll('.host:first-of-type .picture')]"
                ".filter(each => each.clientWidth).map(each => each.classList[1])"
            )
            colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
            seen.add((theme, colour, width, *shown))
    assert {(width, picture) for _, _, width, picture in seen} == {(390, "narrow"), (820, "middle"), (1440, "wide")}
    assert len({(theme, colour) for theme, colour, *_ in seen}) == len({colour for _, colour, *_ in seen}) == 2


def test_a_link_to_a_reason_shows_its_story(browser: webdriver.Chrome, short_page: Path) -> None:
    look(browser, short_page, 820, "light")
    browser.get(f"{short_page.as_uri()}#evidence-target-ram")
    height = browser.execute_script("return document.querySelector(':target > p').getBoundingClientRect().height")
    assert height > 0


def test_what_would_be_wrong_is_seen_by_these_tests(browser: webdriver.Chrome, page: Path) -> None:
    wrong = page.with_name("wrong.html")
    text = page_of().replace("</style>", ".lead { color: #ccc !important } h1 { width: 500px }</style>", 1)
    wrong.write_text(text.replace("</main>", "<script>1</script></main>").replace(' lang="en"', ""), encoding="utf-8")
    look(browser, wrong, 390, "light")
    assert "Content Security Policy" in str(browser.get_log("browser"))
    assert any(each.startswith("H1") for each in overflow(browser))
    assert {"color-contrast", "html-has-lang"} <= {rule for rule, _ in faults(browser)}
