"""Patch grid: what the margin loses or gains when one activation is exchanged or taken away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.backbone import FULL
from reward_lens.data import as_pairs
from reward_lens.errors import CapabilityError
from reward_lens.evidence import Evidence, Tier, Units
from reward_lens.evidence.arguments import checked_seed
from reward_lens.instruments.effects import (
    degenerate_margins,
    effect_rows,
    margin_shares,
    real_margins,
)
from reward_lens.instruments.grid_plan import GridPlan, plan_grid
from reward_lens.instruments.grid_runs import GridScores, run_grid
from reward_lens.instruments.patch_targets import grid_targets, listed_layers
from reward_lens.instruments.replacements import Ablation
from reward_lens.instruments.sides import Sides
from reward_lens.instruments.token_alignment import Where, shared_prefix
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation

#: The dimension ``quantity`` and the units of its entries.
QUANTITIES = {"effect": Units.REWARD, "share": Units.SHARE}

Floats = npt.NDArray[np.float64]


def patch_grid(
    signal: ClassifierRM,
    pairs: Any,
    *,
    by: str = "component",
    positions: Where = "final",
    direction: str = "both",
    ablation: str | None = None,
    reference: Any = None,
    site: str | None = None,
    layers: Sequence[int] | int | None = None,
    components: Sequence[str] | None = None,
    executor: str | None = None,
    seed: int = 0,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Exchange one activation at a time between the sides of each pair and score again.

    Two directions, so signed that on a linear network both are the component's attribution:

    - ``noise``: the chosen side is run with the rejected side's activation in place of its own; the
      effect is what of the margin is lost, ``s_chosen − s_chosen(patched)``.
    - ``denoise``: the rejected side is run with the chosen side's activation; the effect is what of
      the margin is gained, ``s_rejected(patched) − s_rejected``.

    They differ where components act together: of two that need each other either one is enough to
    break the margin (noise), and neither is enough to make it (denoise).

    With an ``ablation`` nothing is exchanged: both sides are run with the component ablated, and
    the effect is the clean margin less the ablated one.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    by : {"component", "head", "layer_position"}
        The embedding and every attention and MLP write; every attention head; or ``site`` at every
        layer and every patched token, one at a time.
    positions : {"final", "aligned", "all"}, int, (start, stop) or Position
        The tokens that are patched, all at once for ``component`` and ``head``. ``final``: each
        side's own read token, whatever their lengths. ``aligned``: tokens that a diff of the ids
        puts beside each other, see
        :func:`~reward_lens.instruments.token_alignment.align_tokens`; the others are untouched and
        counted. ``all``: both sides must be equally long (an ablation of components needs that
        not). Indices may be negative.
    direction : {"both", "noise", "denoise"}
    ablation : {"zero", "mean", "resample"}, optional
        ``mean``: over the tokens that ``positions`` means in the reference items (all their tokens
        for ``aligned`` and ``all``), each token with the same weight. ``resample``: the activation
        of one drawn reference item of another lineage (at drawn tokens for ``aligned`` and
        ``all``, the same tokens for every component).
    reference : iterable of items, optional
        For ``mean`` and ``resample``; both sides of all pairs by default.
    site : {"resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"}
        For ``layer_position``; ``resid_pre`` by default.
    layers : sequence of int, optional
        Only these layers; then without the embedding.
    components : sequence of str, optional
        Only these, by name: ``"embed"``, ``"L2.attn_out"``, ``"L2.H0"``, ``"L2.resid_pre"``.
    executor : str, optional
        ``"full forward"`` runs a whole forward for every patch: slow, and the reference.
    seed : int
        Of ``resample``.
    readout : str
    position : {"native", "last", "first", "mean"}, optional
        Which token is read.
    progress : callable, optional
        Told the number of finished items.

    Returns
    -------
    Evidence
        Value float64 ``[quantity, direction, pair, component]``, or ``[quantity, direction, pair,
        layer, position]``: ``effect`` in reward units and ``share`` of the pair's margin. NaN where
        a pair has no such token; shares are NaN where the margin is degenerate. ``position`` is the
        token index on the chosen side for ``aligned`` and ``all``, and as asked for otherwise. With
        an ablation the one direction is ``ablation``. Tables: ``components`` (per direction and
        component, or layer and position: mean effect with a cluster-t interval, share of the
        margin, router choices that changed), ``pairs`` (margins, scores, lengths, patched and
        untouched tokens) and ``engine`` (executors that ran, their largest gap to
        the full forward when they were verified, runs and forwards).

    Raises
    ------
    CapabilityError
        If an option is unknown, the signal was not looked into, or the head reads a mean and
        ``positions`` is ``final``.
    AnatomyError
        If a layer, head or component does not exist or did not verify.
    DataError
        If there are no pairs, a pair does not have the tokens (names the pair), or a layer or the
        seed is no whole number from 0.

    Notes
    -----
    On a causal trunk the tokens that both sides begin with have the same activations, so exchanging
    them has the effect 0 and is not run (with ``executor="full forward"`` it is, unless the sides
    are identical). A gated head is
    read with the gate of the clean item, also where a patch would change it.
    """
    require(signal, Capability.ACTIVATIONS, "patch_grid")
    seed = checked_seed(seed)
    targets = grid_targets(
        signal.trunk.anatomy,
        by,
        site=site or "resid_pre",
        layers=listed_layers(layers),
        components=components,
    )
    given = as_pairs(pairs)
    sides = Sides.of(signal, given, position, truncate)
    away = None
    if ablation is not None:
        away = Ablation.of(signal, sides, ablation, reference, seed=seed, position=position,
                           truncate=truncate)  # fmt: skip
    elif reference is not None:
        raise CapabilityError("reference= is of ablation='mean' or 'resample', which is not asked")
    plan = plan_grid(signal, sides, targets, by=by, positions=positions, direction=direction,
                     ablation=away, skip_shared=executor != FULL,
                     batch_tokens=batch_tokens)  # fmt: skip
    chosen = signal.bound(readout, plan.encoded, batch_tokens)
    found = run_grid(signal, plan, chosen, executor, batch_tokens, progress)
    effects = found.effects(plan.directions)
    return observation(
        signal,
        "patch_grid",
        value=_value(plan, sides, effects, found.scores),
        data=given.fingerprint,
        readout=chosen,
        position=position,
        tier=Tier.CAUSAL,
        interventions=plan.interventions,
        seeds=(seed,) if ablation == "resample" else (),
        parameters={
            "by": by,
            "positions": str(plan.position),
            "direction": direction,
            "ablation": ablation,
            "reference": None if away is None else away.fingerprint,
            "site": (site or "resid_pre") if by == "layer_position" else None,
            "layers": listed_layers(layers),
            "components": None if components is None else [str(t) for t in targets],
            "executor": executor,
            "readout": readout,
            "truncate": truncate,
            "batch_tokens": batch_tokens,
        },
        cost=plan.cost + found.forwards,
        quantity_units=QUANTITIES,
        tables={
            "components": _component_table(plan, sides, effects, found),
            "pairs": _pair_table(plan, sides, found.scores),
            "engine": found.engine_table(),
        },
    )


