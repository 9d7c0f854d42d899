"""What is known of single pairs, for a page's browser: values per token, margins by depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from reward_lens.evidence import Evidence
from reward_lens.report.browser_json import size
from reward_lens.report.parts import labels

Floats = npt.NDArray[np.float64]
SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class TokenMap:
    """One way to shade tokens.

    Attributes
    ----------
    key, title, note : str
        ``note`` says what a value is, and what it is not.
    full : str
        The value of full shade, formatted: the 99th percentile of sizes over all measured tokens.
    scale : float
        What a token's number is to be multiplied by to give its value.
    unit, tier, labels : str
        ``labels`` as :func:`~reward_lens.report.parts.labels` makes them.
    """

    key: str
    title: str
    full: str
    scale: float
    unit: str
    note: str
    tier: str
    labels: str


@dataclass(frozen=True)
class Curves:
    """Margins by depth.

    Attributes
    ----------
    depths : int
        Points of a curve; the first is at depth 0.
    unit, labels, path : str
        ``path`` of one point, with ``{r}``, ``{id}`` and ``{d}`` for its coordinates.
    readings : tuple of str
    """

    depths: int
    unit: str
    readings: tuple[str, ...]
    path: str
    labels: str


@dataclass(frozen=True)
class _Kind:
    """A token map that an audit may hold: its evidence, and how its values are got from it."""

    key: str
    name: str
    title: str
    note: str
    values: Callable[[Evidence], Floats | None]


def _column(method: str) -> Callable[[Evidence], Floats | None]:
    """The values of a method of a token map, by row of its table of tokens."""

    def values(e: Evidence) -> Floats | None:
        table = e.tables["tokens"]
        return table[method].to_numpy(dtype=np.float64) if method in table else None

    return values


def _sources(e: Evidence) -> Floats:
    """What all layers take from each token together, by row of the table of tokens."""
    table, summed = e.tables["tokens"], e.value.sum("layer", skipna=True)
    sides, pairs = (pd.Index(e.value[d].values) for d in ("side", "pair"))
    values = summed.transpose("side", "pair", "position").values
    found: Floats = values[
        sides.get_indexer(table["side"]), pairs.get_indexer(table["pair"]), table["position"]
    ].astype(np.float64)
    return found


_KINDS = (
    _Kind("prefix", "token_map", "change of the prefix score",
          "What the token changes in the score of the text read so far. The model was trained to "
          "be read at the end only.", _column("prefix")),
    _Kind("source", "source_attribution", "what the read position's attention takes from the token",
          "Summed over layers, the final norm held. What earlier tokens put into the token's state "
          "counts as the token's.", _sources),
    _Kind("gradient", "token_map", "gradient × input",
          "First-order effect of the token's embedding on the score. A first layer that norms what "
          "it reads makes it small or wrong in sign.", _column("gradient")),
    _Kind("causal", "token_map_causal", "what the score loses without the token",
          "The token is left out and the rest is run again, one token of the response at a time. "
          "The text that is left has a gap that no tokenizer would make.",
          _column("leave_one_out")),
)  # fmt: skip


def token_maps(
    evidence: Mapping[str, Evidence], ids: Sequence[str], most: int, budget: int
) -> tuple[list[TokenMap], dict[str, dict[str, Any]], int]:
    """The tokens of pairs with all that was measured of them.

    Parameters
    ----------
    evidence : mapping of str to Evidence
    ids : sequence of str
        Of the pairs that are on the page.
    most, budget : int
        At most so many pairs, and bytes in the page.

    Returns
    -------
    maps : list of TokenMap
        Those that some pair of these has.
    tokens : dict
        Pair id -> side -> ``tokens``, ``read`` (index or None), ``start`` and ``end`` (half-open)
        of the response, and ``v``: map -> integers in thousandths of full shade, None for none.
    measured : int
        How many pairs were measured.
    """
    kinds = [_Measured.of(k, evidence[k.name]) for k in _KINDS if k.name in evidence]
    known = [kind for kind in kinds if kind is not None]
    wanted = set(ids)
    every = list(dict.fromkeys(pair for kind in known for pair in kind.pairs))
    found: dict[str, dict[str, Any]] = {}
    used = 0
    for pair in every:
        if pair not in wanted or len(found) == most:
            continue
        one = {side: _side(known, pair, side) for side in SIDES}
        if used + size(one) <= budget:
            found[pair] = one
            used += size(one)
    there = {key for one in found.values() for side in one.values() for key in side["v"]}
    return [kind.spec for kind in known if kind.spec.key in there], found, len(every)


@dataclass(frozen=True)
class _Measured:
    """The values of one kind, and where those of a side of a pair stand."""

    spec: TokenMap
    table: pd.DataFrame
    where: Mapping[tuple[str, str], npt.NDArray[np.int64]]
    values: Floats
    full: float

    @classmethod
    def of(cls, kind: _Kind, e: Evidence) -> _Measured | None:
        """Read a kind off its evidence; None where it was not measured."""
        values = kind.values(e)
        if values is None:
            return None
        table = e.tables["tokens"]
        sizes = np.abs(values[np.isfinite(values)])
        full = (float(np.quantile(sizes, 0.99)) if len(sizes) else 0.0) or 1.0
        spec = TokenMap(
            kind.key, kind.title, f"{full:.3g}", float(f"{full / 1000:.6g}"), e.units.value,
            kind.note, e.tier.value, labels(e),
        )  # fmt: skip
        keys = pd.MultiIndex.from_frame(table[["pair", "side"]])
        codes, found = pd.factorize(keys)
        where = {key: np.flatnonzero(codes == k) for k, key in enumerate(found)}
        return cls(spec, table, where, values, full)

    @property
    def pairs(self) -> list[str]:
        return list(dict.fromkeys(self.table["pair"].tolist()))

    def thousandths(self, pair: str, side: str) -> list[int | None] | None:
        """Values of one side in thousandths of full shade; None for a pair not measured."""
        rows = self.where.get((pair, side))
        if rows is None:
            return None
        shares = (1000 * self.values[rows] / self.full).tolist()
        return [None if math.isnan(share) else round(share) for share in shares]


def _side(known: Sequence[_Measured], pair: str, side: str) -> dict[str, Any]:
    """The tokens of one side of a pair that at least one kind has measured."""
    found = {k.spec.key: v for k in known if (v := k.thousandths(pair, side)) is not None}
    first = next(k for k in known if k.spec.key in found)
    rows = first.table.iloc[first.where[pair, side]]
    read, response = np.flatnonzero(rows["read"]), np.flatnonzero(rows["response"])
    # Where the response was not located, all tokens count as the response.
    start, end = (int(response[0]), int(response[-1]) + 1) if len(response) else (0, len(rows))
    return {
        "tokens": rows["token"].tolist(),
        "read": int(read[0]) if len(read) else None,
        "start": start,
        "end": end,
        "v": found,
    }


def depth_curves(
    evidence: Mapping[str, Evidence], ids: Sequence[str], budget: int, name: str = "lens"
) -> tuple[Curves | None, dict[str, dict[str, list[float | None]]]]:
    """Margins by depth of the pairs of which they were measured, as many as fit.

    Parameters
    ----------
    ids : sequence of str
        Of the pairs on the page; the first ones are taken.
    budget : int
        Bytes in the page.
    name : str
        What the evidence of :func:`~reward_lens.lens` is called.

    Returns
    -------
    curves : Curves or None
        None where nothing was measured.
    points : dict
        Pair id -> reading -> margins by depth, to three digits.
    """
    if name not in evidence:
        return None, {}
    e = evidence[name]
    value = e.value.transpose("reading", "pair", "depth")
    place = {pair: k for k, pair in enumerate(value["pair"].values.tolist())}
    readings = tuple(value["reading"].values.tolist())
    found: dict[str, dict[str, list[float | None]]] = {}
    used = 0
    for pair in ids:
        if pair not in place:
            continue
        margins = value.values[:, place[pair]]
        one = {r: [_digits(v) for v in m] for r, m in zip(readings, margins.tolist(), strict=True)}
        used += size(one)
        if used > budget:
            break
        found[pair] = one
    path = f"{name}|value/reading={{r}},pair={{id}},depth={{d}}|.3g"
    unit = e.units.value
    return Curves(value.sizes["depth"], unit, readings, path, labels(e, n="n = 1 pair")), found


def _digits(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.3g}")
