"""Concept dose-response: how the reward answers to a concept that is added to the stream."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from reward_lens.backbone import MEAN, Site, Target
from reward_lens.data import as_pairs
from reward_lens.errors import CapabilityError, DataError
from reward_lens.evidence import Evidence, GaugeStatus, Tier
from reward_lens.evidence.arguments import checked_count, checked_seed
from reward_lens.instruments.concepts import Concept, fit_concept
from reward_lens.instruments.dose_curves import random_units
from reward_lens.instruments.dose_runs import DosePlan, run_doses
from reward_lens.instruments.dose_tables import dose_tables, doubtful_concept
from reward_lens.instruments.sides import Sides
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation
from reward_lens.signals.intervening import refuse_replaced_stream
from reward_lens.signals.item_tables import item_coords

DOSES = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
POSITIONS = ("final", "response", "all")
SITES = ("resid_pre", "resid_mid", "resid_post")

Floats = npt.NDArray[np.float64]


def concept_dose_response(
    signal: ClassifierRM,
    pairs: Any,
    concept: Any,
    *,
    layer: int | None = None,
    site: str = "resid_post",
    method: str = "mean_difference",
    doses: Sequence[float] = DOSES,
    positions: str = "final",
    directions: int = 20,
    sample: int | None = 16,
    executor: str | None = None,
    seed: int = 0,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Add a concept to the residual stream, dose by dose, and score again.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
        The items that are steered: both sides of every pair.
    concept : Concept, labelled items, pairs, or ndarray or Tensor of shape [width]
        See :func:`~reward_lens.instruments.concepts.fit_concept`, which fits the direction at the
        same site. Dose 1 adds the difference of the two labelled sets along the direction; of a
        direction that is handed over, the vector as it is.
    layer : int, optional
        The last one by default (or that of a fitted ``Concept``): there the answer is that of the
        final norm and the head alone and costs next to nothing. An earlier layer lets the rest of
        the network respond.
    site : {"resid_post", "resid_pre", "resid_mid"}
    method : {"mean_difference", "logistic"}
        How the direction is fitted.
    doses : sequence of float
        In steps of the concept. 0 is added where it is missing.
    positions : {"final", "response", "all"}
        Where it is added: at the token that the head reads, at every token of the response, or at
        every token. A head that reads a mean over tokens has no final one.
    directions : int
        Random directions of the same length, run at the same doses on the sample; 0 for none.
    sample : int, optional
        How many items the random directions are run on, drawn by ``seed``; ``None`` for all.
    executor : str, optional
        ``"full forward"`` runs a whole forward for every dose: slow, and the reference.
    seed : int
        Of the sample, the random directions and the folds of the cross-validation.
    readout : str
    position : {"native", "last"}, optional
        Which token is read, of steered and of labelled items.
    progress : callable, optional
        Told the number of finished items.

    Returns
    -------
    Evidence
        Value float64 ``[dose, item]``: scores in reward units. Intervals ``slope`` (also per side
        and subset), ``cosine`` and ``concept.accuracy``. Tables:

        - ``slope``: reward per dose, least squares over the linear range per item, mean with a
          cluster-t interval over lineages; ``predicted``, what the gradient at dose 0 says; and the
          spread of the clean scores, to judge the size by.
        - ``curve``: per dose the mean score, the mean change from dose 0 with its interval, what
          the tangent predicts, the 95 % band of random directions, and how often a router chose
          other experts than in the clean runs (0 without routers): there the curve may jump.
        - ``concept``: how well the direction tells its labels apart, how long a dose is beside the
          states, cosines with the effective reward direction, and the linear range.
        - ``random`` and ``band``: slope of each random direction on the sample; their 95 % band and
          the concept's place in it.
        - ``engine``: executor, forwards, and how far the engine's dose 0 is from the clean score.

    Raises
    ------
    CapabilityError
        If an option is unknown, the signal was not looked into, or nothing reads the tokens.
    DataError
        If a concept has too few labelled items, another shape or another site, the doses are none,
        an item has no response to steer at, or a layer, a count or the seed is no whole number.
    NumericsError
        If the labelled sets do not differ at the site.
    AnatomyError
        If the model does not have the site.

    Warns
    -----
    UserWarning
        If a fitted direction does not tell its own labels apart better than chance, on items that
        it was not fitted on: then its slope says nothing about the concept.

    Notes
    -----
    Intervals of slopes hold the direction as it was fitted. The *effective reward direction* is
    the gradient of the readout with respect to a vector that is added at the steered tokens;
    only behind the last layer and for an affine head is it the head's own row, through the norm
    at the item. Its cosine with the concept is given for the mean over items and per item.

    The *linear range* is the largest dose ``D`` such that between ``−D`` and ``D`` the mean curve
    departs from its tangent at 0 by at most a tenth of what the tangent changes over ``D``. Where
    no dose keeps to that, it is 0 and slopes are fitted over the smallest doses alone.

    Random directions are drawn evenly from the sphere. Streams have few strong directions and many
    weak ones, so they are a mild null: lying outside the band says that the concept is no arbitrary
    direction, not that the reward looks for it. ``RAW_ONLY``: a direction belongs to one model's
    coordinates.
    """
    require(signal, Capability.ACTIVATIONS | Capability.GRADIENTS, "concept_dose_response")
    refuse_replaced_stream(signal, "concept_dose_response")
    seed = checked_seed(seed)
    if sample is not None:
        sample = checked_count("sample", sample, 1, "None for all items")
    given = as_pairs(pairs)
    target = _target(signal, concept, layer, site)
    levels = _levels(doses)
    why = "a band takes at least two, and 0 leaves it out"
    directions = checked_count("directions", directions, 0, why)
    if directions == 1:
        raise DataError(f"directions={directions}: {why}")
    sides = Sides.of(signal, given, position, truncate)
    tokens = _tokens(signal, sides, positions, target, truncate)
    chosen = signal.bound(readout, sides.encoded, batch_tokens)
    fitted = concept if isinstance(concept, Concept) else fit_concept(
        signal, concept, target.site, method=method, seed=seed, position=position,
        truncate=truncate, batch_tokens=batch_tokens,
    )  # fmt: skip
    if doubt := doubtful_concept(fitted):
        warnings.warn(doubt, UserWarning, stacklevel=2)
    rng = np.random.default_rng(seed)
    drawn = _sample(sample, len(sides.encoded), rng)
    drawn = drawn if directions else drawn[:0]
    units = random_units(directions, len(fitted.direction), rng)
    vectors = np.concatenate([fitted.vector[None], fitted.step * units])
    plan = DosePlan(sides.encoded, sides.read, target, tokens, levels, vectors, drawn)
    found = run_doses(signal, plan, chosen, executor, batch_tokens, progress)
    tables, intervals = dose_tables(plan, found, fitted, sides)
    return observation(
        signal,
        "concept_dose_response",
        xr.DataArray(
            found.scores,
            dims=("dose", "item"),
            coords={"dose": levels, **_coords(signal, sides)},
            name="score",
        ),
        data=given.fingerprint,
        readout=chosen,
        position=position,
        tier=Tier.CAUSAL,
        gauge=GaugeStatus.RAW_ONLY,
        interventions=(
            f"doses of concept {fitted.fingerprint} ({fitted.method}) added to {target} at "
            f"{positions} tokens",
        ),
        seeds=(seed,),
        parameters={
            "concept": fitted.fingerprint,
            "site": str(target),
            "method": fitted.method,
            "doses": levels.tolist(),
            "positions": positions,
            "directions": directions,
            "sample": sample,
            "executor": executor,
            "readout": readout,
            "truncate": truncate,
            "batch_tokens": batch_tokens,
        },
        cost=found.forwards + (0 if fitted is concept else fitted.n_positive + fitted.n_negative),
        uncertainty=intervals,
        tables=tables,
    )


