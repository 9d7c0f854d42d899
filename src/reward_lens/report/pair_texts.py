"""What is said above the browser of single pairs; the pairs are in its data."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from reward_lens.evidence import Evidence
from reward_lens.report.numbers import Numbers
from reward_lens.report.parts import Cell, Section, labels

#: Evidence of which the browser shows a token map, in the order they are asked for labels.
_MAPS = ("token_map", "token_map_causal", "source_attribution")


def pair_section(evidence: Mapping[str, Evidence], number: Numbers) -> Section:
    """The section that holds the browser: how its token maps were measured and how they agree."""
    measured = [evidence[name] for name in _MAPS if name in evidence]
    if not measured:
        return Section("pairs", "Pairs", ["Search the pairs and read them side by side."])
    said: list[Cell] = [
        "Search the pairs and read them side by side. Tokens are shaded where they were mapped: on "
        "the pairs with the highest, the lowest and the smallest margins, of those short enough to "
        "be read token by token.",
        *_agreement(evidence, number),
    ]
    return Section("pairs", "Pairs, token by token", said, labels=labels(measured[0]))


def _agreement(evidence: Mapping[str, Evidence], number: Numbers) -> list[Cell]:
    """How well the two cheap maps agree, where both were measured."""
    if "token_map" not in evidence:
        return []
    table = evidence["token_map"].tables["agreement"]
    if not len(table) or not table["items"].iloc[0]:
        return []
    values = [number("token_map", f"table/agreement/0/{column}", ".2f")
              for column in ("rank_correlation", "low", "high")]  # fmt: skip
    return [
        Markup(
            "The change of the prefix score and gradient × input need not agree: over the tokens "
            "of a response their rank correlation is {} (95 % interval {} to {}), the mean over "
            "{} texts."
        ).format(*values, number("token_map", "table/agreement/0/items", "d"))
    ]
