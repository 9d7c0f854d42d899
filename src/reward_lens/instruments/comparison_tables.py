"""The tables of a comparison of two signals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from reward_lens.data import Item, Pairs
from reward_lens.data.clones import CloneCount
from reward_lens.errors import NumericsError
from reward_lens.evidence import Evidence, Interval
from reward_lens.evidence.conversions import prompt_sd
from reward_lens.evidence.intervals import accuracy
from reward_lens.evidence.multiplicity import adjusted
from reward_lens.evidence.paired import paired_accuracy
from reward_lens.geometry.corpus import Corpus
from reward_lens.instruments.derived import subset_name

Floats = npt.NDArray[np.float64]

ALL_PAIRS = "all"


@dataclass(frozen=True)
class Margins:
    """Margins of both signals, ``[pair]``.

    Attributes
    ----------
    a, b : ndarray of float64
        In each signal's own reward units.
    sd_a, sd_b : float
        Standard deviation of the signal's scores within a prompt; NaN where there is none.
    """

    a: Floats
    b: Floats
    sd_a: float
    sd_b: float

    @classmethod
    def of(cls, pairs: Pairs, corpus: Corpus, scores: Sequence[Floats]) -> Margins:
        """From the scores of the corpus' items by both signals."""
        n = len(pairs)
        chosen, rejected = corpus.places[:n], corpus.places[n:]
        a, b = (s[chosen] - s[rejected] for s in scores)
        sd_a, sd_b = (_sd(s, corpus) for s in scores)
        return cls(a, b, sd_a, sd_b)

    @property
    def agreed(self) -> Floats:
        """1 where both prefer the same side or both tie, −1 where they flip, 0 where one ties."""
        one, other = np.sign(self.a), np.sign(self.b)
        return np.where(one == other, 1.0, one * other)


def _sd(scores: Floats, corpus: Corpus) -> float:
    try:
        return prompt_sd(scores, corpus.prompts)
    except NumericsError:  # a signal without differences within a prompt has no such scale
        return math.nan


def agreement_rows(pairs: Pairs, margins: Margins) -> tuple[pd.DataFrame, list[Interval]]:
    """Agreement and accuracies over all pairs and per subset.

    Returns
    -------
    table : DataFrame
    intervals : list of Interval
        ``agreement`` and ``accuracy_difference`` of all pairs, then those of each subset.
    """
    # No mapping by name: a subset may be called as the row of all pairs is.
    groups = [(ALL_PAIRS, "", np.ones(len(pairs), dtype=bool))]
    if len(pairs.subset_counts) > 1:
        groups += [(subset_name(s, ALL_PAIRS), f"[subset={s}]", pairs.subsets == s)
                   for s in pairs.subset_counts]  # fmt: skip
    rows: list[dict[str, object]] = []
    intervals: list[Interval] = []
    for name, label, where in groups:
        row, found = _agreement_row(name, label, pairs.lineages[where], margins, where)
        rows.append(row)
        intervals += found
    table = pd.DataFrame(rows)
    # The row of all pairs is one question of its own; the subsets are asked at once.
    table["p_adjusted"] = table["p"]
    if len(table) > 1:
        table.loc[1:, "p_adjusted"] = adjusted(table["p"].to_numpy()[1:], "holm")
    return table, intervals


def _agreement_row(
    name: str,
    label: str,
    lineages: npt.NDArray[np.object_],
    margins: Margins,
    where: npt.NDArray[np.bool_],
) -> tuple[dict[str, object], list[Interval]]:
    a, b = margins.a[where], margins.b[where]
    agreement, half = accuracy(f"agreement{label}", margins.agreed[where], lineages)
    paired = paired_accuracy(f"accuracy_difference{label}", a, b, lineages)
    right = [accuracy("accuracy", m, lineages)[0] for m in (a, b)]
    gap = paired.difference
    row = {
        "group": name,
        "pairs": len(a),
        "lineages": agreement.clusters,
        "agreement": agreement.estimate,
        "low": agreement.low,
        "high": agreement.high,
        "ties_of_one": int(half),
        "ties_of_both": int(((a == 0) & (b == 0)).sum()),
        "accuracy_a": right[0].estimate,
        "accuracy_b": right[1].estimate,
        "difference": gap.estimate,
        "difference_low": gap.low,
        "difference_high": gap.high,
        "only_a": paired.only_a,
        "only_b": paired.only_b,
        "p": paired.p,
        "note": "; ".join(dict.fromkeys(x for x in (agreement.note, gap.note) if x)),
    }
    return row, [agreement, gap]


