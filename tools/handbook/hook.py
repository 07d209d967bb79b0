"""The hook of mkdocs: pages that are made from the code, the version, and search without a server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1]))
from handbook import codes, commands, keys, names, parties, sources

import securefl


def made() -> Iterator[tuple[str, str | bytes]]:
    """The pages that are made from the code: path below docs, and Markdown; or a picture's bytes."""
    yield from sources.pages()
    yield "reference/exit-codes.md", codes.page()
    yield "explanation/who-learns-what.md", parties.page()
    yield "reference/keys.md", keys.page()
    yield "reference/commands.md", commands.page()
    yield "reference/names.md", names.index()
    for face in names.faces():
        yield f"reference/{names.file_name(face)}", names.page(face)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build into a folder of this version."""
    config.site_dir = str(Path(config.site_dir) / securefl.__version__)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in made():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links of a page of docs/ to the site's own pages of files outside docs/."""
    if page.file.generated_by:
        return markdown
    return sources.linked(markdown, f"docs/{page.file.src_uri}")


def on_post_build(config: MkDocsConfig) -> None:
    """List the versions that stand side by side, and lead a visitor of the folder to the newest."""
    site = Path(config.site_dir).parent
    versions = sorted((path.name for path in site.iterdir() if (path / "index.html").is_file()), reverse=True)
    listed = [{"version": name, "title": name, "aliases": []} for name in versions]
    (site / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    first = f"{versions[0]}/index.html"
    (site / "index.html").write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>securefl</title>'
        f'<meta http-equiv="refresh" content="0; url={first}">'
        f'<a href="{first}">securefl {versions[0]}</a></html>\n',
        encoding="utf-8",
    )