def _value(plan: GridPlan, sides: Sides, effects: Floats, scores: Floats) -> xr.DataArray:
    """Effects ``[direction, pair, target, column]`` and their shares, named."""
    both = np.stack([effects, margin_shares(effects, scores)])
    coords = {"quantity": list(QUANTITIES), "direction": list(plan.directions),
              **sides.pair_coords()}  # fmt: skip
    dims: tuple[str, ...] = ("quantity", "direction", "pair", "layer", "position")
    if plan.by == "layer_position":
        coords |= {"layer": [t.site.layer for t in plan.targets], "position": plan.columns}
        return xr.DataArray(both, dims=dims, coords=coords, name="patch_effect")
    dims = (*dims[:3], "component")
    coords["component"] = [str(t) for t in plan.targets]
    return xr.DataArray(both[..., 0], dims=dims, coords=coords, name="patch_effect")


def _component_table(
    plan: GridPlan, sides: Sides, effects: Floats, found: GridScores
) -> pd.DataFrame:
    """One row per direction and component, or per direction, layer and position."""
    labels: list[dict[str, Any]] = []
    for direction in plan.directions:
        for target in plan.targets:
            label = {"direction": direction, "component": str(target)}
            labels += [label] if plan.by != "layer_position" else [
                {**label, "layer": target.site.layer, "position": c} for c in plan.columns
            ]  # fmt: skip
    n = plan.n_pairs

    def flat(values: Floats) -> Floats:
        rows: Floats = values.transpose(0, 2, 3, 1).reshape(-1, n)
        return rows

    margins = real_margins(found.scores)
    return effect_rows(labels, flat(effects), margins, sides.pairs.lineages,
                       flat(found.flipped(plan.directions)))  # fmt: skip


def _pair_table(plan: GridPlan, sides: Sides, scores: Floats) -> pd.DataFrame:
    """One row per pair: its scores, and how much of its text was patched."""
    n, encoded, tokens = plan.n_pairs, sides.encoded, plan.replacements.tokens
    lengths = [len(e.ids) for e in encoded]
    patched = [len(t) for t in tokens]
    same = [a.same for a in plan.tokens_of_pairs]
    return pd.DataFrame(
        {
            "pair": sides.pairs.ids,
            "margin": scores[0] - scores[1],
            "score_chosen": scores[0],
            "score_rejected": scores[1],
            "degenerate": degenerate_margins(scores),
            "tokens_chosen": lengths[:n],
            "tokens_rejected": lengths[n:],
            "shared_prefix": [shared_prefix(encoded[k].ids, encoded[n + k].ids) for k in range(n)],
            "patched_chosen": patched[:n],
            "patched_rejected": patched[n:],
            "patched_same_id": same,
            "untouched_chosen": [a - b for a, b in zip(lengths[:n], patched[:n], strict=True)],
            "untouched_rejected": [a - b for a, b in zip(lengths[n:], patched[n:], strict=True)],
        }
    )
