"""Objective mixes: a head whose score is a stated sum of several objectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from reward_lens.data import Pairs
from reward_lens.errors import CapabilityError, DataError
from reward_lens.evidence.arguments import checked_seed
from reward_lens.organisms.made_organism import TrainedOrganism
from reward_lens.organisms.new_heads import (
    Direction,
    ReadStates,
    read_states,
    standardised,
    with_linear_head,
)
from reward_lens.organisms.other_head import fit_feature
from reward_lens.organisms.surface_features import FeatureLike, feature_values
from reward_lens.progress import Progress
from reward_lens.signals import ClassifierRM
from reward_lens.signals.classifier import BATCH_TOKENS

#: The part of a mix that is the signal's own score.
OWN = "own"


def objective_mix(
    signal: ClassifierRM,
    items: Iterable[Any] | Pairs | ReadStates,
    parts: Mapping[str, float],
    *,
    features: Mapping[str, FeatureLike] | None = None,
    rows: bool = False,
    shuffle: bool = False,
    least: float = 0.0,
    seed: int = 0,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> TrainedOrganism:
    """An organism whose score is a stated mix of objectives: ``Σ weight · z``.

    Parameters
    ----------
    signal : ClassifierRM
        Its trunk is shared, not copied; it is not changed.
    items : items, Pairs or ReadStates
        Each ``z`` has mean 0 and SD 1 over these.
    parts : mapping of str to float
        Objective -> weight. An objective is the name of a surface feature, a name in ``features``,
        or ``"own"``: the signal's own score.
    features : mapping of str to feature, optional
        Further features by name.
    rows : bool
        Make the head of one row per objective, in the order of ``parts``. Their mean, the readout
        ``reward``, is the mix: row k is the k-th term of the sum times the number of rows.
    shuffle : bool
        Fit every feature to its values of other items, drawn at random: the null.
    least : float
        Held-out R² that the reading of every feature must exceed.
    seed : int
        Of the shuffling.
    truncate, batch_tokens, progress
        As :meth:`~reward_lens.ClassifierRM.score` takes them.

    Returns
    -------
    TrainedOrganism
        ``dose`` is the SD, over the items, of what the features add to the score. Truths:
        ``weight[name]`` of every objective, ``r2[name]`` of every feature (held out by lineage),
        and ``correlation[a, b]`` of every two objectives over the items.

    Raises
    ------
    DataError
        If the weights are not finite or all 0, a feature is not known or does not vary, or the seed
        is no whole number from 0.
    NumericsError
        If the states do not hold a feature.
    CapabilityError
        If ``"own"`` is asked of a head that is not one affine map, or the signal is no plain
        classifier.
    """
    weights, seed = _checked(parts, rows), checked_seed(seed)
    states = read_states(
        signal, items, truncate=truncate, batch_tokens=batch_tokens, progress=progress
    )
    rng = np.random.default_rng(seed) if shuffle else None
    known = {**{name: name for name in parts}, **(features or {})}
    found: dict[str, Direction] = {}
    for name in parts:
        if name == OWN:
            found[name] = _own(signal, states)
            continue
        values = feature_values(known[name], states.items, states.tokens)
        found[name] = fit_feature(states, values, name, rng, least)
    terms = [w * np.append(found[name].weight, found[name].bias) for name, w in weights.items()]
    table = len(terms) * np.stack(terms) if rows else np.sum(terms, axis=0, keepdims=True)
    planted = _in_words(weights, shuffle)
    made = with_linear_head(
        signal,
        list(table[:, :-1]),
        table[:, -1].tolist(),
        kind="objective mix",
        planted=planted,
        labels=tuple(parts) if rows else (),
    )
    read = {name: d.read(states.values) for name, d in found.items()}
    added = sum((w * read[n] for n, w in weights.items() if n != OWN), np.zeros(len(states.items)))
    dose = 0.0 if shuffle else float(added.std())
    names = list(parts)
    return TrainedOrganism(
        kind="objective mix",
        signal=made,
        planted=planted,
        dose=dose,
        null=dose == 0,
        truth={
            **{f"weight[{n}]": w for n, w in weights.items()},
            **{f"r2[{n}]": d.r2 for n, d in found.items() if n != OWN},
            **{
                f"correlation[{a}, {b}]": float(np.corrcoef(read[a], read[b])[0, 1])
                for k, a in enumerate(names)
                for b in names[k + 1 :]
            },
        },
        pairs=states.pairs,
    )


def _checked(parts: Mapping[str, float], rows: bool) -> dict[str, float]:
    weights = {str(name): float(w) for name, w in parts.items()}
    if not weights or not np.isfinite(list(weights.values())).all() or not any(weights.values()):
        raise DataError(f"parts={dict(parts)}: give each objective a finite weight, not all of 0")
    if rows and (len(weights) < 2 or not all(weights.values())):
        raise DataError(
            f"parts={dict(parts)}: a head of one row per objective needs at least two, none with "
            f"the weight 0"
        )
    return weights


def _own(signal: ClassifierRM, states: ReadStates) -> Direction:
    """The signal's own score as a direction."""
    readout = signal.readout("reward")
    if not readout.affine:
        raise CapabilityError(
            f"the head of {signal.meta.architecture} is no single affine map (it goes through "
            f"{', '.join(readout.through)}), so no linear head can hold its score: leave {OWN!r} "
            f"out of the mix"
        )
    row = readout.direction.double().cpu().numpy()
    weight, bias, _ = standardised(row, states, "the signal's own head")
    return Direction(weight, bias)


def _in_words(weights: Mapping[str, float], shuffle: bool) -> str:
    terms = " + ".join(f"{w:g} SD of {n!r}" for n, w in weights.items())
    how = "null: features fitted to values of other items, drawn at random: " if shuffle else ""
    return f"{how}the head scores {terms}"
