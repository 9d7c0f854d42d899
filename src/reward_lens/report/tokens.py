"""Texts with values per token, as spans: sign by underline, size by shade, numbers on hover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from markupsafe import Markup, escape

from reward_lens.evidence import Evidence

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shade:
    """One value per token.

    Attributes
    ----------
    key : str
        Of its style variable and its radio button.
    short, title : str
        What it is called on a token's tooltip, and in full.
    signs : tuple of str
        Classes of a token whose value is not negative, and of one whose value is.
    values : ndarray, [row of the table of tokens]
    """

    key: str
    short: str
    title: str
    signs: tuple[str, str]
    values: Floats

    @property
    def full(self) -> float:
        """The value of full shade: the 99th percentile of sizes over every shown token."""
        sizes = np.abs(self.values[np.isfinite(self.values)])
        return (float(np.quantile(sizes, 0.99)) if len(sizes) else 0.0) or 1.0

    def percent(self, value: float) -> int:
        """How strong the shade of a value is."""
        return 0 if np.isnan(value) else round(min(abs(value) / self.full, 1.0) * 70)


@dataclass(frozen=True)
class Shades:
    """The tokens of the shown pairs and everything that is known of each.

    Attributes
    ----------
    tokens : DataFrame
        One row per token: ``side``, ``pair``, ``token``, ``read``, ``response``.
    shades : list of Shade
    """

    tokens: pd.DataFrame
    shades: list[Shade]

    @classmethod
    def of(cls, tokens: Evidence | None, sources: Evidence | None) -> Shades:
        """Gather from the token map and from the attribution by source token."""
        measured = tokens if tokens is not None else sources
        if measured is None:
            return cls(pd.DataFrame(), [])
        table, found = measured.tables["tokens"], []
        if "prefix" in table:
            values = table["prefix"].to_numpy(dtype=float)
            found.append(Shade("a", "change", "change of the prefix score", ("p", "m"), values))
        if sources is not None:
            title = "what the read position's attention takes from the token"
            found.append(Shade("b", "source", title, ("q", "w"), _sources(sources, table)))
        if "gradient" in table:
            values = table["gradient"].to_numpy(dtype=float)
            found.append(Shade("c", "gradient", "gradient × input", ("g", "h"), values))
        return cls(table, found)

    def text(self, pair: str, side: str) -> Markup:
        """One side of one pair; the token the head reads is boxed and named."""
        rows = np.flatnonzero((self.tokens["pair"] == pair) & (self.tokens["side"] == side))
        return Markup("").join(self._token(int(k)) for k in rows)

    def _token(self, k: int) -> Markup:
        row = self.tokens.iloc[k]
        values = [(s, float(s.values[k])) for s in self.shades]
        classes = [s.signs[int(v < 0)] for s, v in values]
        classes += (["read"] if row["read"] else []) + ([] if row["response"] else ["ctx"])
        said = [f"{s.short} {'–' if np.isnan(v) else f'{v:+.2g}'}" for s, v in values]
        said += ["read here"] if row["read"] else []
        style = ";".join(f"--{s.key}:{p}%" for s, v in values if (p := s.percent(v)))
        return Markup('<i class="{}"{} title="{}">{}</i>').format(
            " ".join(classes),
            Markup(' style="{}"').format(style) if style else "",
            ", ".join(said),
            escape(str(row["token"]).replace("\n", "⏎\n")),
        )


def _sources(sources: Evidence, tokens: pd.DataFrame) -> Floats:
    """What all layers take from each token together, by row of a table of tokens."""
    summed = sources.value.sum("layer", skipna=True)
    out = np.empty(len(tokens))
    for pair in tokens["pair"].unique():
        for side in tokens["side"].unique():
            rows = np.flatnonzero((tokens["pair"] == pair) & (tokens["side"] == side))
            out[rows] = summed.sel(pair=pair, side=side).values[: len(rows)]
    return out
