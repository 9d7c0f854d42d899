"""Items and pairs: what is scored, read from wherever people keep it.

No torch here, and nothing is guessed: a row that is not understood is refused by name.
"""

from reward_lens.data.choices import Choice, Choices, as_choices, load_choices
from reward_lens.data.fields import Message
from reward_lens.data.items import Item, as_item, as_items, items_fingerprint
from reward_lens.data.loading import load_pairs
from reward_lens.data.pairs import Pair, Pairs
from reward_lens.data.rows import Columns, as_pairs

__all__ = [
    "Choice",
    "Choices",
    "Columns",
    "Item",
    "Message",
    "Pair",
    "Pairs",
    "as_choices",
    "as_item",
    "as_items",
    "as_pairs",
    "items_fingerprint",
    "load_choices",
    "load_pairs",
]
