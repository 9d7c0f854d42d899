"""Rules planted in a trunk: what a component adds at the token that the head reads.

Nothing of the model is touched: a plant is a hook of one forward. Only the read token's states
change, so that what a forward keeps of the tokens before it is the same with and without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reward_lens.backbone.anatomy import Anatomy
from reward_lens.backbone.batching import Batch
from reward_lens.backbone.edits import Change, Placed, Target, edit_handlers
from reward_lens.backbone.site_taps import site_taps
from reward_lens.backbone.sites import Site
from reward_lens.backbone.taps import Around, Handler, Tap, merge
from reward_lens.backbone.tokenise import MEAN, Encoded
from reward_lens.errors import RewardLensError


@dataclass(frozen=True)
class Cell:
    """One token of a call: its row and column, and the item it is of."""

    row: int
    column: int
    item: Encoded


@dataclass(frozen=True)
class Key:
    """What a relay reads: ``relu(state · direction − threshold)`` is the size of its write.

    Attributes
    ----------
    site : Site
        In the same block as the write, and before it.
    direction : Tensor
        float32 ``[width]``.
    threshold : float
    """

    site: Site
    direction: Tensor
    threshold: float


@dataclass(frozen=True)
class Plant:
    """One write.

    Attributes
    ----------
    target : Target
        The component that it is added to: an attention, an MLP or a head.
    vector : Tensor
        ``[width]`` in the coordinates of the target's source.
    fires : callable
        Whether an item has the write.
    key : Key, optional
        What the write is multiplied by.
    """

    target: Target
    vector: Tensor
    fires: Callable[[Encoded], bool]
    key: Key | None = None

    @property
    def layer(self) -> int:
        """The block that it is in."""
        assert self.target.site.layer is not None
        return self.target.site.layer


class Plants:
    """Plants in every forward of a view of a trunk, while they last.

    Parameters
    ----------
    anatomy : Anatomy
    plants : sequence of Plant
    reads : str
        Where the head reads: ``"native"``, ``"last"`` or ``"first"``.
    """

    #: A text that is cut is read elsewhere, so that its prefixes are other items.
    prefixes = False
    replaces = False

    def __init__(self, anatomy: Anatomy, plants: Sequence[Plant], reads: str) -> None:
        self.anatomy, self.plants, self.reads = anatomy, tuple(plants), reads
        self.over = False

    def token(self, item: Encoded) -> int:
        """The token of an item at which they write."""
        read = item.read(self.reads)
        if read == MEAN:
            raise RewardLensError("a head that reads the mean over tokens has no read token")
        return read

    def __call__(self, batch: Batch) -> Around:
        """Handlers for a forward of a batch.

        Raises
        ------
        RewardLensError
            If the plants are over.
        """
        offset = batch.offset.tolist()
        cells = [Cell(row, int(offset[row]) + self.token(item), item)
                 for row, item in enumerate(batch.items)]  # fmt: skip
        return self.around(cells, (batch.ids.shape[0], batch.ids.shape[1]))

    def around(
        self, cells: Sequence[Cell], shape: tuple[int, int], layer: int | None = None
    ) -> Around:
        """Handlers for a call that holds the read tokens of items.

        Parameters
        ----------
        cells : sequence of Cell
            Where they are.
        shape : tuple of int
            Rows and columns of the call.
        layer : int, optional
            Only what is planted in this block.

        Returns
        -------
        first, last : dict
            The writes, which come before whatever else is changed at the same place; and what a
            relay looks at, after everything is changed there.
        """
        if self.over:
            raise RewardLensError(
                "the plants are gone: an organism is only good inside the with-block of the "
                "planter that made it"
            )
        here = [p for p in self.plants if layer is None or p.layer == layer]
        first: list[Mapping[Tap, Handler]] = []
        last: list[Mapping[Tap, Handler]] = []
        for plant in here:
            firing = [c for c in cells if plant.fires(c.item)]
            if plant.key is None:
                first.append(self._constant(plant, firing, shape) if firing else {})
            elif firing:
                write, looks = self._relay(plant, plant.key, firing, shape)
                first.append(write)
                last.append(looks)
        return merge(*first), merge(*last)

    def _constant(
        self, plant: Plant, cells: Sequence[Cell], shape: tuple[int, int]
    ) -> Mapping[Tap, Handler]:
        by_row: dict[int, list[int]] = {}
        for c in cells:
            by_row.setdefault(c.row, []).append(c.column)
        placed = []
        for row, columns in by_row.items():
            n = len(columns)
            value = plant.vector.expand(n, -1)
            change = Change(plant.target, tuple(range(n)), value, add=True)
            placed.append(Placed(row, tuple(columns), change))
        return edit_handlers(self.anatomy, placed, shape)

    def _relay(
        self, plant: Plant, key: Key, cells: Sequence[Cell], shape: tuple[int, int]
    ) -> tuple[dict[Tap, Handler], dict[Tap, Handler]]:
        taps = site_taps(self.anatomy, key.site)
        (write,) = site_taps(self.anatomy, plant.target.source)
        channels = plant.target.channels(self.anatomy)
        rows = torch.tensor([c.row for c in cells])
        columns = torch.tensor([c.column for c in cells])
        seen: dict[Tap, Tensor] = {}

        def look(tap: Tap) -> Handler:
            def keep(tensor: Tensor) -> None:
                whole = tensor.reshape(*shape, -1)
                seen[tap] = whole[rows.to(whole.device), columns.to(whole.device)].float()

            return keep

        def add(tensor: Tensor) -> Tensor:
            state = sum(seen[tap] for tap in taps)
            assert isinstance(state, Tensor)
            gain = torch.relu(state @ key.direction.to(state) - key.threshold)
            new = tensor.reshape(*shape, -1).clone()
            at = (rows.to(new.device), columns.to(new.device))
            added = (gain[:, None] * plant.vector.to(state)).to(new)
            new[..., channels].index_put_(at, added, accumulate=True)
            return new.view_as(tensor)

        return {write: add}, {tap: look(tap) for tap in taps}
