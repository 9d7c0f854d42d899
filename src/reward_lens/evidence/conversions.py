"""From reward units to numbers that two signals share: shares, ranks, within-prompt deviations.

A reward is fixed up to a positive scale and a shift per prompt. Each conversion here takes out
both, or refuses where the shift cannot be taken out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.errors import GaugeError, NumericsError
from reward_lens.evidence.kinds import Units

if TYPE_CHECKING:
    from reward_lens.evidence.record import Evidence

Floats = npt.NDArray[np.float64]


def in_shares(evidence: Evidence, margins: Evidence | None = None) -> Evidence:
    """Margins, or parts of margins, as shares of the signal's own median |margin|.

    Parameters
    ----------
    evidence : Evidence
        In reward units, of differences between the two sides of pairs. Where it has a quantity
        that is a share already, that one is taken.
    margins : Evidence, optional
        Of ``preference`` on the same signal and data, which the scale is taken from; not needed
        where ``evidence`` is of ``preference`` or of ``lens``.

    Returns
    -------
    Evidence
        Units ``SHARE``, instrument ``"in_shares"``; the scale is in the parameters.

    Raises
    ------
    GaugeError
        If it is not in reward units, holds scores rather than margins, or nothing says what the
        margins are.
    NumericsError
        If the median margin is 0.
    """
    if "quantity" in evidence.value.dims:
        shares = [q for q, u in evidence.quantity_units.items() if u is Units.SHARE]
        if shares:
            value = evidence.value.sel(quantity=shares[0], drop=True)
            return _converted(evidence, "in_shares", value, Units.SHARE, {"of": "own share"})
    _check_reward(evidence)
    value = _margins_of(evidence)
    source = evidence if margins is None else margins
    _check_same_subject(evidence, source)
    scale = float(np.median(np.abs(_final_margins(source))))
    if scale == 0:
        raise NumericsError(f"{source.instrument}: the median |margin| is 0, so it is no scale")
    parents = () if margins is None else (margins.id,)
    settings = {"of": "median |margin|", "scale": scale}
    return _converted(evidence, "in_shares", value / scale, Units.SHARE, settings, parents)


def in_ranks(evidence: Evidence) -> Evidence:
    """Margins as ranks over all pairs, or scores as ranks within their prompt.

    Returns
    -------
    Evidence
        Float64, units ``RANK``, instrument ``"in_ranks"``: 1 is the lowest, ties have their mean
        rank. Scores are ranked among the items of one lineage, since a shift per prompt leaves
        only that order.

    Raises
    ------
    GaugeError
        If it is not in reward units, or is neither margins by pair nor scores by item.
    """
    from scipy import stats

    _check_reward(evidence)
    value = evidence.value
    if value.dims == ("item",):
        ranks = _by_lineage(value, lambda x: np.asarray(stats.rankdata(x), dtype=np.float64))
    else:
        value = _margins_of(evidence)
        if "pair" not in value.dims:
            raise GaugeError(f"{evidence.instrument}: there is no dimension 'pair' to rank over")
        ranks = stats.rankdata(value.values, axis=value.dims.index("pair"))
    found = value.copy(data=np.asarray(ranks, dtype=np.float64))
    return _converted(evidence, "in_ranks", found, Units.RANK, {"of": "order"})


def in_prompt_sds(evidence: Evidence) -> Evidence:
    """Scores or margins in standard deviations of the signal's scores within a prompt.

    Parameters
    ----------
    evidence : Evidence
        Of ``score`` (the items' lineages are the prompts) or of ``preference``.

    Returns
    -------
    Evidence
        Float64, units ``SHARE``, instrument ``"in_prompt_sds"``. Scores lose their prompt's mean;
        a score whose prompt has no other response is NaN and counted in the parameters. The
        deviation is pooled: ``√(Σ (s − s̄_prompt)² / Σ (n_prompt − 1))``.

    Raises
    ------
    GaugeError
        If it is not in reward units, or holds neither scores by item nor scores by side and pair.
    NumericsError
        If no score varies within any prompt.
    """
    _check_reward(evidence)
    value = evidence.value.astype(np.float64)
    if value.dims == ("item",):
        scores, prompts = value.values, value["lineage"].values
        alone = ~pd.Series(prompts).duplicated(keep=False).to_numpy()
        sd = prompt_sd(scores, prompts)
        found = value.copy(data=_by_lineage(value, lambda x: (x - x.mean()) / sd))
        found = found.where(~alone)
        settings: dict[str, Any] = {"sd": sd, "prompts_of_one_response": int(alone.sum())}
    elif set(value.dims) == {"side", "pair"}:
        scores = value.sel(side=["chosen", "rejected"]).values
        # By pair, not by lineage: a lineage may hold several prompts, each with its own shift.
        sd = prompt_sd(scores.ravel(), np.tile(np.arange(scores.shape[1]), 2))
        found, settings = _margins_of(evidence).astype(np.float64) / sd, {"sd": sd}
    else:
        raise GaugeError(
            f"{evidence.instrument}: within-prompt deviations are of scores by item or by side and "
            f"pair, and this has {value.dims}; in_shares is for what is made of margins"
        )
    settings = {"of": "within-prompt standard deviation", **settings}
    return _converted(evidence, "in_prompt_sds", found, Units.SHARE, settings)


def prompt_sd(scores: npt.ArrayLike, prompts: npt.ArrayLike) -> float:
    """Standard deviation of scores ``[n]`` around the mean of their prompt, pooled.

    Raises
    ------
    NumericsError
        If no prompt has two responses, or no score varies within one.
    """
    table = pd.DataFrame({"score": np.asarray(scores, dtype=np.float64), "prompt": prompts})
    spread = table.groupby("prompt")["score"].agg(["var", "count"])
    freedom = spread["count"] - 1
    if not (freedom > 0).any():
        raise NumericsError("every prompt has one response: there is no spread within a prompt")
    sd = float(np.sqrt((spread["var"].fillna(0.0) * freedom).sum() / freedom.sum()))
    if sd == 0:
        raise NumericsError("the scores do not vary within any prompt: there is no scale in them")
    return sd


def _by_lineage(value: xr.DataArray, change: Callable[[Floats], Floats]) -> Floats:
    """Change the values of each lineage by themselves."""
    out = np.asarray(value.values, dtype=np.float64).copy()
    for rows in pd.Series(range(len(out))).groupby(value["lineage"].values).indices.values():
        out[rows] = change(out[rows])
    return out


def _check_reward(evidence: Evidence) -> None:
    if evidence.units is not Units.REWARD:
        raise GaugeError(
            f"{evidence.instrument} is in units of {evidence.units.value}, which need no conversion"
        )


def _margins_of(evidence: Evidence) -> xr.DataArray:
    """The part of a value that is free of a shift per prompt."""
    value = evidence.value
    if "item" in value.dims:
        raise GaugeError(
            f"{evidence.instrument} holds scores of items, which a shift per prompt moves; use "
            f"in_ranks or in_prompt_sds, or measure margins with preference"
        )
    if "quantity" in value.dims:
        value = value.sel(quantity="effect", drop=True)
    return value.sel(side="margin", drop=True) if "side" in value.dims else value


def _final_margins(source: Evidence) -> Floats:
    """Margin of every pair, ``[pair]``, in reward units."""
    value = source.value
    if source.instrument == "preference":
        found = value.sel(side="margin")
    elif source.instrument == "lens":
        found = value.sel(reading="frozen").isel(depth=-1)
    else:
        raise GaugeError(
            f"{source.instrument} does not say what the margins are: pass margins=, the preference "
            f"evidence of the same signal and pairs"
        )
    return np.asarray(found.values, dtype=np.float64)


def _check_same_subject(evidence: Evidence, source: Evidence) -> None:
    one, other = evidence.subject, source.subject
    if (one.signal, one.data, one.readout) != (other.signal, other.data, other.readout):
        raise GaugeError(
            f"{evidence.instrument} and the margins of {source.instrument} are not of the same "
            f"signal, data and readout"
        )


def _converted(
    evidence: Evidence,
    name: str,
    value: xr.DataArray,
    units: Units,
    settings: Mapping[str, Any],
    parents: tuple[str, ...] = (),
) -> Evidence:
    given = evidence.provenance
    return dataclasses.replace(
        evidence,
        value=value.rename(f"{evidence.value.name}"),
        instrument=name,
        version="1",
        units=units,
        provenance=dataclasses.replace(
            given,
            parents=(evidence.id, *parents),
            cost_forwards=0.0,
            parameters={"instrument": evidence.instrument, **given.parameters, **settings},
        ),
        uncertainty=(),
        tables={},
        quantity_units={},
        calibration=None,
    )
