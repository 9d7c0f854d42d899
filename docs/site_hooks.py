"""What the site's build does beyond MkDocs: roles in docstrings, and a check of what was built.

Docstrings name other objects as ``:func:`~reward_lens.lens` ``. Where the reference has the object
that becomes a link, elsewhere its bare name.
"""

from __future__ import annotations

import logging
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import griffe

log = logging.getLogger("mkdocs.hooks.site")

DOCS = Path(__file__).parent
_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):`(~?)([\w.]+)`")
# In "name : a type that says :class:`~x`" the role stands in a type, where no link can be.
_TYPE = re.compile(r"^(\s*[\w, *]+ : .*)$", re.MULTILINE)
_SOURCES = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
#: Links that say what a page is, and load nothing.
_INERT = {"canonical", "alternate", "prev", "next"}


@cache
def documented() -> frozenset[str]:
    """Paths of the objects that the reference pages name."""
    pages = (DOCS / "reference").glob("*.md")
    text = "".join(p.read_text(encoding="utf-8") for p in pages)
    return frozenset(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))


def without_roles(text: str) -> str:
    """A docstring with links, or names, in place of roles."""

    def bare(found: re.Match[str]) -> str:
        return found[2].rpartition(".")[2] if found[1] else found[2]

    def link(found: re.Match[str]) -> str:
        tail = found[2].rpartition(".")[2]
        same = {p for p in documented() if p == found[2] or p.rpartition(".")[2] == tail}
        if not same:
            return f"`{bare(found)}`"
        target = found[2] if found[2] in same else min(same, key=len)
        return f"[`{bare(found)}`][{target}]"

    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)  # what introduces a block of code
    return _ROLE.sub(link, _TYPE.sub(lambda line: _ROLE.sub(bare, line[0]), text))


class Roles(griffe.Extension):
    """Replaces roles in every docstring of the package."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called for each object when the package has been read."""
        if obj.docstring is not None:
            obj.docstring.value = without_roles(obj.docstring.value)


class _Loads(HTMLParser):
    """Addresses that a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get(_SOURCES.get(tag, "")) or ""
        inert = tag == "link" and set((given.get("rel") or "").split()) <= _INERT
        if re.match(r"(https?:)?//", address) and not inert:
            self.found.append(address)


def loads_from_elsewhere(page: str) -> list[str]:
    """Scripts, styles, fonts and pictures that a built page would fetch over a network."""
    reader = _Loads()
    reader.feed(page)
    return reader.found


def on_post_build(config: Any, **_: Any) -> None:
    """Warn, which ends a strict build, of every page that needs a network."""
    site = Path(config.site_dir)
    # Of a page opened as a file the theme asks for a script, and then hides the search.
    index = site / "search" / "search_index.json"
    index.with_suffix(".js").write_text(f"var __index = {index.read_text()}")
    for page in sorted(site.rglob("*.html")):
        for address in loads_from_elsewhere(page.read_text(encoding="utf-8")):
            log.warning("%s loads %s: a page must need no network", page.relative_to(site), address)
    for style in sorted(site.rglob("*.css")):
        for address in re.findall(r"url\(\s*[\"']?((?:https?:)?//[^)\"']+)", style.read_text()):
            log.warning("%s loads %s", style.relative_to(site), address)
