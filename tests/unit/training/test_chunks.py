"""Passes over records have a public number of rows, on which float kernels depend."""

from __future__ import annotations

import numpy as np
from torch import nn

from securefl.training.chunks import record_losses
from securefl.training.products import ROWS
from securefl.training.row_wise import RowHook


def test_every_pass_has_the_same_number_of_rows_however_many_records_there_are() -> None:
    rows = set()
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].register_forward_pre_hook(RowHook(lambda layer, given: rows.add(len(given[0]))))
    for n in (0, 1, 5, ROWS, ROWS + 1):
        x, y = np.ones((n, 4), np.float32), np.zeros(n, np.int64)
        assert len(record_losses(model, x, y, "cross_entropy")) == n
        if not n:
            rows.clear()  # of the public passes, before the first records
    assert rows == {ROWS}
