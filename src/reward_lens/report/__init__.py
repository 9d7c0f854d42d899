"""Evidence to a page that a person can read: figures, tables, texts. No torch here.

Every number on the page says which evidence it is from.
"""

from reward_lens.report.page import Page, render, write_page

__all__ = ["Page", "render", "write_page"]