def pair_table(pairs: Pairs, margins: Margins) -> pd.DataFrame:
    """Both margins of every pair, in within-prompt standard deviations of each signal."""
    return pd.DataFrame(
        {
            "pair": pairs.ids,
            "subset": pairs.subsets,
            "margin_a": margins.a / margins.sd_a,
            "margin_b": margins.b / margins.sd_b,
            "agreement": np.array(["one ties", "agree", "flip"])[margins.agreed.astype(int)],
        }
    )


def flip_table(pairs: Pairs, margins: Margins, examples: int) -> pd.DataFrame:
    """The flips that both signals are surest of, with their texts.

    ``confidence`` is the smaller of the two |margins|, each in its signal's within-prompt standard
    deviations.
    """
    a, b = margins.a / margins.sd_a, margins.b / margins.sd_b
    sure = np.where(margins.agreed < 0, np.minimum(np.abs(a), np.abs(b)), -1.0)
    order = [int(k) for k in np.argsort(-sure, kind="stable") if sure[k] >= 0][: max(examples, 0)]
    return pd.DataFrame(
        {
            "pair": [pairs.ids[k] for k in order],
            "subset": [str(pairs[k].subset) for k in order],
            "a_prefers": ["chosen" if a[k] > 0 else "rejected" for k in order],
            "margin_a": a[order],
            "margin_b": b[order],
            "confidence": sure[order],
            "prompt": [pairs[k].chosen.prompt_text for k in order],
            "chosen": [_text(pairs[k].chosen) for k in order],
            "rejected": [_text(pairs[k].rejected) for k in order],
        }
    )


def _text(item: Item) -> str:
    """The response; of rendered text all of it, of ids the ids."""
    if item.response is not None:
        return item.response
    return item.text if item.text is not None else " ".join(map(str, item.ids or ()))


def depth_table(depths: tuple[Evidence | None, Evidence | None]) -> dict[str, pd.DataFrame]:
    """Depth profiles side by side: quartiles over pairs of the share of the final margin."""
    rows = []
    for name, found in zip("ab", depths, strict=True):
        if found is None:
            continue
        crossings = found.tables["crossings"]
        real = crossings.loc[crossings["reading"] == "frozen", "first"].notna().to_numpy()
        curve = found.value.sel(reading="frozen").values[real]
        if not len(curve):
            continue
        shares = np.quantile(curve / curve[:, -1:], [0.25, 0.5, 0.75], axis=0)
        for depth, fraction in enumerate(found.value["fraction"].values):
            low, middle, high = shares[:, depth]
            rows.append(
                {
                    "signal": name,
                    "depth": depth,
                    "fraction": float(fraction),
                    "median_share": middle,
                    "lower_quartile": low,
                    "upper_quartile": high,
                    "pairs": len(curve),
                    "degenerate": int((~real).sum()),
                }
            )
    return {"depth": pd.DataFrame(rows)} if rows else {}


def conditions_table(
    clones: CloneCount, corpus: Corpus, missing: tuple[str, str], dropped: str
) -> pd.DataFrame:
    """What was dropped, joined or not offered, and the policy on ties."""
    said = {
        "pairs that repeat another": str(clones.pairs),
        "of those, with sides exchanged": str(clones.reversed),
        "lineages joined because they share a text": str(clones.lineages_joined),
        "items that stood there already": str(corpus.repeated),
        "note on the correlations": dropped or "none",
        "ties": "a pair that one signal ties on counts half; both tying is agreement",
        "depth of a": missing[0] or "measured",
        "depth of b": missing[1] or "measured",
    }
    return pd.DataFrame({"condition": list(said), "value": list(said.values())})
