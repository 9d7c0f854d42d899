"""What is put in the place of an activation: another item's, nothing, or a mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reward_lens.backbone import Batch, Encoded, Position, Site, Target
from reward_lens.data import Pairs, as_items, items_fingerprint
from reward_lens.errors import CapabilityError, DataError
from reward_lens.instruments.sides import Sides
from reward_lens.instruments.token_alignment import token_indices
from reward_lens.signals import ClassifierRM
from reward_lens.signals.patching import CleanItems

ABLATIONS = ("zero", "mean", "resample")

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Replacements:
    """Which tokens of each item are patched, and with what.

    Attributes
    ----------
    tokens : list of tuple of int, [item]
        Token indices; empty where an item has none to patch.
    donor : list of int, [item]
        The item whose activations are put in place; no entries where it is no item's.
    donor_tokens : list of tuple of int, [item]
        Beside ``tokens``: which tokens of the donor.
    means : dict
        Site -> ``[width]``, put in place where there are no donors; zero for sites not in it.
    whole : bool
        Whether activations are needed beyond the read token.
    """

    tokens: list[Tokens]
    donor: list[int] = field(default_factory=list)
    donor_tokens: list[Tokens] = field(default_factory=list)
    means: Mapping[Site, Tensor] = field(default_factory=dict)
    whole: bool = False

    @property
    def groups(self) -> list[list[int]]:
        """Items whose activations are needed at the same time."""
        if not self.donor:
            return [[i] for i in range(len(self.tokens))]
        return [list(g) for g in sorted({(min(i, d), max(i, d)) for i, d in enumerate(self.donor)})]

    def value(
        self,
        signal: ClassifierRM,
        clean: CleanItems,
        target: Target,
        item: int,
        slots: Sequence[int],
    ) -> Tensor:
        """What is put in place of a target at some of an item's tokens.

        Parameters
        ----------
        slots : sequence of int
            Which entries of ``tokens[item]``.

        Returns
        -------
        Tensor
            ``[len(slots), width of the target]``.
        """
        if self.donor:
            state = clean.state(target.source, self.donor[item])
            at = [self.donor_tokens[item][s] for s in slots]
            rows = state[at] if self.whole else state[None]
        else:
            own = clean.state(target.source, item)
            mean = self.means.get(target.source)
            one = torch.zeros_like(own[0] if self.whole else own) if mean is None else mean.to(own)
            rows = one.expand(len(slots), -1)
        return target.of(rows, signal.trunk.anatomy)


@dataclass(frozen=True)
class Reference:
    """An item that activations are taken from."""

    encoded: Encoded
    read: int
    lineage: str


@dataclass(frozen=True)
class Ablation:
    """A way to take an activation away.

    Attributes
    ----------
    kind : str
        One of :data:`ABLATIONS`.
    seed : int
        Of ``resample``.
    reference : list of Reference
    fingerprint : str, optional
        Of the reference items, where they are not the pairs' own.
    """

    kind: str
    seed: int
    reference: list[Reference]
    fingerprint: str | None

    @classmethod
    def of(
        cls,
        signal: ClassifierRM,
        sides: Sides,
        kind: str,
        reference: Iterable[Any] | None,
        *,
        seed: int,
        position: str | None,
        truncate: str,
    ) -> Ablation:
        """Read the options of an ablation; without a reference it is both sides of all pairs.

        Raises
        ------
        CapabilityError
            If the kind is unknown.
        DataError, TokenizeError
            If a reference item cannot be used.
        """
        if kind not in ABLATIONS:
            raise CapabilityError(f"ablation={kind!r}: choose one of {', '.join(ABLATIONS)}")
        if reference is None:
            lineages = [*sides.pairs.lineages] * 2
            lines = zip(sides.encoded, sides.read, lineages, strict=True)
            return cls(kind, seed, [Reference(e, r, s) for e, r, s in lines], None)
        items = as_items(reference)
        encoded = signal.encoder.encode(items, truncate)
        read = signal.read_index(encoded, position)
        found = [Reference(e, r, i.lineage) for e, r, i in zip(encoded, read, items, strict=True)]
        return cls(kind, seed, found, items_fingerprint(items))

    def __str__(self) -> str:
        if self.kind == "zero":
            return "zero"
        whose = "of these pairs" if self.fingerprint is None else "of the reference"
        return f"{self.kind} (over {len(self.reference)} items {whose})"


def exchanged(tokens: list[Tokens], position: Position) -> Replacements:
    """Each side of a pair takes the other's; ``tokens`` are those of chosen, then rejected."""
    n = len(tokens) // 2
    other = [*range(n, 2 * n), *range(n)]
    theirs = [tokens[i] for i in other]
    return Replacements(tokens, other, theirs, whole=position.kind != "final")


