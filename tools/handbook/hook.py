"""The hook of mkdocs: pages that are made from the code."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1]))
from handbook import commands, keys, names, sources

from securefl.commands.exit_codes import MEANINGS


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made: path below docs, and Markdown; or a picture's bytes."""
    codes = "\n".join(f"| `{code.value}` | {meaning} |" for code, meaning in sorted(MEANINGS.items()))
    made = dict(sources.pages()) | {
        "reference/exit-codes.md": f"# Exit codes\n\n| code | meaning |\n|---|---|\n{codes}\n",
        "reference/keys.md": keys.page(),
        "reference/commands.md": commands.page(),
        "reference/names.md": names.index(),
        **{f"reference/{face}.md": names.page(face) for face in names.FACES},
    }
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links of a page of docs/ to the site's own pages of files outside docs/."""
    return markdown if page.file.generated_by else sources.linked(markdown, f"docs/{page.file.src_uri}")
