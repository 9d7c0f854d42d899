"""Classifier reward models: a trunk with a head on one of its last states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from reward_lens.backbone import Encoded, Encoder, Explanation, Site, Trunk
from reward_lens.data import as_item, as_items
from reward_lens.evidence import Evidence, Subject
from reward_lens.evidence.arguments import checked_count
from reward_lens.progress import Progress
from reward_lens.signals.capturing import captured
from reward_lens.signals.derivatives import differentiate
from reward_lens.signals.identity import signal_fingerprint, signal_subject
from reward_lens.signals.intervening import Intervention, intervened
from reward_lens.signals.linearized import Linearized, linearize
from reward_lens.signals.protocol import Capability, SignalMeta, capabilities
from reward_lens.signals.read_tokens import tokens_read
from reward_lens.signals.readouts import Readout
from reward_lens.signals.row_readouts import RowReadouts
from reward_lens.signals.scoring import prefixes_scored, scored
from reward_lens.signals.sweeping import Swept, sweep

#: Padded tokens of one forward. Small batches suit a CPU; raise it on an accelerator.
BATCH_TOKENS = 4096


class ClassifierRM:
    """A sequence classifier as a reward signal: ``r = w · norm(h) + b``.

    Build one with :func:`~reward_lens.load_signal`, :func:`~reward_lens.wrap_hf_model` or
    :func:`~reward_lens.from_tiny`; the constructor itself checks nothing.

    Parameters
    ----------
    trunk : Trunk
    encoder : Encoder
    meta : SignalMeta
    gate : object, optional
        Of a gated head; :class:`~reward_lens.backbone.headed.Gate`.
    interventions : tuple of str
        What is done in every forward of ``trunk``; see :meth:`intervene`.
    """

    def __init__(
        self,
        trunk: Trunk,
        encoder: Encoder,
        meta: SignalMeta,
        gate: Any = None,
        interventions: tuple[str, ...] = (),
    ) -> None:
        self.interventions = interventions
        self.trunk = trunk
        self.encoder = encoder
        self.gate = gate
        self._meta = meta
        self._rows = RowReadouts(trunk, meta.sign, meta.labels, gate)
        self._fingerprint: tuple[object, str] | None = None

    def __repr__(self) -> str:
        m = self.meta
        return (
            f"ClassifierRM({m.architecture}, {m.n_layers} layers, {m.dtype} on {m.device}, "
            f"reads {m.position}, from {m.source}"
            + "".join(f"; {done}" for done in self.interventions)
            + ")"
        )

    @property
    def meta(self) -> SignalMeta:
        """What is known of the signal, and what was chosen for it."""
        return self._meta

    def with_meta(self, **changes: Any) -> ClassifierRM:
        """The same signal with some of its recorded facts replaced."""
        meta = self._meta.updated(**changes)
        return ClassifierRM(self.trunk, self.encoder, meta, self.gate, self.interventions)

    def changed(self, trunk: Trunk, interventions: tuple[str, ...]) -> ClassifierRM:
        """The same signal on a trunk whose forwards are changed, with what is done on record."""
        done = (*self.interventions, *interventions)
        view = ClassifierRM(trunk, self.encoder, self._meta, self.gate, done)
        view._fingerprint = self._fingerprint  # of the same weights: they are not hashed again
        return view

    def intervene(self, *interventions: Intervention) -> AbstractContextManager[ClassifierRM]:
        """A view of this signal whose every forward is changed, for the length of a with-block.

        Parameters
        ----------
        interventions
            What :func:`~reward_lens.replace`, :func:`~reward_lens.ablate` and
            :func:`~reward_lens.steer` give; later ones act on what earlier ones left.

        Returns
        -------
        context manager
            Gives a signal that scores, captures and is measured like any other; every evidence of
            it names the interventions. The original signal is unchanged all the while. After the
            block the view refuses to run.

        Raises
        ------
        AnatomyError
            If the model does not have a site or head.
        DataError
            If a value does not fit, or there is no reference where one is needed.

        Examples
        --------
        >>> with signal.intervene(ablate("L1.H2")) as changed:
        ...     changed.score(items)
        """
        return intervened(self, interventions)

    @property
    def caps(self) -> Capability:
        """What can be asked of this signal."""
        return capabilities(self.trunk)

    @property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer, template and convention; follows in-place weight changes."""
        version, value = signal_fingerprint(self, self._fingerprint)
        self._fingerprint = (version, value)
        return value

    def head(self) -> tuple[Tensor, Tensor]:
        """Rows and biases as the model holds them now: float32, [rows, width] and [rows]."""
        return self.trunk.anatomy.head.rows()

    def readouts(self) -> list[Readout]:
        """Every named scalar: ``reward``; with several rows ``criterion:k``; ``composite``."""
        return self._rows.all()

    def readout(self, name: str = "reward") -> Readout:
        """One readout by name; a row also by the checkpoint's label, ``criterion:<label>``.

        Raises
        ------
        CapabilityError
            If there is none of that name.
        """
        return self._rows.named(name)

    @property
    def default_readout(self) -> str:
        """The checkpoint's own score: ``composite`` for a gated head, else ``reward``."""
        return "reward" if self.gate is None else "composite"

    def bound(
        self, name: str, encoded: Sequence[Encoded], batch_tokens: int = BATCH_TOKENS
    ) -> Readout:
        """A readout ready for these items: a composite gets each item's direction.

        Raises
        ------
        DataError
            If ``batch_tokens`` is no whole number from 1.
        CapabilityError
            If there is none of that name.
        TokenizeError
            If an item lacks what a gate is read at.
        """
        batch_tokens = checked_count("batch_tokens", batch_tokens, 1)
        return self._rows.bind(self.readout(name), encoded, batch_tokens)

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
            If ``position`` is none of ``"native"``, ``"last"``, ``"first"``, ``"mean"``.
        """
        return tokens_read(self, encoded, position)

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
            One token index per item (``MEAN`` for all its tokens as rows), or ``None`` for all
            positions as they are laid out.
        progress : callable, optional
            Told the number of items of each finished batch.
        """
        return sweep(self.trunk, encoded, sites, read, batch_tokens, progress)

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
            tokens of each item as coordinates, and, of a trunk in half precision, what the model's
            own head gives in that dtype (``own_head``). Where the native and the last position
            differ, the table ``positions`` has both scores.

        Raises
        ------
        DataError, TokenizeError, NumericsError
            Naming the item.
        """
        return scored(self, items, readout, position, truncate, batch_tokens, progress)

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
            If the trunk is not causal, or an item is so long that its whole length matters.
        """
        return prefixes_scored(self, items, readout, truncate, batch_tokens, progress)

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
        return captured(self, items, sites, position, truncate, batch_tokens)

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
        read, chosen = self.read_index(encoded, position), self.bound(readout, encoded)
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
        read, chosen = self.read_index(encoded, position), self.bound(readout, encoded)
        parsed = Site.parse(site)
        return differentiate(self.trunk, encoded, read, chosen, parsed, batch_tokens, vectors)

    def linearize(
        self, readout: Readout, seen: Swept, directions: Tensor | None = None
    ) -> Linearized:
        """Hold head and final norm at their value on the items of a batch."""
        return linearize(self.trunk, readout, seen, directions)

    def explain(self, item: Any, truncate: str = "error") -> Explanation:
        """What the model is given for an item: text, ids, the token that is read, spans.

        Parameters
        ----------
        item : Item or anything :func:`~reward_lens.data.as_item` takes

        Returns
        -------
        Explanation
            Printable.

        Raises
        ------
        DataError, TokenizeError
            As for scoring it.
        """
        return self.encoder.explain(as_item(item), truncate)

    def subject(
        self, data: str, readout: Readout, position: str | None = None, **notes: Any
    ) -> Subject:
        """What a measurement of this signal is about."""
        return signal_subject(self, data, readout, position, notes)