def ablated(
    signal: ClassifierRM,
    ablation: Ablation,
    pairs: Pairs,
    tokens: list[Tokens],
    position: Position,
    sites: Sequence[Site],
    batch_tokens: int,
) -> tuple[Replacements, list[Reference]]:
    """Replacements of an ablation, and the donors that are further items, one for each item.

    Raises
    ------
    DataError
        If a reference item does not have the tokens of a typed position, or there is none to draw.
    """
    whole, known = position.kind != "final", ablation.reference
    if ablation.kind == "resample":
        rng = np.random.default_rng(ablation.seed)
        donors = _drawn([*pairs.lineages] * 2, known, rng)
        theirs = _donor_tokens(tokens, donors, position, rng)
        numbers = list(range(len(tokens), 2 * len(tokens)))
        return Replacements(tokens, numbers, theirs, whole=whole), donors
    means: dict[Site, Tensor] = {}
    if ablation.kind == "mean":
        encoded = [r.encoded for r in known]
        picked = own_tokens(encoded, [r.read for r in known], position, "reference item")
        means = reference_means(signal, encoded, picked, sites, batch_tokens)
    return Replacements(tokens, means=means, whole=whole), []


def own_tokens(
    encoded: Sequence[Encoded], read: Sequence[int], position: Position, what: str
) -> list[Tokens]:
    """The tokens of items that stand on their own; ``aligned`` means all of them here.

    Raises
    ------
    DataError
        If an item does not have the tokens of a typed position; it is called ``what`` and a number.
    """
    if position.kind == "final":
        return [(r,) for r in read]
    where = Position("all") if position.kind == "aligned" else position
    return [tuple(token_indices(where, len(e.ids), f"{what} {k}")) for k, e in enumerate(encoded)]


def reference_means(
    signal: ClassifierRM,
    encoded: Sequence[Encoded],
    tokens: Sequence[Tokens],
    sites: Sequence[Site],
    batch_tokens: int,
) -> dict[Site, Tensor]:
    """Mean activation over tokens of reference items, each token with the same weight.

    Parameters
    ----------
    tokens : sequence of tuple of int, [item]
        Which tokens of each item count.
    sites : sequence of Site

    Returns
    -------
    dict
        Site -> float64 ``[width]`` on the CPU.
    """

    def summed(batch: Batch, tensor: Tensor) -> Tensor:
        weights = torch.zeros(batch.ids.shape)
        for row, item in enumerate(batch.index):
            weights[row, [int(batch.offset[row]) + t for t in tokens[int(item)]]] = 1.0
        return torch.einsum("nt,ntw->nw", weights.to(tensor.device), tensor.float())

    count = sum(len(t) for t in tokens)
    total: dict[Site, Tensor] = {}
    for batch in signal.trunk.batches(encoded, batch_tokens):
        for site, rows in signal.trunk.capture(batch, sites, summed).items():
            share = rows.cpu().double().sum(0) / count
            total[site] = total[site] + share if site in total else share
    return total


def _drawn(
    lineages: Sequence[str], known: Sequence[Reference], rng: np.random.Generator
) -> list[Reference]:
    """For each item a reference item of another lineage, drawn evenly."""
    labels = np.array([r.lineage for r in known], dtype=object)
    drawn = []
    for lineage in lineages:
        (others,) = np.nonzero(labels != lineage)
        if len(others) == 0:
            raise DataError(
                f"ablation='resample' draws from items of another lineage than {lineage!r}, and "
                f"there are none: give reference=, or pairs of several prompts"
            )
        drawn.append(known[int(rng.choice(others))])
    return drawn


def _donor_tokens(
    tokens: Sequence[Tokens],
    donors: Sequence[Reference],
    position: Position,
    rng: np.random.Generator,
) -> list[Tokens]:
    """Tokens of each item's donor beside its own.

    The read token for ``final``, the same indices for a typed position, and otherwise tokens of the
    donor drawn evenly with replacement, since it need not be as long.
    """
    if position.kind not in ("final", "index", "span"):
        return [tuple(rng.integers(len(d.encoded.ids), size=len(t)).tolist())
                for d, t in zip(donors, tokens, strict=True)]  # fmt: skip
    encoded, read = [d.encoded for d in donors], [d.read for d in donors]
    found = own_tokens(encoded, read, position, "the donor of item")
    for k, (theirs, own) in enumerate(zip(found, tokens, strict=True)):
        if len(theirs) != len(own):
            raise DataError(
                f"positions={position} is {len(own)} tokens of item {k} and {len(theirs)} of its "
                f"donor; give a span with both ends counted from the same side"
            )
    return found
