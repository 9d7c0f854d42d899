"""What can be changed in a forward: the tensor at a site, or what one receiver reads of the stream.

A change is given in the coordinates of the tensor that is replaced, so that putting back what was
captured there leaves every bit as it was.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from reward_lens.backbone.anatomy import Anatomy
from reward_lens.backbone.site_taps import site_taps
from reward_lens.backbone.sites import Site
from reward_lens.backbone.taps import Handler, Tap, merge
from reward_lens.errors import AnatomyError, DataError

_HEAD = re.compile(r"L(\d+)\.H(\d+)")
#: Site that is meant -> site whose tensor is replaced.
_SOURCE = {"attn_out": "attn_unscaled", "mlp_out": "mlp_unscaled"}


@dataclass(frozen=True)
class Target:
    """A tensor that can be replaced: that of a site, or one head's part of an attention.

    Parameters
    ----------
    site : Site
        ``head_in`` for a head.
    head : int, optional
    """

    site: Site
    head: int | None = None

    @classmethod
    def parse(cls, name: str | Site | Target) -> Self | Target:
        """Read ``"L3.attn_out"``, ``"L3.H2"``, ``"embed"``, ``"L3.resid_post"`` and the like.

        Raises
        ------
        AnatomyError
            If the name is none of these.
        """
        if isinstance(name, Target):
            return name
        if not isinstance(name, (str, Site)):
            raise AnatomyError(f"{name!r} is no site: give a name such as 'L3.attn_out' or 'L3.H2'")
        if isinstance(name, str) and (found := _HEAD.fullmatch(name)):
            return cls(Site("head_in", int(found[1])), int(found[2]))
        try:
            site = Site.parse(name)
        except AnatomyError as error:
            raise AnatomyError(
                f"{error}; one head is written L<layer>.H<head>, such as L3.H2"
            ) from error
        if site.kind == "head_out":
            raise AnatomyError(f"{site} is all heads of a layer; name one: L{site.layer}.H<head>")
        return cls(site)

    def __str__(self) -> str:
        return str(self.site) if self.head is None else f"L{self.site.layer}.H{self.head}"

    @property
    def source(self) -> Site:
        """The site to capture; :meth:`of` takes this target's part of its tensor."""
        return Site(_SOURCE.get(self.site.kind, self.site.kind), self.site.layer)

    @property
    def first_block(self) -> int:
        """The first block whose forward differs; one past the layer for what leaves a block.

        Of the final norm's output none does.
        """
        if self.site.layer is None:
            return sys.maxsize if self.site.kind == "final_norm" else 0
        return self.site.layer + (self.site.kind == "resid_post")

    def channels(self, anatomy: Anatomy) -> slice:
        """Which channels of the source's tensor are meant.

        Raises
        ------
        AnatomyError
            If the model has no such head.
        """
        if self.head is None:
            return slice(None)
        heads = anatomy.write(self.site).heads
        if heads is None:
            raise AnatomyError(f"{self}: the heads of this layer could not be told apart")
        if not 0 <= self.head < heads.n:
            raise AnatomyError(f"{self}: layer {self.site.layer} has heads 0 to {heads.n - 1}")
        return slice(self.head * heads.width, (self.head + 1) * heads.width)

    def width(self, anatomy: Anatomy) -> int:
        """How many channels a value put in place has.

        Raises
        ------
        AnatomyError
            If the model does not have the target.
        """
        site_taps(anatomy, self.source)
        if self.site.kind != "head_in":
            return anatomy.width
        heads = anatomy.write(self.site).heads
        assert heads is not None  # or there would be no tap
        return len(range(heads.n * heads.width)[self.channels(anatomy)])

    def of(self, tensor: Tensor, anatomy: Anatomy) -> Tensor:
        """Take this target's part ``[..., width]`` of the tensor captured at :attr:`source`."""
        return tensor[..., self.channels(anatomy)]


