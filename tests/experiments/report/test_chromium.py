"""The page in a real browser: sorts, tells values under the pointer, goes dark, fits a phone, asks for nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from softmask.experiments.analyses.reading import read_store
from softmask.experiments.report.html import make_report
from softmask.storage.state_file import write_text
from tests.experiments.report.made import mixed_store

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_text(folder / "report.html", make_report(read_store(mixed_store(folder / "store")))[0])
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    """A page that notes whatever goes wrong in it, and whatever it asks for."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    wrong: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector(".plot svg")
    yield page
    assert wrong == []
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    context.close()


def column(page: Any, number: int) -> list[str]:
    cells = page.locator("#runs tbody tr").all()
    return [row.locator("th, td").nth(number).inner_text() for row in cells]


def test_a_click_sorts_a_table(page: Any) -> None:
    header = page.locator("#runs thead th", has_text="ACC")
    number = [th.inner_text().strip() for th in page.locator("#runs thead th").all()].index("ACC")
    for direction in ("ascending", "descending"):
        header.locator("button").click()
        assert header.get_attribute("aria-sort") == direction
        shown = column(page, number)
        numbers = [float(text) for text in shown if text != "\N{EN DASH}"]
        assert numbers == sorted(numbers, reverse=direction == "descending")
        assert shown[-2:] == ["\N{EN DASH}"] * 2, "what is missing comes last either way"


def test_a_figure_tells_its_values(page: Any) -> None:
    plot = page.locator(".plot", has=page.locator("svg.line")).first
    plot.scroll_into_view_if_needed()
    box = plot.locator("svg").bounding_box()
    page.mouse.move(box["x"] + 45, box["y"] + box["height"] / 2)
    tip = plot.locator(".tip")
    assert "tasks learned: 1" in tip.inner_text()
    assert "SPG" in tip.inner_text()
    assert "91.5" in tip.inner_text()
    plot.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    assert "tasks learned: 2" in tip.inner_text(), "arrow keys do what the pointer does"


def test_dark_mode(page: Any) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    line = page.locator("svg.line polyline").first
    light, ink = ground(), line.evaluate("line => getComputedStyle(line).stroke")
    page.locator("#theme").click()
    assert ground() != light
    assert line.evaluate("line => getComputedStyle(line).stroke") != ink, "lines keep their contrast"
    page.locator("#theme").click()
    assert ground() == light


def test_the_page_of_a_run_and_back(page: Any) -> None:
    page.locator("#runs tbody a").first.click()
    page.wait_for_selector("#run svg.heat")
    assert page.locator("#all").is_hidden()
    assert "softmask run --method" in page.locator("#run").inner_text()
    page.locator("#run a").first.click()
    assert page.locator("#all").is_visible()


def test_a_phone_scrolls_tables_not_the_page(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    widest = page.evaluate("Math.max(...[...document.querySelectorAll('.plot svg')].map(svg => svg.clientWidth))")
    assert 200 < widest <= 390, "figures are drawn anew at the width there is"


def test_what_a_screen_reader_gets(page: Any) -> None:
    assert page.locator("table").count() == page.locator("table caption").count()
    assert page.locator("thead th:not([scope=col])").count() == 0
    labels = [svg.get_attribute("aria-label") for svg in page.locator("svg[role=img]").all()]
    assert labels
    assert all(label and len(label) > 20 for label in labels)
    assert page.locator("h1").count() == 1


def test_a_table_can_be_copied_as_latex(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("button[data-copy='accuracy-by-sequence-tex']").click()
    assert page.evaluate("navigator.clipboard.readText()").startswith(r"% \usepackage{booktabs}")
