"""The map of clients."""

from __future__ import annotations

import pandas as pd
import pytest

from securefl.core.errors import DataError
from securefl.report.client_plots import embedding


def places(labels: int = 3) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "arm": ["FedCor"] * 12,
            "client": range(12),
            "label": [str(k % labels) for k in range(12)],
            "first": [0.1 * k for k in range(12)],
            "second": [-0.1 * k for k in range(12)],
        }
    )


def test_every_label_has_a_mark_of_its_own() -> None:
    figure = embedding(places(9))
    [axes] = figure.axes
    assert sum(len(drawn.get_offsets()) for drawn in axes.collections) == 12
    marks = {
        (tuple(drawn.get_facecolor()[0]), len(drawn.get_paths()[0].vertices)) for drawn in axes.collections
    }
    assert len(marks) == 9


def test_an_empty_frame_and_a_missing_column_are_refused() -> None:
    with pytest.raises(DataError):
        embedding(places().iloc[:0])
    with pytest.raises(DataError, match="second"):
        embedding(places().drop(columns="second"))
