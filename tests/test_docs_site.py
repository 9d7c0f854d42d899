"""The site builds without a warning and without anything from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built_and_needs_no_network(site, hooks):
    pages = [p.relative_to(ROOT / "docs") for p in (ROOT / "docs").rglob("*.md")]
    for page in pages:
        built = site / page.with_suffix(".html")
        assert built.is_file(), page
        assert hooks.loads_from_elsewhere(built.read_text(encoding="utf-8")) == [], page


def test_docstrings_become_text_with_links(site):
    page = (site / "reference" / "instruments.html").read_text(encoding="utf-8")
    assert ":func:" not in page
    assert ":class:" not in page
    assert 'href="#reward_lens.patch_grid"' in page  # path_effects: "as in patch_grid"
    assert 'id="reward_lens.lens"' in page


def test_a_role_is_a_link_where_the_reference_has_it_and_a_name_elsewhere(hooks):
    assert hooks.without_roles("as :func:`~reward_lens.lens` is") == (
        "as [`lens`][reward_lens.lens] is"
    )
    assert hooks.without_roles("see :func:`~reward_lens.data.rows.nothing_known`") == (
        "see `nothing_known`"
    )
    assert hooks.without_roles(
        "pairs : Pairs or what :func:`~reward_lens.data.as_pairs` takes"
    ) == ("pairs : Pairs or what as_pairs takes")
    assert hooks.without_roles("so::\n\n    x = 1") == "so:\n\n    x = 1"


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ('<script src="https://cdn.example/x.js"></script>', ["https://cdn.example/x.js"]),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', ["//fonts.example/a.css"]),
        ('<img src="http://example.org/a.png">', ["http://example.org/a.png"]),
        ('<link rel="canonical" href="https://example.org/">', []),
        ('<a href="https://arxiv.org/abs/2304.05969">paper</a><script src="a.js"></script>', []),
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(hooks, page, found):
    assert hooks.loads_from_elsewhere(page) == found
