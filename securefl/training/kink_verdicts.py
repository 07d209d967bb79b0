"""Whether a GPU keeps records apart. It is tried by records on kinks, once for a device and its versions.

On a GPU other kernels compute, which nobody here has read. So no record-level epsilon is claimed there before
`kinks` has failed to catch them. The verdict stands in a file in the user's cache, under a digest of the
device, the versions of its libraries and this package's own code. Whoever can write there can forge it, as he
could this package's code: that user is trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from securefl.core.errors import DataError
from securefl.storage import files
from securefl.training.devices import Gpu


def keeps_apart(
    gpu: Gpu,
    *,
    say: Callable[[str], None] = lambda line: None,
    tried: Callable[[Gpu], bool] | None = None,
    home: Path | None = None,
) -> bool:
    """The verdict on this GPU, remembered or found now. It takes a minute at most.

    say: is told before anything is tried. tried: the test, by default that of `securefl audit`. home: the
    folder of the file, by default in the user's cache.
    """
    path = (home or cache()) / "kinks.json"
    key = subject(gpu)
    verdicts = remembered(path)
    if key in verdicts:
        return verdicts[key]
    say(f"Trying whether {gpu.name()} keeps records apart, once for this device and these versions ...")
    verdict = (tried or _tried)(gpu)
    _remember(path, {**verdicts, key: verdict})
    return verdict


def cache() -> Path:
    """This package's folder in the user's cache."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    # a relative path there is invalid, and to be ignored (XDG Base Directory Specification)
    base = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    return base / "securefl"


def subject(gpu: Gpu) -> str:
    """A digest of all that a verdict hangs on."""
    # Every module of this room: a list of those that compute would miss the next one.
    modules = sorted(Path(__file__).parent.glob("*.py"))
    code = [hashlib.sha256(module.read_bytes()).hexdigest() for module in modules]
    return hashlib.sha256(json.dumps([*gpu.facts(), *code]).encode()).hexdigest()


def remembered(path: Path) -> dict[str, bool]:
    """The verdicts in a file. A file that is missing, damaged or another's holds none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: verdict for key, verdict in found.items() if isinstance(verdict, bool)}


def _remember(path: Path, verdicts: Mapping[str, bool]) -> None:
    try:
        files.write(path, json.dumps(verdicts, indent=1) + "\n")
    except (OSError, DataError):
        return  # a cache that cannot be written costs a minute in the next run, and nothing else


def _tried(gpu: Gpu) -> bool:
    from securefl.training.audits import of_kinks  # Opacus takes two seconds to import

    return all(found["verdict"] == "pass" for found in of_kinks(gpu.device))
