"""Pictures of runs stay blank here, but where a module looks at them."""

from __future__ import annotations

from support.undrawn import blank_pictures

__all__ = ["blank_pictures"]
