"""What makes two signals comparable: effective angles, frames, alignment of state spaces.

Knows signals and evidence, never a module tree.
"""

from reward_lens.geometry.alignment import state_alignment
from reward_lens.geometry.angles import effective_angle
from reward_lens.geometry.frames import Frame, fit_frame, frame_direction

__all__ = ["Frame", "effective_angle", "fit_frame", "frame_direction", "state_alignment"]
