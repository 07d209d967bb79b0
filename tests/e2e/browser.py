"""Pages in a real browser: what a reader would stumble over, as lists that should be empty.

Chromium runs headless, from the system's packages. `choreographer` drives it over its own protocol. Without a
browser the tests are skipped; with SECUREFL_NEEDS_BROWSER=1 in the environment they fail.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REQUIRED = "SECUREFL_NEEDS_BROWSER"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_SETTLED = 0.3
"""Seconds after the page has loaded in which the browser tells late violations and errors."""

_LOOK = (Path(__file__).parent / "look.js").read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a reader stumbles over in a page.

    scrolls: what is wider than the window. faint: text of too little contrast. small: text below 9 pixels.
    cut: text of a picture beyond its frame. crossed: texts of a picture on each other. errors: errors and
    warnings of the console, and violations of the content policy. requests: addresses other than the page's.
    paper: red, green and blue of the page, 0 to 255. text: all visible text, with all folds open.
    """

    scrolls: Sequence[str]
    faint: Sequence[str]
    small: Sequence[str]
    cut: Sequence[str]
    crossed: Sequence[str]
    errors: Sequence[str]
    requests: Sequence[str]
    paper: tuple[int, int, int]
    text: str

    @property
    def faults(self) -> dict[str, Sequence[str]]:
        return {name: own for name, own in vars(self).items() if name not in ("paper", "text") and own}


def require() -> Path:
    """The browser's path. Skips the test if there is none, unless the environment demands one."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is not None:
        return Path(found)
    why = f"no browser ({', '.join(_NAMES)}): apt-get install chromium"
    if os.environ.get(REQUIRED):
        pytest.fail(why)
    pytest.skip(why)


def look(
    page: Path,
    *,
    width: int,
    dark: bool,
    picture: Path | None = None,
    search: str = "",
    scripts: bool = True,
) -> Seen:
    """Open a page in a window of this width in pixels, in a light or dark scheme.

    picture: where to write a PNG of the whole page, as it opens. search: words that the page's own search is
    asked for; what it finds is awaited, and joins the text. scripts: whether the page's own scripts run.
    """
    return asyncio.run(_looked(require(), page, width, dark, picture, search, scripts))


_SEARCH = """new Promise(answer => setInterval(() => {
  const dialog = [...document.body.children].find(one => one.shadowRoot)?.shadowRoot.querySelector("dialog");
  const results = dialog?.querySelector("[role=listbox]");
  if (results?.querySelector("a")) return answer(results.innerText);
  if (!dialog?.open) return document.querySelector(".md-search__button").click();
  const field = dialog.querySelector("input");
  field.value = WORDS;
  field.dispatchEvent(new Event("input", { bubbles: true }));
}, 200))"""
"""Types into the search of a page of the documentation, and awaits what it finds."""


async def _looked(
    browser: Path, page: Path, width: int, dark: bool, picture: Path | None, search: str, scripts: bool
) -> Seen:
    from choreographer import Browser

    errors: list[str] = []
    requests: list[str] = []
    loaded = asyncio.Event()

    async def hear(said: Any) -> None:
        what, how = said["method"], said["params"]
        if what == "Runtime.exceptionThrown":
            errors.append(how["exceptionDetails"]["text"])
        elif what == "Runtime.consoleAPICalled" and how["type"] in ("error", "warning", "assert"):
            errors.append(str(how["args"]))
        elif what == "Log.entryAdded" and how["entry"]["level"] in ("error", "warning"):
            errors.append(how["entry"]["text"])
        elif what == "Network.requestWillBeSent":
            requests.append(how["request"]["url"])
        elif what == "Page.loadEventFired":
            loaded.set()

    async with Browser(browser, headless=True, enable_sandbox=False) as running:
        tab = await running.create_tab("about:blank")

        async def send(command: str, **how: Any) -> dict[str, Any]:
            answer = await tab.send_command(command, params=how)
            assert "error" not in answer, answer
            result: dict[str, Any] = answer["result"]
            return result

        for event in (
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Log.entryAdded",
            "Network.requestWillBeSent",
            "Page.loadEventFired",
        ):
            tab.subscribe(event, hear, repeating=True)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await send(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await send("Emulation.setDeviceMetricsOverride", **size)
        await send("Emulation.setScriptExecutionDisabled", value=not scripts)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await send("Emulation.setEmulatedMedia", features=[scheme])
        await send("Page.navigate", url=page.as_uri())
        await asyncio.wait_for(loaded.wait(), timeout=60)
        results = ""
        if search:
            asked = send(
                "Runtime.evaluate", expression=_SEARCH.replace("WORDS", json.dumps(search)), awaitPromise=True
            )
            results = (await asyncio.wait_for(asked, timeout=60))["result"]["value"]
        await asyncio.sleep(_SETTLED)
        if picture is not None:
            shot = await send("Page.captureScreenshot", captureBeyondViewport=True)
            picture.write_bytes(base64.b64decode(shot["data"]))
        answer = await send("Runtime.evaluate", expression=_LOOK, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        found = answer["result"]["value"]
        found["paper"] = tuple(found["paper"])
        found["text"] += results
    own = page.parent.as_uri()
    foreign = [url for url in requests if not url.startswith((own, "data:"))]
    return Seen(**found, errors=errors, requests=foreign)
