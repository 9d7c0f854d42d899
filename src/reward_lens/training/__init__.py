"""Watching a reward model while it is trained.

Knows transformers' trainer; what is measured is what the instruments measure on a loaded signal.
"""

from reward_lens.training.probe_callback import Probed, RewardProbe

__all__ = ["Probed", "RewardProbe"]
