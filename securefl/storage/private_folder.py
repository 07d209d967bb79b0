"""The private folder of a run or a sweep, for files that must not be published.

One rule decides where a file is written. A file outside of this folder depends only on public settings, on
sent messages, and on the server's own test records. Every other file that depends on clients' records is in
this folder: the clients that answered, the reasons for missing parts, an observer's figures, times, digests
of records, and the databases from which a run resumes. The same rule holds without noise, if epsilon is
infinite.

Every text file in it begins with a line that says so. A database, a picture and a Parquet file have no first
line: `README.txt` beside them says it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from securefl.core.errors import ConfigError
from securefl.storage.files import subfolder, write

PRIVATE: Final = "private"
NOTICE: Final = (
    "Not for publication: no epsilon covers what is in this file. It is for the person at this machine."
)
FIELD: Final = "not_for_publication"
"""The first field of a JSON object that is not for publication. Its value is the notice."""
_README: Final = "README.txt"
_RULE: Final = """
Nothing in this folder is for publication. It holds what records of clients move without noise:
who answered, why parts of clients are missing, figures and times of an observer, digests of
records, and the databases that the run goes on from, with the secrets of its parties.
What lies outside of this folder follows from public settings, from what was sent, and from the
server's own test records, which no epsilon covers either: they are the server's to publish.
Tables begin with this notice as a comment. Read them with: pandas.read_csv(path, comment="#")
"""


def private_folder(folder: Path) -> Path:
    """The private folder in `folder`, made for its owner alone if there is none.

    Raises DataError for a link, whose contents are elsewhere.
    """
    path = subfolder(folder / PRIVATE, mode=0o700)
    if not (path / _README).exists():
        write(path / _README, NOTICE + "\n" + _RULE)
    return path


def json_text(content: Mapping[str, Any]) -> str:
    """JSON whose first line is the notice, as the first field."""
    head = "{" + json.dumps(FIELD) + ": " + json.dumps(NOTICE)
    body = json.dumps(dict(content), indent=2)
    return head + (",\n" + body[2:] if content else "}") + "\n"


def require_layout(folder: Path) -> None:
    """Raises ConfigError for a run folder of before there was a private folder."""
    old, new = folder / "arms", folder / PRIVATE / "arms"
    if old.exists() and not new.exists():
        raise ConfigError(
            f"Expected the databases of the run in {new}, got {old}, as earlier versions left them beside "
            f"what may be published. Move them: mkdir -m 700 {folder / PRIVATE} && mv {old} {new}. Then "
            f"remove tables and plots, and write them anew with: securefl report {folder}"
        )
