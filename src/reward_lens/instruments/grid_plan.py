"""What a patch grid runs: targets, tokens, what is put in place, and which items are held together.

Items ``0..n-1`` are the chosen sides, ``n..2n-1`` the rejected, and from ``2n`` on donors, one for
each of them, where activations are drawn from reference items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reward_lens.backbone import Encoded, Position, Target
from reward_lens.errors import CapabilityError
from reward_lens.instruments.replacements import (
    Ablation,
    Reference,
    Replacements,
    ablated,
    exchanged,
    own_tokens,
)
from reward_lens.instruments.sides import Sides
from reward_lens.instruments.token_alignment import (
    Aligned,
    Where,
    as_position,
    patched_tokens,
    shared_prefix,
)
from reward_lens.signals import ClassifierRM

DIRECTIONS = ("noise", "denoise")
#: The one direction of a grid that ablates.
ABLATION = "ablation"


@dataclass(frozen=True)
class Cell:
    """One run of an item: a target, a column of the grid, and entries of the item's tokens.

    Without entries nothing changes, and the clean score is what a run would give.
    """

    target: int
    column: int
    slots: Sequence[int]


@dataclass(frozen=True)
class GridPlan:
    """Everything that is decided before the first forward.

    Attributes
    ----------
    by, position : str, Position
    targets : list of Target
    columns : list of int or str
        Labels of the positions of a ``layer_position`` grid; one empty label otherwise.
    tokens_of_pairs : list of Aligned, [pair]
        The patched tokens of both sides; empty where each side is ablated on its own.
    replacements : Replacements
    shared : list of int, [pair]
        How many leading tokens have the same activations on both sides.
    encoded, read : list of Encoded, list of int
        Both sides, then donors.
    directions : tuple of str
    interventions : tuple of str
        In words, for the record.
    cost : int
        Forwards that were spent on reference means.
    """

    by: str
    position: Position
    targets: list[Target]
    columns: list[int | str]
    tokens_of_pairs: list[Aligned]
    replacements: Replacements
    shared: list[int]
    encoded: list[Encoded]
    read: list[int]
    directions: tuple[str, ...]
    interventions: tuple[str, ...]
    cost: int

    @property
    def n_pairs(self) -> int:
        """Number of pairs."""
        return len(self.tokens_of_pairs)

    def is_run(self, item: int) -> bool:
        """Whether an item is run with changes, and not only looked at."""
        if self.directions == (ABLATION,):
            return item < 2 * self.n_pairs
        side = "noise" if item < self.n_pairs else "denoise"
        return item < 2 * self.n_pairs and side in self.directions

    def cells(self, item: int) -> Iterator[Cell]:
        """The runs of an item, target by target; none where it has no tokens to patch."""
        count = len(self.replacements.tokens[item])
        moving = [[slot] if not self._stays(item, slot) else [] for slot in range(count)]
        together = [slot for slots in moving for slot in slots]
        for target in range(len(self.targets)):
            if self.by == "layer_position":
                for slot, slots in enumerate(moving):
                    yield Cell(target, self._column(item % self.n_pairs, slot), slots)
            elif count:
                yield Cell(target, 0, together)

    def _stays(self, item: int, slot: int) -> bool:
        """Whether a token has the same activations on both sides."""
        own, theirs = self.replacements.tokens, self.replacements.donor_tokens
        shared = self.shared[item % self.n_pairs]
        return shared > 0 and own[item][slot] == theirs[item][slot] < shared

    def _column(self, pair: int, slot: int) -> int:
        absolute = self.position.kind in ("aligned", "all")
        return self.tokens_of_pairs[pair].chosen[slot] if absolute else slot


def plan_grid(
    signal: ClassifierRM,
    sides: Sides,
    targets: list[Target],
    *,
    by: str,
    positions: Where,
    direction: str,
    ablation: Ablation | None,
    skip_shared: bool,
    batch_tokens: int,
) -> GridPlan:
    """Decide what is run.

    Parameters
    ----------
    targets : list of Target
        From :func:`~reward_lens.instruments.patch_targets.grid_targets`.
    ablation : Ablation, optional
        Instead of an exchange between the sides.
    skip_shared : bool
        Do not run what changes nothing because both sides begin alike, where the trunk is causal.

    Raises
    ------
    CapabilityError, DataError
        As :func:`~reward_lens.instruments.patching_grid.patch_grid` says.
    """
    where, n = as_position(positions), len(sides.pairs)
    directions = _directions(direction, ablation)
    if ablation is not None and where.kind == "all" and by != "layer_position":
        # Nothing is exchanged, so the sides need not be equally long.
        aligned = [Aligned((), (), 0)] * n
        tokens = own_tokens(sides.encoded, sides.read, where, "item")
    else:
        aligned = patched_tokens(sides, positions)
        tokens = [a.chosen for a in aligned] + [a.rejected for a in aligned]
    donors: list[Reference] = []
    if ablation is None:
        replacements = exchanged(tokens, where)
    else:
        sites = list(dict.fromkeys(t.source for t in targets))
        replacements, donors = ablated(signal, ablation, sides.pairs, tokens, where, sites,
                                       batch_tokens)  # fmt: skip
    return GridPlan(
        by=by,
        position=where,
        targets=targets,
        columns=_columns(by, where, aligned),
        tokens_of_pairs=aligned,
        replacements=replacements,
        shared=_shared(signal, sides, beginnings=skip_shared) if ablation is None else [0] * n,
        encoded=[*sides.encoded, *(d.encoded for d in donors)],
        read=[*sides.read, *(d.read for d in donors)],
        directions=directions,
        interventions=_said(by, where, directions, ablation),
        cost=len(ablation.reference) if ablation is not None and ablation.kind == "mean" else 0,
    )


def _directions(direction: str, ablation: Ablation | None) -> tuple[str, ...]:
    if direction not in (*DIRECTIONS, "both"):
        raise CapabilityError(f"direction={direction!r}: choose 'both', 'noise' or 'denoise'")
    if ablation is None:
        return DIRECTIONS if direction == "both" else (direction,)
    if direction != "both":
        raise CapabilityError(
            f"direction={direction!r}: an ablation exchanges nothing, both sides are "
            f"ablated; leave direction out"
        )
    return (ABLATION,)


def _shared(signal: ClassifierRM, sides: Sides, *, beginnings: bool) -> list[int]:
    """How many leading tokens of each pair have the same activations on both sides, for certain.

    Those of identical sides; and, where asked for, those that both sides of a causal trunk begin
    with.
    """
    n, encoded, trunk = len(sides.pairs), sides.encoded, signal.trunk
    beginnings = beginnings and trunk.anatomy.causal and trunk.alone_beyond is None
    if trunk.edited:  # what is done to a text may depend on all of it
        return [0] * n
    found = []
    for k in range(n):
        a, b = encoded[k], encoded[n + k]
        count = shared_prefix(a.ids, b.ids)
        found.append(count if beginnings or sides.identical(k) else 0)
    return found


def _columns(by: str, where: Position, aligned: list[Aligned]) -> list[int | str]:
    """Labels of the positions: what was asked for, or token indices of the chosen side."""
    if by != "layer_position":
        return [""]
    if where.kind in ("aligned", "all"):
        return list(range(1 + max((i for a in aligned for i in a.chosen), default=0)))
    if where.kind == "final" or where.start is None:
        return ["final"]
    return [where.start + k for k in range(max(len(a) for a in aligned))]


def _said(
    by: str, where: Position, directions: tuple[str, ...], ablation: Ablation | None
) -> tuple[str, ...]:
    """What is done, in words."""
    what = f"each {by.replace('_', ' × ')} at {where}"
    if ablation is not None:
        return (f"{what}: {ablation} ablation of both sides",)
    words = {"noise": "chosen side takes the rejected side's activation",
             "denoise": "rejected side takes the chosen side's activation"}  # fmt: skip
    return tuple(f"{what}: {words[d]}" for d in directions)
