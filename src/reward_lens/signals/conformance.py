"""Numeric proof that a loaded signal behaves as its checkpoint does.

The judge is the model's own forward on one unpadded text at a time. Every check states what it
measured, what it allows, and what a failure means for whoever uses the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from reward_lens.backbone import Encoded, Site, read_rows
from reward_lens.data import Item
from reward_lens.errors import ConformanceError, RewardLensError
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.decomposition import COMPLETENESS_FP32, decompose

#: Texts of different lengths, short enough for any model, with characters of several bytes.
PROBES: tuple[tuple[str, str], ...] = (
    ("Name a colour.", "Blue."),
    ("Why is the sky blue?", "Air scatters short wavelengths more than long ones."),
    ("Say hello in French.", "« Bonjour ! » — that is, hello. 🙂"),
    ("Is 7 prime?", "Yes: it has no divisor but 1 and itself, as trial of 2 and 3 shows."),
    ("List two fruits.", "1. Apple\n2. Pear"),
)
_EXACT = 1e-5  # of the scores' spread; what reordered float32 sums differ by
_COARSE = 0.5  # in half precision only gross faults are judged; the gap itself is printed


@dataclass(frozen=True)
class Check:
    """One check's outcome.

    Attributes
    ----------
    name : str
    passed : bool
    measured, allowed : str
        As printed.
    meaning : str
        What a failure means for the user of the scores.
    """

    name: str
    passed: bool
    measured: str
    allowed: str
    meaning: str


@dataclass(frozen=True)
class ConformanceReport:
    """All checks of one signal."""

    signal: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(c.passed for c in self.checks)

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [c.name for c in self.checks if not c.passed]

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    def __str__(self) -> str:
        width = max(len(c.name) for c in self.checks)
        lines = [f"conformance of {self.signal}"]
        for c in self.checks:
            mark = "ok    " if c.passed else "FAILED"
            lines.append(f"  {mark} {c.name:<{width}}  {c.measured} (allowed: {c.allowed})")
            if not c.passed:
                lines.append(f"         {c.meaning}")
        return "\n".join(lines)

    def raise_if_failed(self) -> None:
        """Raise unless every check passed.

        Raises
        ------
        ConformanceError
            With the table.
        """
        if not self.passed:
            raise ConformanceError(
                f"the signal does not behave as its checkpoint: {', '.join(self.failed)}\n{self}"
            )


class _Subject:
    """A signal with encoded probes and what several checks share."""

    def __init__(self, signal: ClassifierRM, probes: Sequence[tuple[str, str]]) -> None:
        self.signal = signal
        self.items = [Item.of(p, r) for p, r in probes]
        self.encoded = signal.encoder.encode(self.items, truncate="right")
        self.read = signal.read_index(self.encoded)
        self.readout = signal.readout()
        self.half = signal.meta.dtype != "float32"
        self.alone = np.array([self.scores([k], "right")[0] for k in range(len(self.encoded))])
        self.spread = float(max(np.ptp(self.alone), 1e-6 * np.abs(self.alone).max(), 1e-12))

    def scores(self, index: Sequence[int], side: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Scores of some probes in one batch, padded on ``side``."""
        part = [self.encoded[i] for i in index]
        read = [self.read[i] for i in index]
        out = np.empty(len(part))
        for batch in self.signal.trunk.batches(part, 10**9, side):
            states = self.signal.trunk.capture(batch, [Site("final_norm")], read_rows(read))
            out[batch.index] = self.readout.read(states[Site("final_norm")]).double().cpu().numpy()
        return out

    def curve(self, encoded: Encoded) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Score at every token of one item."""
        (batch,) = self.signal.trunk.batches([encoded], 10**9)
        states = self.signal.trunk.capture(batch, [Site("final_norm")])[Site("final_norm")]
        return self.readout.read(states[0]).double().cpu().numpy()

    @torch.no_grad()
    def native(self, encoded: Encoded) -> float:
        """The readout from the model's own logits, on the item alone and unpadded."""
        ids = torch.from_numpy(encoded.ids)[None].to(self.signal.trunk.device)
        model: Any = self.signal.trunk.model
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
        return float(logits[0].double()[list(self.readout.rows)].mean())

    def gap(self, name: str, gap: float, meaning: str) -> Check:
        """A check of a difference of scores against their spread."""
        allowed = _COARSE if self.half else _EXACT
        share = gap / self.spread
        why = " (half precision: gross faults only)" if self.half else ""
        return Check(
            name,
            bool(share <= allowed),
            f"{share:.1e} of the scores' spread",
            f"{allowed:.0e}{why}",
            meaning,
        )


def _determinism(s: _Subject) -> Check:
    again = np.array([s.scores([k], "right")[0] for k in range(len(s.encoded))])
    gap = float(np.abs(again - s.alone).max())
    return Check(
        "determinism", gap == 0, f"{gap:.1e} between two runs", "0",
        "the same text gets another score on the next call: dropout, or a random layer, is on",
    )  # fmt: skip


def _batch_alone(s: _Subject) -> Check:
    gap = np.abs(s.scores(range(len(s.encoded)), "right") - s.alone)
    return s.gap(
        "batch = alone", float(gap.max()),
        "a score depends on what else is in the batch: padding reaches the read token",
    )  # fmt: skip


