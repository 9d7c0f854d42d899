"""The effective angle: how far two signals disagree, free of scale, shift and coordinates."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import xarray as xr

from reward_lens.evidence import Evidence, GaugeStatus, Interval, Tier, Units
from reward_lens.evidence.prompt_correlation import prompt_correlation
from reward_lens.geometry.corpus import Corpus, corpus_of
from reward_lens.geometry.two_signals import (
    Readouts,
    both,
    joint_provenance,
    joint_subject,
    score_items,
    scores_of,
)
from reward_lens.progress import Progress
from reward_lens.signals import RewardSignal
from reward_lens.signals.classifier import BATCH_TOKENS

QUANTITIES = ("correlation", "angle", "distance")


def effective_angle(
    a: RewardSignal,
    b: RewardSignal,
    corpus: Any,
    *,
    readout: Readouts = "reward",
    position: str | None = None,
    truncate: str = "error",
    scores: tuple[Evidence, Evidence] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Angle between two signals by what they score on a reference corpus.

    The correlation ρ of the two signals' prompt-centred scores. The angle is ``arccos ρ``, the
    distance ``√((1 − ρ)/2)``: 0 for ``a·r + c(prompt)`` with ``a > 0`` and for the same network in
    other coordinates, 1 for ``−r``. No covariance of states enters, so signals of different kinds,
    widths and tokenizers can be compared, and few items do not make two of them look aligned.

    Parameters
    ----------
    a, b : RewardSignal
        Anything that scores items.
    corpus : Pairs or items, in any form that as_pairs or as_items takes
        Each distinct item is scored once. Prompts of one response are dropped and counted.
    readout : str or (str, str)
        Of both signals, or of the first and the second.
    position, truncate, batch_tokens
        Of every scoring call, as :meth:`~reward_lens.signals.ClassifierRM.score` takes them.
    scores : (Evidence, Evidence), optional
        What ``score`` gave for the corpus' distinct items, in order, so that nothing is run.
    progress : callable, optional
        Told the number of finished items of each batch.

    Returns
    -------
    Evidence
        Value float64 ``[quantity]``: ``correlation``, ``angle`` (radians) and ``distance``, with an
        interval of each (delete-one-lineage jackknife, see
        :func:`~reward_lens.evidence.prompt_correlation.prompt_correlation`). Parents are the two
        score evidences. Invariant, units ``ANGLE``.

    Raises
    ------
    CapabilityError
        If a signal does not score, or does not know an option that was chosen.
    DataError, TokenizeError, NumericsError
        Naming the item.
    """
    found = corpus_of(corpus)
    readouts = both(readout)
    options = {"position": position, "truncate": truncate, "batch_tokens": batch_tokens}
    measured = scores or (
        score_items(a, found.items, progress, readout=readouts[0], **options),
        score_items(b, found.items, progress, readout=readouts[1], **options),
    )
    return angle_evidence((a, b), found, measured, readouts, options, run=scores is None)


def angle_evidence(
    signals: tuple[RewardSignal, RewardSignal],
    corpus: Corpus,
    measured: tuple[Evidence, Evidence],
    readouts: tuple[str, str],
    options: dict[str, Any],
    *,
    run: bool,
) -> Evidence:
    """Evidence of the angle from the scores of a corpus by both signals."""
    x, y = (scores_of(e) for e in measured)
    rho = prompt_correlation("correlation", x, y, corpus.prompts, corpus.lineages)
    intervals = (rho, _through(rho, "angle", math.acos), _through(rho, "distance", distance))
    return Evidence(
        value=xr.DataArray(
            np.array([i.estimate for i in intervals]),
            dims=("quantity",),
            coords={"quantity": list(QUANTITIES)},
            name="effective_angle",
        ),
        instrument="effective_angle",
        version="1",
        subject=joint_subject(signals, corpus.fingerprint, readouts, options["position"]),
        tier=Tier.OBSERVATIONAL,
        gauge=GaugeStatus.INVARIANT,
        units=Units.ANGLE,
        provenance=joint_provenance(
            signals,
            {"readout": list(readouts), "items": len(corpus.items),
             "items_given_twice": corpus.repeated, **options},
            cost=2.0 * len(corpus.items) * run,
            parents=tuple(e.id for e in measured),
        ),
        uncertainty=intervals,
    )  # fmt: skip


def distance(rho: float) -> float:
    """Distance of two signals whose scores correlate by ρ: ``√((1 − ρ)/2)``, from 0 to 1."""
    return math.sqrt(max(0.0, (1 - rho) / 2))


def _through(rho: Interval, name: str, falling: Any) -> Interval:
    """The interval of a falling function of ρ; its error by the delta method, from the ends."""
    if math.isnan(rho.estimate):
        return dataclasses.replace(rho, name=name)
    if math.isnan(rho.low):
        return dataclasses.replace(rho, name=name, estimate=falling(rho.estimate))
    slope = abs(falling(rho.high) - falling(rho.low)) / (rho.high - rho.low)
    return dataclasses.replace(
        rho,
        name=name,
        estimate=falling(rho.estimate),
        low=falling(rho.high),
        high=falling(rho.low),
        se=rho.se * slope,
    )
