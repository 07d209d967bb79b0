"""A callback that writes finished rounds to TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from securefl.api.callbacks.curves import curves
from securefl.core.installed import needing
from securefl.study.config import slug
from securefl.study.round_events import Round

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """A callback, and a context: accuracy, loss, bytes and epsilon of each round.

        with TensorBoard("board") as board:
            securefl.run("demo", callback=board)

    It writes below `folder`/<arm>/seed-<seed>. A resumed run continues the same curves. Raises ConfigError if
    TensorBoard is not installed.
    """

    def __init__(self, folder: Path | str) -> None:
        with needing("tensorboard", "to write for TensorBoard"):
            from torch.utils.tensorboard import SummaryWriter
        self._make = SummaryWriter
        self._folder = Path(folder)
        self._writers: dict[tuple[str, int], SummaryWriter] = {}

    def __call__(self, arm: str, seed: int, round_: Round) -> None:
        if (arm, seed) not in self._writers:
            home = self._folder / slug(arm) / f"seed-{seed}"
            self._writers[arm, seed] = self._make(str(home))
        writer = self._writers[arm, seed]
        for name, value in curves(round_).items():
            writer.add_scalar(name, value, round_.number)
        # Flushed, so that each round is visible at once and a kill loses none.
        writer.flush()

    def close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
