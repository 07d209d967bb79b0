from __future__ import annotations

import numpy as np
import pytest
from support.every import every

from securefl.core.arrays import packed, unpacked
from securefl.core.errors import ConfigError


def test_arrays_come_back_in_their_order_as_they_were() -> None:
    before = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2],
        "a": np.array(3.0),
        "": np.zeros((0, 3), bool),
        "é": np.arange(3, dtype=np.uint16),
        **{f"number {i}": np.array([i]) for i in range(20)},
    }
    after = unpacked(packed(before))
    assert list(after) == list(before)
    for name, array in before.items():
        assert after[name].dtype == array.dtype
        assert after[name].shape == array.shape
        np.testing.assert_array_equal(after[name], array)
        assert after[name].flags.writeable


@every("dtype", [object, "<U3", "S3", np.complex128, "datetime64[s]", np.longdouble])
def test_what_is_no_number_is_refused(dtype: str) -> None:
    with pytest.raises(ConfigError, match="as 'x', got"):
        packed({"x": np.zeros(2, dtype)})


@every("cut", [0, 1, 8, -1])
def test_bytes_that_are_cut_are_none(cut: int) -> None:
    with pytest.raises(Exception, match="deserializing"):
        unpacked(packed({"x": np.ones(3)})[:cut])
