"""Words that several rooms write alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_lens.evidence import Evidence
    from reward_lens.signals import SignalMeta


def counted(n: int, what: str) -> str:
    """A count and its noun: ``1 pair``, ``2 pairs``, ``2,962 pairs``."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def cut_note(scores: Evidence, meta: SignalMeta) -> str:
    """What truncation did, or nothing: it moves the read token and can make sides identical."""
    table = scores.tables["scores"]
    cut = table[["tokens_cut_chosen", "tokens_cut_rejected"]].to_numpy() > 0
    if not cut.any():
        return ""
    n = int(cut.sum())
    ties = int((cut.any(axis=1) & (table["margin"].to_numpy() == 0)).sum())
    where = "the cut part is not seen"
    if meta.reads not in ("first", "mean") and meta.eos != "overwrite":
        where = "a text cut on the right is read mid-text, without its end token"
    were = "was" if n == 1 else "were"
    return (
        f"{counted(n, 'text')} {were} cut to the model's length ({ties} of their pairs now tie); "
        f"{where}"
    )
