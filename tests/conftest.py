"""One hypothesis profile and one thread for all tests, so that a failure repeats."""

from __future__ import annotations

import torch
from hypothesis import settings

settings.register_profile("securefl", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("securefl")
torch.set_num_threads(1)
