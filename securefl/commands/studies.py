"""The command `studies`: lists the packaged studies by paper, or prints one."""

from __future__ import annotations

import json
from typing import Final

import click

from securefl.commands.choices import completing, with_json
from securefl.commands.printing import echo
from securefl.report.terminal import LONGEST, cut
from securefl.storage.texts import toml
from securefl.study.packaged import packaged, require_packaged

_PAPERS: Final = ("ADDS", "FedCor", "FedLog", "FedProf")
_OTHERS: Final = "Others"


@click.command(epilog="Example:  securefl studies demo > my.toml")
@click.argument("name", required=False, shell_complete=completing(packaged))
@with_json("Print the names as a JSON list.")
def studies(name: str | None, as_json: bool) -> None:
    """List the packaged studies by paper, or print one as TOML, as a template for your own."""
    if name is not None:
        click.echo(require_packaged(name), nl=False)
    elif as_json:
        click.echo(json.dumps(list(packaged())))
    else:
        _list()


def _list() -> None:
    width = max(len(name) for name in packaged())
    by_paper: dict[str, list[str]] = {paper: [] for paper in (*_PAPERS, _OTHERS)}
    for name, text in packaged().items():
        study = toml(text)
        title = study["study"]["name"] + (" (a sweep)" if "sweep" in study else "")
        about = f"{name} {title}".lower()
        paper = next((one for one in _PAPERS if one.lower() in about), _OTHERS)
        by_paper[paper].append(f"  {name:<{width}}  {cut(title, LONGEST - width - 4)}")
    echo("\n".join(line for paper, listed in by_paper.items() for line in (paper, *listed)))
