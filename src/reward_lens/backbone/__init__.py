"""The only room that knows how a transformers model is built inside.

Items become ids and batches here; a traced forward becomes a verified anatomy; sites are captured
and differentiated by hooks on the model's own forward.
"""

from reward_lens.backbone.anatomy import Anatomy, Granularity
from reward_lens.backbone.batch_effect import batch_limit
from reward_lens.backbone.batching import Batch
from reward_lens.backbone.explanation import Explanation
from reward_lens.backbone.head_map import HeadMap
from reward_lens.backbone.heads import head_shares
from reward_lens.backbone.naming import AnatomyNames, registered_names
from reward_lens.backbone.norms import FrozenNorm
from reward_lens.backbone.read_rule import measured_rule
from reward_lens.backbone.sites import ALL, FINAL, Position, Site
from reward_lens.backbone.sources import attention_sources
from reward_lens.backbone.stream import FrozenStream, freeze_stream, stream_sites, write_sites
from reward_lens.backbone.tokenise import (
    MEAN,
    TRUNCATE,
    Alignment,
    Encoded,
    Encoder,
)
from reward_lens.backbone.trunk import Trunk, masked_mean, read_rows

__all__ = [
    "ALL",
    "FINAL",
    "MEAN",
    "TRUNCATE",
    "Alignment",
    "Anatomy",
    "AnatomyNames",
    "Batch",
    "Encoded",
    "Encoder",
    "Explanation",
    "FrozenNorm",
    "FrozenStream",
    "Granularity",
    "HeadMap",
    "Position",
    "Site",
    "Trunk",
    "attention_sources",
    "batch_limit",
    "freeze_stream",
    "head_shares",
    "masked_mean",
    "measured_rule",
    "read_rows",
    "registered_names",
    "stream_sites",
    "write_sites",
]
