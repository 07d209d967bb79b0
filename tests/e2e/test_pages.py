"""The pages of the site that a reader follows: each block of each is run, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e import pages
from e2e.pages import ROOT, Block, blocks, differs, run_page

from securefl.mechanisms import registry as mechanisms

pytestmark = pytest.mark.docs

KINDS = ("tutorials", "how-to", "explanation", "coming-from")
PAGES = sorted(path for kind in KINDS for path in (ROOT / "docs" / kind).glob("*.md"))
ELSEWHERE = {
    "how-to/cluster.md": "tests/e2e/test_ray.py",
}
"""Pages whose blocks another test runs, and the file of that test."""
SLOW = {"tutorials/own-csv.md"}
"""Pages that compute for longer than ten seconds."""
RUN = {"console", "py", "pycon"}


def unhandled(page: str) -> list[Block]:
    """The blocks that nothing runs, writes or compares."""
    found, before = [], ""
    for block in blocks(page):
        output = block.language == "text" and before == "py"
        if not (block.title or block.language in RUN or output):
            found.append(block)
        before = "" if block.title else block.language
    return found


@contextmanager
def pip_installs_beside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`pip install .` builds the reader's package and installs it into a folder, not into our environment."""
    run = pages.shell

    def shell(command: str) -> str:
        if command != "pip install .":
            return run(command)
        options = ("-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", "installed")
        subprocess.run([sys.executable, "-m", "pip", "install", *options, "."], check=True)
        monkeypatch.syspath_prepend(folder / "installed")
        mechanisms._from_outside.cache_clear()
        return ""

    monkeypatch.setattr(pages, "shell", shell)
    yield
    mechanisms._from_outside.cache_clear()


def _name(page: Path) -> str:
    return f"{page.parent.name}/{page.name}"


def _pages() -> Iterator[object]:
    for page in PAGES:
        marks = [pytest.mark.slow] if _name(page) in SLOW else []
        if _name(page) not in ELSEWHERE:
            yield pytest.param(page, marks=marks, id=_name(page))


@pytest.mark.parametrize("page", list(_pages()))
def test_each_block_does_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unhandled(page.read_text(encoding="utf-8")) == []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with pip_installs_beside(tmp_path, monkeypatch):
        assert run_page(page) == []


def test_a_page_that_another_test_runs_is_named_there() -> None:
    for name, test in ELSEWHERE.items():
        assert name in (ROOT / test).read_text(encoding="utf-8")
        assert ROOT / "docs" / name in PAGES


LYING = """
```py
print(1)
```

```text
2
```

```console
$ echo three
four
```

```toml title="a.toml"
[a]
```

```console
$ cat a.toml
[b]
```

```pycon
>>> 1 + 1
3
```
"""


def test_a_page_that_lies_is_caught_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(LYING, encoding="utf-8")
    assert len(run_page(page)) == 4


@pytest.mark.parametrize("language", ["toml", "diff", "text", "sh", "python", ""])
def test_a_block_that_nothing_runs_is_seen(language: str) -> None:
    assert [block.language for block in unhandled(f"```{language}\n1\n```\n")] == [language]


def test_an_output_that_is_missing_or_more_is_a_difference() -> None:
    assert differs("a\nb\n", "a\n")
    assert differs("", "a\n")
    assert differs("a\n", "")
    assert not differs("a 12 b\nc\n", "a … b\n…\n")
