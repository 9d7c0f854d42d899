"""A view of a signal whose every forward is changed: replace, ablate, steer.

The model is not touched: hooks are attached for the length of one forward, in the thread that runs
it. Other threads, and the original signal, see nothing of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from reward_lens.backbone import Encoded, Position, Target
from reward_lens.backbone.interventions import Changes, Lasting, tokens_at, unscaled
from reward_lens.data import as_items
from reward_lens.errors import CapabilityError, DataError
from reward_lens.evidence import fingerprint
from reward_lens.evidence.arguments import checked_seed

if TYPE_CHECKING:
    from reward_lens.signals.classifier import ClassifierRM

ABLATIONS = ("zero", "mean", "resample")

Where = str | int | tuple[int | None, int | None] | Position


@dataclass(frozen=True)
class Intervention:
    """One thing to do in every forward; made by :func:`replace`, :func:`ablate`, :func:`steer`.

    Attributes
    ----------
    target : Target
    position : Position
    how : {"replace", "steer", "zero", "mean", "resample"}
    value : Tensor, optional
        Of ``replace`` and ``steer``: ``[width]``, or ``[tokens, width]``.
    reference : tuple of Item
        Of ``mean`` and ``resample``.
    seed : int
    dose : float, optional
        Of ``steer``; ``value`` has it in it.
    """

    target: Target
    position: Position
    how: str
    value: Tensor | None = None
    reference: tuple[Any, ...] = ()
    seed: int = 0
    dose: float | None = None


def replace(site: str | Target, value: Any, position: Where = "final") -> Intervention:
    """Put a value in the place of an activation.

    Parameters
    ----------
    site : str
        ``L3.attn_out``, ``L3.H2`` (what the head hands to the attention's last linear map),
        ``embed``, ``L5.resid_post``, and so on.
    value : array or Tensor
        ``[width]``, or ``[tokens, width]`` for as many tokens as the position means.
    position : {"final", "all"}, int, (start, stop) or Position
        ``final`` is the token that the head reads. Indices may be negative.
    """
    return Intervention(Target.parse(site), _position(position), "replace", _tensor(value))


def steer(
    site: str | Target, direction: Any, dose: float = 1.0, position: Where = "final"
) -> Intervention:
    """Add ``dose · direction`` to an activation.

    Parameters
    ----------
    direction : array or Tensor
        ``[width]``, not normalised.
    """
    if not np.isfinite(dose):
        raise DataError(f"dose={dose}: a dose is a finite number")
    vector = _tensor(direction) * float(dose)
    return Intervention(Target.parse(site), _position(position), "steer", vector, dose=float(dose))


def ablate(
    site: str | Target,
    how: str = "zero",
    *,
    reference: Iterable[Any] | None = None,
    position: Where = "final",
    seed: int = 0,
) -> Intervention:
    """Take an activation away.

    Parameters
    ----------
    how : {"zero", "mean", "resample"}
        ``mean``: its mean over the reference items' tokens at ``position``; ``resample``: what it
        is at one such token, drawn for each item anew, the same for the same item and seed.
    reference : iterable of items
        Needed for ``mean`` and ``resample``.

    Raises
    ------
    CapabilityError
        If ``how`` is unknown.
    DataError
        If there is no reference where one is needed, or the seed is no whole number from 0.
    """
    seed = checked_seed(seed)
    if how not in ABLATIONS:
        raise CapabilityError(f"how={how!r}: choose one of {', '.join(ABLATIONS)}")
    given = [] if reference is None else list(reference)
    if how != "zero" and not given:
        raise DataError(f"ablate(how={how!r}) takes its values from reference items: give some")
    if how == "zero" and given:
        raise DataError("ablate(how='zero') takes no reference: choose 'mean' or 'resample'")
    items = tuple(as_items(given)) if given else ()
    return Intervention(Target.parse(site), _position(position), how, None, items, seed)


@contextmanager
def intervened(
    signal: ClassifierRM, interventions: Sequence[Intervention]
) -> Iterator[ClassifierRM]:
    """See :meth:`ClassifierRM.intervene`."""
    if not interventions:
        raise CapabilityError("intervene needs at least one of replace, ablate or steer")
    wrong = [i for i in interventions if not isinstance(i, Intervention)]
    if wrong:
        raise CapabilityError(
            f"intervene takes what replace, ablate and steer give, not {type(wrong[0]).__name__}"
        )
    prepared = [_prepared(signal, i) for i in interventions]
    anatomy = signal.trunk.anatomy
    changes = Changes(anatomy, [lasting for lasting, _ in prepared], signal.meta.position)
    view = signal.changed(signal.trunk.changed(changes), tuple(said for _, said in prepared))
    try:
        yield view
    finally:
        changes.over = True


def refuse_replaced_stream(signal: ClassifierRM, instrument: str) -> None:
    """Refuse an instrument that follows the stream, on a view in which it is replaced.

    Raises
    ------
    CapabilityError
    """
    if any(getattr(edits, "replaces", True) for edits in signal.trunk.edits):
        raise CapabilityError(
            f"{instrument} follows the stream to the head, and {'; '.join(signal.interventions)} "
            f"puts another in its place: intervene on a component (embed, attn_out, mlp_out, a "
            f"head), or add to the stream with steer"
        )


def _prepared(signal: ClassifierRM, one: Intervention) -> tuple[Lasting, str]:
    """Values ready to be put in place, and what is said of them on the record."""
    anatomy = signal.trunk.anatomy
    width = one.target.width(anatomy)
    name = f"{one.how} {one.target} at {one.position}"
    if one.dose is not None:
        name += f", dose {one.dose:g}"
    if one.how in ("mean", "resample"):
        rows = _reference_rows(signal, one)
        if one.how == "mean":
            values = rows.double().mean(0, keepdim=True).to(rows)
        else:
            return (
                Lasting(one.target, one.position, _drawn(rows, one.seed), add=False, drawn=True),
                f"{name}, seed {one.seed}, {_hash(rows)}",
            )
    elif one.how == "zero":
        values = torch.zeros(1, width)
    else:
        assert one.value is not None
        if one.value.shape[-1] != width:
            raise DataError(
                f"{one.target} has {width} channels, and the value {one.value.shape[-1]}"
            )
        # A copy: what is on the record stays what is put in place.
        values = unscaled(anatomy, one.target, one.value.reshape(-1, width)).clone()
    add = one.how == "steer"
    said = name if one.how == "zero" else f"{name}, {_hash(values)}"
    return Lasting(one.target, one.position, _spread(one, values), add), said


def _spread(one: Intervention, values: Tensor) -> Callable[[Encoded, int], Tensor]:
    def value(item: Encoded, tokens: int) -> Tensor:
        if len(values) not in (1, tokens):
            raise DataError(
                f"{one.target} at {one.position}: {len(values)} values for {tokens} tokens; give "
                f"one, or one for each"
            )
        return values.expand(tokens, -1)

    return value


def _drawn(rows: Tensor, seed: int) -> Callable[[Encoded, int], Tensor]:
    """Rows drawn by seed and item, so that batching and order do not matter."""

    def value(item: Encoded, tokens: int) -> Tensor:
        digest = hashlib.blake2b(item.ids.tobytes(), digest_size=8).digest()
        generator = np.random.default_rng([seed, int.from_bytes(digest, "little")])
        return rows[torch.from_numpy(generator.integers(0, len(rows), tokens)).to(rows.device)]

    return value


def _reference_rows(signal: ClassifierRM, one: Intervention) -> Tensor:
    """The target at the position's tokens of every reference item: ``[tokens, width]``."""
    encoded = signal.encoder.encode(list(one.reference))
    rows: list[Tensor | None] = [None] * len(encoded)
    for seen in signal.sweep(encoded, [one.target.source], None):
        values = one.target.of(seen.sites[one.target.source], signal.trunk.anatomy)
        for row, item in zip(values, seen.index, strict=True):
            at = tokens_at(encoded[item], one.position, signal.meta.position, int(item))
            rows[item] = row[list(at)].clone()
    return torch.cat([r for r in rows if r is not None])


def _position(position: Where) -> Position:
    if isinstance(position, Position):
        return position
    if isinstance(position, tuple) and len(position) == 2:
        return Position("span", *position)
    if isinstance(position, int) and not isinstance(position, bool):
        return Position("index", position)
    if position in ("final", "all"):
        return Position(str(position))
    raise CapabilityError(
        f"position={position!r}: choose 'final', 'all', a token index or a span (start, stop)"
    )


def _tensor(value: Any) -> Tensor:
    value = getattr(value, "direction", value)  # of a fitted concept
    found = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    found = found if found.is_floating_point() else found.float()
    if found.dim() not in (1, 2):
        raise DataError(
            f"a value is one vector [width], or [tokens, width], not of shape {tuple(found.shape)}"
        )
    if not bool(torch.isfinite(found).all()):
        raise DataError("a value holds NaN or infinity; give finite numbers")
    return found


def _hash(values: Tensor) -> str:
    raw = values.detach().double().cpu().contiguous().numpy().tobytes()
    return fingerprint(hashlib.blake2b(raw, digest_size=16).hexdigest())[:16]
