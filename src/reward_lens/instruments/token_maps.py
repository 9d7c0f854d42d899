"""Token map: what each token or sentence of a text adds to its score, by several methods."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from reward_lens.data import as_pairs
from reward_lens.errors import AnatomyError, CapabilityError, NumericsError
from reward_lens.evidence import Evidence
from reward_lens.evidence.arguments import checked_count
from reward_lens.instruments.sides import SIDES, Sides
from reward_lens.instruments.token_methods import (
    BASELINES,
    EmbeddingGradients,
    embedding_gradients,
    leave_out,
)
from reward_lens.instruments.token_units import Ragged, Span, Units, method_agreement, padded
from reward_lens.instruments.tokens import token_curves, token_rows
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.gradient_sweep import FORWARD_AND_BACKWARD
from reward_lens.signals.identity import observation
from reward_lens.signals.readouts import Readout

#: Method -> what the signal must offer for it.
METHODS = {
    "prefix": Capability.PREFIX_SCORES,
    "gradient": Capability.GRADIENTS,
    "integrated": Capability.GRADIENTS,
    "leave_one_out": Capability.SCORES,
}
UNITS = ("token", "sentence")
#: What the head reads by itself -> the positions at which prefix scores are this signal's scores.
_PREFIXES_AT = {"read": ("native", "last"), "mean": ("native", "mean"), "late": ("native",)}
_GAP_WARNS, _GAP_REFUSES = 0.01, 0.10  # of the summed absolute values, for the median item


def token_map(
    signal: ClassifierRM,
    pairs: Any,
    *,
    methods: Sequence[str] | None = None,
    unit: str = "token",
    baseline: str = "mean",
    steps: int = 64,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS // 4,
    progress: Progress | None = None,
) -> Evidence:
    """Spread the score of both sides of pairs over their tokens, by methods that can disagree.

    - ``prefix``: the change that a token makes to the score of the text read so far.
    - ``gradient``: gradient of the score times what enters the first block at the token. A first
      block that norms what it reads is blind to its length, so that this can be small or of the
      wrong sign where the token matters.
    - ``integrated``: integrated gradients (Sundararajan et al. 2017) of the response's tokens: the
      same with the gradient's mean on the straight way from a baseline, times the difference to it;
      prompt and template stay as they are, since without them the way is too rough to add up. The
      values sum to the score less the baseline's, but for the completeness error, which is given.
      Where a router chooses experts the score jumps on the way, and no gradient sees a jump.
    - ``leave_one_out``: the score less that of the ids without the token. The text that is left has
      a gap there that no tokenizer would make, and tokens after it stand one place earlier.

    None of them is the contribution of a token: each answers its own question, and how well they
    agree is part of the result.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    methods : sequence of str, optional
        All that this signal offers by default; the table ``methods`` says what is left out and why.
    unit : {"token", "sentence"}
        What is left out at a time, and what the value is given for. Values of a sentence are the
        sums of its tokens', but for ``leave_one_out``. Only the response is left out in parts.
        Where it could not be located, as in items given as ids, all tokens count as the response.
    baseline : {"mean", "zero"}
        Of integrated gradients: the mean of the embeddings of the response's own tokens (which a
        response of one token is itself, so that its value is 0), or zero.
    steps : int
        Points on the way from the baseline (Gauss–Legendre), two forwards each. On a model of 30
        layers 64 left 1 to 7 % of the summed sizes, 32 three to 20 %.
    progress : callable, optional
        Told the number of finished items, by each pass over them.
    readout : str
    position : {"native", "last", "first", "mean"}, optional
        Which token is read.

    Returns
    -------
    Evidence
        Value float64 ``[reading, side, pair, position]`` (or ``sentence``) in reward units, NaN
        where there is none: beyond the last token, for the first token's prefix change, outside the
        response for ``integrated`` and ``leave_one_out``. Tables: ``tokens`` (text, whether the
        head reads there, whether in the response, the prefix score, every method's value); with
        ``unit="sentence"``, ``sentences``; ``agreement`` (per two methods, Spearman's rank
        correlation over the response's units, the mean over items with a cluster-t interval);
        ``completeness`` (per item: sum, what it should be, the gap); ``methods``.

    Raises
    ------
    CapabilityError, AnatomyError
        If an option is unknown, or a method was asked for that the signal does not offer.
    DataError
        If ``steps`` is no whole number from 1.
    TokenizeError
        With ``unit="sentence"``, if the tokens of an item could not be placed in its text.
    NumericsError
        If a gradient is not finite; if ``integrated`` was asked for and its completeness error is
        above a tenth of the summed sizes for the median item (by default it is then left out).

    Warns
    -----
    UserWarning
        If that error is above a hundredth.
    """
    require(signal, Capability.SCORES, "token_map")
    _check(unit, baseline)
    steps = checked_count("steps", steps, 1)
    lacking = {m: why for m in METHODS if (why := why_lacking(signal, m, position))}
    wanted = _wanted(signal, methods, lacking)
    given = as_pairs(pairs)
    sides = Sides.of(signal, given, position, truncate)
    chosen = signal.bound(readout, sides.encoded, batch_tokens)
    units = Units.of(signal, sides, unit, truncate)
    work = _Work(signal, sides, chosen, position, truncate, batch_tokens, progress)
    by_token: dict[str, Ragged] = {}
    tables: dict[str, pd.DataFrame] = {}
    tokens = work.prefix(by_token) if "prefix" in wanted else token_rows(signal, sides, truncate)
    if not {"gradient", "integrated"}.isdisjoint(wanted):
        nodes = steps if "integrated" in wanted else 0
        found = work.gradients(by_token, units.response, baseline, nodes)
        if "integrated" in wanted:
            tables["completeness"], too_far = _completeness(found, sides, steps, baseline)
            if too_far and methods is not None:
                raise NumericsError(too_far)
            if too_far:
                lacking["integrated"] = too_far
                wanted.remove("integrated")
    by_unit = {m: units.summed(v) for m, v in by_token.items() if m in wanted}
    if "leave_one_out" in wanted:
        by_unit["leave_one_out"] = work.left_out(units)
    for method, values in (by_unit if unit == "token" else by_token).items():
        if method in wanted:
            tokens[method] = np.concatenate(values)
    by_unit = {m: by_unit[m] for m in wanted}
    tables |= {"tokens": tokens, "methods": _method_table(wanted, lacking)}
    if unit == "sentence":
        tables["sentences"] = units.table(sides, by_unit)
    lineages = np.concatenate([given.lineages, given.lineages])
    tables["agreement"], intervals = method_agreement(by_unit, units, lineages)
    n = len(given)
    laid = [padded(v).reshape(2, n, -1) for v in by_unit.values()]
    return observation(
        signal,
        "token_map",
        value=xr.DataArray(
            np.stack(laid),
            dims=("reading", "side", "pair", "position" if unit == "token" else "sentence"),
            coords={"reading": wanted, "side": list(SIDES[:2]), **sides.pair_coords()},
            name="contribution",
        ),
        data=given.fingerprint,
        readout=chosen,
        position=position,
        parameters={
            "methods": None if methods is None else list(wanted),
            "unit": unit,
            "baseline": baseline,
            "steps": steps,
            "readout": readout,
            "truncate": truncate,
            "batch_tokens": batch_tokens,
        },
        cost=work.cost,
        parents=tuple(work.parents),
        uncertainty=intervals,
        tables=tables,
    )


@dataclass
class _Work:
    """The items, how they are run, and what running them has cost."""

    signal: ClassifierRM
    sides: Sides
    readout: Readout
    position: str | None
    truncate: str
    batch_tokens: int
    progress: Progress | None
    cost: float = 0.0
    parents: list[Evidence] = field(default_factory=list)

    def prefix(self, by_token: dict[str, Ragged]) -> pd.DataFrame:
        """Score all prefixes; returns the rows of all tokens."""
        curves = token_curves(
            self.signal, self.sides.pairs, readout=self.readout.name, position=self.position,
            truncate=self.truncate, batch_tokens=self.batch_tokens, progress=self.progress,
        )  # fmt: skip
        self.cost += curves.provenance.cost_forwards
        self.parents.append(curves)
        tokens = curves.tables["tokens"].rename(columns={"score": "prefix_score"})
        ends = np.cumsum([len(e.ids) for e in self.sides.encoded])[:-1]
        by_token["prefix"] = np.split(tokens.pop("change").to_numpy(dtype=np.float64), ends)
        return tokens

    def gradients(
        self, by_token: dict[str, Ragged], responses: list[Span], baseline: str, steps: int
    ) -> EmbeddingGradients:
        """Both gradient methods, from the same runs."""
        found = embedding_gradients(
            self.signal, self.sides, responses, self.readout, baseline, steps, self.batch_tokens,
            self.progress,
        )  # fmt: skip
        runs = FORWARD_AND_BACKWARD * (1 + steps) + (1 if steps else 0)  # the baseline's score
        self.cost += runs * len(self.sides.encoded)
        by_token["gradient"], by_token["integrated"] = found.gradient, found.integrated
        return found

    def left_out(self, units: Units) -> Ragged:
        """Leave every unit of the response out in turn."""
        parts = units.in_response()
        found = leave_out(
            self.signal, self.sides, self.readout.name, self.position, parts, self.batch_tokens,
            self.progress,
        )  # fmt: skip
        self.cost += sum(1 + len(spans) for spans in parts)
        return units.placed(found)


def _check(unit: str, baseline: str) -> None:
    if unit not in UNITS:
        raise CapabilityError(f"unit={unit!r}: choose one of {', '.join(UNITS)}")
    if baseline not in BASELINES:
        raise CapabilityError(f"baseline={baseline!r}: choose one of {', '.join(BASELINES)}")


def why_lacking(signal: ClassifierRM, method: str, position: str | None = None) -> str:
    """Why a signal does not offer a method; empty if it does."""
    lacking = METHODS[method] & ~signal.caps
    if lacking:
        return f"needs {lacking}, which {signal.meta.architecture} does not offer"
    read = signal.meta.position if position is None else position
    pool = signal.trunk.anatomy.head.pool
    if method == "prefix" and read not in _PREFIXES_AT.get(pool, ()):
        return f"a prefix is read where the head reads by itself, and not at position={read!r}"
    again = signal.trunk.anatomy.missing.get("embed.again", "")
    return again if METHODS[method] == Capability.GRADIENTS else ""


def _wanted(
    signal: ClassifierRM, methods: Sequence[str] | None, lacking: dict[str, str]
) -> list[str]:
    if methods is None:
        return [m for m in METHODS if m not in lacking]
    asked = [methods] if isinstance(methods, str) else list(methods)
    if not asked or (unknown := [m for m in asked if m not in METHODS]):
        raise CapabilityError(
            (f"method {unknown[0]!r} is unknown" if asked else "no method was asked for")
            + f": choose from {', '.join(METHODS)}"
        )
    for method in asked:
        require(signal, METHODS[method], f"token_map by {method!r}")
        if method in lacking:
            raise AnatomyError(f"token_map by {method!r} is not available here: {lacking[method]}")
    return [m for m in METHODS if m in asked]


def _method_table(wanted: list[str], lacking: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": list(METHODS),
            "given": [m in wanted for m in METHODS],
            "reason": [lacking.get(m, "" if m in wanted else "not asked for") for m in METHODS],
        }
    )


def _completeness(
    found: EmbeddingGradients, sides: Sides, steps: int, baseline: str
) -> tuple[pd.DataFrame, str]:
    """How far integrated gradients miss the difference of the scores; warn if it is far.

    Returns
    -------
    table : DataFrame
        Per side and pair ``score``, ``baseline_score``, ``total`` (sum of the values), ``gap``
        (``total − (score − baseline_score)``) and ``share`` (``|gap|`` over the summed sizes).
    too_far : str
        What is wrong where it is too far to hand the values out; else empty.
    """
    total = np.array([np.nansum(v) for v in found.integrated])
    sizes = np.array([np.nansum(np.abs(v)) for v in found.integrated])
    gap = total - (found.score - found.baseline)
    share = np.abs(gap) / np.where(sizes > 0, sizes, 1)
    median = float(np.median(share))
    said = (
        f"integrated gradients with steps={steps} miss the difference of the scores by "
        f"{median:.1%} of their summed sizes (median over {len(share)} items)"
    )
    way_out = "take more steps" + (", or baseline='mean'" if baseline == "zero" else "")
    way_out += "; where a router chooses experts the score jumps, which no number of steps sees"
    if _GAP_WARNS < median <= _GAP_REFUSES:
        warnings.warn(f"{said}; {way_out}", UserWarning, stacklevel=3)
    too_far = f"{said}: too far to hand out; {way_out}" if median > _GAP_REFUSES else ""
    n = len(sides.pairs)
    table = pd.DataFrame(
        {
            "side": np.repeat(SIDES[:2], n),
            "pair": [*sides.pairs.ids, *sides.pairs.ids],
            "score": found.score,
            "baseline_score": found.baseline,
            "total": total,
            "gap": gap,
            "share": share,
        }
    )
    return table, too_far
