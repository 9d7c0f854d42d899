"""Two signals on the same pairs: where they agree, where they flip, and how far apart they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from reward_lens.data import Pairs, as_pairs
from reward_lens.data.clones import CloneCount, join_clones
from reward_lens.errors import AnatomyError, CapabilityError, DataError
from reward_lens.evidence import Evidence, GaugeStatus, Interval, Tier, Units
from reward_lens.evidence.arguments import checked_count
from reward_lens.evidence.prompt_correlation import prompt_rank_correlation
from reward_lens.geometry.angles import angle_evidence
from reward_lens.geometry.corpus import Corpus, corpus_of
from reward_lens.geometry.two_signals import (
    Readouts,
    both,
    joint_provenance,
    joint_subject,
    score_items,
    scores_of,
)
from reward_lens.instruments.comparison_tables import (
    Margins,
    agreement_rows,
    conditions_table,
    depth_table,
    flip_table,
    pair_table,
)
from reward_lens.instruments.layer_lens import lens
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, RewardSignal, require
from reward_lens.signals.classifier import BATCH_TOKENS

#: What is done with lineages that share an exact text.
CLONES = ("join", "keep")
QUANTITIES = {
    "agreement": Units.PROBABILITY,
    "pearson": Units.ANGLE,
    "spearman": Units.RANK,
    "angle": Units.ANGLE,
    "distance": Units.ANGLE,
}


@dataclass(frozen=True)
class ComparisonParts:
    """What a comparison is made of, so that a store can be given it first.

    Attributes
    ----------
    pairs : Pairs
        As they were counted: lineages that share a text are joined, unless asked otherwise.
    clones : CloneCount
    corpus : Corpus
        The distinct items of both sides.
    scores : (Evidence, Evidence)
        Of those items.
    angle : Evidence
    depths : (Evidence or None, Evidence or None)
        The lens of each signal, where it offers one.
    missing : (str, str)
        Why it does not.
    options : dict
        What both signals were asked.
    """

    pairs: Pairs
    clones: CloneCount
    corpus: Corpus
    scores: tuple[Evidence, Evidence]
    angle: Evidence
    depths: tuple[Evidence | None, Evidence | None]
    missing: tuple[str, str]
    options: dict[str, Any]

    @property
    def evidence(self) -> list[Evidence]:
        """All of it, parents before children."""
        return list(dict.fromkeys([*self.scores, self.angle, *(e for e in self.depths if e)]))


def compare(
    a: RewardSignal,
    b: RewardSignal,
    pairs: Any,
    *,
    readout: Readouts = "reward",
    position: str | None = None,
    truncate: str = "error",
    depth: bool = True,
    clones: str = "join",
    examples: int = 10,
    parts: ComparisonParts | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Compare what two signals prefer, in numbers that their scales and shifts do not enter.

    Parameters
    ----------
    a, b : RewardSignal
        Graders of any kind that score items.
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    readout : str or (str, str)
        Of both signals, or of the first and the second; for rows of a head ``"criterion:k"``.
    position, truncate, batch_tokens
        Of every scoring call, as :meth:`~reward_lens.signals.ClassifierRM.score` takes them.
    depth : bool
        Set the depth profiles side by side, where a signal offers the lens.
    clones : {"join", "keep"}
        Whether lineages that share an exact text (up to case, spacing and Unicode form) count as
        one. Clones are counted either way.
    examples : int
        Flips whose texts are kept: those that both signals are surest of.
    parts : ComparisonParts, optional
        From :func:`comparison_parts` on the same signals, pairs and options, so that nothing is
        run; its evidence are the parents.
    progress : callable, optional
        Told the number of finished items of each batch.

    Returns
    -------
    Evidence
        Value float64 ``[quantity]``: ``agreement`` (share of pairs on which both prefer the same
        side; a pair that one signal ties on counts half, one that both tie on is agreed on),
        ``pearson`` and ``spearman`` (of prompt-centred scores), ``angle`` (radians) and
        ``distance``; an interval of each, and of ``accuracy_difference`` (a's accuracy minus b's,
        pair by pair). Tables: ``agreement`` (over all pairs and per subset, accuracies and their
        difference with an exact p value, adjusted over subsets by Holm), ``flips`` (texts),
        ``pairs`` (margins in within-prompt standard deviations of each signal), ``depth`` (median
        share of the final margin by fraction of depth, frozen norm), ``conditions`` (what was
        dropped, joined, or not offered).

    Raises
    ------
    CapabilityError
        If a signal does not score, or does not know an option that was chosen.
    DataError, TokenizeError, NumericsError
        Naming the item.
    """
    readouts, examples = both(readout), checked_count("examples", examples, 0)
    options: dict[str, Any] = {"position": position, "truncate": truncate,
                               "batch_tokens": batch_tokens}  # fmt: skip
    if parts is None:
        found = comparison_parts(
            a, b, pairs, readout=readout, depth=depth, clones=clones, progress=progress, **options
        )
    else:
        found = parts
        _check_parts(found, (a, b), as_pairs(pairs), readouts)
    margins = Margins.of(found.pairs, found.corpus, [scores_of(e) for e in found.scores])
    table, intervals = agreement_rows(found.pairs, margins)
    rho, angle, distance = (found.angle.interval(n) for n in ("correlation", "angle", "distance"))
    agreement, gap = intervals[:2]
    each = [agreement, dataclasses.replace(rho, name="pearson"), _spearman(found), angle, distance]
    evidence = found.evidence
    return Evidence(
        value=xr.DataArray(
            np.array([i.estimate for i in each]),
            dims=("quantity",),
            coords={"quantity": list(QUANTITIES)},
            name="comparison",
        ),
        instrument="compare",
        version="1",
        subject=joint_subject((a, b), found.pairs.fingerprint, readouts, position),
        tier=Tier.OBSERVATIONAL,
        gauge=GaugeStatus.INVARIANT,
        units=Units.ANGLE,
        quantity_units=QUANTITIES,
        provenance=joint_provenance(
            (a, b),
            {**found.options, "examples": examples},
            cost=sum(e.provenance.cost_forwards for e in evidence) if parts is None else 0.0,
            parents=tuple(e.id for e in evidence),
        ),
        uncertainty=(*each, gap, *intervals[2:]),
        tables={
            "agreement": table,
            "flips": flip_table(found.pairs, margins, examples),
            "pairs": pair_table(found.pairs, margins),
            **depth_table(found.depths),
            "conditions": conditions_table(found.clones, found.corpus, found.missing, rho.note),
        },
    ).with_parents(*evidence)


