"""The page of who learns what, from the privacy cards of small studies."""

from __future__ import annotations

from who_learns import MODEL, table


def page() -> str:
    """Each value of a client, and what each party learns of it."""
    return "\n".join(
        [
            "# Who learns what",
            "",
            "A row is one value of a client under one setting. `securefl plan STUDY` prints those of a",
            "study. This page is made from the same code. [The threat model](../threat-model.md) has what a",
            "party can do that breaks the rules.",
            "",
            table(MODEL),
            "",
        ]
    )
