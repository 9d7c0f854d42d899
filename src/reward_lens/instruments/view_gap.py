"""Attribution against patching: whether what writes the margin is also what causes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.data import Pairs, as_pairs
from reward_lens.errors import CapabilityError, DataError
from reward_lens.evidence import Evidence, Interval, Tier, Units
from reward_lens.evidence.intervals import cluster_t
from reward_lens.instruments.patching_grid import patch_grid
from reward_lens.instruments.rank_agreement import mean_agreement, rank_correlation
from reward_lens.instruments.token_alignment import Where
from reward_lens.instruments.write_attribution import attribution as attribution_of
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation

BY = ("component", "head")
#: The label of the rows that speak of every pair.
ALL_PAIRS = "all pairs"

Floats = npt.NDArray[np.float64]


def compare_views(
    signal: ClassifierRM,
    pairs: Any,
    *,
    by: str = "component",
    positions: Where = "final",
    direction: str = "both",
    layers: Sequence[int] | None = None,
    components: Sequence[str] | None = None,
    executor: str | None = None,
    attribution: Evidence | None = None,
    grid: Evidence | None = None,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Rank components by what they write and by what patching them does, and compare.

    Attribution credits a component with what it writes along the readout itself; patching also
    with what later components make of it. Where the ranks differ, a reading of the one as the other
    would be wrong: a component that only feeds others has an effect and no attribution, one that
    others make up for has attribution and no effect.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    by : {"component", "head"}
    positions, direction, layers, components, executor
        As for :func:`~reward_lens.instruments.patching_grid.patch_grid`. At other positions than
        ``final`` patching changes more than what attribution reads: part of the gap is then that.
    attribution, grid : Evidence, optional
        Either view where it was measured before, on these pairs or on some of them, with the same
        options; it is not run again. The pairs that both were measured on are compared. What a
        ``grid`` patched, and where, is then its own.
    readout : str
    position : {"native", "last", "first", "mean"}, optional
        Which token is read.
    progress : callable, optional
        Told the number of finished items; both views run all of them.

    Returns
    -------
    Evidence
        Value float64 ``[direction, pair]``: Spearman's rank correlation over the components of the
        pair; NaN where one view does not vary (identical sides). Its mean over pairs has the
        interval ``agreement.<direction>``. Tables: ``agreement`` (per direction and subset, and
        over all pairs: the mean of the pairs' correlations with a cluster-t interval, and the
        correlation of the mean effects, a point), ``components`` (per direction: mean of either
        view, the mean gap between them with a cluster-t interval, their ranks by mean).

    Raises
    ------
    CapabilityError, AnatomyError, DataError, NumericsError
        As the two instruments do; a view that was measured on another signal, on other pairs or
        with other options is a ``DataError`` that says which.

    Notes
    -----
    Bias, rounding and, by head, the writes of MLPs are in no patch grid and so are not compared.
    """
    require(signal, Capability.ACTIVATIONS, "compare_views")
    if by not in BY:
        raise CapabilityError(f"by={by!r}: choose one of {', '.join(BY)}")
    given = as_pairs(pairs)
    same = {"by": by, "readout": readout, "truncate": truncate}
    for name, view in (("attribution", attribution), ("grid", grid)):
        if view is not None:
            _refuse_other(signal, given, name, view, position, same)
    given = _shared(given, attribution, grid)
    options: dict[str, Any] = {"position": position, "batch_tokens": batch_tokens,
                               "progress": progress, **same}  # fmt: skip
    patched = grid or patch_grid(
        signal, given, positions=positions, direction=direction, layers=layers,
        components=components, executor=executor, **options,
    )  # fmt: skip
    written = attribution or attribution_of(signal, given, **options)
    ran = [e for e, known in ((written, attribution), (patched, grid)) if known is None]
    effects = patched.value.sel(quantity="effect", pair=given.ids, drop=True)
    names = [str(c) for c in effects["component"].values]
    writes = written.value.sel(side="margin", write=names, pair=given.ids).values
    directions = [str(d) for d in effects["direction"].values]
    rho = np.array([[rank_correlation(w, e) for w, e in zip(writes, each, strict=True)]
                    for each in effects.values])  # fmt: skip
    found = [mean_agreement(f"agreement.{d}", r, given.lineages)
             for d, r in zip(directions, rho, strict=True)]  # fmt: skip
    return observation(
        signal,
        "compare_views",
        value=xr.DataArray(
            rho,
            dims=("direction", "pair"),
            coords=effects.isel(component=0, drop=True).coords,
            name="rank_correlation",
        ),
        data=given.fingerprint,
        readout=signal.readout(readout),
        position=position,
        tier=Tier.CAUSAL,
        units=Units.RANK,
        interventions=patched.subject.interventions[len(signal.interventions) :],
        parents=(written, patched),
        parameters={**patched.provenance.parameters, "components": names},
        cost=sum(e.provenance.cost_forwards for e in ran),
        uncertainty=tuple(i for i in found if i is not None),
        tables={
            "agreement": _agreement(directions, rho, writes, effects.values, given),
            "components": _components(directions, names, writes, effects.values, given),
        },
    )


