"""The device of a run. It is chosen when the run begins, noted in its folder, and kept when it goes on.

A round that was cut off is played again with the same masks and noise. On another device a value would have
other last bits under the same noise, and the two together would tell more than either. So a run goes on where
it began. Only when the GPU's memory runs out does it change, and the note with it. A value whose computation
failed never left, but what a cut-off round made before that is made anew on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from securefl.core.errors import ConfigError
from securefl.storage.files import write
from securefl.storage.texts import read_text
from securefl.study.config import Study
from securefl.training.devices import Gpu, Hardware, chosen

NOTE: Final = "device.txt"
"""The devices of a run, a line each, if it was ever on a GPU."""


def hardware_of(
    study: Study, folder: Path, began: bool, say: Callable[[str], None], gpu: Gpu | None = None
) -> Hardware:
    """Where the run of this folder is computed. `gpu`: as for `chosen`.

    began: whether there is a run in the folder. Raises ConfigError if it was on a device that is not at hand.
    """
    wanted, last = study.runtime.device, devices(folder)[-1]
    if began and last == "cpu" and wanted != "cuda":
        return Hardware()
    hardware = chosen(wanted, say, gpu)
    if began and hardware.words != last:
        raise ConfigError(
            f"Expected the run in {folder} to go on on the device that it was on ({last}), got "
            f"{hardware.words}: a round that was cut off would be computed with the same noise and other "
            "last bits. Go on there, or begin a new run in another folder."
        )
    return hardware


def note(folder: Path, hardware: Hardware) -> None:
    """Note the device in the folder if it is a GPU, and from now on that it was left."""
    if hardware.gpu is not None and not (folder / NOTE).exists():
        write(folder / NOTE, hardware.words + "\n")
    hardware.left = lambda: write(folder / NOTE, "\n".join([*devices(folder), "cpu"]) + "\n")


def devices(folder: Path) -> list[str]:
    """The devices of the folder's run, in their order."""
    path = folder / NOTE
    return (read_text(path).splitlines() if path.exists() else []) or ["cpu"]