def comparison_parts(
    a: RewardSignal,
    b: RewardSignal,
    pairs: Any,
    *,
    readout: Readouts = "reward",
    position: str | None = None,
    truncate: str = "error",
    depth: bool = True,
    clones: str = "join",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> ComparisonParts:
    """Measure what :func:`compare` is made of; options and errors as there.

    Returns
    -------
    ComparisonParts
        Its ``evidence`` can be put into a store before the comparison, which names them as parents.
    """
    if clones not in CLONES:
        raise DataError(f"clones={clones!r}: choose one of {', '.join(CLONES)}")
    for signal in (a, b):
        require(signal, Capability.SCORES, "compare")
    given = as_pairs(pairs)
    joined, count = join_clones(given)
    if clones == "keep":
        joined, count = given, dataclasses.replace(count, lineages_joined=0)
    corpus, readouts = corpus_of(joined), both(readout)
    options = {"position": position, "truncate": truncate, "batch_tokens": batch_tokens}
    one, other = (
        score_items(s, corpus.items, progress, readout=r, **options)
        for s, r in zip((a, b), readouts, strict=True)
    )
    depths = [
        _depth(s, joined, r, progress, options) if depth else (None, "not asked for")
        for s, r in zip((a, b), readouts, strict=True)
    ]
    return ComparisonParts(
        pairs=joined,
        clones=count,
        corpus=corpus,
        scores=(one, other),
        angle=angle_evidence((a, b), corpus, (one, other), readouts, options, run=False),
        depths=(depths[0][0], depths[1][0]),
        missing=(depths[0][1], depths[1][1]),
        options={"readout": list(readouts), "depth": depth, "clones": clones, **options},
    )


def _depth(
    signal: RewardSignal,
    pairs: Pairs,
    readout: str,
    progress: Progress | None,
    options: dict[str, Any],
) -> tuple[Evidence | None, str]:
    """The lens of a signal, or why there is none."""
    if not isinstance(signal, ClassifierRM) or Capability.ACTIVATIONS not in signal.caps:
        return None, f"{signal.meta.architecture} offers no activations"
    try:
        return lens(signal, pairs, readout=readout, progress=progress, **options), ""
    except (AnatomyError, CapabilityError) as error:
        return None, str(error)


def _spearman(parts: ComparisonParts) -> Interval:
    """Rank correlation of the prompt-centred scores."""
    corpus, rho = parts.corpus, parts.angle.interval("correlation")
    if rho.n == 0:  # no prompt has two responses, which is said there
        return dataclasses.replace(rho, name="spearman")
    x, y = (scores_of(e) for e in parts.scores)
    return prompt_rank_correlation("spearman", x, y, corpus.prompts, corpus.lineages)


def _check_parts(
    parts: ComparisonParts,
    signals: tuple[RewardSignal, RewardSignal],
    pairs: Pairs,
    readouts: Sequence[str],
) -> None:
    """Refuse parts of another comparison."""
    content = [[p.chosen.content(), p.rejected.content()] for p in pairs]
    known = [[p.chosen.content(), p.rejected.content()] for p in parts.pairs]
    measured = [e.subject.signal for e in parts.scores]
    for what, same in (
        ("pairs", content == known),
        ("signals", measured == [s.fingerprint for s in signals]),
        ("readouts", parts.options["readout"] == list(readouts)),
    ):
        if not same:
            raise DataError(f"parts: they were measured on other {what}; measure them anew")
