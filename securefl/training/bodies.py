"""Which model each client has. Bodies may have two lengths, under one head."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.training.task import Problem


@dataclass(frozen=True, eq=False)
class Bodies:
    """The first `shorter` * N clients have a body without its first hidden dense layer. All have one head.

    Who has which body is public. It follows from the client's number, and tells nothing of its records.
    """

    problem: Problem
    shorter: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.shorter <= 1:
            raise ValueError(f"Expected 0 <= shorter <= 1, got {self.shorter}.")

    def of(self, client: int) -> Problem:
        """The problem as this client has it."""
        return self.problem.shorter if client < self.shorter * self.problem.clients else self.problem
