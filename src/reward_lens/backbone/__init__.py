"""The only room that knows how a transformers model is built inside.

Items become ids and batches here; a traced forward becomes a verified anatomy; sites are captured
and differentiated by hooks on the model's own forward.
"""

from reward_lens.backbone.anatomy import Anatomy, Granularity
from reward_lens.backbone.batch_effect import batch_limit
from reward_lens.backbone.batching import Batch, collate
from reward_lens.backbone.clean_run import CleanRun, run_clean
from reward_lens.backbone.edits import Change, Placed, Receiver, Reception, Run, Target, prepared
from reward_lens.backbone.engine import FULL, JOINING, TREE, Engine, engine_of
from reward_lens.backbone.explanation import Explanation
from reward_lens.backbone.frames import Frame
from reward_lens.backbone.full_forward import run_full
from reward_lens.backbone.head_map import HeadMap
from reward_lens.backbone.heads import head_functional, head_shares, write_change
from reward_lens.backbone.naming import AnatomyNames, registered_names
from reward_lens.backbone.norms import FrozenNorm
from reward_lens.backbone.plants import Key, Plant, Plants
from reward_lens.backbone.read_rule import measured_rule
from reward_lens.backbone.receiving import check_receiver
from reward_lens.backbone.replay import Replay, form
from reward_lens.backbone.row_choice import masked_mean, read_rows
from reward_lens.backbone.shelf import KeptRuns
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
from reward_lens.backbone.trunk import Trunk

__all__ = [
    "ALL",
    "FINAL",
    "FULL",
    "JOINING",
    "MEAN",
    "TREE",
    "TRUNCATE",
    "Alignment",
    "Anatomy",
    "AnatomyNames",
    "Batch",
    "Change",
    "CleanRun",
    "Encoded",
    "Encoder",
    "Engine",
    "Explanation",
    "Frame",
    "FrozenNorm",
    "FrozenStream",
    "Granularity",
    "HeadMap",
    "KeptRuns",
    "Key",
    "Placed",
    "Plant",
    "Plants",
    "Position",
    "Receiver",
    "Reception",
    "Replay",
    "Run",
    "Site",
    "Target",
    "Trunk",
    "attention_sources",
    "batch_limit",
    "check_receiver",
    "collate",
    "engine_of",
    "form",
    "freeze_stream",
    "head_functional",
    "head_shares",
    "masked_mean",
    "measured_rule",
    "prepared",
    "read_rows",
    "registered_names",
    "run_clean",
    "run_full",
    "stream_sites",
    "write_change",
    "write_sites",
]
