"""A browser, and the page of a module's ``path`` in it."""

from __future__ import annotations

import pytest
from browser_kit import chromium, opened


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def live(browser, path):
    """The page that the module's fixture ``path`` wrote; nothing may be said or asked for."""
    with opened(browser, path) as found:
        yield found
        assert found.clean(), (found.said, found.asked)


@pytest.fixture
def page(live):
    return live.page
