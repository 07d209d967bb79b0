"""The functions that parse bytes, and those that need no fuzzing, since they read what nobody else writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

PARSER = re.compile(
    r"json\.loads?|tomllib\.loads|(ast\.)?literal_eval|ast\.parse|(np|torch)\.(load|loadtxt|frombuffer)|safe_open|safetensors.*load"
    r"|ZipFile|zipfile\.ZipFile|tarfile\.open|Image\.open|csv\.reader|pd\.read_csv|parquet\.\w+"
    r"|\w+\.(decompress|unpack_from|iter_unpack|from_bytes)|struct\.unpack|_HEAD\.unpack|pickle\.\w+"
)
ALONE: Mapping[str, str] = {
    "securefl/accounting/named_ledger.py": "names of holders, of this user's ledger, which is chained",
    "securefl/accounting/shared.py": "the user's own shared ledger, which is chained",
    "securefl/commands/ledger.py": "a charge that the ledger's reader has decoded",
    "securefl/commands/main.py": "source of an installed package",
    "securefl/core/reading.py": "a value of a TOML text that was read, quoted",
    "securefl/core/streams.py": "this party's own draws",
    "securefl/data/fetching.py": "archives whose SHA-256 was checked",
    "securefl/data/sides.py": "digests made here",
    "securefl/data/sources.py": "files whose SHA-256 was checked",
    "securefl/deployment/spending.py": "the user's own run folder",
    "securefl/deployment/updates.py": "a task that is sent from here",
    "securefl/dp/noise.py": "this party's own draws",
    "securefl/flower/submitting.py": "what Flower's command prints here",
    "securefl/linear/padded_vector.py": "an example that this process explains",
    "securefl/matching/story_page.py": "an example that this process explains",
    "securefl/published/comparison.py": "a table that the user's own runs wrote",
    "securefl/secagg/graph.py": "draws of a stream",
    "securefl/secagg/quorum.py": "draws of a stream",
    "securefl/secagg/shamir.py split": "a secret of this party",
    "securefl/storage/folder_lock.py": "the user's own folder",
    "securefl/storage/journal.py": "the party's own journal, each row under its digest",
    "securefl/storage/own_code.py": "notes of installed packages",
    "securefl/storage/processes.py": "lines of this process's own workers",
    "securefl/study/": "the user's own run folder",
    "securefl/sums/encrypted/": "this party's own draws",
    "securefl/sweep/": "the user's own sweep folder",
    "securefl/training/audits.py": "the user's own cache",
    "securefl/training/networks.py": "the user's own cache, under its digest",
    "securefl/training/parallel.py": "memory of this process's own workers",
    "securefl/training/pretrained.py": "weights whose SHA-256 is checked",
}
"""By file or folder: why nobody else's bytes come there."""


def parsing(folder: Path, root: Path) -> Iterator[str]:
    """Each function below the folder that calls a parser, as `file function`."""

    def within(node: ast.AST, where: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            own = where
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = ("<locals>",) if isinstance(node, ast.FunctionDef) else ()
                own = (*where, *inner, child.name)
            elif isinstance(child, ast.Call) and PARSER.fullmatch(ast.unparse(child.func)):
                yield ".".join(where)
            yield from within(child, own)

    for path in sorted(folder.rglob("*.py")):
        for function in dict.fromkeys(within(ast.parse(path.read_text(encoding="utf-8")), ())):
            yield f"{path.relative_to(root)} {function}"
