"""Senders and receivers of path effects: their names, and which come after which."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reward_lens.backbone import Anatomy, Receiver, Site, Target, check_receiver, write_sites
from reward_lens.backbone.anatomy import StreamNorm, Sum
from reward_lens.errors import AnatomyError, CapabilityError

READOUT = "readout"
_READS = re.compile(r"L(\d+)\.(?:(attn|mlp)_in|H(\d+)(?:\.([qkv]))?)")
#: Where the stream itself is changed.
_STREAM = ("resid_pre", "resid_mid", "resid_post")


@dataclass(frozen=True)
class End:
    """The receiving end of a path.

    Attributes
    ----------
    name : str
    receiver : Receiver, optional
        A sublayer or head whose reading is changed.
    target : Target, optional
        The stream itself, from there on; for the readout, what leaves the last block.
    """

    name: str
    receiver: Receiver | None = None
    target: Target | None = None


def parse_end(name: str, anatomy: Anatomy) -> End:
    """Read the name of a receiver.

    Parameters
    ----------
    name : str
        ``L5.attn_in``, ``L5.mlp_in``, ``L5.H3``, ``L5.H3.q`` (``.k``, ``.v``), ``L5.resid_pre``
        (``_mid``, ``_post``) or ``readout``.

    Raises
    ------
    AnatomyError
        If it is none of these, or this model does not have it.
    """
    if name == READOUT:
        return End(name, target=Target(Site("resid_post", len(anatomy.blocks) - 1)))
    found = _READS.fullmatch(str(name))
    if found is not None:
        head = None if found[3] is None else int(found[3])
        receiver = Receiver(int(found[1]), found[2] or "attn", head, found[4])
        check_receiver(anatomy, receiver)
        return End(name, receiver=receiver)
    kind = str(name).rpartition(".")[2]
    if kind not in _STREAM:
        raise AnatomyError(
            f"{name!r} is no receiver; receivers are readout, L<layer>.attn_in, L<layer>.mlp_in, "
            f"L<layer>.H<head>, L<layer>.H<head>.q (.k, .v) and L<layer>.resid_pre (_mid, _post)"
        )
    target = Target.parse(name)
    anatomy.block(target.site)
    return End(name, target=target)


def parse_sender(name: str, anatomy: Anatomy) -> Target:
    """Read the name of a sender: ``embed``, ``L3.attn_out``, ``L3.mlp_out`` or ``L3.H2``.

    Raises
    ------
    AnatomyError
        If it is none of these, or this model does not have it.
    """
    target = Target.parse(name)
    if target.head is None and target.site.kind not in ("embed", "attn_out", "mlp_out"):
        raise AnatomyError(
            f"{name!r} writes nothing of its own to the stream; senders are embed, "
            f"L<layer>.attn_out, L<layer>.mlp_out and L<layer>.H<head>"
        )
    if target.site.layer is not None:
        anatomy.write(target.site)
        target.channels(anatomy)
    return target


def all_ends(anatomy: Anatomy) -> list[End]:
    """Every sublayer's reading, in order, and the readout."""
    names = [f"L{s.layer}.{s.kind.partition('_')[0]}_in" for s in write_sites(anatomy)]
    return [parse_end(name, anatomy) for name in (*names, READOUT)]


def reaches(anatomy: Anatomy, sender: Target, end: End) -> bool:
    """Whether what a sender writes is in what the receiver reads."""
    return _written(sender) <= _reads(anatomy, end)


def _written(sender: Target) -> int:
    """When a write is in the stream; three steps a layer: entering, after attention, leaving."""
    if sender.site.layer is None:
        return 0
    return 3 * sender.site.layer + (2 if sender.site.kind == "mlp_out" else 1)


def _reads(anatomy: Anatomy, end: End) -> int:
    if end.receiver is not None:
        block = anatomy.blocks[end.receiver.layer]
        late = end.receiver.role == "mlp" and block.sequential
        return 3 * end.receiver.layer + int(late)
    assert end.target is not None
    assert end.target.site.layer is not None
    return 3 * end.target.site.layer + _STREAM.index(end.target.site.kind)


def together(anatomy: Anatomy, ends: Sequence[End]) -> list[End]:
    """Ends changed in one run, without those that another one covers.

    Where the stream itself is changed, everything that reads it from there on sees the change, so
    what comes later is not to get it twice.
    """
    streams = sorted((e for e in ends if e.target is not None), key=lambda e: _reads(anatomy, e))
    if not streams:
        return list(ends)
    first = _reads(anatomy, streams[0])
    before = [e for e in ends if e.receiver is not None and _reads(anatomy, e) < first]
    return [*before, streams[0]]


def refuse_impossible(anatomy: Anatomy, senders: Sequence[Target], ends: Sequence[End]) -> None:
    """Raise if a receiver does not come after a sender.

    Raises
    ------
    AnatomyError
        Naming the two.
    """
    for sender in senders:
        for end in ends:
            if not reaches(anatomy, sender, end):
                raise AnatomyError(
                    f"there is no path from {sender} to {end.name}: what {sender} writes is not in "
                    f"what {end.name} reads. A receiver has to come after its sender"
                )


def _is_carried(step: Sum | StreamNorm) -> bool:
    """Whether a step scales the stream itself; a fitted factor is 1 to its own rounding."""
    carry = step.carry if isinstance(step, Sum) else None
    return carry is not None and bool(((carry - 1).abs() > 1e-6).any())


def refuse_normed_stream(anatomy: Anatomy) -> None:
    """Path effects need a stream that is only added to.

    Raises
    ------
    AnatomyError
        If the writes did not verify.
    CapabilityError
        If blocks norm or scale the stream itself.
    """
    write_sites(anatomy)
    for layer, block in enumerate(anatomy.blocks):
        if block.norms or any(map(_is_carried, block.steps)):
            raise CapabilityError(
                f"path_effects: layer {layer} {'norms' if block.norms else 'scales'} the stream "
                f"itself, so what a component wrote before does not reach what comes after as it "
                f"was written; patch_grid gives effects along all paths together"
            )
