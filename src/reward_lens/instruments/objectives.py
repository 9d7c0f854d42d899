"""Objective geometry: how the rows of a multi-row head lie to one another."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
import xarray as xr

from reward_lens.backbone import Site
from reward_lens.data import Pairs, as_pairs
from reward_lens.errors import CapabilityError, NumericsError
from reward_lens.evidence import Evidence, GaugeStatus, Interval, Units
from reward_lens.evidence.intervals import jackknife_correlation
from reward_lens.instruments.sides import Sides
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation
from reward_lens.signals.readouts import Readout

_NORMED = Site("final_norm")
_NO_DATA = "none: the rows of the head only"

Floats = npt.NDArray[np.float64]


def objective_geometry(
    signal: ClassifierRM,
    pairs: Any = None,
    *,
    method: str = "pearson",
    within_prompt: bool = False,
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Compare the rows of a multi-row head: their cosines and, on data, their scores' correlations.

    Parameters
    ----------
    signal : ClassifierRM
        With a linear head of several rows.
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes, optional
        Both sides of each pair are scored by every row, in one forward per item. Without pairs
        only the cosines are measured.
    method : {"pearson", "spearman"}
        Kind of correlation of the scores.
    within_prompt : bool
        Subtract each lineage's mean score first, so that only differences between the responses to
        one prompt count (a reward is fixed up to a shift per prompt).
    position : {"native", "last", "first", "mean"}, optional
        Which token is read.
    truncate : {"error", "left", "right"}
    batch_tokens : int
        Padded tokens of one forward.
    progress : callable, optional
        Told the number of finished items of each batch.

    Returns
    -------
    Evidence
        Value float64 ``[row, row2]``: cosines of the rows as they act on the state after the final
        norm; biases do not enter. With pairs, one interval ``correlation[a, b]`` per two rows and
        the table ``scores`` (one line per two rows: cosine, correlation, interval, its note). The
        table ``rows`` has the checkpoint's label of each row where it gives one, the row's length
        and bias, and with pairs its scores' mean and standard deviation.

    Raises
    ------
    CapabilityError
        If the head is not linear, or has one row only.
    NumericsError
        If a row is all zeros, so that it has no direction.
    DataError, TokenizeError
        Naming the item.

    Notes
    -----
    The cosine depends on the coordinates of the state space (an elementwise gain of the norm could
    be moved into the rows and would change it), so it is ``RAW_ONLY``: angles of two models are not
    comparable. Two rows at a right angle need not have uncorrelated scores, since states do not
    spread evenly in all directions; that is why both are given. The interval is the jackknife over
    lineages on ``atanh ρ``, see :func:`~reward_lens.evidence.intervals.jackknife_correlation`.
    """
    require(signal, Capability.LINEAR_READOUT, "objective_geometry")
    rows = objectives(signal)
    names = [r.name for r in rows]
    directions = np.stack([r.direction.double().cpu().numpy() for r in rows])
    cosines = _cosines(directions, names)
    given = None if pairs is None else as_pairs(pairs)
    table = pd.DataFrame(
        {
            "row": names,
            "label": [str(r.meta.get("label", "")) for r in rows],
            "length": np.linalg.norm(directions, axis=1),
            "bias": [float(r.bias) for r in rows],
        }
    )
    tables, found, cost = {"rows": table}, [], 0.0
    if given is not None:
        sides = Sides.of(signal, given, position, truncate)
        scores = _scores(signal, rows, sides, batch_tokens, progress)
        found = _correlations(scores, names, given, method, within_prompt)
        table["mean_score"], table["sd_score"] = scores.mean(0), scores.std(0, ddof=1)
        tables["scores"] = _pair_table(names, cosines, found)
        cost = float(len(sides.encoded))
    found_evidence = observation(
        signal,
        "objective_geometry",
        xr.DataArray(
            cosines, dims=("row", "row2"), coords={"row": names, "row2": names}, name="cosine"
        ),
        data=_NO_DATA if given is None else given.fingerprint,
        readout=rows[0],
        position=position,
        gauge=GaugeStatus.RAW_ONLY,
        units=Units.ANGLE,
        parameters={
            "method": method,
            "within_prompt": within_prompt,
            "truncate": truncate,
            "batch_tokens": batch_tokens,
        },
        cost=cost,
        uncertainty=tuple(found),
        tables=tables,
    )
    subject = replace(found_evidence.subject, readout=", ".join(names))
    return replace(found_evidence, subject=subject)


def objectives(signal: ClassifierRM) -> list[Readout]:
    """The readouts that are one row of a multi-row head each, in the order of the rows.

    Raises
    ------
    CapabilityError
        If the head has one row only.
    """
    weight, _ = signal.head()
    if len(weight) < 2:
        raise CapabilityError(
            f"objective_geometry compares the rows of a head, and that of "
            f"{signal.meta.architecture} has {len(weight)}: there is nothing to compare it with. "
            f"Signals whose readouts are criterion:0, criterion:1, … have what it needs."
        )
    single = {r.rows[0]: r for r in signal.readouts() if len(r.rows) == 1}
    return [single[k] for k in range(len(weight))]


def _cosines(directions: Floats, names: list[str]) -> Floats:
    """Cosines of rows ``[row, width]``: float64 ``[row, row]``, exactly 1 on the diagonal."""
    lengths = np.linalg.norm(directions, axis=1)
    if not lengths.all():
        empty = names[int((lengths == 0).argmax())]
        raise NumericsError(
            f"the row of {empty} is all zeros, so it has no direction and no cosine; was it ever "
            f"trained?"
        )
    unit = directions / lengths[:, None]
    cosines: Floats = np.clip(unit @ unit.T, -1.0, 1.0)
    np.fill_diagonal(cosines, 1.0)
    return cosines


def _scores(
    signal: ClassifierRM,
    rows: list[Readout],
    sides: Sides,
    batch_tokens: int,
    progress: Progress | None,
) -> Floats:
    """Score every item of both sides by every row in one forward: float64 ``[item, row]``."""
    out = np.empty((len(sides.encoded), len(rows)))
    sweep = signal.sweep(
        sides.encoded, [_NORMED], sides.read, batch_tokens=batch_tokens, progress=progress
    )
    for seen in sweep:
        read = torch.stack([row.read(seen.sites[_NORMED]) for row in rows], -1)
        # Rows are affine, so the mean of what they read is what they read of the mean.
        out[seen.index] = seen.mean(read).double().cpu().numpy()
    return out


def _correlations(
    scores: Floats, names: list[str], pairs: Pairs, method: str, within_prompt: bool
) -> list[Interval]:
    """Correlations of the scores of every two rows, clustered by lineage."""
    lineage = np.concatenate([pairs.lineages, pairs.lineages])
    return [
        jackknife_correlation(
            f"correlation[{names[a]}, {names[b]}]",
            scores[:, a],
            scores[:, b],
            lineage,
            method=method,
            centre=within_prompt,
        )
        for a, b in combinations(range(len(names)), 2)
    ]


def _pair_table(names: list[str], cosines: Floats, found: list[Interval]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "row": names[a],
                "row2": names[b],
                "cosine": cosines[a, b],
                "correlation": i.estimate,
                "low": i.low,
                "high": i.high,
                "n_effective": i.n_effective,
                "note": i.note,
            }
            for (a, b), i in zip(combinations(range(len(names)), 2), found, strict=True)
        ]
    )
