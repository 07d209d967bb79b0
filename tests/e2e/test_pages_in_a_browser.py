"""Every page in a real browser, on a telephone and a screen, light and dark: nothing to stumble over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from e2e import browser
from support.tiny_study import FEDAVG, FEDPROF, text

from securefl.commands.main import cli
from securefl.study.packaged import packaged

pytestmark = pytest.mark.docs

WINDOWS = [(width, dark) for width in (420, 1280) for dark in (False, True)]
NAMES = [f"{width}-{'dark' if dark else 'light'}" for width, dark in WINDOWS]
BAD = """<!DOCTYPE html><html><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"></head>
<body style="background:#fff"><p style="color:#aaa">faint</p><p style="width:2000px">wide</p>
<p style="font-size:5px">small</p><p style="color:#000">plain</p><script>boom()</script>
<img src="http://127.0.0.1:9/picture.png" alt="">
<figure><svg viewBox="0 0 100 20" width="200"><text x="90" y="10" font-size="6">cut off</text>
<text x="1" y="10" font-size="8">one</text><text x="3" y="10" font-size="8">two</text></svg></figure>
</body></html>"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by kind, made by the commands that make them."""
    browser.require()  # before any work
    folder = tmp_path_factory.mktemp("pages")
    # The demo's arms, in fewer rounds.
    (folder / "demo.toml").write_text(packaged()["demo"].replace("rounds = 40", "rounds = 4"))
    said = _called("run", str(folder / "demo.toml"), "--out", str(folder / "demo"), "--json")
    assert json.loads(said)["privacy_cost"].startswith("A finite epsilon cost ")
    made = {"run": folder / "demo" / "report.html", "whole": folder / "demo" / "private" / "report.html"}
    (folder / "own.toml").write_text(text(FEDAVG, FEDPROF, seeds="[1, 2, 3]"))
    (folder / "other.toml").write_text(
        text(FEDAVG, FEDPROF, seeds="[1, 2, 3]").replace("learning_rate = 0.2", "learning_rate = 0.1")
    )
    for name in ("own", "other"):
        _called("run", str(folder / f"{name}.toml"), "--out", str(folder / name), "--json")
    made["compare"] = folder / "compare.html"
    _called("compare", str(folder / "own"), str(folder / "other"), "-o", str(made["compare"]))
    made["story"] = folder / "story.html"
    _called("match", "--story", "-o", str(made["story"]))
    return made


def _called(*words: str) -> str:
    called = CliRunner().invoke(cli, words)
    assert called.exit_code == 0, called.output
    return called.stdout


@pytest.mark.parametrize(("width", "dark"), WINDOWS, ids=NAMES)
@pytest.mark.parametrize("kind", ["run", "whole", "compare", "story"])
def test_nothing_to_stumble_over(pages: dict[str, Path], kind: str, width: int, dark: bool) -> None:
    seen = browser.look(pages[kind], width=width, dark=dark)
    assert seen.faults == {}
    assert len(seen.text) > 1000, "the page was there"
    assert seen.paper == ((21, 24, 27) if dark else (255, 255, 255))


def test_what_one_may_stumble_over_is_seen(tmp_path: Path) -> None:
    """The eyes of these tests are open: each fault of a bad page is found."""
    page = tmp_path / "bad.html"
    page.write_text(BAD)
    seen = browser.look(page, width=420, dark=False)
    assert set(seen.faults) == {"scrolls", "faint", "small", "cut", "crossed", "errors", "requests"}
    assert any("faint" in one for one in seen.faint)
    assert not any("plain" in one for one in seen.faint)
    assert any("small" in one for one in seen.small)
    assert "cut off" in seen.cut
    assert seen.crossed == ["one and two"]
    assert any("script" in one for one in seen.errors)
    assert any("127.0.0.1" in one for one in seen.errors), "the policy says which picture it kept out"
    assert seen.requests == ["http://127.0.0.1:9/picture.png"]


def test_a_missing_browser_is_an_error_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(browser.REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no browser"):
        browser.require()
    monkeypatch.setenv(browser.REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        browser.require()
