"""Which executors of changed runs this trunk allows: each is tried against the full forward."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from reward_lens.backbone.batching import Batch, collate
from reward_lens.backbone.clean_run import CleanRun, Layout, find_layout, run_clean
from reward_lens.backbone.edits import Change, Run, Target
from reward_lens.backbone.frames import Frame
from reward_lens.backbone.full_forward import run_full
from reward_lens.backbone.replay import Replay
from reward_lens.backbone.routers import find_routers, has_experts
from reward_lens.backbone.sites import Site
from reward_lens.backbone.taps import Tap
from reward_lens.backbone.tokenise import Encoded
from reward_lens.backbone.trunk import Trunk
from reward_lens.errors import AnatomyError

FULL, TREE, JOINING = "full forward", "tree row", "joining batch"
#: Largest gap to the full forward, in shares of the largest effect, in float32.
TOLERANCE = 1e-5
#: In half precision: that many times what a padded batch, or one rounding, changes of a state.
_COARSE = 4.0
_LENGTHS = (9, 7, 5)
_WAYS = 2  # of running a patch beside the full forward


@dataclass(frozen=True)
class Engine:
    """What was verified of one trunk.

    Attributes
    ----------
    layout : Layout, optional
        What the blocks' arguments are, where runs can start inside a clean one.
    routers : dict
        Layer -> where experts are chosen.
    missing : dict
        Executor -> why it does not run here.
    gaps : dict
        Executor -> its largest gap to the full forward, in shares of the largest effect.
    length : int
        Tokens of the longest text they were tried on.
    uncounted : bool
        Whether the model has experts whose choice was not found, so that flips are not known.
    """

    layout: Layout | None = None
    routers: Mapping[int, Tap] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    gaps: Mapping[str, float] = field(default_factory=dict)
    length: int = 0
    uncounted: bool = False

    def offers(self, executor: str) -> bool:
        """Whether an executor verified."""
        return executor == FULL or executor not in self.missing


_KNOWN: WeakKeyDictionary[Trunk, Engine] = WeakKeyDictionary()
_LOCK = threading.RLock()


def engine_of(trunk: Trunk, length: int = 0) -> Engine:
    """The executors of a trunk; verified at the first call, and for longer texts once more.

    Parameters
    ----------
    length : int
        Tokens of the longest text that will be run: a window may begin to matter there.

    Raises
    ------
    AnatomyError
        If no blocks were found, so that nothing can be changed in it.
    """
    if trunk.plants is not None and trunk.clean is not None:
        # Planted rules leave what is kept of a clean run as it is; a replay makes them again.
        return engine_of(trunk.clean, length)
    if trunk.clean is not None:  # a view whose forwards are changed
        why = "something is changed in every forward of this signal already"
        clean = engine_of(trunk.clean)
        missing = {TREE: why, JOINING: why}
        return Engine(None, clean.routers, missing, uncounted=clean.uncounted)
    with _LOCK:
        if trunk not in _KNOWN:
            _KNOWN[trunk] = _verified(trunk)
        known = _KNOWN[trunk]
        if length > known.length and known.layout is not None and len(known.missing) < _WAYS:
            known = _KNOWN[trunk] = _verified_at(trunk, known, length)
        return known


def _verified(trunk: Trunk) -> Engine:
    if not trunk.anatomy.blocks:
        reasons = "; ".join(trunk.anatomy.missing.values()) or "nothing was verified"
        raise AnatomyError(f"no blocks were found in this trunk: {reasons}")
    encoded = _probe_items(trunk)
    given = trunk.inputs.of_batch(_batch(trunk, encoded, [0, 1, 2]))
    routers = find_routers(trunk.base, given, trunk.anatomy.blocks)
    uncounted = not routers and has_experts(trunk.config)
    why = _not_offered(trunk)
    if why:
        return Engine(None, routers, {TREE: why, JOINING: why}, uncounted=uncounted)
    sites = [t.source for t in _targets(trunk)]
    try:
        clean = run_clean(trunk, _batch(trunk, encoded, [0, 1, 2]), sites, routers)
        other = run_clean(trunk, _batch(trunk, encoded, [1, 2]), [], routers)
        layout = find_layout(trunk, clean, other)
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else ""
        why = said if isinstance(error, AnatomyError) else f"it takes another cache ({error!r})"
        return Engine(None, routers, {TREE: why, JOINING: why}, uncounted=uncounted)
    gaps: dict[str, float] = {}
    missing: dict[str, str] = {}
    for executor in (TREE, JOINING):
        try:
            gap, allowed = _gap(trunk, encoded, clean, layout, routers, executor)
        except Exception as error:
            missing[executor] = f"a block refuses to be called with a few tokens ({error!r})"
            continue
        gaps[executor] = gap
        if not gap <= allowed:
            missing[executor] = f"it misses the full forward by {gap:.1e} of the largest effect"
    longest = max(len(e.ids) for e in encoded)
    return Engine(layout, routers, missing, gaps, longest, uncounted)


def _verified_at(trunk: Trunk, known: Engine, length: int) -> Engine:
    """Try the executors that are left on texts as long as those that will be run."""
    assert known.layout is not None
    longest = min(length, trunk.alone_beyond or length)
    encoded = _probe_items(trunk, (longest, max(2, longest - 3)))
    sites = [t.source for t in _targets(trunk)]
    clean = run_clean(trunk, _batch(trunk, encoded, [0, 1]), sites, known.routers)
    missing = dict(known.missing)
    for executor in (TREE, JOINING):
        if executor in missing:
            continue
        gap, allowed = _gap(trunk, encoded, clean, known.layout, known.routers, executor, few=True)
        if not gap <= allowed:
            missing[executor] = (
                f"on texts of {longest} tokens it misses the full forward by {gap:.1e} of the "
                f"largest effect"
            )
    # The gaps stay those of the first check: they are on record with every measurement.
    return replace(known, missing=missing, length=length)


def _not_offered(trunk: Trunk) -> str:
    """Why runs cannot start inside a clean one, as far as is known without trying."""
    if not trunk.anatomy.causal:
        return "a token's state depends on later tokens"
    limit = trunk.alone_beyond
    if trunk.remembers or (limit is not None and limit < max(_LENGTHS)):
        return "a text's states depend on what else is in the batch"
    links = [w for k, w in trunk.anatomy.missing.items() if k.endswith(".link")]
    return links[0] if links else ""


def _probe_items(trunk: Trunk, lengths: Sequence[int] = _LENGTHS) -> list[Encoded]:
    """Texts of random ids, none of them padding."""
    generator = np.random.default_rng(0)
    top = max(3, min(trunk.config.vocab_size - 1, 200))
    limit = getattr(trunk.config, "max_position_embeddings", None) or max(lengths) + 1
    found = []
    for length in (min(n, int(limit) - 1) for n in lengths):
        ids = generator.integers(1, top, size=length).astype(np.int64)
        ids[ids == trunk.config.pad_token_id] = 0 if trunk.pad_id else 1
        found.append(Encoded(ids, length - 1))
    return found


def _batch(trunk: Trunk, encoded: Sequence[Encoded], index: Sequence[int]) -> Batch:
    return collate(encoded, index, trunk.pad_id, trunk.device)


def _targets(trunk: Trunk) -> list[Target]:
    """One of each kind in the first, the middle and the last layer."""
    anatomy, n = trunk.anatomy, trunk.n_layers
    found = [Target(Site("embed"))]
    for layer in sorted({0, n // 2, n - 1}):
        block = anatomy.blocks[layer]
        if block.attn is not None:
            found.append(Target(Site("attn_out", layer)))
            if block.attn.heads is not None:
                found.append(Target(Site("head_in", layer), block.attn.heads.n - 1))
        if block.mlp is not None:
            found.append(Target(Site("mlp_out", layer)))
        found += [Target(Site("resid_pre", layer)), Target(Site("resid_post", layer))]
    return found


def _gap(
    trunk: Trunk,
    encoded: Sequence[Encoded],
    clean: CleanRun,
    layout: Layout,
    routers: Mapping[int, Tap],
    executor: str,
    *,
    few: bool = False,
) -> tuple[float, float]:
    """Largest difference to the full forward over the largest effect; and what is allowed.

    With ``few``, of one text and of its first, middle and last runs only: long texts cost more.
    """
    gaps, noises, largest = [0.0], [0.0], 0.0
    lengths = [len(e.ids) for e in encoded]
    # A shorter text takes a longer one's tokens up to the read one, so that effects are large.
    items = [1] if few else range(len(encoded)) if executor == TREE else [1, 2]
    for item in items:
        other, read = (item - 1) % len(encoded), lengths[item] - 1
        start = read if executor == TREE else lengths[item] // 2
        at = [(read, lengths[other] - 1)] if executor == TREE else \
            [(t, t) for t in range(start, lengths[item])]  # fmt: skip
        runs = _runs(trunk, clean, other, at)
        frame = Frame(executor == TREE, (item,), (read,), start)
        found = Replay(trunk, clean, layout, routers, frame, [runs]).normed()[0].double().cpu()
        if few:
            kept = sorted({0, len(runs) // 2, len(runs) - 1})
            runs, found = [runs[k] for k in kept], found[kept]

        def read_state(batch: Batch, normed: Tensor, at: int = read) -> Tensor:
            return normed[:, at]

        full = run_full(trunk, encoded, item, runs, read_state, {}, 10**6).scores
        before = clean.normed[item, read].double().cpu()
        gaps.append(float((found - full).abs().max()))
        largest = max(largest, float((full - before).abs().max()))
        if trunk.dtype not in (torch.float32, torch.float64):
            alone = run_full(trunk, encoded, item, [()], read_state, {}, 1).scores[0]
            one = torch.finfo(trunk.dtype).eps * float(before.abs().max())
            noises.append(max(one, float((alone - before).abs().max())))
    if largest == 0:
        raise AnatomyError("nothing that was tried changes the state that is read")
    return max(gaps) / largest, max(TOLERANCE, _COARSE * max(noises) / largest)


def _runs(trunk: Trunk, clean: CleanRun, other: int, at: Sequence[tuple[int, int]]) -> list[Run]:
    """Each target alone, then all together; values are the other item's."""
    own = tuple(a for a, _ in at)
    theirs = [b for _, b in at]
    changes = []
    for target in _targets(trunk):
        state = clean.states[target.source][other, theirs]
        changes.append(Change(target, own, target.of(state, trunk.anatomy)))
    return [*((c,) for c in changes), tuple(changes)]
