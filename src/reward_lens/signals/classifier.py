"""Classifier reward models: a trunk with a linear head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reward_lens.backbone import FINAL, Encoded, Encoder, Site, Trunk, read_rows
from reward_lens.data import as_items
from reward_lens.errors import CapabilityError
from reward_lens.evidence import Evidence, Subject
from reward_lens.signals.derivatives import differentiate
from reward_lens.signals.identity import signal_fingerprint
from reward_lens.signals.item_tables import position_table
from reward_lens.signals.linearized import Linearized, linearize
from reward_lens.signals.protocol import Capability, SignalMeta
from reward_lens.signals.readouts import Readout
from reward_lens.signals.scoring import item_evidence, prefix_curves, scores_at

#: Padded tokens of one forward. Small batches suit a CPU; raise it on an accelerator.
BATCH_TOKENS = 4096
POSITIONS = ("native", "last")

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Swept:
    """What one forward of a sweep saw.

    Attributes
    ----------
    index : ndarray of int, [batch]
        Which items.
    sites : dict
        Site -> tensor in the trunk's dtype: ``[batch, width]`` at the read position, or
        ``[batch, length, width]`` where all positions were asked for.
    lengths : ndarray of int, [batch]
    """

    index: np.ndarray[Any, np.dtype[np.int64]]
    sites: dict[Site, Tensor]
    lengths: np.ndarray[Any, np.dtype[np.int64]]


class ClassifierRM:
    """A sequence classifier as a reward signal: ``r = w · norm(h) + b``.

    Build one with :func:`~reward_lens.load_signal`, :func:`~reward_lens.wrap_hf_model` or
    :func:`~reward_lens.from_tiny`; the constructor itself checks nothing.

    Parameters
    ----------
    trunk : Trunk
    encoder : Encoder
    meta : SignalMeta
    """

    def __init__(self, trunk: Trunk, encoder: Encoder, meta: SignalMeta) -> None:
        self.trunk = trunk
        self.encoder = encoder
        self._meta = meta
        self._fingerprint: tuple[object, str] | None = None

    def __repr__(self) -> str:
        m = self.meta
        return (
            f"ClassifierRM({m.architecture}, {m.n_layers} layers, {m.dtype} on {m.device}, "
            f"reads {m.position}, from {m.source})"
        )

    @property
    def meta(self) -> SignalMeta:
        """What is known of the signal, and what was chosen for it."""
        return self._meta

    def with_meta(self, **changes: Any) -> ClassifierRM:
        """The same signal with some of its recorded facts replaced."""
        return ClassifierRM(self.trunk, self.encoder, replace(self._meta, **changes))

    @property
    def caps(self) -> Capability:
        """What can be asked of this signal."""
        caps = (
            Capability.SCORES
            | Capability.ACTIVATIONS
            | Capability.GRADIENTS
            | Capability.HVP
            | Capability.LINEAR_READOUT
        )
        return caps | Capability.PREFIX_SCORES if self.trunk.anatomy.causal else caps

    @property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer, template and convention; follows in-place weight changes."""
        version, value = signal_fingerprint(self, self._fingerprint)
        self._fingerprint = (version, value)
        return value

    def head(self) -> tuple[Tensor, Tensor]:
        """Rows and biases as the model holds them now: float32, [rows, width] and [rows]."""
        module: Any = self.trunk.anatomy.head
        weight = module.weight.detach().to(torch.float32)
        bias = getattr(module, "bias", None)
        zero = torch.zeros(len(weight), device=weight.device)
        return weight, zero if bias is None else bias.detach().to(torch.float32)

    def readouts(self) -> list[Readout]:
        """Every named scalar: ``reward``, and ``criterion:k`` where the head has several rows."""
        weight, bias = self.head()
        rows = tuple(range(len(weight)))
        if len(rows) == 1:
            return [self._readout("reward", weight[0], float(bias[0]), rows)]
        mean = self._readout(
            "reward",
            weight.mean(0),
            float(bias.mean()),
            rows,
            {"aggregate": "row_mean", "legacy": True, "bias": float(bias.mean())},
        )
        each = [self._readout(f"criterion:{k}", weight[k], float(bias[k]), (k,)) for k in rows]
        return [mean, *each]

    def readout(self, name: str = "reward") -> Readout:
        """One readout by name.

        Raises
        ------
        CapabilityError
            If there is none of that name.
        """
        found = {r.name: r for r in self.readouts()}
        if name not in found:
            raise CapabilityError(f"no readout {name!r}; this signal has {', '.join(found)}")
        return found[name]

    def _readout(
        self,
        name: str,
        direction: Tensor,
        bias: float,
        rows: tuple[int, ...],
        meta: Mapping[str, Any] | None = None,
    ) -> Readout:
        through = () if self.trunk.anatomy.final_norm is None else ("final_norm",)
        site = Site("resid_post", self.trunk.n_layers - 1)
        given = {"bias": bias} if meta is None else meta
        return Readout(
            name, "linear", site, FINAL, through, direction, bias, rows, self.trunk, given
        )

    def encode(self, items: Iterable[Any], truncate: str = "error") -> list[Encoded]:
        """Turn items into ids, as every method does.

        Raises
        ------
        DataError, TokenizeError
            Naming the item.
        """
        return self.encoder.encode(as_items(items), truncate)

    def read_index(self, encoded: Sequence[Encoded], position: str | None = None) -> list[int]:
        """Index of the token the head reads, per item.

        Raises
        ------
        CapabilityError
            If ``position`` is neither ``"native"`` nor ``"last"``.
        """
        position = self.meta.position if position is None else position
        if position not in POSITIONS:
            raise CapabilityError(f"position={position!r}: choose one of {', '.join(POSITIONS)}")
        return [e.read(position) for e in encoded]

    def sweep(
        self,
        encoded: Sequence[Encoded],
        sites: Sequence[Site],
        read: Sequence[int] | None,
        *,
        batch_tokens: int = BATCH_TOKENS,
        progress: Progress | None = None,
    ) -> Iterator[Swept]:
        """Run all items once, a batch at a time, and yield what was asked for of each batch.

        Parameters
        ----------
        encoded : sequence of Encoded
        sites : sequence of Site
        read : sequence of int or None
            One token index per item, or ``None`` for all positions.
        progress : callable, optional
            Told the number of items of each finished batch.
        """
        rows = read_rows(read) if read is not None else None
        for batch in self.trunk.batches(encoded, batch_tokens):
            seen = self.trunk.capture(batch, sites, rows)
            yield Swept(batch.index, seen, batch.lengths.cpu().numpy())
            if progress is not None:
                progress(len(batch.index))

    def score(
        self,
        items: Iterable[Any],
        *,
        readout: str = "reward",
        position: str | None = None,
        truncate: str = "error",
        batch_tokens: int = BATCH_TOKENS,
        progress: Progress | None = None,
    ) -> Evidence:
        """Score items.

        Parameters
        ----------
        items : iterable
            Pairs ``(prompt, response)``, conversations, :class:`~reward_lens.data.Item`.
        readout : str
        position : {"native", "last"}, optional
            Which token is read; the signal's own convention by default.
        truncate : {"error", "left", "right"}
        batch_tokens : int
            Padded tokens of one forward.

        Returns
        -------
        Evidence
            Value float32 ``[item]`` in reward units, with the read index, read token and number of
            tokens of each item as coordinates. Where the native and the last position differ, the
            table ``positions`` has both scores.

        Raises
        ------
        DataError, TokenizeError, NumericsError
            Naming the item.
        """
        given = as_items(items)
        encoded = self.encoder.encode(given, truncate)
        chosen = self.readout(readout)
        read = self.read_index(encoded, position)
        other = [e.last if r == e.native else e.native for e, r in zip(encoded, read, strict=True)]
        found = scores_at(self, encoded, chosen, (read, other), batch_tokens, progress)
        return item_evidence(
            self,
            "score",
            found[:, 0],
            given,
            encoded,
            read,
            readout=chosen,
            position=position,
            parameters=_asked(readout, truncate, batch_tokens),
            name="score",
            tables=position_table(encoded, read, found[:, 0], found[:, 1]),
        )

    def score_prefixes(
        self,
        items: Iterable[Any],
        *,
        readout: str = "reward",
        truncate: str = "error",
        batch_tokens: int = BATCH_TOKENS,
        progress: Progress | None = None,
    ) -> Evidence:
        """Score every prefix of every item, in one forward per item.

        Returns
        -------
        Evidence
            Value float32 ``[item, position]``: entry ``t`` is the score of the first ``t + 1`` ids
            as they stand (no end tokens are added); NaN beyond an item's last token. The model was
            not trained to be read at these places.

        Raises
        ------
        CapabilityError
            If the trunk is not causal.
        """
        if not self.trunk.anatomy.causal:
            raise CapabilityError(
                "score_prefixes needs PREFIX_SCORES: this trunk is not causal, so the value at a "
                "token depends on later ones"
            )
        given = as_items(items)
        encoded = self.encoder.encode(given, truncate)
        chosen = self.readout(readout)
        return item_evidence(
            self,
            "score_prefixes",
            prefix_curves(self, encoded, chosen, batch_tokens, progress),
            given,
            encoded,
            self.read_index(encoded),
            readout=chosen,
            position=None,
            parameters=_asked(readout, truncate, batch_tokens),
            name="prefix_score",
        )

    def capture(
        self,
        items: Iterable[Any],
        sites: Sequence[str | Site],
        *,
        position: str = "final",
        truncate: str = "error",
        batch_tokens: int = BATCH_TOKENS,
    ) -> dict[str, Any]:
        """Return activations.

        Parameters
        ----------
        items : iterable
        sites : sequence of str
            E.g. ``["embed", "L0.attn_out", "L1.resid_post"]``.
        position : {"final", "all"}
            The read token of each item, or every token.

        Returns
        -------
        dict
            Site name -> for ``"final"`` one tensor ``[item, width]``, for ``"all"`` a list of
            ``[n_tokens, width]``; in the trunk's dtype (``head_out`` has ``[heads, width]``).

        Raises
        ------
        AnatomyError
            If the model does not have a site.
        CapabilityError
            If ``position`` is neither.
        """
        if position not in ("final", "all"):
            raise CapabilityError(f"position={position!r}: choose 'final' or 'all'")
        encoded = self.encode(items, truncate)
        parsed = [Site.parse(s) for s in sites]
        read = self.read_index(encoded) if position == "final" else None
        rows: dict[str, list[Any]] = {str(s): [None] * len(encoded) for s in parsed}
        for seen in self.sweep(encoded, parsed, read, batch_tokens=batch_tokens):
            for site, tensor in seen.sites.items():
                for row, item, length in zip(tensor, seen.index, seen.lengths, strict=True):
                    rows[str(site)][item] = (
                        row.clone() if read is not None else row[:length].clone()
                    )
        return {s: torch.stack(r) for s, r in rows.items()} if read is not None else dict(rows)

    def gradient(
        self,
        items: Iterable[Any],
        site: str | Site,
        *,
        readout: str = "reward",
        position: str | None = None,
        truncate: str = "error",
        batch_tokens: int = BATCH_TOKENS,
    ) -> list[Tensor]:
        """Gradient of a readout with respect to a site, at every token of each item.

        Returns
        -------
        list of Tensor
            ``[n_tokens, width]`` per item, in the trunk's dtype.

        Raises
        ------
        AnatomyError
            If the model does not have the site.
        """
        encoded = self.encode(items, truncate)
        read, chosen = self.read_index(encoded, position), self.readout(readout)
        return differentiate(self.trunk, encoded, read, chosen, Site.parse(site), batch_tokens)

    def hvp(
        self,
        items: Iterable[Any],
        site: str | Site,
        vectors: Sequence[Tensor],
        *,
        readout: str = "reward",
        position: str | None = None,
        truncate: str = "error",
        batch_tokens: int = BATCH_TOKENS,
    ) -> list[Tensor]:
        """Hessian of a readout with respect to a site, times a vector per item.

        Parameters
        ----------
        vectors : sequence of Tensor
            ``[n_tokens, width]`` per item.

        Returns
        -------
        list of Tensor
            ``[n_tokens, width]`` per item. Also on a model with fused attention kernels, which have
            no second derivative: the plain kernel is used inside the call.

        Raises
        ------
        RewardLensError
            If a vector has another shape than its item.
        """
        encoded = self.encode(items, truncate)
        read, chosen = self.read_index(encoded, position), self.readout(readout)
        parsed = Site.parse(site)
        return differentiate(self.trunk, encoded, read, chosen, parsed, batch_tokens, vectors)

    def linearize(self, readout: Readout, last_state: Tensor) -> Linearized:
        """Hold the final norm at its value on last states ``[n, width]``."""
        return linearize(self.trunk, readout, last_state)

    def subject(
        self, data: str, readout: Readout, position: str | None = None, **notes: Any
    ) -> Subject:
        """What a measurement of this signal is about."""
        m = self.meta
        facts = {
            "architecture": m.architecture,
            "source": m.source,
            "template": m.template,
            "bos": m.bos,
            "position": position or m.position,
            **notes,
        }
        if readout.note:
            facts["readout_note"] = readout.note
        return Subject(signal=self.fingerprint, data=data, readout=readout.name, notes=facts)


def _asked(readout: str, truncate: str, batch_tokens: int) -> dict[str, Any]:
    """The parameters of a scoring call, for its record."""
    return {"readout": readout, "truncate": truncate, "batch_tokens": batch_tokens}
