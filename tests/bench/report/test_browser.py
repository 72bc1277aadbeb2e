"""The page in a real browser: drawn, quiet, dark, and narrow enough for a phone."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from switch_ema.bench.report.page import write_page
from tests.bench.report.synthetic import make_summary, make_task

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM.exists() and DRIVER.exists()),
    reason=f"needs a browser: {CHROMIUM} and {DRIVER}",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(str(DRIVER))
    )
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    return write_page(make_summary(), folder / "report.html").as_uri()


def open_page(
    browser: Any,
    address: str,
    *,
    width: int = 1280,
    height: int = 844,
    scheme: str = "light",
) -> None:
    """Load the page anew and wait for its figures."""
    set_scheme(browser, scheme)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": width < 500,
        },
    )
    browser.get(address)
    wait_until(browser, "'drawn' in document.documentElement.dataset")


def wait_until(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    script = f"return {condition}"
    WebDriverWait(browser, 60).until(lambda b: b.execute_script(script), condition)


def set_scheme(browser: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def lines_of(browser: Any, figure: str) -> list[str]:
    """Return the colours of the lines that are drawn in a figure."""
    colours: list[str] = browser.execute_script(
        "return [...document.querySelectorAll(`#${arguments[0]} path.js-line`)]"
        ".filter(p => p.getAttribute('d').length > 20 && p.style.strokeWidth === '2px')"
        ".map(p => p.style.stroke)",
        figure,
    )
    return colours


def test_no_error_and_no_request_but_the_page_itself(
    browser: Any, address: str
) -> None:
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    open_page(browser, address)
    assert browser.get_log("browser") == []
    messages = [
        json.loads(entry["message"]) for entry in browser.get_log("performance")
    ]
    requested = {
        message["message"]["params"]["request"]["url"]
        for message in messages
        if message["message"]["method"] == "Network.requestWillBeSent"
    }
    assert requested == {address}


def test_every_curve_dot_and_bar_is_drawn(browser: Any, address: str) -> None:
    open_page(browser, address)
    for task, methods in (("task-1", 5), ("task-2", 4)):
        for number in (1, 2):
            assert len(lines_of(browser, f"{task}-curve-{number}")) == methods
        count = "return document.querySelectorAll(arguments[0]).length"
        bands = f"#{task}-curve-1 .scatterlayer path.js-fill"
        assert browser.execute_script(count, bands) == methods
        rows = f"#{task}-pairs .scatterlayer .trace"
        assert browser.execute_script(count, rows) == 2 * (methods - 1)
    # One of the 24 pairs on the second task diverged; one mean per row.
    dots = browser.execute_script(count, "#task-2-pairs .scatterlayer path.point")
    assert dots == 23 + 3
    assert browser.execute_script(count, "#task-1-costs .barlayer path") == 3


def test_nasty_names_are_only_text(browser: Any, address: str) -> None:
    open_page(browser, address)
    text = browser.execute_script(
        "return document.querySelector('#task-2-pairs .annotation-text').textContent"
    )
    assert text.startswith("EMA, decay 0.9, tag </script><img src x")
    injected = "return document.querySelectorAll('main img, main script, h1 i').length"
    assert browser.execute_script(injected) == 0


def test_a_click_in_the_legend_hides_the_curve_and_shows_it_again(
    browser: Any, address: str
) -> None:
    open_page(browser, address)
    click = (
        "const b = document.querySelectorAll('[data-task=task-1] .legend')[0]"
        ".querySelectorAll('button[data-method]')[4]; b.click(); return b.ariaPressed"
    )
    colour = lines_of(browser, "task-1-curve-1")[4]
    assert browser.execute_script(click) == "false"
    for number in (1, 2):
        left = lines_of(browser, f"task-1-curve-{number}")
        assert len(left) == 4
        assert colour not in left
    assert len(lines_of(browser, "task-2-curve-1")) == 4, "the other task stays"
    assert browser.execute_script(click) == "true"
    assert lines_of(browser, "task-1-curve-1")[4] == colour


def test_the_whole_axis_can_be_shown(browser: Any, address: str) -> None:
    open_page(browser, address)
    low = "return document.getElementById('task-1-curve-1')._fullLayout.yaxis.range[0]"
    assert browser.execute_script(low) > 70
    browser.execute_script("document.querySelector('.legend .whole').click()")
    assert browser.execute_script(low) < 50
    browser.execute_script("document.querySelector('.legend .whole').click()")
    assert browser.execute_script(low) > 70


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_page_does_not_scroll_sideways(
    browser: Any, address: str, width: int
) -> None:
    open_page(browser, address, width=width)
    browser.execute_script("document.querySelectorAll('details').forEach(d=>d.open=1)")
    room = "return document.documentElement.scrollWidth - innerWidth"
    assert browser.execute_script(room) <= 0
    wide = (
        "return [...document.querySelectorAll('svg.main-svg')]"
        ".filter(s => s.getBoundingClientRect().right > innerWidth).length"
    )
    assert browser.execute_script(wide) == 0


def test_tables_fit_a_desktop_without_scrolling(browser: Any, address: str) -> None:
    open_page(browser, address)
    table = "document.querySelector('[data-task=task-1] .table')"
    room = browser.execute_script(f"return {table}.scrollWidth - {table}.clientWidth")
    assert room <= 0


@pytest.mark.parametrize("width", [320, 380, 390, 768])
def test_names_stay_in_their_column(browser: Any, address: str, width: int) -> None:
    open_page(browser, address, width=width)
    beyond = (
        "return [...document.querySelectorAll('tbody th .name')].filter(n =>"
        " n.getBoundingClientRect().right > 0.5 +"
        " n.closest('th').getBoundingClientRect().right).map(n => n.textContent)"
    )
    assert browser.execute_script(beyond) == []


def test_dark_mode_colours_page_and_figures_at_once(browser: Any, address: str) -> None:
    open_page(browser, address)
    paper = "return getComputedStyle(document.body).backgroundColor"
    text = "document.querySelector('#task-1-curve-1 .xtick text').style.fill"
    assert browser.execute_script(paper) == "rgb(255, 255, 255)"
    light = lines_of(browser, "task-1-curve-1")
    set_scheme(browser, "dark")
    wait_until(browser, f"{text} === 'rgb(228, 232, 236)'")
    assert browser.execute_script(paper) == "rgb(21, 24, 28)"
    assert not set(light) & set(lines_of(browser, "task-1-curve-1"))


def test_classification_is_white_also_in_dark_mode(browser: Any, address: str) -> None:
    open_page(browser, address, scheme="dark")
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    text = "document.querySelector('#task-1-curve-1 .xtick text').style.fill"
    wait_until(browser, f"{text} === 'rgb(34, 38, 43)'")
    state = "return [...document.querySelectorAll('details')].map(d => d.open)"
    assert all(browser.execute_script(state)), "nothing is folded on paper"
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    wait_until(browser, f"{text} === 'rgb(228, 232, 236)'")
    assert not any(browser.execute_script(state))


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_first_screen_answers(
    browser: Any, tmp_path: Path, width: int, height: int
) -> None:
    """For both tasks on a desktop, for the first one on a phone."""
    gains = {"plain": 0.0, "ema": 1.0, "swa": 0.5, "lookahead": 0.2, "switch-ema": 2.0}
    tasks = [make_task("noisy-digits", gains), make_task("digits", gains)]
    summary = replace(make_summary(), tasks=tasks, name="noisy-digits-digits-2bfd4e")
    page = write_page(summary, tmp_path / "report.html").as_uri()
    open_page(browser, page, width=width, height=height)
    shown = [
        browser.execute_script(
            "return [...arguments[0].querySelectorAll("
            "'.headline, .forest tbody tr, .answers li')]"
            ".map(e => e.getBoundingClientRect()).map(r => [r.top, r.bottom])",
            finding,
        )
        for finding in browser.find_elements("css selector", ".finding")
    ]
    assert [len(own) for own in shown] == [1 + 4 + 4] * 2
    first = shown if width > 1000 else shown[:1]
    assert all(0 <= top < bottom <= height for own in first for top, bottom in own)
    marks = browser.execute_script(
        "return [...document.querySelectorAll('.forest .mean, .forest .span')]"
        ".map(e => e.getBoundingClientRect().width)"
    )
    assert len(marks) == 2 * 2 * 4 and min(marks) > 0


@pytest.mark.parametrize("width", [320, 390, 1440])
@pytest.mark.parametrize("gain", [11.0, -0.024])
def test_the_labels_of_the_forest_have_room(
    browser: Any, tmp_path: Path, width: int, gain: float
) -> None:
    task = make_task("digits", {"plain": 0.0, "ema": gain}, noise=abs(gain) / 5)
    summary = replace(make_summary(), tasks=[task])
    page = write_page(summary, tmp_path / "report.html").as_uri()
    open_page(browser, page, width=width)
    for label in ("worse", "better"):
        top = f"document.querySelector('.forest .{label}').getBoundingClientRect()"
        body = "document.querySelector('.forest tbody').getBoundingClientRect()"
        assert browser.execute_script(f"return {top}.bottom <= {body}.top + 1")
        assert browser.execute_script(f"return {top}.left >= 0")
    ticks = browser.execute_script(
        "return [...document.querySelectorAll('.forest .tick')]"
        ".map(e => e.getBoundingClientRect()).map(r => [r.left, r.right])"
    )
    assert len(ticks) > 1
    for (_, right), (left, _) in pairwise(ticks):
        assert right < left
    middles = [(left + right) / 2 for left, right in ticks]
    lines = browser.execute_script(
        "return [...document.querySelector('.forest tbody tr').querySelectorAll("
        "'.grid, .zero')].map(e => e.getBoundingClientRect().left)"
    )
    assert lines == pytest.approx(middles, abs=1)


def test_the_contents_lead_to_every_part(browser: Any, address: str) -> None:
    open_page(browser, address)
    links = browser.execute_script(
        "document.querySelector('.contents').open = true;"
        "return [...document.querySelectorAll('.contents a')].map(a => a.hash)"
    )
    assert links == ["#task-1", "#task-2", "#decided", "#reproduce"]
    for link in links:
        browser.execute_script(
            "document.querySelector(`.contents a[href='${arguments[0]}']`).click()",
            link,
        )
        top = browser.execute_script(
            "return document.querySelector(arguments[0]).getBoundingClientRect().top",
            link,
        )
        assert -1 <= top < 844
