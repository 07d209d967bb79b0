"""The hook of mkdocs: pages that are made from the code, and the version."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1]))
from handbook import commands, keys, names, sources

import securefl
from securefl.commands.exit_codes import MEANINGS


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build into a folder of this version."""
    config.site_dir = str(Path(config.site_dir) / securefl.__version__)
    return config


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


def on_post_build(config: MkDocsConfig) -> None:
    """List the versions that stand side by side, and lead a visitor of the folder to the newest."""
    site = Path(config.site_dir).parent
    versions = sorted((path.parent.name for path in site.glob("*/index.html")), reverse=True)
    listed = [{"version": name, "title": name, "aliases": []} for name in versions]
    (site / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    lead = f'<meta http-equiv="refresh" content="0; url={versions[0]}/index.html">'
    (site / "index.html").write_text(f'<!doctype html><html lang="en"><meta charset="utf-8">{lead}</html>\n')
