"""What a receiver writes when only its own reading of the stream is changed.

It is seen in a forward of its own, the probe, whose stream is changed where the receiver reads it.
What the probe does after that is thrown away: only the receiver's write is kept, to be put in its
place in the run that counts. One head's query, key or value alone is told apart by the keys and
values that its attention is handed: a second row, with the stream as it is, gives the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from reward_lens.backbone.anatomy import Anatomy
from reward_lens.backbone.batching import Batch
from reward_lens.backbone.edits import Change, Placed, Receiver, Reception, Target, edit_handlers
from reward_lens.backbone.key_store import KeyStore, cache_argument
from reward_lens.backbone.site_taps import site_taps
from reward_lens.backbone.sites import Site
from reward_lens.backbone.taps import Handler, Tap, merge
from reward_lens.backbone.trunk import Trunk
from reward_lens.errors import AnatomyError, CapabilityError, RewardLensError


def check_receiver(anatomy: Anatomy, receiver: Receiver) -> None:
    """Refuse a receiver that this model does not have.

    Raises
    ------
    AnatomyError
        Naming what is missing.
    """
    receiver.target.channels(anatomy)  # refuses an unknown head
    anatomy.write(receiver.target.site)
    if receiver.role == "mlp":
        mlp_reading(anatomy, receiver.layer)


def reading_change(anatomy: Anatomy, reception: Reception) -> Change:
    """The change of the stream, in a probe, that the receiver of a reception reads."""
    receiver = reception.receiver
    target, scale = Target(Site("resid_pre", receiver.layer)), None
    if receiver.role == "mlp":
        target, scale = mlp_reading(anatomy, receiver.layer)
    value = reception.delta if scale is None else reception.delta.double() / scale
    return Change(target, reception.at, value.to(reception.delta), add=True)


def mlp_reading(anatomy: Anatomy, layer: int) -> tuple[Target, Tensor | None]:
    """Where something is added so that the MLP reads it; and what it is to be divided by.

    Raises
    ------
    AnatomyError
        If the attention's write is scaled by zero, so that nothing can be added by way of it.
    """
    block = anatomy.block(Site("mlp_out", layer))
    if not block.sequential:  # reads what enters the block, as the attention does
        return Target(Site("resid_pre", layer)), None
    if block.scaled and not block.norms and block.attn is not None:
        scale = block.attn.scale
        if scale is not None and bool((scale == 0).any()):
            raise AnatomyError(
                f"L{layer}.mlp_in: a channel of the attention's write is scaled by 0 here, so what "
                f"the MLP reads cannot be changed apart from it"
            )
        return Target(Site("attn_out", layer)), scale
    mid = Target(Site("resid_mid", layer))
    site_taps(anatomy, mid.site)
    return mid, None


@torch.no_grad()
def received(
    trunk: Trunk, batch: Batch, placed: Sequence[Placed], now: Sequence[tuple[int, Reception]]
) -> list[Placed]:
    """Full forwards that show what receivers of one layer and role write.

    Parameters
    ----------
    batch : Batch
        Copies of one item.
    placed : sequence of Placed
        What is changed in its rows so far.
    now : sequence of (int, Reception)
        With the row each belongs to.

    Returns
    -------
    list of Placed
        Changes of the receivers' writes, in the same rows.

    Raises
    ------
    CapabilityError
        If a head's query, key or value is asked for and the trunk hands its keys to no cache.
    """
    anatomy, n = trunk.anatomy, len(now)
    parts = any(r.receiver.part is not None for _, r in now)
    # Row k is reception k's, its stream changed; row n + k the same with the stream as it is.
    rows = [row for row, _ in now] * (2 if parts else 1)
    edits = [replace(p, row=k) for k, row in enumerate(rows) for p in placed if p.row == row]
    edits += [Placed(k, r.at, reading_change(anatomy, r)) for k, (_, r) in enumerate(now)]
    shape = (len(rows), batch.ids.shape[1])
    source = now[0][1].receiver.target.source
    sources = {r.receiver.target.source for _, r in now}
    seen: dict[Site, Tensor] = {}
    looks = watch_writes(anatomy, sources, seen)
    given = _routed(trunk, [r for _, r in now], source.layer or 0) if parts else {}
    at = torch.tensor(rows, device=batch.ids.device)
    wide = replace(batch, index=batch.index[rows], items=tuple(batch.items[k] for k in rows),
                   types=None if batch.types is None else batch.types[at],
                   **{k: getattr(batch, k)[at] for k in _FIELDS})  # fmt: skip
    try:
        trunk.forward(wide, merge(edit_handlers(anatomy, edits, shape), looks), **given)
    except _OTHER_CACHE as error:
        if given and not isinstance(error, RewardLensError):
            raise _no_parts(now[0][1].receiver) from error
        raise
    if any(isinstance(v, KeyStore) and not v.routed for v in given.values()):
        raise _no_parts(now[0][1].receiver)
    found = []
    for k, (row, r) in enumerate(now):
        own = own_row(k, n, r.receiver.part)
        tensor = seen[r.receiver.target.source].reshape(*shape, -1)[own]
        first = min(r.at) if anatomy.causal else 0
        columns = tuple(range(first, shape[1]))
        value = r.receiver.target.of(tensor, anatomy)[first:]
        found.append(Placed(row, columns, Change(r.receiver.target, columns, value)))
    return found


def watch_writes(
    anatomy: Anatomy, sources: Iterable[Site], seen: dict[Site, Tensor]
) -> dict[Tap, Handler]:
    """Handlers that copy the tensors at sites: some models add to them in place later on."""

    def keep(site: Site) -> Handler:
        def look(tensor: Tensor) -> None:
            seen[site] = tensor.clone()

        return look

    return {site_taps(anatomy, site)[0]: keep(site) for site in sources}


#: What a model raises that wants another cache than it is given.
_OTHER_CACHE = (AttributeError, IndexError, KeyError, NotImplementedError, TypeError, ValueError)
_FIELDS = ("ids", "mask", "positions", "offset", "lengths")


def own_row(k: int, n: int, part: str | None) -> int:
    """Of the two rows of reception ``k`` the one whose query is the receiver's.

    Row ``k`` has the stream changed, row ``n + k`` as it is.
    """
    return k if part is None or "q" in part else n + k


def routes(receptions: Sequence[Reception]) -> tuple[list[int], list[int]]:
    """Whose keys and whose values each row's attention is handed.

    Row ``k`` is reception ``k``'s with the stream changed, row ``n + k`` with it as it is.
    """
    n = len(receptions)
    keys, values = list(range(2 * n)), list(range(2 * n))
    for k, r in enumerate(receptions):
        part = r.receiver.part or "qkv"
        own = own_row(k, n, part)
        keys[own] = k if "k" in part else n + k
        values[own] = k if "v" in part else n + k
    return keys, values


def _routed(trunk: Trunk, receptions: Sequence[Reception], layer: int) -> dict[str, object]:
    name = cache_argument(trunk)
    if name is None:
        raise _no_parts(receptions[0].receiver)
    within = trunk.anatomy.blocks[layer].enter.module
    return {name: KeyStore(routes(receptions), within), "use_cache": True}


def _no_parts(receiver: Receiver) -> CapabilityError:
    whole = replace(receiver, part=None)
    return CapabilityError(
        f"{receiver}: this trunk hands its keys and values to no cache, or to one of its own, so a "
        f"head's query, key and value cannot be told apart; ask for the whole head, {whole}"
    )
