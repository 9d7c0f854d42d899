"""Groups of items run clean, and the changed runs that start from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import (
    FULL,
    JOINING,
    MEAN,
    TREE,
    Batch,
    Change,
    CleanRun,
    Encoded,
    Engine,
    Frame,
    KeptRuns,
    Replay,
    Run,
    Site,
    collate,
    engine_of,
    form,
    masked_mean,
    prepared,
    read_rows,
    run_clean,
    run_full,
)
from reward_lens.errors import CapabilityError, NumericsError
from reward_lens.progress import Progress, expect
from reward_lens.signals.classifier import BATCH_TOKENS, ClassifierRM
from reward_lens.signals.lots import alike, lots, shelved
from reward_lens.signals.readouts import Readout

EXECUTORS = (FULL, TREE, JOINING)
#: Queries times keys of one call of a tree row, per token of a batch.
_TREE_CELLS = 1024


@dataclass
class Outcome:
    """What changed runs of one item gave.

    Attributes
    ----------
    scores : ndarray of float64, [run]
    flips : ndarray of int64, [run]
        Choices of experts (a layer, a token) that differ from the clean run; 0 in a dense model.
    """

    scores: npt.NDArray[np.float64]
    flips: npt.NDArray[np.int64]


@dataclass
class CleanItems:
    """Items run clean, from which changed runs start.

    Attributes
    ----------
    index : list of int
        Which items.
    score : dict of int to float
        Clean scores, read in float32.
    executors : set of str
        Which executors ran.
    forwards : float
        What was spent, in forwards of one item.
    """

    signal: ClassifierRM
    encoded: Sequence[Encoded]
    read: Sequence[int]
    readout: Readout
    engine: Engine
    whole: bool
    executor: str | None
    batch_tokens: int
    index: list[int] = field(default_factory=list)
    score: dict[int, float] = field(default_factory=dict)
    executors: set[str] = field(default_factory=set)
    forwards: float = 0.0
    _where: dict[int, tuple[CleanRun, int]] = field(default_factory=dict, repr=False)

    def state(self, site: Site, item: int) -> Tensor:
        """What was captured of an item: ``[width]`` at its read token, or ``[n_tokens, width]``.

        Only until the next lot is asked for.
        """
        run, row = self._where[item]
        value = run.states[site][row]
        return value[: len(self.encoded[item].ids)] if self.whole else value

    def run(self, wanted: Mapping[int, Sequence[Run]]) -> dict[int, Outcome]:
        """Run items changed.

        Parameters
        ----------
        wanted : mapping
            Item -> its runs; each is a sequence of changes that are made together.

        Raises
        ------
        AnatomyError
            If something is changed that the model does not have.
        DataError
            If an item does not have the tokens, or a value does not fit.
        NumericsError
            If a score is not finite; names the item and what was changed.
        """
        ready = {i: [self._prepared(i, run) for run in runs] for i, runs in wanted.items()}
        found = self._found(ready)
        for item, out in found.items():
            bad = np.flatnonzero(~np.isfinite(out.scores))
            if len(bad):
                names = [str(p.target if isinstance(p, Change) else p.receiver)
                         for p in ready[item][bad[0]]]  # fmt: skip
                raise NumericsError(
                    f"item {item}: its score is {out.scores[bad[0]]} with a change at "
                    f"{', '.join(names)}; the trunk runs in {self.signal.meta.dtype}, and what was "
                    f"put in place may be too large for it: try dtype=float32"
                )
        return found

    def _prepared(self, item: int, run: Run) -> Run:
        """A run without what cannot reach the read token; with all of it for a full forward."""
        until = None if self.executor == FULL else self._until(item)
        return prepared(self.signal.trunk.anatomy, run, len(self.encoded[item].ids), until)

    def _until(self, item: int) -> int | None:
        """The last token that matters to an item's score; ``None`` if all do."""
        read = self.read[item]
        return read if self.signal.trunk.anatomy.causal and read != MEAN else None

    def _found(self, wanted: Mapping[int, Sequence[Run]]) -> dict[int, Outcome]:
        """The outcomes of runs that can be executed."""
        found = {
            item: Outcome(np.full(len(runs), np.nan), np.zeros(len(runs), dtype=np.int64))
            for item, runs in wanted.items()
        }
        for item, runs in wanted.items():
            found[item].scores[[k for k, run in enumerate(runs) if not run]] = self.score[item]
        tree: dict[object, list[tuple[int, list[int]]]] = {}
        for item, runs in wanted.items():
            places = [self._place(item, run) for run in runs]
            tokens = [k for k, place in enumerate(places) if place == TREE]
            if tokens:
                alike = (id(self._where[item][0]), tuple(form(runs[k]) for k in tokens))
                tree.setdefault(alike, []).append((item, tokens))
            for start in sorted({p for p in places if isinstance(p, int)}):
                self._joining(
                    item, start, runs, [k for k, p in enumerate(places) if p == start], found[item]
                )
            self._full(item, runs, [k for k, p in enumerate(places) if p == FULL], found[item])
        for group in tree.values():
            self._tree(group, wanted, found)
        return found

    def _place(self, item: int, run: Run) -> str | int | None:
        """``FULL``, ``TREE``, the first changed token for a joining batch; ``None``: no run."""
        read = self.read[item]
        if not run:
            return None
        if self.executor == FULL or read == MEAN or self._where[item][0].kept == {}:
            return FULL
        limit = self.signal.trunk.alone_beyond
        if limit is not None and len(self.encoded[item].ids) > limit:
            return FULL
        at = {token for part in run for token in part.at}
        if at <= {read} and self.engine.offers(TREE) and self.executor != JOINING:
            return TREE
        if self.whole and self.engine.offers(JOINING):
            return min(at)
        return FULL

    def _tree(
        self,
        group: list[tuple[int, list[int]]],
        wanted: Mapping[int, Sequence[Run]],
        found: dict[int, Outcome],
    ) -> None:
        clean = self._where[group[0][0]][0]
        n, length = len(group[0][1]), clean.batch.ids.shape[1]
        cells = self.batch_tokens * _TREE_CELLS
        lanes = n if n * (length + n) <= cells else max(1, int(cells**0.5) - length)
        rows = max(1, cells // (lanes * (length + lanes)))
        for a in range(0, len(group), rows):
            for b in range(0, n, lanes):
                some = [(item, tokens[b : b + lanes]) for item, tokens in group[a : a + rows]]
                items = [item for item, _ in some]
                frame = Frame(
                    True,
                    tuple(self._where[i][1] for i in items),
                    tuple(self.read[i] for i in items),
                )
                runs = [[wanted[i][k] for k in tokens] for i, tokens in some]
                scores, flips = self._replay(clean, frame, runs, items)
                for row, (item, tokens) in enumerate(some):
                    found[item].scores[tokens] = scores[row]
                    found[item].flips[tokens] = flips[row]
        self.executors.add(TREE)

    def _joining(
        self, item: int, start: int, runs: Sequence[Run], which: list[int], found: Outcome
    ) -> None:
        clean, row = self._where[item]
        frame = Frame(False, (row,), (self.read[item],), start)
        which = sorted(which, key=lambda k: min(p.first_block for p in runs[k]))
        per = max(1, self.batch_tokens // (self.read[item] + 1 - start))
        for a in range(0, len(which), per):
            some = which[a : a + per]
            scores, flips = self._replay(clean, frame, [[runs[k] for k in some]], [item])
            found.scores[some], found.flips[some] = scores[0], flips[0]
        self.executors.add(JOINING)

    def _replay(
        self, clean: CleanRun, frame: Frame, runs: Sequence[Sequence[Run]], items: list[int]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        assert self.engine.layout is not None
        trunk = self.signal.trunk
        replay = Replay(trunk, clean, self.engine.layout, self.engine.routers, frame, runs)
        scores = self.readout.read(replay.normed(), np.array(items)).double().cpu().numpy()
        per_forward = trunk.n_layers * float(np.mean([len(self.encoded[i].ids) for i in items]))
        self.forwards += replay.tokens / per_forward
        return scores, replay.flips.numpy()

    def _full(self, item: int, runs: Sequence[Run], which: list[int], found: Outcome) -> None:
        if not which:
            return
        out = run_full(
            self.signal.trunk,
            self.encoded,
            item,
            [runs[k] for k in which],
            partial(read_scores, self.readout, self.read),
            self.engine.routers,
            self.batch_tokens,
            until=self._until(item),
        )
        found.scores[which], found.flips[which] = out.scores.numpy(), out.flips.numpy()
        self.forwards += out.forwards
        self.executors.add(FULL)


def read_scores(readout: Readout, read: Sequence[int], batch: Batch, normed: Tensor) -> Tensor:
    """Scores of a batch's rows from their normed states ``[rows, length, width]``."""
    if readout.head.pool == "late":
        return masked_mean(batch, readout.read(normed, batch.index))
    return readout.read(read_rows(read)(batch, normed), batch.index)


def clean_runs(
    signal: ClassifierRM,
    encoded: Sequence[Encoded],
    read: Sequence[int],
    readout: Readout,
    groups: Sequence[Sequence[int]],
    sites: Sequence[Site],
    *,
    whole: bool = False,
    executor: str | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Iterator[CleanItems]:
    """Run items clean, a few groups at a time, and hand each lot out to be run changed.

    Parameters
    ----------
    encoded, read : sequences
        All items, and the token that is read of each.
    readout : Readout
        Bound to the items.
    groups : sequence of sequences of int
        Items that are needed at the same time, such as both sides of a pair.
    sites : sequence of Site
        What to capture in the clean runs.
    whole : bool
        Capture all tokens, not the read one alone; needed for changes at other tokens.
    executor : {"full forward", "tree row", "joining batch"}, optional
        Force one; by default each run goes to the fastest that verified and fits.

    Yields
    ------
    CleanItems

    Raises
    ------
    CapabilityError
        If the executor is unknown or does not run on this trunk, or the head reads the mean over
        tokens and only the read token is asked for.
    AnatomyError
        If a site does not exist.
    """
    trunk = signal.trunk
    trunk.refuse_rebuilt()
    trunk.refuse_training()
    if trunk.hooked and executor is None:
        executor = FULL  # what hooks of somebody else do with a few tokens is not known
    longest = max((len(encoded[i].ids) for group in groups for i in group), default=0)
    engine = engine_of(trunk, 0 if executor == FULL else longest)
    if executor is not None and (executor not in EXECUTORS or not engine.offers(executor)):
        why = engine.missing.get(executor, f"there are {', '.join(EXECUTORS)}")
        raise CapabilityError(f"executor={executor!r} does not run here: {why}")
    if not whole and any(read[i] == MEAN for group in groups for i in group):
        raise CapabilityError(
            "this head reads the mean over all tokens, so there is no one token to change; change "
            "all positions"
        )
    every = [i for group in groups for i in group]
    if executor != FULL and shelved(trunk, encoded, read, every, whole=whole):
        together = iter([every])  # all of it is in memory
    else:
        together = lots(encoded, groups, batch_tokens)
    expect(progress, len(every))
    for lot in together:
        found = CleanItems(
            signal, encoded, read, readout, engine, whole, executor, batch_tokens, list(lot)
        )
        _start(found, sites)
        yield found
        found._where.clear()  # whoever still holds this lot must not hold two in memory
        if progress is not None:
            progress(len(lot))


@torch.no_grad()
def _start(found: CleanItems, sites: Sequence[Site]) -> None:
    """Run the items of a lot clean."""
    for items, clean, rows in _run_clean(found, sites):
        if found.whole:
            scores = read_scores(found.readout, found.read, clean.batch, clean.normed)
        else:
            scores = found.readout.read(clean.normed[rows], np.array(items))
        if not bool(torch.isfinite(scores).all()):
            # Names the item and where it starts, if it is in the trunk.
            found.signal.trunk.capture(clean.batch, [])
            raise NumericsError(f"a score among items {items} is not finite, though the state is")
        for item, row, score in zip(items, rows, scores.tolist(), strict=True):
            found._where[item] = (clean, row)
            found.score[item] = float(score)
    found.forwards += len(found.index)


def _run_clean(
    found: CleanItems, sites: Sequence[Site]
) -> Iterator[tuple[list[int], CleanRun, list[int]]]:
    """Items in batches of about equal length: which, their run, and their rows in it."""
    trunk, read, index = found.signal.trunk, found.read, found.index
    single = all(read[i] != MEAN for i in index)
    keep = found.executor != FULL and found.engine.layout is not None and single
    if keep and shelved(trunk, found.encoded, read, index, whole=found.whole):
        assert isinstance(trunk.shelf, KeptRuns)
        mine = ([found.encoded[i] for i in index], [read[i] for i in index])
        for items, clean, rows in trunk.shelf.clean_runs(trunk, *mine, sites):
            yield [index[k] for k in items], clean, rows
        return
    rows_of = None if found.whole else read_rows(read)
    for some in alike(found.encoded, index, trunk.alone_beyond):
        batch = collate(found.encoded, some, trunk.pad_id, trunk.device)
        clean = run_clean(trunk, batch, sites, found.engine.routers, rows=rows_of, keep=keep)
        yield some, clean, list(range(len(some)))


__all__ = ["Change", "CleanItems", "Outcome", "clean_runs", "read_scores"]
