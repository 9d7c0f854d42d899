"""The bias battery: what a signal prefers that has nothing to do with what is said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.data import as_pairs
from reward_lens.data.edits import Edit
from reward_lens.errors import NumericsError
from reward_lens.evidence import Evidence, Interval, Tier, Units
from reward_lens.evidence.arguments import checked_count, checked_seed
from reward_lens.instruments.bias_cases import Cases, chosen_edits
from reward_lens.instruments.bias_null import (
    Null,
    checked_heads,
    median_margin,
    null_of,
    scored,
)
from reward_lens.instruments.bias_tables import (
    against_neutral,
    effect_intervals,
    effects_table,
    examples_table,
    null_table,
)
from reward_lens.instruments.effects import real_margins
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation

#: Random heads that set the threshold; as many others test it.
HEADS = 200
#: Responses that are edited, both sides of a pair counted.
RESPONSES = 128
_QUANTITIES = ("effect", "low", "high", "null_scale", "threshold")


def bias_battery(
    signal: ClassifierRM,
    pairs: Any,
    *,
    edits: Iterable[str | Edit] | None = None,
    max_responses: int | None = RESPONSES,
    heads: int = HEADS,
    seed: int = 0,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Edit responses in ways that should not matter and see which of them the signal rewards.

    Every effect is a paired difference, the edited response's score minus the original's, averaged
    over chosen and rejected responses alike, in units of the median |margin| of the same pairs.
    A bias is *named* only where the interval lies wholly beyond what random heads on the same trunk
    show in the largest of all their effects.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
        With prompts and responses; rendered text and ids cannot be edited.
    edits : iterable of str or Edit, optional
        Labels, names or families of :data:`reward_lens.data.edits.EDITS` and
        :data:`reward_lens.data.templates.CONTRASTS`, or edits of one's own; all by default.
    max_responses : int, optional
        Responses to edit, both sides of a pair counted: a seeded, subset-stratified sample of
        pairs. ``None`` for all.
    heads : int
        Random heads that set the threshold, at least 200; as many others, drawn apart, test it.
    seed : int
        Of the sample, the wordings and the heads.

    Returns
    -------
    Evidence
        Value float64 ``[quantity, edit]``: ``effect`` with the bounds ``low`` and ``high`` of its
        cluster-t interval, ``null_scale`` and ``threshold``, all in median |margins|. Tables:

        - ``effects``: per edit and position its family, rows, what it was not applicable to and
          what it made too long for the model, rows whose ids it leaves the same, the effect, p
          against zero (and adjusted by Holm), the threshold, the verdict and its words;
        - ``null``: the heads, the quantile, how many test heads name anything, with an exact
          interval, and in how many ``directions`` the margins of the states vary;
        - ``unit``: pairs, responses and the median |margin| in reward units;
        - ``against_neutral``: phrases of a tone less a sentence that says nothing;
        - ``examples``: a text before and after each edit.

    Raises
    ------
    DataError
        If a pair has no response to edit, an edit is not known, there are too few heads, or the
        seed is negative.
    NumericsError
        If the median |margin| is 0.

    Notes
    -----
    Threshold of edit ``e``: ``s_e · q``, with ``s_e`` the root mean square over random heads of its
    effect and ``q`` the 95th percentile over the heads of ``max_e |effect_e| / s_e``, over all
    edits and positions at once. Every head's effects are in its own median |margin|. The claim is
    family-wise: a head without purpose is said to have any bias at most one time in twenty.
    Significance against zero is printed and is no verdict: nearly every random head reacts to
    nearly every edit.

    The heads are isotropic normal directions in the space of the states that the head reads, after
    the final norm: how a head begins before training. They are not whitened. That would need a
    covariance of more states than there are dimensions, and with a shrunk one the null would depend
    on the shrinkage; as they are, their law is the same in any rotated or permuted coordinates. For
    a head that is no linear row the effect is that of its own score, and the null remains that of
    linear heads on the same states.

    A trunk that was trained along with its head can end in states that vary along hardly more than
    one direction. Random heads then read that direction too, and share the trained head's biases:
    the battery names little, whatever the null, and the table ``null`` says so.

    The median |margin| is taken as given: the intervals hold the spread of effects, not of the
    unit. Phrases and templates are English; on other text they are what they are. A trimmed
    response says less than before, so its effect holds what the missing sentence was worth.
    """
    require(signal, Capability.SCORES, "bias_battery")
    seed = checked_seed(seed)
    given = as_pairs(pairs)
    if max_responses is not None:
        max_responses = checked_count("max_responses", max_responses, 2, "a pair has two")
        given = given.sample(max_responses // 2, seed)
    heads = checked_heads(heads)
    chosen, templated = chosen_edits(signal, edits)
    cases = Cases(given, chosen, templated, seed)
    encoded = cases.encoded(signal, truncate)
    read = signal.read_index(encoded, position)
    bound = signal.bound(readout, encoded, batch_tokens)
    scores, others = scored(signal, encoded, bound, read, 2 * heads, seed, batch_tokens, progress)
    sides = np.stack([scores[: len(given)], scores[len(given) : 2 * len(given)]])
    unit = float(median_margin(real_margins(sides.astype(np.float64))))
    if not unit > 0:
        raise NumericsError(
            f"the median |margin| of these {len(given)} pairs is 0: there is no unit for a bias; "
            f"give pairs whose sides the signal tells apart"
        )
    null = null_of(cases, others, heads)
    found = effect_intervals(cases, scores, unit)
    table = effects_table(cases, found, null)
    tables = {
        "effects": table,
        "null": null_table(null),
        "unit": pd.DataFrame(
            {"pairs": [len(given)], "responses": [2 * len(given)], "median_margin": [unit]}
        ),
        "examples": examples_table(cases),
    }
    if (tone := against_neutral(cases, scores, unit)) is not None:
        tables["against_neutral"] = tone
    return observation(
        signal,
        "bias_battery",
        _value(table, found, null),
        data=given.fingerprint,
        readout=bound,
        position=position,
        parameters={
            "edits": table["edit"].tolist(),
            "max_responses": max_responses,
            "heads": heads,
            "seed": seed,
            "readout": readout,
            "truncate": truncate,
            "batch_tokens": batch_tokens,
        },
        cost=float(len(encoded)),
        tier=Tier.VULNERABILITY,
        units=Units.SHARE,
        seeds=(seed,),
        uncertainty=tuple(found),
        tables=tables,
    )


def _value(table: pd.DataFrame, found: Sequence[Interval], null: Null) -> xr.DataArray:
    rows: list[npt.NDArray[np.float64]] = [
        np.array([i.estimate for i in found]),
        np.array([i.low for i in found]),
        np.array([i.high for i in found]),
        null.scale,
        null.threshold,
    ]
    return xr.DataArray(
        np.stack(rows),
        dims=("quantity", "edit"),
        coords={
            "quantity": list(_QUANTITIES),
            "edit": table["edit"].tolist(),
            "family": ("edit", table["family"].tolist()),
            "position": ("edit", table["position"].tolist()),
            "named": ("edit", table["named"].to_numpy()),
        },
        name="bias",
        attrs={"units": "median |margin|"},
    )
