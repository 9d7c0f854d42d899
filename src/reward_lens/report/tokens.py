"""Texts with a value per token, as spans: sign by underline, size by shade, number on hover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from reward_lens.evidence import Evidence


@dataclass(frozen=True)
class Scales:
    """The value of full shade, one per map, shared by all texts of the page."""

    change: float
    source: float


def scales(curves: Evidence | None, sources: Evidence | None) -> Scales:
    """The 99th percentile of sizes over every shown token."""
    change = np.array([0.0])
    if curves is not None:
        change = curves.tables["tokens"]["change"].abs().to_numpy(dtype=float)
    source = np.array([0.0])
    if sources is not None:
        source = np.abs(np.nansum(sources.value.values, axis=2)).ravel()
    return Scales(_full(change), _full(source))


def _full(sizes: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    finite = sizes[np.isfinite(sizes)]
    top = float(np.quantile(finite, 0.99)) if len(finite) else 0.0
    return top or 1.0


def text_map(
    curves: Evidence | None, sources: Evidence | None, pair: str, side: str, scale: Scales
) -> Markup:
    """One side of one pair as token spans; the token the head reads is boxed and named."""
    shown = curves if curves is not None else sources
    if shown is None:
        return Markup("")
    table = shown.tables["tokens"]
    rows = table[(table["pair"] == pair) & (table["side"] == side)]
    source = np.zeros(len(rows))
    if sources is not None:
        one = sources.value.sel(pair=pair, side=side).sum("layer", skipna=True).values
        source = one[: len(rows)]
    parts = [_token(r, s, scale) for (_, r), s in zip(rows.iterrows(), source, strict=True)]
    return Markup("").join(parts)


def _token(row: pd.Series, source: float, scale: Scales) -> Markup:
    change = float(row["change"]) if "change" in row else None
    a = 0.0 if change is None or np.isnan(change) else change
    said = (
        "" if change is None else f"change {'first token' if np.isnan(change) else f'{a:+.3g}'}, "
    )
    classes = [
        "p" if a >= 0 else "m",
        "q" if source >= 0 else "w",
        "read" if row["read"] else "",
        "" if row["response"] else "ctx",
    ]
    text = str(row["token"]).replace("\n", "⏎\n")
    return Markup('<i class="{}" style="--a:{}%;--b:{}%" title="{}">{}</i>').format(
        " ".join(c for c in classes if c),
        _percent(a, scale.change),
        _percent(source, scale.source),
        f"{said}source {source:+.3g}" + (", read here" if row["read"] else ""),
        escape(text),
    )


def _percent(value: float, full: float) -> int:
    return round(min(abs(value) / full, 1.0) * 70)
