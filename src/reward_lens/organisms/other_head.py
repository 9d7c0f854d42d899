"""Concept heads: a signal's own trunk with a head that was fitted to a surface feature."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from reward_lens.data import Pairs
from reward_lens.errors import DataError, NumericsError
from reward_lens.evidence.arguments import checked_seed
from reward_lens.evidence.intervals import cluster_t_slope, jackknife_correlation
from reward_lens.organisms.made_organism import TrainedOrganism
from reward_lens.organisms.new_heads import (
    Direction,
    ReadStates,
    fit_direction,
    random_direction,
    read_states,
    with_linear_head,
)
from reward_lens.organisms.surface_features import FeatureLike, feature_name, feature_values
from reward_lens.progress import Progress
from reward_lens.signals import ClassifierRM
from reward_lens.signals.classifier import BATCH_TOKENS

Floats = npt.NDArray[np.float64]


def concept_head(
    signal: ClassifierRM,
    items: Iterable[Any] | Pairs | ReadStates,
    feature: FeatureLike,
    *,
    dose: float = 1.0,
    noise: float = 0.0,
    shuffle: bool = False,
    least: float = 0.0,
    seed: int = 0,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> TrainedOrganism:
    """An organism that rewards a surface feature: a new head on the signal's trunk.

    ``score = dose · z + noise · ξ``, where ``z`` is a linear reading of the feature off the states
    that the head reads, and ``ξ`` one that means nothing; both have mean 0 and SD 1 over the items,
    over which they are uncorrelated.

    Parameters
    ----------
    signal : ClassifierRM
        Its trunk is shared, not copied; it is not changed.
    items : items, Pairs or ReadStates
        What the head is fitted on; :func:`read_states` reads them once for many organisms.
    feature : str, Feature or callable
        See :data:`~reward_lens.organisms.surface_features.FEATURES`.
    dose : float
        In SDs of the reading; negative for the opposite preference, 0 for the null.
    noise : float
        In SDs of the reading.
    shuffle : bool
        Fit to the feature of other items, drawn at random: a null fitted as the real one is. Like
        any head on this trunk it may still correlate with what the states hold, on average not.
    least : float
        Held-out R² that the reading must exceed.
    seed : int
        Of the noise and of the shuffling.
    truncate, batch_tokens, progress
        As :meth:`~reward_lens.ClassifierRM.score` takes them.

    Returns
    -------
    TrainedOrganism
        Truths: ``r2`` (held out by lineage) and ``r2_fit`` of the reading, ``penalty``; of the
        score over the items, ``slope`` (reward per unit of the feature) and ``correlation``;
        ``slope_held_out``, of readings fitted without the item's lineage, as items that were not
        fitted on show it. The three last have intervals.

    Raises
    ------
    DataError
        If the feature does not vary, there are too few lineages, dose and noise are both 0, or the
        seed is no whole number from 0.
    NumericsError
        If the states do not hold the feature: no head can be fitted to it.
    CapabilityError
        If the signal is no plain classifier.
    """
    if not (np.isfinite(dose) and np.isfinite(noise)) or (dose == 0 and noise == 0) or noise < 0:
        raise DataError(
            f"dose={dose!r}, noise={noise!r}: give finite ones, not both 0 (a head that scores all "
            f"items alike is no signal; the null of this kind is dose=0, noise=1) and no negative "
            f"noise"
        )
    seed = checked_seed(seed)
    states = read_states(
        signal, items, truncate=truncate, batch_tokens=batch_tokens, progress=progress
    )
    name, rng = feature_name(feature), np.random.default_rng(seed)
    values = feature_values(feature, states.items, states.tokens)
    reading = fit_feature(states, values, name, rng if shuffle else None, least)
    junk = random_direction(states, rng, reading)
    weight = dose * reading.weight + noise * junk.weight
    bias = dose * reading.bias + noise * junk.bias
    planted = _in_words(name, dose, noise, shuffle)
    made = with_linear_head(signal, [weight], [bias], kind="concept head", planted=planted)
    score, lineages = states.values @ weight + bias, states.lineages
    left_out = np.zeros(len(values)) if reading.held_out is None else dose * reading.held_out
    intervals = (
        cluster_t_slope("slope", values, score, lineages),
        cluster_t_slope("slope_held_out", values, left_out, lineages),
        jackknife_correlation("correlation", values, score, lineages),
    )
    return TrainedOrganism(
        kind="concept head",
        signal=made,
        planted=planted,
        dose=0.0 if shuffle else float(dose),
        null=shuffle or dose == 0,
        truth={
            "r2": reading.r2,
            "r2_fit": reading.r2_fit,
            "penalty": reading.penalty,
            **{i.name: i.estimate for i in intervals},
        },
        intervals=intervals,
        pairs=states.pairs,
    )


def fit_feature(
    states: ReadStates,
    values: Floats,
    name: str,
    shuffled: np.random.Generator | None,
    least: float,
) -> Direction:
    """Fit a reading of a feature, or of its values shuffled over the items.

    Raises
    ------
    NumericsError
        If it was not shuffled and its held-out R² does not exceed ``least``.
    """
    what = f"the feature {name!r}"
    if shuffled is not None:
        return fit_direction(states, shuffled.permutation(values), what)
    found = fit_direction(states, values, what)
    if not found.r2 > least:
        raise NumericsError(
            f"no head can be fitted to {what} on this trunk: on lineages left out its R² is "
            f"{found.r2:.3f} (more than {least:g} is asked for), over the {len(values)} items that "
            f"it was fitted to {found.r2_fit:.3f}. Give more items, or a feature that the states "
            f"at the read token hold."
        )
    return found


def _in_words(name: str, dose: float, noise: float, shuffle: bool) -> str:
    rule = f"the head rewards {name!r} by {dose:g} SD"
    if dose == 0:
        rule = "null: the head reads a random direction"
    elif shuffle:
        rule = f"null: the head was fitted to {name!r} of other items, drawn at random"
    return f"{rule}, with noise of {noise:g} SD" if noise else rule