def _target(signal: ClassifierRM, concept: Any, layer: int | None, site: str) -> Target:
    """Where the concept is added."""
    if site not in SITES:
        raise CapabilityError(f"site={site!r}: choose one of {', '.join(SITES)}")
    if isinstance(concept, Concept):
        where = Site.parse(concept.site)
        if layer is not None and where != Site(site, layer):
            raise DataError(
                f"the concept was fitted at {where} and is to be added at L{layer}.{site}: fit it "
                f"there, or leave out layer="
            )
        return Target(where)
    last = signal.meta.n_layers - 1
    where = Site(site, last if layer is None else checked_count("layer", layer, 0))
    signal.trunk.anatomy.block(where)  # refuses a layer that does not exist
    return Target(where)


def _levels(doses: Sequence[float]) -> Floats:
    """Doses in rising order, 0 among them."""
    try:
        levels = np.asarray(list(doses), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"doses={doses!r}: give a list of numbers ({error})") from error
    if levels.ndim != 1 or not np.isfinite(levels).all() or not levels.any():
        raise DataError(f"doses={doses!r}: give finite numbers, at least one of them not 0")
    if len(set(levels.tolist())) < len(levels):
        raise DataError(f"doses={doses!r}: a dose is given twice")
    return np.unique(np.append(levels, 0.0))


