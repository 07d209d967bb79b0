"""How normal a layer's outputs are: known laws have known shapes, and the figure shows them."""

from __future__ import annotations

import numpy as np
import pytest
from representations import histograms, normality


def outputs(n: int = 4000) -> np.ndarray:
    """Element 0 is normal, 1 exponential, 2 constant, 3 uniform."""
    rng = np.random.default_rng(0)
    columns = [rng.normal(3, 5, n), rng.exponential(2, n), np.full(n, 7.0), rng.uniform(-1, 1, n)]
    return np.column_stack(columns)


def test_known_laws_have_their_shapes() -> None:
    found = normality(outputs()).set_index("element")
    assert found.index.tolist() == [0, 1, 3], "a constant element has no shape"
    assert found["skewness"].to_numpy() == pytest.approx([0, 2, 0], abs=0.2)
    assert found["excess_kurtosis"].to_numpy() == pytest.approx([0, 6, -1.2], abs=1.5)
    # sup |F - Phi| is 0.159 for an exponential law (at 0), and 0.058 for a uniform one
    assert found["distance"].to_numpy() == pytest.approx([0.01, 0.16, 0.06], abs=0.012)


def test_the_figure_has_a_panel_for_each_element_and_name() -> None:
    figure = histograms({"before": outputs(), "after": outputs() ** 3}, [0, 3])
    assert [group.get_suptitle() for group in figure.subfigs] == ["before", "after"]
    assert [len(group.axes) for group in figure.subfigs] == [2, 2]
    assert figure.axes[0].get_title().startswith("element 0: 0.0")
    figure.canvas.draw()
