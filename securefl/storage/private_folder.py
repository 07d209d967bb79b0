"""The private folder of a run or a sweep, for files that must not be published.

One rule decides where a file is written. A file outside of this folder depends only on public settings, on
sent messages, and on the server's own test records. Every other file that depends on clients' records is in
this folder: the clients that answered, the reasons for missing contributions, an observer's figures, times,
digests of records, and the databases from which a run resumes. The rule also holds for a run without noise,
whose epsilon is infinite.

Every text file in this folder begins with a notice that it is not for publication. A database, a picture and
a Parquet file have no first line, so `README.txt` beside them says it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from securefl.core.errors import ConfigError, of_another_version
from securefl.core.formats import VERSION, first_line, version_in
from securefl.storage.files import subfolder, write
from securefl.storage.inputs import content

PRIVATE: Final = "private"
CONFIG: Final = "study.toml"
"""The file of a run folder with its study. It is outside of the private folder."""
ARMS: Final = Path(PRIVATE) / "arms"
"""The folder of a run's databases, below its folder."""
RUN: Final = "run"
SWEEP: Final = "sweep"
FORMAT: Final = "format.txt"
"""The file of the folder of a run or sweep with the version of all files in it."""
NOTICE: Final = (
    "Not for publication: no epsilon covers what is in this file. It is for the person at this machine."
)
FIELD: Final = "not_for_publication"
"""The first field of a JSON object that is not for publication. Its value is the notice."""
_README: Final = "README.txt"
_RULE: Final = """
Nothing in this folder is for publication. Its files depend on clients' records, and no noise covers
them: the clients that answered, the reasons for missing contributions, an observer's figures and
times, digests of records, and the databases from which the run resumes, with its parties' secrets.
A file outside of this folder depends only on public settings, on sent messages, and on the server's
own test records. No epsilon covers these test records: whether to publish is the server's decision.
Tables begin with this notice as a comment. Read them with: pandas.read_csv(path, comment="#")
"""


def private_folder(folder: Path) -> Path:
    """The private folder in `folder`. If there is none, it is made with access for its owner alone.

    Raises DataError if it is a symbolic link: the files would be elsewhere.
    """
    path = subfolder(folder / PRIVATE, mode=0o700)
    if not (path / _README).exists():
        write(path / _README, NOTICE + "\n" + _RULE)
    return path


def private_page(page: Path) -> Path:
    """The page with all figures, beside a page that may be published."""
    return page.parent / PRIVATE / page.name


def json_text(content: Mapping[str, Any]) -> str:
    """The content as JSON, with the notice as its first field, in the first line."""
    head = "{" + json.dumps(FIELD) + ": " + json.dumps(NOTICE)
    body = json.dumps(dict(content), indent=2)
    return head + (",\n" + body[2:] if content else "}") + "\n"


def note_format(folder: Path, kind: str) -> None:
    """Write the version of all files in the folder of a run or sweep. It is the first of them."""
    if not (folder / FORMAT).exists():
        write(folder / FORMAT, first_line(kind))


def made_in(folder: Path, kind: str) -> bool:
    """Whether a folder lies in one of this kind, as a cell or a trial does in its sweep's."""
    places = [up / FORMAT for up in folder.resolve().parents[:3]]
    return any(path.is_file() and content(path, 2**10) == first_line(kind) for path in places)


def require_format(folder: Path, kind: str) -> None:
    """Raise ConfigError unless the folder of a run or sweep is of this version."""
    path = folder / FORMAT
    came = content(path, 2**10) if path.exists() else b""
    if came != first_line(kind):
        raise ConfigError(of_another_version(f"{folder} as a {kind} of version {VERSION}", version_in(came)))


def run_config(folder: Path) -> Path:
    """The file with the study of a run folder. Raises ConfigError unless it is one, of this version."""
    config = folder / CONFIG
    if (folder / "party.toml").is_file():
        raise ConfigError(
            f"Expected a run folder, got {folder}, a party's folder. Name the one of its server's run: --out "
            "of `securefl party coordinate`."
        )
    if not config.is_file():
        runs = [path.parent for path in sorted(folder.glob(f"cells/*/{CONFIG}"))]
        named = f"It is a sweep: name a run in it, such as {runs[0]}." if runs else "Check the path."
        raise ConfigError(f"Expected a run folder, got {folder}, which has no {CONFIG}. {named}")
    require_format(folder, RUN)
    return config
