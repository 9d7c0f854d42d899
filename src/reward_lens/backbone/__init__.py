"""The only room that knows how a transformers model is built inside.

Items become ids and batches here; a traced forward becomes a verified anatomy; sites are captured
and differentiated by hooks on the model's own forward.
"""

from reward_lens.backbone.anatomy import Anatomy, Granularity
from reward_lens.backbone.batching import Batch
from reward_lens.backbone.norms import FrozenNorm
from reward_lens.backbone.sites import ALL, FINAL, Position, Site
from reward_lens.backbone.tokenise import TRUNCATE, Alignment, Encoded, Encoder
from reward_lens.backbone.trunk import Trunk, read_rows

__all__ = [
    "ALL",
    "FINAL",
    "TRUNCATE",
    "Alignment",
    "Anatomy",
    "Batch",
    "Encoded",
    "Encoder",
    "FrozenNorm",
    "Granularity",
    "Position",
    "Site",
    "Trunk",
    "read_rows",
]