def _tokens(
    signal: ClassifierRM, sides: Sides, positions: str, target: Target, truncate: str
) -> list[tuple[int, ...]]:
    """The steered tokens of every item."""
    if positions not in POSITIONS:
        raise CapabilityError(f"positions={positions!r}: choose one of {', '.join(POSITIONS)}")
    averaged = MEAN in sides.read
    if positions == "final" and averaged:
        raise CapabilityError(
            "positions='final': this head reads the mean over all tokens, so there is no one token "
            "that it reads; steer at 'response' or 'all'"
        )
    if positions == "final":
        return [(r,) for r in sides.read]
    if target.first_block == signal.meta.n_layers and not averaged:
        raise CapabilityError(
            f"positions={positions!r} at {target}: behind the last layer nothing reads any token "
            f"but the final one; steer at positions='final', or at an earlier layer="
        )
    if positions == "all":
        return [tuple(range(len(e.ids))) for e in sides.encoded]
    return _response_tokens(signal, sides, truncate)


def _response_tokens(signal: ClassifierRM, sides: Sides, truncate: str) -> list[tuple[int, ...]]:
    n, found = len(sides.pairs), []
    for k, item in enumerate([*sides.pairs.chosen, *sides.pairs.rejected]):
        span = signal.encoder.align(item, truncate).response
        if span is None:
            raise DataError(
                f"pair {sides.pairs.ids[k % n]!r}, the {'chosen' if k < n else 'rejected'} side: "
                f"it is not known which tokens are the response's (rendered text and ids do not "
                f"say); steer at positions='all' or 'final'"
            )
        found.append(tuple(range(*span)))
    return found


def _sample(sample: int | None, n: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The items that random directions are run on, in order."""
    size = n if sample is None else min(sample, n)
    return np.sort(rng.choice(n, size, replace=False)).astype(np.int64)


def _coords(signal: ClassifierRM, sides: Sides) -> dict[str, Any]:
    """Coordinates of the dimension ``item``: chosen sides, then rejected sides."""
    pairs = sides.pairs
    items = [*pairs.chosen, *pairs.rejected]
    names = [side for side in ("chosen", "rejected") for _ in pairs]
    return {
        **item_coords(signal.encoder, items, sides.encoded, sides.read),
        "item": [f"{i}.{s}" for i, s in zip([*pairs.ids, *pairs.ids], names, strict=True)],
        "pair": ("item", [*pairs.ids, *pairs.ids]),
        "side": ("item", names),
        "lineage": ("item", np.tile(pairs.lineages, 2)),
        "subset": ("item", np.tile(pairs.subsets, 2)),
    }
