"""Signal between responses against noise between wordings of the same prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.data import Item, Pairs, as_pairs
from reward_lens.data.templates_prompts import PARAPHRASES, TEMPLATES, laid_out, paraphrased
from reward_lens.errors import DataError
from reward_lens.evidence import Evidence, Interval, Tier, Units
from reward_lens.evidence.arguments import checked_count, checked_seed
from reward_lens.evidence.clusters import doubt, lineage_codes, totals
from reward_lens.evidence.intervals import cluster_t
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation

Floats = npt.NDArray[np.float64]

#: What is varied, and how.
SOURCES: dict[str, tuple[str, ...]] = {
    "paraphrase": tuple(PARAPHRASES),
    "template": tuple(TEMPLATES),
}
_QUANTITIES = ("response", "interaction", "prompt", "snr", "snr_total", "flips")


def prompt_snr(
    signal: ClassifierRM,
    pairs: Any,
    *,
    max_pairs: int | None = 32,
    seed: int = 0,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """How much of a preference survives when the prompt is put in other words or another frame.

    Both responses of a pair are scored under the prompt as it is and under variants that ask the
    same: five paraphrases (a greeting, a request, thanks), and three layouts as plain text in place
    of the checkpoint's template.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    max_pairs : int, optional
        A seeded, subset-stratified sample of this size; ``None`` for all.
    seed : int

    Returns
    -------
    Evidence
        Value float64 ``[quantity, source]``, sources ``paraphrase`` and ``template``. ``response``,
        ``interaction`` and ``prompt`` are the components of variance between responses, of
        response × variant, and between variants alike for both responses, as shares of their sum;
        ``snr`` is response / interaction (what can turn a preference round) and ``snr_total`` is
        response / (interaction + prompt); ``flips`` is the share of variants under which the pair's
        order is another than under the prompt as it is. Intervals: ``snr.<source>`` and
        ``snr_total.<source>`` (jackknife over lineages on the logarithm), ``flips.<source>``
        (cluster-t). A source all of whose variants apply to no pair is NaN with the reason.
        Tables: ``variants`` (per variant the flips and the mean shift in median
        margins) and ``left_out``.

    Raises
    ------
    DataError
        If a pair is rendered text or ids, which have no prompt to vary, or the seed is no whole
        number from 0.

    Notes
    -----
    A pair is a table of two responses by V variants with one score in each cell. With margins
    ``m_v`` and mean scores ``a_v`` over the two responses: interaction = ``var(m) / 2``, response =
    ``mean(m)²/2 − interaction/V``, prompt = ``var(a) − interaction/2`` (the usual moment
    estimators of two crossed factors without replication). Components are averaged over pairs
    before ratios are taken; a component that comes out negative is 0.

    Layouts apply to conversations of one turn. They lack the checkpoint's special tokens, so their
    noise is what a wrong template does, an upper bound rather than an everyday figure.
    """
    require(signal, Capability.SCORES, "prompt_snr")
    seed = checked_seed(seed)
    given = as_pairs(pairs)
    if max_pairs is not None:
        max_pairs = checked_count("max_pairs", max_pairs, 1, "None for all pairs")
        given = given.sample(max_pairs, seed)
    plan, left_out = _plan(signal, given, truncate)
    items = [i for _, _, both in plan for i in both]
    scores = (
        signal.score(
            items,
            readout=readout,
            position=position,
            truncate=truncate,
            batch_tokens=batch_tokens,
            progress=progress,
        )
        .value.values.astype(np.float64)
        .reshape(-1, 2)
    )
    places = {(pair, variant): k for k, (pair, variant, _) in enumerate(plan)}
    unit = float(np.median([abs(s[0] - s[1]) for s in scores[: len(given)]]))
    columns, intervals, rows = [], [], []
    for source, names in SOURCES.items():
        pairs_of = [p for p in range(len(given)) if all((p, v) in places for v in names)]
        cube = np.array([[scores[places[p, v]] for v in ("", *names)] for p in pairs_of])
        cube = cube.reshape(len(pairs_of), 1 + len(names), 2)
        column, found = _components(source, cube, given.lineages[pairs_of])
        columns.append(column)
        intervals += found
        rows += [_variant(source, v, k + 1, cube, unit) for k, v in enumerate(names)]
    return observation(
        signal,
        "prompt_snr",
        xr.DataArray(
            np.array(columns).T,
            dims=("quantity", "source"),
            coords={"quantity": list(_QUANTITIES), "source": list(SOURCES)},
            name="prompt_snr",
        ),
        data=given.fingerprint,
        readout=signal.readout(readout),
        position=position,
        parameters={
            "max_pairs": max_pairs,
            "seed": seed,
            "readout": readout,
            "truncate": truncate,
            "batch_tokens": batch_tokens,
        },
        cost=float(len(items)),
        tier=Tier.VULNERABILITY,
        units=Units.SHARE,
        seeds=(seed,),
        uncertainty=tuple(intervals),
        tables={"variants": pd.DataFrame(rows), "left_out": left_out},
    )


def _plan(
    signal: ClassifierRM, pairs: Pairs, truncate: str
) -> tuple[list[tuple[int, str, tuple[Item, Item]]], pd.DataFrame]:
    """Pair, variant and both items, the prompts as they are first; and what is left out."""
    asked, reasons = [(k, "", (p.chosen, p.rejected)) for k, p in enumerate(pairs)], []
    for k, _, (chosen, rejected) in list(asked):
        if chosen.messages is None or rejected.messages is None:
            raise DataError(
                f"pair {pairs[k].id!r} is rendered text or ids, which do not say what the prompt "
                f"is: variants of it need a prompt and a response"
            )
        asked += [(k, v, (paraphrased(chosen, v), paraphrased(rejected, v))) for v in PARAPHRASES]
        if len(chosen.messages) == 2:
            asked += [(k, v, (laid_out(chosen, v), laid_out(rejected, v))) for v in TEMPLATES]
        else:
            reasons.append((pairs[k].id, "template", "a conversation of several turns"))
    if truncate == "error":
        new = asked[len(pairs) :]
        cut = [e.cut > 0 for e in signal.encoder.encode([i for *_, b in new for i in b], "right")]
        long = [cut[2 * k] or cut[2 * k + 1] for k in range(len(new))]
        reasons += [
            (pairs[k].id, v, "longer than the model reads")
            for (k, v, _), x in zip(new, long, strict=True) if x
        ]  # fmt: skip
        asked = [*asked[: len(pairs)], *(a for a, x in zip(new, long, strict=True) if not x)]
    return asked, pd.DataFrame(reasons, columns=["pair", "variant", "reason"], dtype=object)


def _components(
    source: str, cube: Floats, lineages: npt.NDArray[np.object_]
) -> tuple[list[float], list[Interval]]:
    """The quantities of one source from scores ``[pair, variant, side]``, and their intervals."""
    if not len(cube):
        nan, why = math.nan, "no pair has all variants of this source; the table left_out says why"
        return [nan] * len(_QUANTITIES), [
            Interval(f"{q}.{source}", nan, nan, nan, 0.95, nan, 0, 0.0, 0, "none", why)
            for q in _QUANTITIES[3:]
        ]
    parts = variance_parts(cube)
    response, interaction, prompt = np.maximum(parts.mean(0), 0)
    total = response + interaction + prompt
    margins = cube[..., 0] - cube[..., 1]
    flipped = (np.sign(margins[:, 1:]) != np.sign(margins[:, :1])).mean(1)
    found = [
        _log_ratio(f"{name}.{source}", parts[:, 0], parts[:, noise].sum(1), lineages)
        for name, noise in (("snr", [1]), ("snr_total", [1, 2]))
    ]
    found.append(cluster_t(f"flips.{source}", flipped, lineages))
    shares = [x / total if total > 0 else math.nan for x in (response, interaction, prompt)]
    return [*shares, *(i.estimate for i in found)], found


def variance_parts(cube: Floats) -> Floats:
    """Components of variance of each pair: ``[pair, variant, side]`` to ``[pair, 3]``.

    Response, response × variant, and variant; unbiased, so that single ones may be negative.
    """
    margins, means = cube[..., 0] - cube[..., 1], cube.mean(-1)
    interaction = margins.var(1, ddof=1) / 2
    response = margins.mean(1) ** 2 / 2 - interaction / cube.shape[1]
    prompt = means.var(1, ddof=1) - interaction / 2
    return np.stack([response, interaction, prompt], 1)


def _log_ratio(
    name: str, above: Floats, below: Floats, lineages: npt.NDArray[np.object_], level: float = 0.95
) -> Interval:
    """Ratio of two means with a delete-one-lineage jackknife interval on its logarithm."""
    from scipy import stats

    n = len(above)
    codes, groups = lineage_codes(name, lineages, n)
    top, bottom = float(above.mean()), float(below.mean())
    nan, method = math.nan, "jackknife-t on the logarithm"

    def none(estimate: float, why: str) -> Interval:
        return Interval(name, estimate, nan, nan, level, nan, n, groups, groups, method, why)

    if bottom <= 0:
        why = "the variants change nothing" if bottom == 0 else "noise estimated as none"
        return none(math.inf if top > 0 else nan, why)
    if top <= 0:
        return none(0.0, "no variance between responses beyond the noise")
    if groups < 3:
        return none(top / bottom, "fewer than three lineages give no interval")
    tops, bottoms = (v.sum() - totals(v, codes, groups) for v in (above, below))
    if not ((tops > 0) & (bottoms > 0)).all():
        return none(top / bottom, "without one lineage a component is not positive")
    logs = np.log(tops / bottoms)
    se = math.sqrt((groups - 1) / groups * float(((logs - logs.mean()) ** 2).sum()))
    reach, middle = float(stats.t.ppf(0.5 + level / 2, groups - 1)) * se, math.log(top / bottom)
    return Interval(
        name, top / bottom, math.exp(middle - reach), math.exp(middle + reach), level,
        se * top / bottom, n, groups, groups, method,
        doubt(logs, np.bincount(codes)),
    )  # fmt: skip


def _variant(source: str, name: str, place: int, cube: Floats, unit: float) -> Mapping[str, Any]:
    """Flips of one variant, and its shift of the scores and of the margins, in median margins."""
    texts = PARAPHRASES if source == "paraphrase" else TEMPLATES
    row: dict[str, Any] = {"source": source, "variant": name, "text": texts[name]}
    if not len(cube):
        return {**row, "pairs": 0, "flips": math.nan, "shift": math.nan, "margin_change": math.nan}
    margins, means = cube[..., 0] - cube[..., 1], cube.mean(-1)
    gap = np.abs(margins[:, place] - margins[:, 0])
    return {
        **row,
        "pairs": len(cube),
        "flips": float((np.sign(margins[:, place]) != np.sign(margins[:, 0])).mean()),
        "shift": float((means[:, place] - means[:, 0]).mean() / unit) if unit else math.nan,
        "margin_change": float(gap.mean() / unit) if unit else math.nan,
    }
