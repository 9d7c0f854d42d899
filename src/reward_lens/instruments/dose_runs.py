"""The forwards behind a dose-response: every dose of every direction on every item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import MEAN, Change, Encoded, Run, Target
from reward_lens.progress import Progress
from reward_lens.signals import ClassifierRM
from reward_lens.signals.effective import end_gradient, summed_gradients
from reward_lens.signals.patching import clean_runs
from reward_lens.signals.readouts import Readout

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DosePlan:
    """What is added where.

    Attributes
    ----------
    encoded, read : sequences, [item]
    target : Target
    tokens : sequence of tuple of int, [item]
        The tokens that it is added at.
    doses : ndarray of float64, [dose]
        Rising; 0 is among them.
    vectors : ndarray of float64, [1 + direction, width]
        What dose 1 adds: the concept's, then those of random directions.
    sample : ndarray of int, [sampled item]
        The items that random directions are run on.
    """

    encoded: Sequence[Encoded]
    read: Sequence[int]
    target: Target
    tokens: Sequence[tuple[int, ...]]
    doses: Floats
    vectors: Floats
    sample: npt.NDArray[np.int64]

    @property
    def zero(self) -> int:
        """The place of dose 0."""
        return int(np.flatnonzero(self.doses == 0)[0])


@dataclass
class DoseScores:
    """What came of it.

    Attributes
    ----------
    scores : ndarray of float64, [dose, item]
    clean : ndarray of float64, [item]
        Scores of the clean forwards; ``scores`` at dose 0 is the engine's.
    random : ndarray of float64, [direction, dose, sampled item]
        What random directions change, from dose 0.
    predicted : ndarray of float64, [item]
        Gradient times the concept's vector: the first-order change of one dose.
    gradient_size, state_size : ndarray of float64, [item]
        Lengths of the item's effective direction and of its state at the read token.
    effective, effective_sample : ndarray of float64, [width]
        Mean effective direction over all items, and over the sample.
    flips : ndarray of int64, [dose]
        Choices of experts that the concept changed, over all items; ``flips_random`` by random
        directions, over all runs.
    executors : set of str
    forwards : float
    """

    scores: Floats
    clean: Floats
    random: Floats
    predicted: Floats
    gradient_size: Floats
    state_size: Floats
    effective: Floats
    effective_sample: Floats
    flips: npt.NDArray[np.int64]
    flips_random: int = 0
    executors: set[str] = field(default_factory=set)
    forwards: float = 0.0

    @classmethod
    def empty(cls, plan: DosePlan) -> DoseScores:
        """Room for the results of a plan."""
        n, width = len(plan.encoded), plan.vectors.shape[1]
        shape = (len(plan.vectors) - 1, len(plan.doses), len(plan.sample))
        return cls(
            np.full((len(plan.doses), n), np.nan), np.full(n, np.nan), np.zeros(shape),
            np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan),
            np.zeros(width), np.zeros(width), np.zeros(len(plan.doses), dtype=np.int64),
        )  # fmt: skip

    def take_gradients(
        self, plan: DosePlan, index: npt.NDArray[np.int64], gradients: Tensor
    ) -> None:
        """Keep of items' effective directions ``[n, width]`` what is reported."""
        rows = gradients.double().cpu().numpy()
        self.predicted[index] = rows @ plan.vectors[0]
        self.gradient_size[index] = np.linalg.norm(rows, axis=1)
        self.effective += rows.sum(0) / len(plan.encoded)
        if len(plan.sample):
            self.effective_sample += rows[np.isin(index, plan.sample)].sum(0) / len(plan.sample)


def run_doses(
    signal: ClassifierRM,
    plan: DosePlan,
    readout: Readout,
    executor: str | None,
    batch_tokens: int,
    progress: Progress | None,
) -> DoseScores:
    """Run a plan.

    Where only the final norm and the head lie behind the site, the gradients come from the states
    of the clean forwards; elsewhere from one forward and backward of each item.
    """
    found = DoseScores.empty(plan)
    site = plan.target.source
    at_the_end = plan.target.first_block == signal.meta.n_layers and MEAN not in plan.read
    values = torch.as_tensor(plan.vectors, dtype=torch.float32, device=signal.trunk.device)
    place = {int(i): k for k, i in enumerate(plan.sample)}
    groups = [[i] for i in range(len(plan.encoded))]
    elsewhere = any(at != (read,) for at, read in zip(plan.tokens, plan.read, strict=True))
    for clean in clean_runs(
        signal, plan.encoded, plan.read, readout, groups, [site],
        whole=elsewhere, executor=executor, batch_tokens=batch_tokens, progress=progress,
    ):  # fmt: skip
        out = clean.run({i: list(_runs(plan, values, i, i in place)) for i in clean.index})
        for i in clean.index:
            found.clean[i] = clean.score[i]
            found.state_size[i] = _size(clean.state(site, i), plan.read[i])
            found.flips += out[i].flips[: len(plan.doses)]
            found.flips_random += int(out[i].flips[len(plan.doses) :].sum())
            _keep_scores(found, plan, i, out[i].scores, place.get(i))
        if at_the_end:
            index = np.asarray(clean.index, dtype=np.int64)
            states = torch.stack([clean.state(site, i) for i in clean.index])
            gradients = end_gradient(signal.trunk, readout, states, index)
            found.take_gradients(plan, index, gradients)
        found.executors |= clean.executors
        found.forwards += clean.forwards
    if not at_the_end:
        for index, gradients in summed_gradients(
            signal, plan.encoded, plan.read, readout.name, plan.target.site, plan.tokens,
            batch_tokens,
        ):  # fmt: skip
            found.take_gradients(plan, index, gradients)
        behind = 1 - plan.target.first_block / signal.meta.n_layers
        found.forwards += len(plan.encoded) * (1 + 2 * behind)  # a backward is two forwards
    return found


def _size(state: Tensor, read: int) -> float:
    """Length of the state that is read, of ``[width]`` or of all tokens ``[n_tokens, width]``."""
    if state.dim() == 2:
        state = state.double().mean(0) if read == MEAN else state[read]
    return float(state.double().norm())


def _runs(plan: DosePlan, values: Tensor, item: int, sampled: bool) -> Iterator[Run]:
    """The concept at every dose; on sampled items every random direction at every dose but 0."""
    at = plan.tokens[item]
    for k, vector in enumerate(values if sampled else values[:1]):
        for dose in plan.doses:
            if k == 0 or dose != 0:
                added = (float(dose) * vector).expand(len(at), -1)
                yield (Change(plan.target, at, added, add=True),)


def _keep_scores(
    found: DoseScores, plan: DosePlan, item: int, scores: Floats, place: int | None
) -> None:
    """Put the scores of one item's runs where they belong."""
    own = scores[: len(plan.doses)]
    found.scores[:, item] = own
    if place is not None:
        changed = plan.doses != 0
        rest = scores[len(own) :].reshape(len(found.random), int(changed.sum()))
        found.random[:, changed, place] = rest - own[plan.zero]
