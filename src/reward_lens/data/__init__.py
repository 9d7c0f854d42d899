"""Items and pairs: what is scored, read from wherever people keep it.

No torch here, and nothing is guessed: a row that is not understood is refused by name.
"""

from reward_lens.data.fields import Message
from reward_lens.data.items import Item, as_item, as_items, items_fingerprint
from reward_lens.data.loading import load_pairs
from reward_lens.data.pairs import Pair, Pairs
from reward_lens.data.rows import Columns, as_pairs

__all__ = [
    "Columns",
    "Item",
    "Message",
    "Pair",
    "Pairs",
    "as_item",
    "as_items",
    "as_pairs",
    "items_fingerprint",
    "load_pairs",
]
