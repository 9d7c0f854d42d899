"""Chromium for the tests of pages: opens a file and keeps what the page said and asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from reward_lens.report.numbers import resolve, shown

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed on this machine"
)
_ROOT = Path(__file__).resolve().parents[2]
AXE = Path(os.environ.get("AXE_CORE", _ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"))
needs_axe = pytest.mark.skipif(
    not AXE.is_file(),
    reason=f"axe-core is not at {AXE}: `make browser` gets it where npm is, AXE_CORE names another",
)

#: A page that scrolls, so that what stands below the window is reached as a reader reaches it.
WIDE, NARROW = (1280, 900), (400, 800)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without network rights beyond what a file has."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page in the browser, all that it wrote to the console, and all that it asked for."""

    page: Page
    url: str
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def clean(self) -> bool:
        """Whether nothing was said, and only the page itself was asked for."""
        return not self.said and {url.partition("#")[0] for url in self.asked} == {self.url}


@contextmanager
def opened(
    browser: Browser, path: Path, anchor: str = "", size: tuple[int, int] = WIDE, **context
) -> Iterator[Opened]:
    """Open a page in a context of its own."""
    made = browser.new_context(viewport={"width": size[0], "height": size[1]}, **context)
    made.set_default_timeout(10_000)
    found = Opened(made.new_page(), path.as_uri())
    found.page.on("console", lambda m: found.said.append(m.text))
    found.page.on("pageerror", lambda e: found.said.append(str(e)))
    found.page.on("request", lambda r: found.asked.append(r.url))
    found.page.goto(found.url + anchor)
    yield found
    made.close()


def open_everything(page: Page) -> None:
    page.locator("#open-all").click()
    assert page.locator("details:not([open])").count() == 0


def faults(page: Page) -> list[str]:
    """What axe-core calls serious or critical, with the first element of each."""
    page.add_script_tag(content=AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{v['id']}: {v['help']} ({len(v['nodes'])}: {v['nodes'][0]['html'][:160]}; "
        f"{v['nodes'][0]['failureSummary'][:300]})"
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
    ]


def listed(page) -> list[str]:
    """Ids of the list from top to bottom, all of them."""
    while page.locator("#pair-more").is_visible():
        page.locator("#pair-more").click()
    return page.locator("#pair-list button").evaluate_all("rows => rows.map(r => r.pair.id)")


def row(page, pair: str):
    """The button of a pair, which is in the list when all of it is drawn."""
    return page.locator("#pair-list button").nth(listed(page).index(pair))


def heading(page) -> str:
    return page.locator("#pair-title").evaluate("h => h.firstChild.data")


def is_open(fold) -> bool:
    return fold.evaluate("d => d.open")


def mapped(data, key: str = "prefix"):
    """The first pair with a token map of that kind."""
    return next(p for p in data.pairs if key in p.get("m", {}).get("chosen", {"v": {}})["v"])


def looks(page, side: int = 0):
    """Background and underline of every token of one side."""
    style = "getComputedStyle(t)"
    found = page.locator(".tokens").nth(side).locator("i").evaluate_all(
        f"ts => ts.map(t => [{style}.backgroundColor, {style}.borderBottomStyle,"
        f" {style}.borderBottomWidth])"
    )  # fmt: skip
    return [tuple(one) for one in found]


def strong(page, where: str) -> list[list[list[float]]]:
    """Points of the lines that are drawn strong."""
    found = page.locator(f"{where} polyline.line:not(.later)").evaluate_all(
        "ls => ls.map(l => l.getAttribute('points'))"
    )
    return [[[float(v) for v in p.split(",")] for p in line.split()] for line in found]


def check_numbers(page, evidence, where: str = "data") -> None:
    """Every number that the page shows there is what the evidence has at its path."""
    found = page.locator(where).evaluate_all("ds => ds.map(d => [d.value, d.textContent])")
    assert found
    for value, text in found:
        name, _, rest = value.partition("|")
        path, _, form = rest.rpartition("|")
        assert text == shown(resolve(evidence[name], path), form), value