def _refuse_other(
    signal: ClassifierRM,
    pairs: Pairs,
    name: str,
    view: Evidence,
    position: str | None,
    options: dict[str, Any],
) -> None:
    """Refuse a view that speaks of something else.

    Raises
    ------
    DataError
        Naming the view and what differs.
    """
    said = _differs(signal, pairs, name, view, position, options)
    if said:
        raise DataError(f"compare_views: {name}= {said}; leave it out to have it measured here")


def _exchanges(view: Evidence) -> tuple[str, ...]:
    """What a grid itself does, one line a direction; nothing for attribution."""
    directions = view.value.sizes.get("direction", 0)
    return view.subject.interventions[len(view.subject.interventions) - directions :]


def _differs(
    signal: ClassifierRM,
    pairs: Pairs,
    name: str,
    view: Evidence,
    position: str | None,
    options: dict[str, Any],
) -> str:
    """How a view differs from what is asked for; empty if it does not."""
    wanted = {"attribution": "attribution", "grid": "patch_grid"}[name]
    settings, subject = view.provenance.parameters, view.subject
    if view.instrument != wanted:
        return f"is evidence of {view.instrument}, not of {wanted}"
    if subject.signal != signal.fingerprint:
        return "was measured on another signal"
    # A grid names its own exchange after what is done to the signal.
    count = len(subject.interventions) - len(_exchanges(view))
    if subject.interventions[:count] != signal.interventions:
        done = "; ".join(subject.interventions[:count]) or "nothing"
        return f"was measured while this was done in every forward: {done}"
    if subject.notes["position"] != (position or signal.meta.position):
        return f"was read at position {subject.notes['position']!r}"
    for key, value in options.items():
        if settings[key] != value:
            return f"was measured with {key}={settings[key]!r}, not {value!r}"
    if settings.get("ablation") is not None:
        return "is an ablation, and no exchange between the sides"
    known = set(pairs.ids)
    unknown = [i for i in view.value["pair"].values.tolist() if i not in known]
    if unknown:
        return f"was measured on pairs that are not here (first: {unknown[0]!r})"
    if _of(pairs, view).fingerprint != subject.data:
        return "was measured on other texts under the same ids"
    return ""


def _of(pairs: Pairs, view: Evidence) -> Pairs:
    """The pairs a view was measured on, in its order."""
    place = {pair: k for k, pair in enumerate(pairs.ids)}
    return pairs.select(place[i] for i in view.value["pair"].values.tolist())


def _shared(pairs: Pairs, *views: Evidence | None) -> Pairs:
    """The pairs that every view that is given was measured on.

    Raises
    ------
    DataError
        If there are none.
    """
    kept = set(pairs.ids)
    for view in views:
        if view is not None:
            kept &= set(view.value["pair"].values.tolist())
    return pairs.select(k for k, i in enumerate(pairs.ids) if i in kept)


def _agreement(
    directions: list[str], rho: Floats, writes: Floats, effects: Floats, pairs: Pairs
) -> pd.DataFrame:
    """One row per direction and subset, the first of each direction over all pairs."""
    everything = np.ones(len(pairs), dtype=bool)
    parts = [(ALL_PAIRS, everything)]
    if len(pairs.subset_counts) > 1:
        parts += [(s, pairs.subsets == s) for s in pairs.subset_counts]
    rows = []
    for direction, each, effect in zip(directions, rho, effects, strict=True):
        for subset, mask in parts:
            mean = mean_agreement("mean", each[mask], pairs.lineages[mask])
            ok = mask & np.isfinite(effect).all(1)
            means = np.nan
            if ok.any():
                means = rank_correlation(writes[ok].mean(0), effect[ok].mean(0))
            rows.append(
                {
                    "direction": direction,
                    "subset": subset,
                    "pairs": int(mask.sum()),
                    "undefined": int(np.isnan(each[mask]).sum()),
                    **_ends(mean),
                    "of_mean_effects": means,
                    "note": "no pair has a correlation" if mean is None else mean.note,
                }
            )
    return pd.DataFrame(rows)


def _components(
    directions: list[str], names: list[str], writes: Floats, effects: Floats, pairs: Pairs
) -> pd.DataFrame:
    """One row per direction and component: both means, their gap and their ranks."""
    frames = []
    for direction, effect in zip(directions, effects, strict=True):
        rows = []
        for k, name in enumerate(names):
            ok = np.isfinite(effect[:, k])
            gap = None
            if ok.any():
                gap = cluster_t("gap", writes[ok, k] - effect[ok, k], pairs.lineages[ok])
            rows.append(
                {
                    "direction": direction,
                    "component": name,
                    "pairs": int(ok.sum()),
                    "attribution": float(writes[ok, k].mean()) if ok.any() else np.nan,
                    "patching": float(effect[ok, k].mean()) if ok.any() else np.nan,
                    **{("gap" if n == "mean" else n): v for n, v in _ends(gap).items()},
                    "note": "no pair has an effect" if gap is None else gap.note,
                }
            )
        frame = pd.DataFrame(rows)
        for view in ("attribution", "patching"):
            frame[f"rank_{view}"] = frame[view].rank(ascending=False)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _ends(found: Interval | None) -> dict[str, float]:
    if found is None:
        return dict.fromkeys(("mean", "low", "high"), np.nan)
    return {"mean": found.estimate, "low": found.low, "high": found.high}
