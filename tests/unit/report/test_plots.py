"""Figures carry the right lines, bars, labels and numbers, and draw without a warning (an error here)."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection, QuadMesh
from matplotlib.colors import LogNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy.stats import t
from support.every import every

from securefl.accounting.curve import Curve
from securefl.accounting.events import History
from securefl.core.errors import DataError
from securefl.report import client_plots, measure_plots, plots, privacy_plots, style


def metrics(seeds: tuple[int, ...] = (0,)) -> pd.DataFrame:
    """FedProf climbs by 0.2 a round, FedAvg by 0.1; a later seed lies 0.02 lower."""
    rows = [
        (arm, seed, r, step * r - 0.02 * seed, 2.0, 30.0)
        for arm, step in (("FedAvg", 0.1), ("FedProf", 0.2))
        for seed in seeds
        for r in range(1, 5)
    ]
    return pd.DataFrame(rows, columns=["arm", "seed", "round", "accuracy", "megabytes", "seconds"])


def participation(clients: int, arms: tuple[str, ...] = ("FedAvg", "FedProf")) -> pd.DataFrame:
    quality = np.resize(["polluted", "clean", "noisy", "clean", "noisy"], clients)
    parts = [
        pd.DataFrame(
            {"arm": arm, "client": np.arange(clients), "quality": quality, "answered": np.arange(clients) % 7}
        )
        for arm in arms
    ]
    return pd.concat(parts)


def scores(
    clients: int, arms: tuple[str, ...] = ("FedProf",), rounds: tuple[int, ...] = (0, 1, 2)
) -> pd.DataFrame:
    level = {"clean": 0.01, "noisy": 0.1, "polluted": 1.0}
    words = np.resize(["polluted", "clean", "noisy", "clean", "noisy"], clients)
    rows = [
        (arm, r, k, quality, level[quality] * (2 - k / clients))
        for arm in arms
        for r in rounds
        for k, quality in enumerate(words)
    ]
    return pd.DataFrame(rows, columns=["arm", "round", "client", "quality", "divergence"])


def legend_words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def xs(line: Any) -> Any:
    return np.asarray(line.get_xdata())


def ys(line: Any) -> Any:
    return np.asarray(line.get_ydata())


def mesh_of(axes: Axes) -> Any:
    (mesh,) = [c for c in axes.collections if isinstance(c, QuadMesh)]
    return mesh


def draw(figure: Figure) -> None:
    figure.savefig(io.BytesIO(), format="png")


def test_accuracy_has_a_line_per_arm_and_names_the_round_of_the_target() -> None:
    figure = plots.accuracy(metrics(), target=0.5)
    (axes,) = figure.axes

    assert legend_words(figure) == [
        "FedAvg (target not reached)",
        "FedProf (target at round 3)",
        "target 0.5",
    ]
    curves = [line for line in axes.lines if len(xs(line)) == 4]
    assert [list(np.round(ys(line), 9)) for line in curves] == [
        [0.1, 0.2, 0.3, 0.4],
        [0.2, 0.4, 0.6, 0.8],
    ]
    (mark,) = [line for line in axes.lines if len(xs(line)) == 1]
    assert (xs(mark), ys(mark)) == (pytest.approx([3.0]), pytest.approx([0.6]))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "accuracy (share, 0 to 1)")
    draw(figure)


def test_accuracy_over_seeds_is_a_mean_with_a_band() -> None:
    figure = plots.accuracy(metrics(seeds=(0, 1, 2, 3, 4)))
    (axes,) = figure.axes

    assert ys(axes.lines[0]) == pytest.approx([0.06, 0.16, 0.26, 0.36])
    bands = [c for c in axes.collections if isinstance(c, PolyCollection)]
    assert len(bands) == 2
    heights = np.asarray(bands[0].get_paths()[0].vertices)[:, 1]
    spread = float(t.ppf(0.975, 4)) * 0.02 * np.sqrt(2.5 / 5)
    assert (heights.min(), heights.max()) == (pytest.approx(0.06 - spread), pytest.approx(0.36 + spread))
    assert axes.get_title(loc="left") == "mean of 5 seeds; band: 95 % interval"
    draw(figure)


def test_a_band_ends_where_accuracy_does() -> None:
    data = metrics(seeds=(0, 1, 2, 3, 4))
    data["accuracy"] = np.where(data["arm"] == "FedAvg", 0.01, 0.99) + 0.01 * (data["seed"] - 2)
    data["accuracy"] = data["accuracy"].clip(0, 1)
    for least, low in ((0.0, 0.0), (-np.inf, -1.0)):
        (axes,) = plots.accuracy(data, least=least).axes
        bands = [c for c in axes.collections if isinstance(c, PolyCollection)]
        ends = np.concatenate([np.asarray(band.get_paths()[0].vertices)[:, 1] for band in bands])
        assert low <= ends.min() < ends.max() <= 1


def test_few_seeds_are_points_and_one_is_a_line_alone() -> None:
    (axes,) = plots.accuracy(metrics(seeds=(0, 1))).axes
    assert not axes.collections
    points = [line for line in axes.lines if line.get_linestyle() == "None" or line.get_marker() == "."]
    assert [list(np.round(ys(line), 9)) for line in points[:2]] == [
        [0.1, 0.2, 0.3, 0.4],
        [0.08, 0.18, 0.28, 0.38],
    ]
    assert len(points) == 4
    assert all(line.get_linestyle() == "None" for line in points)
    assert axes.get_title(loc="left") == "mean of 2 seeds; points: each seed"
    (alone,) = plots.accuracy(metrics()).axes
    assert (len(alone.lines), len(alone.collections), alone.get_title(loc="left")) == (2, 0, "")


def test_global_and_personal_models_have_a_panel_each() -> None:
    data = metrics().assign(models=lambda frame: np.where(frame["arm"] == "FedAvg", "global", "personal"))
    figure = plots.accuracy(data, target=0.3)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one global model", "personal models"]
    for axes, arm in zip(figure.axes, ("FedAvg", "FedProf"), strict=True):
        assert [line.get_label().split()[0] for line in axes.lines[:1]] == [arm]
    assert legend_words(figure).count("target 0.3") == 1
    draw(figure)
    costs = plots.bytes_and_time(data)
    assert legend_words(costs) == ["FedAvg", "FedProf (personal models)"]
    assert [line.get_linestyle() for line in costs.axes[0].lines] == ["-", "--"]
    (one,) = plots.accuracy(data[data["arm"] == "FedProf"]).axes
    assert one.get_title(loc="left") == "personal models", "said where there is nothing beside it too"


def test_arms_without_any_accuracy_leave_an_empty_figure() -> None:
    draw(plots.accuracy(metrics().assign(accuracy=np.nan), target=0.5))


def test_forty_long_names_stand_below_the_panel() -> None:
    data = pd.concat([metrics().assign(arm=f"arm {k} of a name as long as people write") for k in range(40)])
    figure = plots.accuracy(data, target=0.5)
    draw(figure)
    assert len(legend_words(figure)) == 41
    assert figure.axes[0].bbox.height > 2 * figure.dpi
    assert figure.legends[0].get_window_extent().y1 < figure.axes[0].bbox.y0


def test_accuracy_leaves_out_rounds_that_were_not_evaluated() -> None:
    data = metrics()
    data.loc[data["round"] == 2, "accuracy"] = np.nan
    (axes,) = plots.accuracy(data).axes
    assert list(xs(axes.lines[0])) == [1, 3, 4]


def test_an_arm_keeps_its_colour_from_figure_to_figure() -> None:
    worn = style.looks(["FedLog", "FedProf", "FedAvg"])
    for figure in (plots.accuracy(metrics(), looks=worn), plots.bytes_and_time(metrics(), looks=worn)):
        lines = figure.axes[0].lines
        assert [line.get_color() for line in lines] == [worn["FedAvg"].colour, worn["FedProf"].colour]
        assert [line.get_marker() for line in lines] == [worn["FedAvg"].marker, worn["FedProf"].marker]


def test_no_pair_of_colour_and_mark_comes_twice() -> None:
    assert len({style.look(number) for number in range(2000)}) == 2000, "as many cells as a sweep may have"
    first = [style.look(number) for number in range(7)]
    assert len({worn.colour for worn in first}) == len({worn.marker for worn in first}) == 7
    data = pd.DataFrame({"arm": [f"arm {i}" for i in range(9)], "round": 1, "accuracy": 0.5})
    (axes,) = plots.accuracy(data).axes
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 9


def test_participation_has_a_row_for_each_quality_with_its_clients_and_their_mean() -> None:
    data = participation(60)
    data["quality"] = data["quality"].replace("clean", "aged")
    figure = client_plots.participation(data)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["FedAvg", "FedProf"]

    axes, own = figure.axes[1], data[data["arm"] == "FedProf"].groupby("quality")["answered"]
    order = ("noisy", "polluted", "aged")  # one without a colour of its own comes last, and grey
    assert to_hex(axes.lines[-1].get_color()) == "#777777"
    rows = zip(order, axes.lines, axes.collections, axes.get_yticklabels(), strict=True)
    for word, dots, mean, label in rows:
        group = own.get_group(word)
        assert list(xs(dots)) == group.to_list()
        assert mean.get_paths()[0].vertices[0][0] == pytest.approx(group.mean())
        assert label.get_text() == f"{word} ({len(group)}), mean {group.mean():.1f}"
    draw(figure)


@pytest.mark.parametrize("clients", [10, 500])
def test_divergence_groups_clients_and_keeps_the_values(clients: int) -> None:
    data = scores(clients)
    figure = client_plots.divergence(data)
    axes = figure.axes[0]

    mesh = mesh_of(axes)
    grid = np.asarray(mesh.get_array())
    assert grid.shape == (clients, 3)
    assert np.all(np.diff(grid[:, 0]) > 0), "clean, noisy and polluted, each from its least divergent on"
    assert isinstance(mesh.norm, LogNorm)
    n = clients // 5
    assert [t.get_text() for t in axes.get_yticklabels()] == [
        f"clean ({2 * n})",
        f"noisy ({2 * n})",
        f"polluted ({n})",
    ]
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "the first client stands on top"
    assert figure.axes[-1].get_ylabel() == "divergence from the baseline (log scale)"
    draw(figure)


def test_divergence_draws_a_panel_per_arm_gaps_and_zeros() -> None:
    data = scores(10, arms=("clear", "encrypted"), rounds=(0, 5, 20))
    data.loc[0, "divergence"] = 0.0
    data.loc[1, "divergence"] = np.nan
    figure = client_plots.divergence(data)

    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["clear", "encrypted"]
    mesh = mesh_of(figure.axes[0])
    grid = mesh.get_array()
    assert grid.mask.sum() == 5, "unknown until the client's next number, of round 5"
    assert grid.min() > 0
    corners = mesh.get_coordinates()[0, :, 0]
    assert list(corners) == [edge - 0.5 for edge in range(22)], "a column for every round"
    draw(figure)


def test_divergence_of_one_round_and_one_value_still_draws() -> None:
    one = scores(1, rounds=(7,))
    draw(client_plots.divergence(one))
    with pytest.raises(DataError, match="above 0"):
        client_plots.divergence(one.assign(divergence=0.0))


def test_costs_are_summed_up_and_averaged_over_seeds() -> None:
    figure = plots.bytes_and_time(metrics(seeds=(0, 1)))
    left, right = figure.axes

    assert xs(left.lines[0]) == pytest.approx([2, 4, 6, 8])
    assert xs(right.lines[0]) == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert ys(right.lines[1]) == pytest.approx([0.19, 0.39, 0.59, 0.79])
    assert "(MB)" in left.get_xlabel()
    assert "(minutes)" in right.get_xlabel()
    assert (left.get_xscale(), right.get_xscale()) == ("linear", "linear")
    assert legend_words(figure) == ["FedAvg", "FedProf"]
    draw(figure)


def test_costs_far_apart_are_drawn_on_a_log_scale() -> None:
    data = metrics()
    data.loc[data["arm"] == "FedAvg", "megabytes"] = 0.05
    left, right = plots.bytes_and_time(data).axes
    assert (left.get_xscale(), right.get_xscale()) == ("log", "linear")


@every(("first", "scale"), [(3.0, "log"), (0.5, "linear")])
def test_bounds_of_several_orders_are_drawn_on_a_log_scale(first: float, scale: str) -> None:
    """They move by factors. On a linear axis, those that begin far below are all at 0."""
    data = pd.DataFrame({"arm": "a", "round": [1, 2, 3], "seed": 1, "own": [first, 0.3, 0.2]})
    [axes] = plots.bounds(data, looks=style.looks(["a"]), column="own").axes
    assert axes.get_yscale() == scale


def test_numbers_of_a_long_log_scale_do_not_lie_on_each_other() -> None:
    figure = style.blank(height=4.0)
    short, long = figure.subplots(2, 1)
    for axes, most in ((short, 50), (long, 3000)):
        axes.set_xscale("log")
        axes.set_xlim(1, most)
        style.plain_logarithmic(axes.xaxis)
    assert [tick for tick in short.get_xticks() if 1 <= tick <= 50] == [1, 2, 5, 10, 20, 50]
    assert [tick for tick in long.get_xticks() if 1 <= tick <= 3000] == [1, 10, 100, 1000]


ALL: list[tuple[Callable[[pd.DataFrame], Figure], pd.DataFrame]] = [
    (plots.accuracy, metrics(seeds=(0, 1))),
    (client_plots.participation, participation(60)),
    (client_plots.divergence, scores(60)),
    (plots.bytes_and_time, metrics()),
]


@pytest.mark.parametrize(("plot", "data"), ALL)
def test_no_text_is_small_or_cut_off(plot: Callable[..., Figure], data: pd.DataFrame) -> None:
    figure = plot(data.assign(arm=data["arm"] + ", an arm of a name that needs two lines"))
    draw(figure)

    outline = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert min(outline.x0, outline.y0) >= -0.01
    assert outline.x1 <= width + 0.01
    assert outline.y1 <= height + 0.01
    texts: list[Any] = figure.findobj(Text)
    sizes = [text.get_fontsize() for text in texts if text.get_text()]
    assert len(sizes) > 5
    assert min(sizes) >= 9


@every(("plot", "data"), ALL)
def test_missing_columns_and_empty_frames_are_named(
    plot: Callable[[pd.DataFrame], Figure], data: pd.DataFrame
) -> None:
    with pytest.raises(DataError, match=r"got a table without arm"):
        plot(data.drop(columns="arm"))
    with pytest.raises(DataError, match="at least one row"):
        plot(data.iloc[:0])


@every(("plot", "data"), ALL)
def test_the_frame_handed_in_is_left_as_it_was(
    plot: Callable[[pd.DataFrame], Figure], data: pd.DataFrame
) -> None:
    before = data.copy()
    plot(data)
    pd.testing.assert_frame_equal(data, before)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_run_of_one_round_is_seen(seeds: tuple[int, ...]) -> None:
    """A line through one point would be empty."""
    one = metrics(seeds)
    one = one[one["round"] == 1]
    for figure in (plots.accuracy(one), plots.bytes_and_time(one)):
        curves = [line for line in figure.axes[0].lines if line.get_label() in ("FedAvg", "FedProf")]
        assert [line.get_marker() for line in curves] == ["o", "s"]
        assert all(line.get_markevery() is None for line in curves)


@pytest.mark.parametrize(("classes", "numbered"), [(2, True), (40, False)])
def test_a_confusion_matrix_has_a_scale_and_numbers_if_they_fit(classes: int, numbered: bool) -> None:
    cells = [(k, j, 3 if k == j else int(j == 0)) for k in range(classes) for j in range(classes)]
    table = pd.DataFrame(cells, columns=["true", "predicted", "records"]).assign(name="FedAvg")
    axes, scale = measure_plots.confusion(table).axes
    assert [text.get_text() for text in axes.texts] == (["100", "25", "75"] if numbered else [])
    assert "%" in scale.get_ylabel()
    (image,) = axes.images
    assert image.to_rgba([0.0])[0][3] == 0, "the page shows through, light or dark"


def test_privacy_curves_are_drawn_from_delta_1e_10_and_to_all_false_alarms() -> None:
    private, bare = Curve(History(mu_squared=1.0)), Curve(History(endless=True))
    figure = privacy_plots.curves({"private": private, "bare": bare})
    left, right = figure.axes
    epsilons, deltas = left.lines[0].get_data()
    assert epsilons[[0, -1]] == pytest.approx([0, private.epsilon(1e-10)])
    assert deltas == pytest.approx(private.delta(epsilons))
    alarms, misses = right.lines[0].get_data()
    assert alarms[[0, -1]] == pytest.approx([0, 1])
    assert misses == pytest.approx(private.miss(alarms))
    assert [float(np.max(axes.lines[1].get_ydata())) for axes in (left, right)] == [1, 0]
    assert legend_words(figure) == ["private", "bare", "a guess without the release"]
    assert len(privacy_plots.curves({"none": Curve(History())}).axes) == 2
