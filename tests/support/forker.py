"""What the processes that tests fork find imported. `started.forks` loads it, into the process that forks."""

from __future__ import annotations

import gc
from importlib import import_module

for name in ("securefl.commands.main", "securefl.commands.run", "securefl.commands.party"):
    import_module(name)
for name in ("securefl.deployment.folder", "support.warmed"):
    import_module(name)
gc.freeze()
