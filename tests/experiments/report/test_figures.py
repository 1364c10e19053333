"""Figures: the right numbers in the charts, and files in every format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from softmask.experiments.analyses.reading import read_store
from softmask.experiments.analyses.table import Value
from softmask.experiments.report.charts import (
    COLOURS,
    DASHES,
    FIRST,
    OTHERS,
    Chart,
    Dot,
    DotChart,
    HeatMap,
    LineChart,
    all_figures,
    file_name,
    spread_note,
    style,
)
from softmask.experiments.report.files import write_figure
from tests.experiments.report.made import mixed_store


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Chart]]:
    return all_figures(read_store(mixed_store(tmp_path_factory.mktemp("store"))).runs)


def line(charts: list[Chart], title: str) -> LineChart:
    (found,) = [chart for chart in charts if title in chart.title]
    assert isinstance(found, LineChart)
    return found


def test_lines_hold_means_and_deviations(figures: dict[str, list[Chart]]) -> None:
    chart = line(figures["so-far"], "C-10")
    spg = next(series for series in chart.series if series.label == "SPG")
    assert spg.x == (1, 2, 3)
    assert spg.y == pytest.approx((91.5, 84.0, 76.5))  # the mean so far of SPG's rows, and 1.5 for seeds 1 and 2
    assert spg.std == pytest.approx((0.5**0.5,) * 3)
    assert {series.label for series in chart.series} == {"NCL", "HAT", "SPG"}, "ONE does not learn on"
    transfer = line(figures["transfer"], "C-10")
    assert transfer.series[-1].y == pytest.approx((2, 5, 10))
    blocked = line(figures["capacity"], "C-10")
    assert [series.label for series in blocked.series] == ["HAT", "SPG"]
    assert blocked.series[1].y == pytest.approx((100 / 120, 200 / 120, 300 / 120))
    (learned,) = figures["representation"]
    assert isinstance(learned, LineChart)
    assert learned.series[0].y == pytest.approx((0, 10, 20, 30))
    assert [series.label for series in line(figures["task-end"], "C-10").series] == ["SPG"]


def test_dots_stand_beside_the_papers(figures: dict[str, list[Chart]]) -> None:
    chart = figures["accuracy"][0]
    assert isinstance(chart, DotChart)
    spg = chart.dots[-1]
    assert (spg.label, spg.value.mean, spg.value.paper) == ("SPG", pytest.approx(76.5), 67.7)


def test_matrices(figures: dict[str, list[Chart]]) -> None:
    (chart,) = [chart for chart in figures["matrix"] if chart.title == "NCL on C-10, short"]
    assert isinstance(chart, HeatMap)
    assert chart.rows[0] == (pytest.approx(91.5), None, None)
    assert "just after learning 83.8, after the last task 48.5" in chart.alt


def test_every_figure_has_a_name_of_its_own_and_words(figures: dict[str, list[Chart]]) -> None:
    charts = [chart for each in figures.values() for chart in each]
    assert len({chart.name for chart in charts}) == len(charts)
    assert all(chart.alt.endswith(".") and chart.title in chart.alt for chart in charts)


def test_a_system_has_its_own_look() -> None:
    systems = FIRST + OTHERS
    assert len({style(label, 0) for label in systems}) == len(systems) <= len(COLOURS) * len(DASHES)
    assert style("SPG", 0) == style("SPG", 5)


def test_files(figures: dict[str, list[Chart]], tmp_path: Path) -> None:
    for kind in ("so-far", "accuracy", "matrix"):
        png, svg, pdf = write_figure(figures[kind][0], tmp_path)
        assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert "SPG" in svg.read_text() or kind == "matrix"
        assert pdf.read_bytes()[:5] == b"%PDF-"
        before = svg.read_bytes()
        write_figure(figures[kind][0], tmp_path)
        assert svg.read_bytes() == before, "the same figure is the same file"


def test_every_number_is_rounded_once() -> None:
    value = Value(73.449, std=0.349, paper=70.0, count=3)
    chart = DotChart("accuracy", "Accuracy", "%", (Dot("SPG", value),))
    (dot,) = chart.to_dict()["dots"]
    assert dot[1:] == [73.449, 0.349, 70.0, "+3.4", 3], "73.45 would become 73.5 in the browser"
    assert replace(value, paper=70.06).difference == "+3.4", "73.4 - 70.1 would be 3.3"


def test_bars_and_bands_are_explained(figures: dict[str, list[Chart]], tmp_path: Path) -> None:
    for kind in ("accuracy", "so-far"):
        assert "standard deviation over n = 2 seeds" in figures[kind][0].note
        _, svg, _ = write_figure(figures[kind][0], tmp_path)
        assert figures[kind][0].note in svg.read_text()
    assert "SPG, n = 2" in write_figure(figures["accuracy"][0], tmp_path)[1].read_text()
    assert spread_note("Band", [1, 1]) == ""


def test_chance_is_drawn(figures: dict[str, list[Chart]]) -> None:
    chart = figures["accuracy"][0]
    assert isinstance(chart, DotChart)
    assert chart.to_dict()["chance"] == 50


def test_long_names_fit_a_file_system(tmp_path: Path) -> None:
    names = [file_name("accuracy " + "é" * 300 + ending) for ending in "ab"]
    assert len(set(names)) == 2
    for name in names:
        (tmp_path / f"{name}.png").touch()
    assert file_name("accuracy C-10 short lr=1") == "accuracy_C-10_short_lr_1"
