"""Items and pairs: what is scored, read from wherever people keep it.

No torch here, and nothing is guessed: a row that is not understood is refused by name.
"""

from reward_lens.data.items import (
    Item,
    Message,
    Pair,
    Pairs,
    as_item,
    as_items,
    items_fingerprint,
)

__all__ = ["Item", "Message", "Pair", "Pairs", "as_item", "as_items", "items_fingerprint"]
