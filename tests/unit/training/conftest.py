"""What tests of private training share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module")
def nothing_of_others() -> None:
    """A look at kept state goes through all objects of the process: leave those of other tests out."""
    gc.collect()
    gc.freeze()
