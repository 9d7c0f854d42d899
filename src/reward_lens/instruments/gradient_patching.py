"""Attribution patching: the patch grid estimated from gradients, and held against the exact one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from reward_lens.backbone import Target
from reward_lens.data import Pairs, as_pairs
from reward_lens.errors import AnatomyError, CapabilityError
from reward_lens.evidence import Evidence, Interval, Tier, Units
from reward_lens.evidence.arguments import checked_count, checked_seed
from reward_lens.instruments.effects import effect_rows, real_margins
from reward_lens.instruments.estimates import SIDE_RUN, Floats, estimate_effects
from reward_lens.instruments.patch_targets import grid_targets
from reward_lens.instruments.patching_grid import patch_grid
from reward_lens.instruments.screening import agreement, missed, top_components
from reward_lens.instruments.sides import Sides
from reward_lens.instruments.token_alignment import Where, as_position, patched_tokens
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation

BY = ("component", "head")
QUANTITIES = {"estimate": Units.REWARD, "exact": Units.REWARD}


def attribution_patching(
    signal: ClassifierRM,
    pairs: Any,
    *,
    by: str = "component",
    positions: Where = "final",
    direction: str = "both",
    steps: int = 0,
    sample: int = 8,
    screen: int | None = None,
    seed: int = 0,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS // 4,
    progress: Progress | None = None,
) -> Evidence:
    """Estimate the patch grid to first order: gradient times the difference of the activations.

    One forward and one backward of each side give the estimate of every component. With ``c`` the
    component's activation at the patched tokens and the gradient ``g`` of the score of the side
    that is run, the effect in either direction is about ``Σ g · (c_chosen − c_rejected)``: signed
    as in :func:`~reward_lens.instruments.patch_grid`, whose effects these are exactly where the
    score is linear in the activation. Where it is not, the estimate can be wrong in size, rank and
    sign: a saturated softmax has no gradient, however large the effect. Hence the exact grid is
    run on a sample, and how well the two agree is part of the result.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    by : {"component", "head"}
        The embedding and every attention and MLP write; or every attention head.
    positions : {"final", "aligned", "all"}, int, (start, stop) or Position
        The tokens that are patched, as in :func:`~reward_lens.instruments.patch_grid`.
    direction : {"both", "noise", "denoise"}
    steps : int
        0: the gradient where the side is. Above: its mean over that many points of the way to the
        other side (Gauss–Legendre), where the input embeddings of all tokens move along a straight
        line and the network follows (Hanna et al. 2024, "Have faith in faithfulness", EAP-IG). On
        sides of unequal length only the tokens move that stand beside a token of the other side.
        With ``positions="all"`` the embedding's estimates then tend to the margin.
    sample : int
        Number of pairs, drawn from every subset, on which the exact grid is run; 0 for none.
    screen : int, optional
        Run the exact patch of the ``screen`` components with the largest mean absolute estimate on
        all pairs. What the sample's exact grid holds outside of them is in the table ``missed``
        (unknown, so NaN, with ``sample=0``).
    seed : int
        Of the sample.
    readout : str
    position : {"native", "last", "first", "mean"}, optional
        Which token is read.
    progress : callable, optional
        Told the number of finished items, those of the exact runs included.

    Returns
    -------
    Evidence
        Value float64 ``[quantity, direction, pair, component]`` in reward units: ``estimate``, and
        ``exact`` (NaN where it was not run). Tables: ``components`` (the mean estimate with a
        cluster-t interval, per direction and component); ``agreement`` (per direction: Spearman's
        rank correlation of estimate and exact effect over components, the mean over the sampled
        pairs with a cluster-t interval over lineages; that of the mean effects; the largest gap as
        a share of the largest exact effect); with ``screen``, ``screened`` (exact mean effects on
        all pairs) and ``missed``; ``pairs`` (scores, margin, patched tokens, tokens that moved
        along the way, whether the pair is in the sample).

    Raises
    ------
    CapabilityError
        If an option is unknown, the signal has no gradients, or the head reads a mean and
        ``positions`` is ``final``.
    AnatomyError
        If the writes, or the heads, did not verify; with ``steps``, if the embedding also enters a
        later block.
    DataError
        If there are no pairs, a pair does not have the tokens (names the pair), or a count or
        the seed is no whole number.
    NumericsError
        If a gradient is not finite; names the item.
    """
    require(signal, Capability.ACTIVATIONS | Capability.GRADIENTS, "attribution_patching")
    seed = checked_seed(seed)
    given = as_pairs(pairs)
    _check(by, direction)
    steps, sample = checked_count("steps", steps, 0), checked_count("sample", sample, 0)
    if screen is not None:
        screen = checked_count("screen", screen, 1, "None for no screen")
    directions = list(SIDE_RUN) if direction == "both" else [direction]
    again = signal.trunk.anatomy.missing.get("embed.again", "")
    if steps and again:  # then only a part of the embedding would move
        raise AnatomyError(f"steps={steps}: {again}; use steps=0")
    targets = grid_targets(signal.trunk.anatomy, by)
    sides = Sides.of(signal, given, position, truncate)
    tokens = patched_tokens(sides, positions)
    chosen = signal.bound(readout, sides.encoded, batch_tokens)
    found = estimate_effects(
        signal, sides, tokens, targets, chosen, directions, steps, batch_tokens, progress
    )
    exactly = partial(
        patch_grid, signal, by=by, positions=positions, direction=direction, readout=readout,
        position=position, truncate=truncate, batch_tokens=batch_tokens, progress=progress,
    )  # fmt: skip
    sampled = given.sample(sample, seed) if sample else None
    top = [] if screen is None else top_components(found.effects, targets, screen)
    runs = [] if sampled is None else [exactly(sampled)]
    runs += [exactly(given, components=top)] if top else []
    exact = _exact(given, targets, directions, runs)
    compared = _Compared(given, directions, targets, found.effects, exact)
    tables = compared.effect_tables(real_margins(found.scores), top)
    tables["pairs"] = found.pair_table(sides, tokens, sampled)
    more, intervals = compared.agreement_tables(sampled, top)
    tables |= more
    return observation(
        signal,
        "attribution_patching",
        value=xr.DataArray(
            np.stack([found.effects, exact]),
            dims=("quantity", "direction", "pair", "component"),
            coords={
                "quantity": list(QUANTITIES),
                "direction": directions,
                "component": [str(t) for t in targets],
                **sides.pair_coords(),
            },
            name="effect",
        ),
        data=given.fingerprint,
        readout=chosen,
        position=position,
        tier=Tier.CAUSAL,
        interventions=(f"{by}s exchanged between the sides, to first order, at {positions}",),
        seeds=(seed,) if sampled is not None else (),
        parents=runs,
        parameters={
            "by": by,
            "positions": str(as_position(positions)),
            "direction": direction,
            "steps": steps,
            "sample": sample,
            "screen": screen,
            "readout": readout,
            "truncate": truncate,
            "batch_tokens": batch_tokens,
        },
        cost=found.forwards + sum(e.provenance.cost_forwards for e in runs),
        quantity_units=QUANTITIES,
        uncertainty=intervals,
        tables=tables,
    )


def _check(by: str, direction: str) -> None:
    if by not in BY:
        raise CapabilityError(f"by={by!r}: choose one of {', '.join(BY)}")
    if direction not in (*SIDE_RUN, "both"):
        raise CapabilityError(f"direction={direction!r}: choose {', '.join(SIDE_RUN)} or both")


@dataclass(frozen=True)
class _Compared:
    """Estimates and exact effects ``[direction, pair, target]``, NaN where not run exactly."""

    pairs: Pairs
    directions: list[str]
    targets: list[Target]
    estimates: Floats
    exact: Floats

    def effect_tables(self, margins: Floats, top: Sequence[str]) -> dict[str, pd.DataFrame]:
        """Mean effects over pairs: estimated, and exact ones of the screened components."""
        labels = [{"direction": d, "component": str(t)}
                  for d in self.directions for t in self.targets]  # fmt: skip
        lineages = self.pairs.lineages
        tables = {"components": effect_rows(labels, _by_row(self.estimates), margins, lineages)}
        if top:
            rows = [k for k, label in enumerate(labels) if label["component"] in top]
            some = [labels[k] for k in rows]
            tables["screened"] = effect_rows(some, _by_row(self.exact)[rows], margins, lineages)
        return tables

    def agreement_tables(
        self, sampled: Pairs | None, top: Sequence[str]
    ) -> tuple[dict[str, pd.DataFrame], tuple[Interval, ...]]:
        """What the sample's exact grid says of the estimates, and of a screen by them."""
        where = np.isin(self.pairs.ids, [] if sampled is None else sampled.ids)
        estimates, exact = self.estimates[:, where], self.exact[:, where]
        tables: dict[str, pd.DataFrame] = {}
        intervals: tuple[Interval, ...] = ()
        if sampled is not None:
            tables["agreement"], intervals = agreement(
                self.directions, estimates, exact, self.pairs.lineages[where]
            )
        if top:
            tables["missed"] = missed(self.directions, self.targets, self.estimates, exact, top)
        return tables, intervals


def _by_row(effects: Floats) -> Floats:
    """Turn ``[direction, pair, component]`` into ``[direction and component, pair]``."""
    rows: Floats = effects.transpose(0, 2, 1).reshape(-1, effects.shape[1])
    return rows


def _exact(
    given: Pairs, targets: list[Target], directions: list[str], grids: list[Evidence]
) -> Floats:
    """Exact effects ``[direction, pair, target]`` of grids on some pairs or components."""
    ours = {"direction": directions, "pair": given.ids, "component": [str(t) for t in targets]}
    exact = np.full([len(labels) for labels in ours.values()], np.nan)
    for grid in grids:
        effect = grid.value.sel(quantity="effect").transpose(*ours)
        at = [[labels.index(x) for x in effect[dim].values] for dim, labels in ours.items()]
        exact[np.ix_(*at)] = effect.values
    return exact