@dataclass(frozen=True)
class Change:
    """A tensor is replaced, or something is added to it, at some tokens of one item.

    Attributes
    ----------
    target : Target
    at : tuple of int
        Tokens of the item.
    value : Tensor
        ``[len(at), width]`` in the coordinates of the target's source.
    add : bool
    """

    target: Target
    at: tuple[int, ...]
    value: Tensor
    add: bool = False

    @property
    def first_block(self) -> int:
        """The first block whose forward differs."""
        return self.target.first_block


@dataclass(frozen=True)
class Receiver:
    """What reads the stream: a layer's attention or MLP, or a head's query, key or value input.

    Attributes
    ----------
    layer : int
    role : {"attn", "mlp"}
    head : int, optional
        One head of the attention.
    part : str, optional
        Which of the head's three inputs, ``"q"``, ``"k"``, ``"v"``, or several: ``"qk"``; all by
        default.
    """

    layer: int
    role: str
    head: int | None = None
    part: str | None = None

    def __str__(self) -> str:
        if self.head is None:
            return f"L{self.layer}.{self.role}_in"
        return f"L{self.layer}.H{self.head}" + (f".{self.part}" if self.part else "")

    @property
    def target(self) -> Target:
        """What follows from the receiver's input: its own write."""
        if self.head is not None:
            return Target(Site("head_in", self.layer), self.head)
        return Target(Site(f"{self.role}_out", self.layer))


@dataclass(frozen=True)
class Reception:
    """One receiver's reading of the stream is changed; the stream itself is not.

    The receiver's write follows, and everything after it.

    Attributes
    ----------
    receiver : Receiver
    at : tuple of int
        Tokens of the item.
    delta : Tensor
        ``[len(at), width]``: what is added to the stream that the receiver reads.
    """

    receiver: Receiver
    at: tuple[int, ...]
    delta: Tensor

    @property
    def first_block(self) -> int:
        """The first block whose forward differs."""
        return self.receiver.layer


#: Everything that is changed together in one forward of one item.
Run = Sequence[Change | Reception]


def prepared(anatomy: Anatomy, run: Run, n_tokens: int, until: int | None = None) -> Run:
    """A run as it can be executed: checked, and without what changes nothing.

    Several inputs of one head are joined into one reception: what the head makes of them is made of
    all together.

    Parameters
    ----------
    n_tokens : int
        Of the item.
    until : int, optional
        The last token that matters; changes of later ones are left out.

    Raises
    ------
    AnatomyError
        If the model does not have what is to be changed.
    DataError
        If an item of ``n_tokens`` tokens does not have those named, one is named twice, a value
        does not fit, or a receiver gets two different changes.
    """
    found: list[Change | Reception] = []
    receptions: dict[Receiver, int] = {}
    for part in run:
        _check(anatomy, part, n_tokens)
        part = part if until is None else _before(part, until)
        if not part.at:
            continue
        if isinstance(part, Reception):
            whole = replace(part.receiver, part=None)
            if whole in receptions:
                place = receptions[whole]
                found[place] = _joined(found[place], part)
                continue
            receptions[whole] = len(found)
        found.append(part)
    return tuple(found)


def _check(anatomy: Anatomy, part: Change | Reception, n_tokens: int) -> None:
    if isinstance(part, Change):
        name, value, width = str(part.target), part.value, part.target.width(anatomy)
    else:
        part.receiver.target.width(anatomy)
        name, value, width = str(part.receiver), part.delta, anatomy.width
    outside = [t for t in part.at if not 0 <= t < n_tokens]
    if outside:
        raise DataError(
            f"{name}: token {outside[0]} is to be changed of an item whose tokens are 0 to "
            f"{n_tokens - 1}"
        )
    if len(set(part.at)) < len(part.at):
        raise DataError(f"{name}: a token is named twice in {part.at}; name each once")
    if tuple(value.shape) != (len(part.at), width):
        raise DataError(
            f"{name}: a change of {len(part.at)} tokens has a value of shape "
            f"({len(part.at)}, {width}), not {tuple(value.shape)}"
        )


