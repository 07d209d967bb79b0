"""How many examples hypothesis tries where making one is the work, which its health checks would refuse."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def examples(count: int) -> settings:
    return settings(max_examples=count, suppress_health_check=list(HealthCheck))
