"""Clean runs of items, kept so that many planted views of a trunk need only their read tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from reward_lens.backbone.batching import Batch, collate, plan_batches
from reward_lens.backbone.clean_run import CleanRun, run_clean
from reward_lens.backbone.engine import TREE, Engine, engine_of
from reward_lens.backbone.frames import Frame
from reward_lens.backbone.replay import PlantedStates, Replay
from reward_lens.backbone.row_choice import read_rows
from reward_lens.backbone.sites import Site
from reward_lens.backbone.tokenise import Encoded
from reward_lens.backbone.tracing import put
from reward_lens.backbone.trunk import Trunk, Versions


@dataclass
class KeptRuns:
    """Clean runs of the base trunk.

    Attributes
    ----------
    runs : list of CleanRun
    places : dict
        Key of an item and its read token -> which run, which row.
    engine : Engine
    made : dict
        The weights' versions when they were run.
    """

    runs: list[CleanRun] = field(default_factory=list)
    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    engine: Engine = field(default_factory=Engine)
    made: Versions = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        trunk: Trunk,
        encoded: Sequence[Encoded],
        read: Sequence[int],
        batch_tokens: int,
        limit: int,
    ) -> KeptRuns | None:
        """Run items clean and keep what later runs need; ``None`` where that is not possible.

        Parameters
        ----------
        encoded, read : sequences
            Items, and the token that is read of each.
        limit : int
            Bytes; where more would have to be kept, nothing is.
        """
        engine = engine_of(trunk, max(len(e.ids) for e in encoded))
        if engine.layout is None or not engine.offers(TREE):
            return None
        found, size = cls(engine=engine, made=trunk.versions()), 0
        for index in plan_batches(encoded, batch_tokens, trunk.alone_beyond):
            batch = collate(encoded, index, trunk.pad_id, trunk.device)
            rows = read_rows(read)
            run = _slim(trunk, run_clean(trunk, batch, [], engine.routers, rows=rows))
            found.runs.append(run)
            size += _bytes(run)
            if size > limit:
                return None
            for row, item in enumerate(index):
                found.places[key(encoded[item], read[item])] = (len(found.runs) - 1, row)
        return found

    def states(
        self, trunk: Trunk, batch: Batch, sites: Sequence[Site], read: Sequence[int]
    ) -> dict[Site, Tensor] | None:
        """What :meth:`Trunk.capture` gives of a planted view at read tokens.

        ``None`` if an item is not there.
        """
        tokens = [read[int(i)] for i in batch.index]
        if trunk.hooked or not self.holds(batch.items, tokens):
            return None  # what hooks of somebody else do to a few tokens is not known
        out: dict[Site, Tensor] = {}
        for rows, _, _, states in self._replayed(trunk, batch.items, tokens, sites):
            for site, value in states.states.items():
                if site not in out:
                    out[site] = value.new_empty(len(tokens), *value.shape[1:])
                out[site][rows] = value
        return out

    def clean_runs(
        self, trunk: Trunk, encoded: Sequence[Encoded], read: Sequence[int], sites: Sequence[Site]
    ) -> Iterator[tuple[list[int], CleanRun, list[int]]]:
        """The clean runs of a planted view.

        Parameters
        ----------
        encoded, read : sequences
            Items that are all there.

        Yields
        ------
        items : list of int
        run : CleanRun
            Its stream, states and normed states are of these items alone.
        rows : list of int
            Where each of the items is in it.
        """
        for items, number, rows, found in self._replayed(trunk, encoded, read, sites):
            base = self.runs[number]
            at = torch.tensor(rows, device=trunk.device)

            def laid(value: Tensor, at: Tensor = at, n: int = len(base.normed)) -> Tensor:
                return value.new_zeros(n, *value.shape[1:]).index_copy_(0, at, value)

            chosen = dict(base.chosen)
            for layer, value in found.chosen.items():
                reads = torch.tensor([read[i] for i in items], device=trunk.device)
                chosen[layer] = chosen[layer].clone()
                chosen[layer][at, reads] = value[:, 0]
            yield items, replace(
                base,
                stream=[laid(s) for s in found.stream],
                states={s: laid(v) for s, v in found.states.items()},
                normed=laid(found.normed),
                chosen=chosen,
            ), rows  # fmt: skip

    def holds(self, items: Sequence[Encoded], read: Sequence[int]) -> bool:
        """Whether all items are there, read at these tokens."""
        return all(key(e, r) in self.places for e, r in zip(items, read, strict=True))

    def _replayed(
        self, trunk: Trunk, items: Sequence[Encoded], read: Sequence[int], sites: Sequence[Site]
    ) -> Iterator[tuple[list[int], int, list[int], PlantedStates]]:
        """``(items, number of the run, rows in it, their states)``."""
        assert self.engine.layout is not None
        trunk.refuse_training()
        trunk.refuse_written(self.made)
        groups: dict[int, list[tuple[int, int]]] = {}
        for k, (item, token) in enumerate(zip(items, read, strict=True)):
            number, row = self.places[key(item, token)]
            groups.setdefault(number, []).append((row, k))
        for number, group in sorted(groups.items()):
            rows, mine = [row for row, _ in group], [k for _, k in group]
            frame = Frame(True, tuple(rows), tuple(read[k] for k in mine))
            replay = Replay(trunk, self.runs[number], self.engine.layout, self.engine.routers,
                            frame, [[()] for _ in rows])  # fmt: skip
            with torch.no_grad():
                yield mine, number, rows, replay.states(sites)


def key(item: Encoded, read: int) -> bytes:
    """What tells an item, read at a token, from others."""
    types = b"" if item.types is None else item.types.tobytes()
    return item.ids.tobytes() + b"|" + types + b"|" + str(read).encode()


def _slim(trunk: Trunk, run: CleanRun) -> CleanRun:
    """The run without the stream that each block was called with: a replay puts its own there."""
    calls = []
    for call, block in zip(run.calls, trunk.anatomy.blocks, strict=True):
        given = put({"args": call.args, "kwargs": call.kwargs}, block.enter.path, torch.empty(0))
        calls.append(replace(call, args=given["args"], kwargs=given["kwargs"]))
    return replace(run, calls=calls)


def _bytes(run: CleanRun) -> int:
    """What a run holds, each storage counted once."""
    held = [t for kept in run.kept.values() for t in kept] + [*run.stream, run.normed]
    held += [t for call in run.calls for t in call.tensors().values()] + [*run.chosen.values()]
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}.values()
    )