def _before(part: Change | Reception, until: int) -> Change | Reception:
    kept = [k for k, token in enumerate(part.at) if token <= until]
    at = tuple(part.at[k] for k in kept)
    if len(at) == len(part.at):
        return part
    if isinstance(part, Change):
        return replace(part, at=at, value=part.value[kept])
    return replace(part, at=at, delta=part.delta[kept])


def _joined(one: Change | Reception, other: Reception) -> Reception:
    assert isinstance(one, Reception)
    if one.at != other.at or not torch.equal(one.delta, other.delta):
        raise DataError(f"{one.receiver} gets two different changes in one run; run them apart")
    parts = {p for r in (one, other) for p in r.receiver.part or "qkv"}
    named = None if len(parts) == len("qkv") else "".join(sorted(parts, key="qkv".index))
    return replace(one, receiver=replace(one.receiver, part=named))


@dataclass(frozen=True)
class Placed:
    """A change in one row of a forward.

    Attributes
    ----------
    row : int
    columns : tuple of int
        Where the tokens of the change are in that row.
    change : Change
    """

    row: int
    columns: tuple[int, ...]
    change: Change


def edit_handlers(
    anatomy: Anatomy, placed: Sequence[Placed], shape: tuple[int, int]
) -> dict[Tap, Handler]:
    """Handlers that make changes in one forward.

    Parameters
    ----------
    placed : sequence of Placed
        Later ones act on what earlier ones left.
    shape : tuple of int
        Rows and columns of the forward.

    Raises
    ------
    AnatomyError
        If the model does not have what is to be changed.
    """
    by_site: dict[Site, list[Placed]] = {}
    for one in placed:
        by_site.setdefault(one.change.target.source, []).append(one)
    # The stream between the sublayers is made of what the other changes leave.
    last = sorted(by_site, key=lambda site: site.kind == "resid_mid")
    return merge(*(_at_site(anatomy, site, by_site[site], shape) for site in last))


def _at_site(
    anatomy: Anatomy, site: Site, placed: list[Placed], shape: tuple[int, int]
) -> Mapping[Tap, Handler]:
    taps = site_taps(anatomy, site)
    if len(taps) == 1:
        return {taps[0]: lambda tensor: _edited(anatomy, tensor, placed, shape)}
    # The stream between the sublayers is what entered plus the attention's write: that is moved.
    enter, write = taps
    entered: list[Tensor] = []

    def move(tensor: Tensor) -> Tensor:
        between = entered[-1] + tensor
        wanted = _edited(anatomy, between, placed, shape)
        return torch.where(wanted == between, tensor, wanted - entered[-1])

    return {enter: entered.append, write: move}


def _edited(
    anatomy: Anatomy, tensor: Tensor, placed: list[Placed], shape: tuple[int, int]
) -> Tensor:
    """The tensor with every change made."""
    new = tensor.reshape(*shape, -1).clone()  # some modules see all tokens in one row
    for group in _alike(anatomy, placed):
        rows = torch.tensor([p.row for p in group.placed for _ in p.columns], device=new.device)
        columns = torch.tensor([c for p in group.placed for c in p.columns], device=new.device)
        values = torch.cat([p.change.value.to(new) for p in group.placed])
        new[..., group.channels].index_put_((rows, columns), values, accumulate=group.add)
    return new.view_as(tensor)


@dataclass
class _Group:
    """Changes that are made at once: the same channels, the same kind, each row at most once."""

    channels: slice
    add: bool
    placed: list[Placed] = field(default_factory=list)
    rows: set[int] = field(default_factory=set)

    def take(self, one: Placed) -> None:
        self.placed.append(one)
        self.rows.add(one.row)


def _alike(anatomy: Anatomy, placed: list[Placed]) -> list[_Group]:
    """Group changes; in every row they keep their order."""
    found: list[_Group] = []
    for one in placed:
        channels, add = one.change.target.channels(anatomy), one.change.add
        home = None
        for group in reversed(found):
            if one.row in group.rows:
                break
            if (group.channels, group.add) == (channels, add):
                home = group
                break
        if home is None:
            home = _Group(channels, add)
            found.append(home)
        home.take(one)
    return found
