"""Figures and the page of a sweep."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cheap_runs import unplotted
from support.tiny_sweep import ARMS, EPSILONS, NOISED, fill, summary_of, sweep, two_lists

from securefl.report.accuracy import MEASURES
from securefl.sweep import page as sweep_page
from securefl.sweep import tradeoff_plots
from securefl.sweep.cells import Sweep
from securefl.sweep.run import facts_of
from securefl.sweep.tradeoff import Point, series_of
from securefl.sweep.tradeoff_plots import accuracy, draw, worn_by

EVIL = "<script>alert('x')</script>"


@pytest.fixture
def swept() -> Sweep:
    return two_lists()


class Page(HTMLParser):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    handle_startendtag = handle_starttag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(found: Sweep, out: Path, failed: Mapping[str, str] | None = None, *, plots: Any = unplotted) -> str:
    series = series_of(found, summary_of(found, out))
    with plots():
        figures = tradeoff_plots.pictures(series, measure=sweep_page.measure_of(facts_of(found, out)))
    return sweep_page.render(found, facts_of(found, out), series, failed or {}, "securefl sweep x", figures)


def test_figures_are_those_there_is_data_for(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path)
    series = series_of(swept, summary_of(swept, tmp_path))
    made = tradeoff_plots.pictures(series)
    names = [d.name for d in made]
    assert names == ["accuracy_epsilon", "accuracy_bytes"]
    endless = [own for own in series if own.endless]
    assert [d.name for d in tradeoff_plots.pictures(endless)] == ["accuracy_bytes"]
    axes = made[0].figure.axes[0]
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.9", "3.6", "∞"], "the true epsilons"
    ticks = axes.get_xticks()
    assert ticks[2] > ticks[1] == 3.6
    lines = {line.get_gid(): line for line in axes.lines if line.get_gid()}
    assert np.asarray(lines["series-0-line-0"].get_ydata()) == pytest.approx([0.22, 0.24])
    assert np.asarray(lines["series-0-infinite-0"].get_ydata()) == pytest.approx([0.26])
    at = float(np.asarray(lines["series-0-infinite-0"].get_xdata())[0])
    assert 3.6 < at < ticks[2], "left of the middle, as the first of four"
    assert lines["series-1-infinite-0"].get_markerfacecolor() == "white", "holds no epsilon"
    assert len(np.asarray(lines["series-1-infinite-0"].get_xdata())) == 3, "and is at no finite one"
    assert lines["series-0-line-0"].get_markerfacecolor() != "white"


def test_what_no_epsilon_covers_is_said_once(swept: Sweep, tmp_path: Path) -> None:
    said = "The features were computed by Net <1>; its training data are outside epsilon."
    fill(swept, tmp_path, outside=[said])
    source = page(swept, tmp_path)
    assert source.count("its training data are outside epsilon.") == 1
    assert "Net &lt;1&gt;" in source


def test_the_page_loads_nothing_and_runs_its_script_alone(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path)
    source = page(swept, tmp_path, plots=nullcontext)
    found = Page(source)
    assert re.search(r"https?://", source) is None
    assert not {"link", "iframe", "object", "embed", "img", "image"} & {tag for tag, _ in found.tags}
    loads = [v for _, attrs in found.tags for k, v in attrs.items() if k in ("src", "href") and v]
    assert all(value.startswith("#") for value in loads)
    policy = next(a["content"] for t, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; script-src '{sweep_page.script_digest()}'; ")
    assert "unsafe-inline" not in policy.replace("style-src 'unsafe-inline'", "")
    assert source.count("<script") == 1
    assert f"<script>{sweep_page.SCRIPT}</script>" in source
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(set(ids)) == len(ids), "figures share no names"
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', source))
    assert {a or b for a, b in used} <= set(ids), "every reference is there"


def test_the_page_says_what_is_true(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path, leave=1)
    source = page(swept, tmp_path, {"calibration = paper, epsilon = inf": "no memory"})
    found = Page(source)
    words = " ".join(found.text.split())
    assert "infinite (∞): one record moves the sum without bound" in words
    assert "per record (replace-one), δ = 0.0001, against server and others." in words
    assert "calibration = paper, epsilon = inf: no memory" in words
    assert sum(tag == "svg" and a.get("role") == "img" for tag, a in found.tags) == 2
    values = [a["value"] for tag, a in found.tags if tag == "input"]
    assert values == ["0-0", "0-1", "1-0", "1-1"]
    groups = [a["data-in"] for tag, a in found.tags if "data-in" in a]
    assert list(dict.fromkeys(groups)) == ["0-0 1-0", "0-1 1-0", "0-0 1-1", "0-1 1-1"]
    assert not any("off" in (a.get("class") or "").split() for _, a in found.tags), (
        "without script all is seen"
    )
    assert "3 more cells have the same card" in words
    assert words.count("the same card") == 1, "the finite cells share a card, the endless one has its own"


def test_everything_on_the_page_is_escaped(tmp_path: Path) -> None:
    arms = ARMS.replace('"unit"', f'"{EVIL} $x_1$ url(#a)"')
    found = sweep(EPSILONS, study=NOISED.replace('name = "tiny"', f'name = "{EVIL}"') + arms)
    fill(found, tmp_path)
    source = page(found, tmp_path, {EVIL: EVIL}, plots=nullcontext)
    assert source.count("<script") == 1
    assert f"{EVIL} $x_1$ url(#a)" in Page(source).text


def test_the_page_warns_and_says_whose_accuracy_it_is(swept: Sweep, tmp_path: Path) -> None:
    alarm = {"arm": "unit", "text": f"unit: nobody answered {EVIL}", "learnt": False}
    fill(swept, tmp_path, alarms=[alarm], seeds=2)
    source = page(swept, tmp_path)
    words = " ".join(Page(source).text.split())
    assert f"calibration = exact, epsilon = 1: unit: nobody answered {EVIL}" in words
    assert source.count("<script") == 1
    assert "Accuracy is the share of test records whose class is right." in words
    assert "0.215 (0.210, 0.220)" in words, "two seeds are told as they are"
    assert "The one global model is tested on the server's records." in words


def test_two_seeds_are_points_and_bands_end_where_accuracy_does(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path, seeds=2)
    series = series_of(swept, summary_of(swept, tmp_path))
    axes = accuracy(series, MEASURES["classification"]).figure.axes[0]
    own = [line for line in axes.lines if str(line.get_gid()).startswith("series-0-line-")]
    assert [line.get_marker() for line in own[1:3]] == [".", "."]
    assert not axes.collections, "neither bands nor bars"
    five = [0.0, 0.0, 0.1, 0.9, 0.9]
    points = [
        Point(at, at, sum(own) / len(own), 0, own)
        for at, own in ((1.0, five), (2.0, [1 - one for one in five]))
    ]
    draw(axes, series[0], lambda _, at: at, points, 0.0)
    heights = np.concatenate([path.vertices[:, 1] for path in axes.collections[0].get_paths()])
    assert (heights.min(), heights.max()) == (0.0, 1.0)
    assert len({(worn_by(own).colour, worn_by(own).marker) for own in series}) == len(series)
