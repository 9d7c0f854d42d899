"""A classifier signal with encoded probes, and what several checks share of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import Encoded, masked_mean, read_rows
from reward_lens.data import Item
from reward_lens.signals.check_report import Check
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.readouts import Readout
from reward_lens.signals.scoring import scores_at

EXACT = 1e-5  # of the scores' spread; what reordered float32 sums differ by
COARSE = 0.5  # in half precision only gross faults are judged; the gap itself is printed
WHOLE = 10**9  # batch tokens: everything in one batch

Floats = npt.NDArray[np.float64]


class Probed:
    """A signal with encoded probes and what several checks share."""

    def __init__(self, signal: ClassifierRM, probes: Sequence[tuple[str, str]]) -> None:
        self.signal = signal
        self.items = [Item.of(p, r) for p, r in probes]
        self.encoded = signal.encoder.encode(self.items, truncate="right")
        self.read = signal.read_index(self.encoded)
        self.readout = signal.readout()
        self.half = signal.meta.dtype in ("bfloat16", "float16")

    @cached_property
    def alone(self) -> Floats:
        """Every probe's score, each alone."""
        return np.array([self.scores([k], "right")[0] for k in range(len(self.encoded))])

    @cached_property
    def natively_read(self) -> Floats:
        """Every probe's score, each alone, read where the model's own class reads."""
        if [e.native for e in self.encoded] == self.read:
            return self.alone
        return np.array([self.curve(k)[e.native] for k, e in enumerate(self.encoded)])

    @cached_property
    def by_ids(self) -> Floats:
        """Every probe's score, its ids given as ids (without token types)."""
        items = [Item(ids=tuple(e.ids.tolist())) for e in self.encoded]
        return self.signal.score(items, truncate="right").value.values.astype(float)

    @cached_property
    def spread(self) -> float:
        """Range of the scores: the scale on which gaps are judged.

        Of a head of several rows the widest row's: their mean can cancel to almost nothing.
        """
        spread = np.ptp(self.alone)
        if len(self.readout.rows) > 1:
            rows = [r for r in self.signal.readouts() if len(r.rows) == 1]
            spread = max(np.ptp([self._read(k, r) for k in self._all]) for r in rows)
        return float(max(spread, 1e-6 * np.abs(self.alone).max(), 1e-12))

    @cached_property
    @torch.no_grad()
    def rounding(self) -> float:
        """What reordered float32 sums lose of a score at least: a few steps of Σ|w·h|."""
        weight, bias = (t.abs() for t in self.readout.head.rows())
        size = 0.0
        for batch in self.signal.trunk.batches(self.encoded, WHOLE):
            features = self.readout.head.features(self.signal.trunk.final_states(batch).float())
            at = features.abs() if self.readout.head.pool == "late" else read_rows(self.read)(
                batch, features.abs())  # fmt: skip
            size = max(size, float((at @ weight.T + bias).max()))
        return 8 * float(torch.finfo(torch.float32).eps) * size

    @property
    def _all(self) -> range:
        return range(len(self.encoded))

    def _read(self, k: int, readout: Readout) -> float:
        return float(
            scores_at(self.signal, [self.encoded[k]], readout, [[self.read[k]]], WHOLE)[0, 0]
        )

    def scores(self, index: Sequence[int], side: str) -> Floats:
        """Scores of some probes in one batch, padded on ``side``."""
        part = [self.encoded[i] for i in index]
        read = [self.read[i] for i in index]
        out = np.empty(len(part))
        for batch in self.signal.trunk.batches(part, WHOLE, side):
            normed = self.signal.trunk.final_states(batch)
            where = np.asarray(index)[batch.index]
            if self.readout.head.pool == "late":
                values = masked_mean(batch, self.readout.read(normed, where))
            else:
                values = self.readout.read(read_rows(read)(batch, normed), where)
            out[batch.index] = values.double().cpu().numpy()
        return out

    def curve(self, k: int, encoded: Encoded | None = None) -> Floats:
        """Our score read at every token of probe ``k`` (or of other ids of its item)."""
        states = self._states(self.encoded[k] if encoded is None else encoded)
        return self.readout.read(states, np.array([k]))[0].double().cpu().numpy()

    @torch.no_grad()
    def native_curve(self, k: int) -> Floats:
        """The model's own head, in its own dtype, at every token of one probe."""
        states = self._states(self.encoded[k])
        logits = self.signal.trunk.anatomy.head.native(states[0])
        curve: Floats = self._of_rows(logits.double(), k).cpu().numpy()
        return curve

    def _states(self, encoded: Encoded) -> Tensor:
        (batch,) = self.signal.trunk.batches([encoded], WHOLE)
        return self.signal.trunk.final_states(batch)

    def _of_rows(self, logits: Tensor, k: int) -> Tensor:
        """The readout of probe ``k`` from the model's own logits ``[..., rows]``."""
        sign = self.signal.meta.sign
        return sign * logits[..., list(self.readout.rows)].mean(-1)

    @torch.no_grad()
    def native(self, k: int) -> float:
        """The readout from the model's own logits, on the item alone and unpadded."""
        encoded = self.encoded[k]
        self.signal.trunk.forget()
        ids = torch.from_numpy(encoded.ids)[None].to(self.signal.trunk.device)
        model: Any = self.signal.trunk.model
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if encoded.types is not None:
            given["token_type_ids"] = torch.from_numpy(encoded.types)[None].to(ids.device)
        return float(self._of_rows(model(**given).logits[0].double(), k))

    def gap(self, name: str, gap: float, meaning: str, spread: float | None = None) -> Check:
        """A check of a difference of scores against their spread."""
        allowed = COARSE if self.half else EXACT
        scale = self.spread if spread is None else spread
        why = " (half precision: gross faults only)" if self.half else ""
        if not self.half and allowed * scale < self.rounding:
            allowed = self.rounding / scale
            why = ", what float32 rounds away: these scores hardly differ"
        return Check(
            name,
            bool(gap / scale <= allowed),
            f"{gap / scale:.1e} of the scores' spread",
            f"{allowed:.0e}{why}",
            meaning,
        )
