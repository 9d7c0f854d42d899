"""How far two trunks' state spaces line up, judged on items that the frame was not fitted on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.errors import DataError
from reward_lens.evidence import Evidence, GaugeStatus, Interval, Tier, Units
from reward_lens.evidence.intervals import jackknife_correlation
from reward_lens.geometry.corpus import Corpus, corpus_of
from reward_lens.geometry.frames import Frame, column_correlations, read_states
from reward_lens.geometry.two_signals import joint_provenance, joint_subject
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS

Floats = npt.NDArray[np.float64]

#: What must stand beside every number made in a frame.
BASIS_NOTE = (
    "depends on the basis of the states through the shrinkage of their covariance and the choice "
    "of principal components"
)


def state_alignment(
    a: ClassifierRM,
    b: ClassifierRM,
    corpus: Any,
    frame: Frame,
    *,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
) -> Evidence:
    """Canonical correlations of two trunks' states, held out, and their Procrustes similarity.

    This speaks of states, not of preferences: two trunks may line up and reward opposite things.
    What they reward is compared by :func:`~reward_lens.geometry.effective_angle`.

    Parameters
    ----------
    a, b : ClassifierRM
        Those that the frame was fitted on, in the same order.
    corpus : Pairs or items
        Of other lineages than the frame's.
    frame : Frame
        Of :func:`~reward_lens.geometry.fit_frame`.

    Returns
    -------
    Evidence
        Value float64 ``[quantity, dimension]``: canonical correlations ``held_out`` and, of the
        frame's own corpus, ``in_sample``. Intervals: ``procrustes`` (correlation of all common
        coordinates at once) and ``canonical[0]``, jackknife over lineages with the frame held
        fixed. Table ``frame``: what it was fitted on. ``COVARIANT``: the frame is named, and that
        it depends on the basis.

    Raises
    ------
    CapabilityError
        If a signal has no activations.
    DataError
        If the frame is of other signals, or was fitted on some of these lineages.
    """
    for signal in (a, b):
        require(signal, Capability.ACTIVATIONS, "state_alignment")
    if (a.fingerprint, b.fingerprint) != frame.signals:
        raise DataError(
            f"frame {frame.fingerprint} is of the signals {' and '.join(frame.signals)}, these are "
            f"{a.fingerprint} and {b.fingerprint}: fit one on these, in this order"
        )
    found = corpus_of(corpus)
    _check_unseen(found, frame)
    za, zb = (
        frame.coordinates(read_states(s, found, site, truncate, batch_tokens), side)
        for s, site, side in zip((a, b), frame.sites, "ab", strict=True)
    )
    subject = joint_subject(
        (a, b), found.fingerprint, ("reward", "reward"), frame=frame.fingerprint
    )
    return Evidence(
        value=xr.DataArray(
            np.stack([column_correlations(za, zb), frame.correlations]),
            dims=("quantity", "dimension"),
            coords={"quantity": ["held_out", "in_sample"],
                    "dimension": np.arange(frame.dimensions)},
            name="canonical_correlation",
        ),
        instrument="state_alignment",
        version="1",
        subject=replace(subject, notes={**subject.notes, "frame_note": BASIS_NOTE}),
        tier=Tier.OBSERVATIONAL,
        gauge=GaugeStatus.COVARIANT,
        units=Units.ANGLE,
        provenance=joint_provenance(
            (a, b),
            {"frame": frame.fingerprint, "sites": list(frame.sites), "truncate": truncate,
             "batch_tokens": batch_tokens},
            cost=2.0 * len(found.items),
            parents=(),
        ),
        uncertainty=_intervals(za, zb, found),
        tables={"frame": _described(frame, found)},
    )  # fmt: skip


def _check_unseen(corpus: Corpus, frame: Frame) -> None:
    shared = sorted(set(map(str, corpus.lineages)) & set(frame.lineages))
    if shared:
        raise DataError(
            f"{len(shared)} lineages (first: {shared[0]!r}) are among those that frame "
            f"{frame.fingerprint} was fitted on, where any two trunks look aligned; judge it on "
            f"others (Pairs.split keeps them apart)"
        )


def _intervals(za: Floats, zb: Floats, corpus: Corpus) -> tuple[Interval, ...]:
    x, y = za - za.mean(0), zb - zb.mean(0)
    rows = np.repeat(corpus.lineages, x.shape[1])
    return (
        jackknife_correlation("procrustes", x.ravel(), y.ravel(), rows),
        jackknife_correlation("canonical[0]", x[:, 0], y[:, 0], corpus.lineages),
    )


def _described(frame: Frame, corpus: Corpus) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "frame": [frame.fingerprint],
            "site_a": [frame.sites[0]],
            "site_b": [frame.sites[1]],
            "dimensions": [frame.dimensions],
            "lineages_fitted": [len(frame.lineages)],
            "items_held_out": [len(corpus.items)],
            **{k: [v] for k, v in frame.facts.items()},
            "note": [BASIS_NOTE],
        }
    )