def _padding_side(s: _Subject) -> Check:
    left = s.scores(range(len(s.encoded)), "left")
    gap = np.abs(left - s.scores(range(len(s.encoded)), "right"))
    return s.gap(
        "padding side", float(gap.max()),
        "padding on the left moves scores: positions or the read token do not follow the mask",
    )  # fmt: skip


def _head_native(s: _Subject) -> Check:
    native = np.array([s.native(e) for e in s.encoded])
    gap = float(np.abs(np.array([s.curve(e)[e.native] for e in s.encoded]) - native).max())
    if not s.half:
        return s.gap("head = native", gap, _HEAD_MEANS)
    allowed = _native_rounding(s)
    return Check(
        "head = native", bool(gap <= allowed), f"{gap:.1e}",
        f"{allowed:.1e}, what {s.signal.meta.dtype} loses in the model's own head", _HEAD_MEANS,
    )  # fmt: skip


_HEAD_MEANS = "our score is not the model's own: head, norm or read position were taken wrongly"


def _native_rounding(s: _Subject) -> float:
    """Bound on what the model's own half-precision head loses: its epsilon times Σ|w·h|."""
    sizes = []
    for batch in s.signal.trunk.batches(s.encoded, 10**9):
        h = s.signal.trunk.capture(batch, [Site("final_norm")], read_rows(s.read))
        sizes.append((h[Site("final_norm")].float().abs() @ s.readout.direction.abs()).max())
    return 2 * torch.finfo(s.signal.trunk.dtype).eps * float(max(sizes))


def _read_position(s: _Subject) -> Check:
    """Find the token whose score is the model's own, and compare it with the index we read."""
    wrong, away = 0, 0
    for encoded, read in zip(s.encoded, s.read, strict=True):
        expected = encoded.native if s.signal.meta.position == "native" else encoded.last
        found = int(np.abs(s.curve(encoded) - s.native(encoded)).argmin())
        wrong += read != expected or found != encoded.native
        away += encoded.native != encoded.last
    return Check(
        "read position", wrong == 0,
        f"{wrong} of {len(s.encoded)} items read elsewhere; native differs from the last token "
        f"on {away}", "0 elsewhere",
        "the head is read at another token than the model's own forward reads",
    )  # fmt: skip


def _prefix(s: _Subject) -> Check:
    gap, n = 0.0, 0
    for encoded in s.encoded:
        curve = s.curve(encoded)
        for cut in {len(encoded.ids) // 3, len(encoded.ids) // 2, len(encoded.ids) - 2}:
            if cut >= 1:
                gap = max(
                    gap,
                    abs(float(s.curve(Encoded(encoded.ids[:cut], cut - 1))[-1] - curve[cut - 1])),
                )
                n += 1
    if not s.signal.trunk.anatomy.causal:
        return Check("prefix curve", True, "not causal: no prefix scores are offered", "-", "")
    return s.gap(
        "prefix curve", gap, "the curve of prefix scores is not the scores of the cut texts"
    )


def _completeness(s: _Subject) -> Check:
    means = "attribution would leave something out: a write, a norm or a scale was not found"
    try:
        found = decompose(s.signal, s.encoded, s.read, s.readout)
    except RewardLensError as error:
        return Check("completeness", False, str(error), "-", means)
    if s.half:
        ok, value, allowed = found.closure <= 1e-9, found.closure, "1e-09 with rounding"
    else:
        ok, value = found.completeness <= COMPLETENESS_FP32, found.completeness
        allowed = f"{COMPLETENESS_FP32:.0e}"
    return Check(
        "completeness", bool(ok), f"writes miss the score by {value:.1e} of their size", allowed,
        means,
    )  # fmt: skip


@torch.no_grad()
def _hooked_plain(s: _Subject) -> Check:
    trunk = s.signal.trunk
    kinds = ("resid_post", "attn_out", "mlp_out")
    blocks = range(trunk.n_layers)
    verified = all(b.attn and b.mlp for b in trunk.anatomy.blocks)
    sites = [Site(k, i) for i in blocks for k in (kinds if verified else kinds[:1])]
    different = 0
    for encoded in s.encoded:
        (batch,) = trunk.batches([encoded], 10**9)
        hooked = trunk.capture(batch, [*sites, Site("final_norm")])[Site("final_norm")]
        base: Any = trunk.base
        positions = {"position_ids": batch.positions} if trunk._takes_positions else {}
        plain = base(
            input_ids=batch.ids, attention_mask=batch.mask, use_cache=False, **positions
        ).last_hidden_state
        different += not torch.equal(plain, hooked)
    return Check(
        "hooked = plain", different == 0, f"{different} of {len(s.encoded)} forwards differ", "0",
        "looking changes what is looked at: activations are not those of the scored forward",
    )  # fmt: skip


def quickcheck(signal: ClassifierRM) -> ConformanceReport:
    """The four checks that :func:`~reward_lens.wrap_hf_model` runs before it hands a signal out."""
    return _run(signal, PROBES[:3], (_head_native, _batch_alone, _hooked_plain, _completeness))


def _run(
    signal: ClassifierRM,
    probes: Sequence[tuple[str, str]],
    checks: Sequence[Callable[[_Subject], Check]],
) -> ConformanceReport:
    subject = _Subject(signal, probes)
    name = f"{signal.meta.architecture} from {signal.meta.source}"
    return ConformanceReport(name, tuple(check(subject) for check in checks))
