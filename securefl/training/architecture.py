"""What a problem asks of a model's description, whoever wrote the model."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn


class Architecture(Protocol):
    """Builds one model, again and again with the same values.

    hidden: units of the hidden layers of a plain stack of dense layers, if it is one and they are known.
    reads_text: whether a record is a row of int64 codes. draws: whether training draws from torch's
    generator, as dropout does. layer: name of the profiled layer.
    """

    @property
    def hidden(self) -> tuple[int, ...] | None: ...

    @property
    def reads_text(self) -> bool: ...

    @property
    def draws(self) -> bool: ...

    @property
    def layer(self) -> str: ...

    def blank(self, shape: tuple[int, ...]) -> Tensor:
        """One record of zeros, (1, *shape)."""
        ...

    def shorter(self) -> Architecture:
        """The same without its first hidden dense layer. Raises ConfigError if it has fewer than two."""
        ...

    def build(self, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
        """The model for records of `shape`, initialised from `seed` alone."""
        ...
