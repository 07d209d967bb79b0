"""The page of exit codes."""

from __future__ import annotations

from securefl.commands.exit_codes import MEANINGS, ExitCode


def page() -> str:
    """Every exit code and its meaning."""
    rows = [f"| `{code.value}` | {MEANINGS[code]} |" for code in ExitCode]
    return "\n".join(
        [
            "# Exit codes",
            "",
            "A message says what was expected, what came, and what to do. A script reads the code:",
            "",
            "| code | meaning |",
            "|---|---|",
            *rows,
            "",
        ]
    )
