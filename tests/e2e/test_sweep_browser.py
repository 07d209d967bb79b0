"""The page of a sweep in a real browser: no error, figures drawn, and a click that filters."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from e2e import browser
from support.tiny_study import text

from securefl.commands.sweep import sweep
from securefl.sweep.page import script_digest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.docs,
    pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on this machine"),
]

TOML = (
    text(
        '[[arm]]\nname = "FedLog <b>"\nprotocol = "fedlog"\n',
        '[[arm]]\nname = "bounded"\nprotocol = "fedlog"\nclip = { kind = "bounded" }\n',
        non_private='["statistic"]',
        rounds=1,
        seeds="[3, 4]",  # of two seeds both stand in a cell of the answer, which makes it wide
    )
    .replace('noise = "none"', 'noise = "local"')
    .replace('adversaries = ["server", "key-holder", "others"]', 'adversaries = ["server", "others"]')
    + '[sweep.grid]\n"privacy.epsilon" = [8.0, inf]\n"privacy.calibration" = ["exact", "paper"]\n'
)
# Listens before anything else runs, clicks when everything has, and leaves what it saw in the page.
PROBE = """
const wrong = [];
addEventListener("error", event => wrong.push(String(event.message)));
addEventListener("securitypolicyviolation", event => wrong.push(event.violatedDirective + event.blockedURI));
const seen = () => [0, 1, 2, 3].map(n =>
  [...document.querySelectorAll(`[id^="series-${n}-"], [data-series="${n}"]`)]
    .filter(part => part.getClientRects().length > 0).length);
const look = () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  const figures = [...document.querySelectorAll("figure > svg")];
  const told = {figures: figures.map(svg => svg.getBoundingClientRect().width)};
  told.filters = document.getElementById("filters").getClientRects().length;
  told.all = seen();
  const box = value => document.querySelector(`#filters input[value="${value}"]`);
  if (told.filters) {
    box("0-0").click(); told.second = seen();
    box("1-1").click(); told.one = seen();
    box("0-0").click(); box("1-1").click(); told.again = seen();
  }
  told.wrong = wrong;
  document.documentElement.dataset.told = JSON.stringify(told);
};
addEventListener("load", () => setTimeout(look, 200));  // violations are told late
"""


def dumped(page: Path) -> str:
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,1200"]
    command.append("--virtual-time-budget=5000")
    profile = f"--user-data-dir={page.parent / 'profile'}"
    done = subprocess.run(
        [*command, profile, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def probed(page: Path, source: str) -> dict[str, Any]:
    """What the probe sees on this page, to whose policy it is added by its hash."""
    digest = "sha256-" + base64.b64encode(hashlib.sha256(PROBE.encode()).digest()).decode()
    source = source.replace("script-src '", f"script-src '{digest}' '", 1)
    page.write_text(source.replace("<title>", f"<script>{PROBE}</script><title>", 1), encoding="utf-8")
    told = re.search(r'data-told="([^"]*)"', dumped(page))
    assert told is not None, "the probe ran"
    found: dict[str, Any] = json.loads(html.unescape(told[1]))
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "sweep.toml").write_text(TOML)
    arguments = [str(folder / "sweep.toml"), "--out", str(folder / "out"), "--workers", "2"]
    result = CliRunner().invoke(sweep, arguments)
    assert result.exit_code == 0, result.output
    return (folder / "out" / "sweep.html").read_text(encoding="utf-8")


@pytest.mark.slow  # the page is read without a browser in the fast suite (unit/sweep/test_page)
def test_check_boxes_show_and_hide_series(source: str, tmp_path: Path) -> None:
    told = probed(tmp_path / "page.html", source)
    assert told["wrong"] == []
    assert len(told["figures"]) == 2
    assert all(width > 500 for width in told["figures"])
    assert told["filters"] == 1
    all_seen = told["all"]
    assert all(count >= 6 for count in all_seen)
    # In the order of the cells: exact by arm, then paper by arm.
    assert told["second"] == [0, all_seen[1], 0, all_seen[3]]
    assert told["one"] == [0, all_seen[1], 0, 0]
    assert told["again"] == all_seen


@pytest.mark.slow
def test_without_the_script_all_series_are_seen_and_no_check_box_is(source: str, tmp_path: Path) -> None:
    """A browser that refuses the script: its hash is not in the policy."""
    told = probed(tmp_path / "page.html", source.replace(f" '{script_digest()}'", " 'sha256-AAAA'", 1))
    assert all(count >= 6 for count in told["all"])
    assert told["filters"] == 0
    assert len(told["wrong"]) == 1
    assert told["wrong"][0].startswith("script-src")


@pytest.mark.slow
@pytest.mark.parametrize("width", [420, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_to_stumble_over(source: str, tmp_path: Path, width: int, dark: bool) -> None:
    page = tmp_path / "page.html"
    page.write_text(source, encoding="utf-8")
    seen = browser.look(page, width=width, dark=dark)
    assert seen.faults == {}
    assert len(seen.text) > 1000, "the page was there"
