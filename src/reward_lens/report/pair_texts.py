"""The section of single pairs: both texts, token by token."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from reward_lens.data import Pairs
from reward_lens.evidence import Evidence
from reward_lens.report.numbers import Numbers
from reward_lens.report.parts import Cell, Section, TokenMap, labels
from reward_lens.report.tokens import Shades


def pair_section(evidence: Mapping[str, Evidence], shown: Pairs, number: Numbers) -> Section:
    """Both sides of the shown pairs, shaded by what each token does."""
    tokens, sources = evidence.get("token_map"), evidence.get("source_attribution")
    shades = Shades.of(tokens, sources)
    ids = evidence["preference"].tables["scores"]["pair"].tolist()
    rows = []
    for pair in shown:
        k = ids.index(pair.id)
        sides = [
            {
                "name": side,
                "score": number("preference", f"table/scores/{k}/{side}"),
                "text": shades.text(pair.id, side),
            }
            for side in ("chosen", "rejected")
        ]
        margin = number("preference", f"table/scores/{k}/margin", "+.3g")
        rows.append({"id": pair.id, "subset": pair.subset, "margin": margin, "sides": sides})
    measured = tokens if tokens is not None else sources
    assert measured is not None
    maps = [TokenMap(s.key, s.title, f"{s.full:.3g}") for s in shades.shades]
    return Section(
        "pairs", "Pairs, token by token", _about(tokens, number), labels=labels(measured),
        pairs=rows, maps=maps,
    )  # fmt: skip


def _about(tokens: Evidence | None, number: Numbers) -> list[Cell]:
    about: list[Cell] = [
        "The pairs with the highest, the lowest and the smallest margins, of those short enough "
        "for a page."
    ]
    if tokens is None:
        return about
    methods = tokens.tables["tokens"].columns
    if "prefix" in methods:
        about.append(
            "A prefix score is what the model would give the text cut there; it was trained to be "
            "read at the end only."
        )
    if "gradient" in methods:
        about.append(
            "Gradient × input is the first-order effect of the token's embedding on the score; a "
            "first layer that norms what it reads makes it small or wrong in sign."
        )
    agreement = tokens.tables["agreement"]
    if len(agreement) and agreement["items"].iloc[0]:
        values = (number("token_map", f"table/agreement/0/{c}", ".2f")
                  for c in ("rank_correlation", "low", "high"))  # fmt: skip
        about.append(
            Markup("The two need not agree: over the tokens of a response their rank correlation "
                   "is {} (95 % interval {} to {}), the mean over {} texts.").format(
                *values, number("token_map", "table/agreement/0/items", "d"))
        )  # fmt: skip
    return about
