"""The readouts of a head: its rows, their mean, and the composite of a gated head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reward_lens.backbone import FINAL, Encoded, Site, Trunk, read_rows
from reward_lens.errors import CapabilityError, TokenizeError
from reward_lens.signals.readouts import Readout

_NORMED = Site("final_norm")


@dataclass(frozen=True)
class RowReadouts:
    """Builds the readouts of a signal.

    Parameters
    ----------
    trunk : Trunk
    sign : float
        −1 where the checkpoint's number is a cost.
    labels : tuple of str
        The checkpoint's names of the rows, where it gives them.
    gate : object, optional
        With ``index(ids)`` and ``coefficients(hidden)``; see
        :class:`~reward_lens.backbone.headed.Gate`.
    """

    trunk: Trunk
    sign: float
    labels: tuple[str, ...]
    gate: Any

    def all(self) -> list[Readout]:
        """``reward``, then ``criterion:k`` and ``composite`` where there are any."""
        weight, bias = self.trunk.anatomy.head.rows()
        weight, bias = self.sign * weight, self.sign * bias
        rows = tuple(range(len(weight)))
        if len(rows) == 1:
            return [self._linear("reward", weight[0], float(bias[0]), rows, {})]
        mean = self._linear(
            "reward",
            weight.mean(0),
            float(bias.mean()),
            rows,
            {"aggregate": "row_mean", "legacy": True},
        )
        each = [
            self._linear(f"criterion:{k}", weight[k], float(bias[k]), (k,), self._label(k))
            for k in rows
        ]
        gated = [self._composite(weight, bias, rows)] if self.gate is not None else []
        return [mean, *each, *gated]

    def named(self, name: str) -> Readout:
        """One readout by name; a row also by its label, ``criterion:<label>``.

        Raises
        ------
        CapabilityError
            If there is none of that name, or it means several rows.
        """
        found = {r.name: r for r in self.all()}
        meant = [k for k, label in enumerate(self.labels) if name == f"criterion:{label}"]
        rows = {f"criterion:{k}" for k in meant} | ({name} & set(found))
        if len(rows) > 1:
            raise CapabilityError(
                f"{name!r} means several rows: the checkpoint's labels are {list(self.labels)}, so "
                f"it could be any of {', '.join(sorted(rows))}; rename the labels in id2label"
            )
        if meant and len(found) > 1:
            name = f"criterion:{meant[0]}"
        if name not in found:
            more = [f"criterion:{label}" for label in self.labels]
            has = ", ".join((*found, *more))
            raise CapabilityError(f"no readout {name!r}; this signal has {has}")
        return found[name]

    def bind(self, readout: Readout, encoded: Sequence[Encoded], batch_tokens: int) -> Readout:
        """Give a composite its direction for each item; other readouts are returned as they are.

        Raises
        ------
        TokenizeError
            If an item does not hold the pattern that the gate is read at.
        """
        if readout.kind != "composite":
            return readout
        weight, bias = self.trunk.anatomy.head.rows()
        at = [self._gate_index(k, e) for k, e in enumerate(encoded)]
        gates = torch.empty(len(encoded), len(weight), device=weight.device)
        for batch in self.trunk.batches(encoded, batch_tokens):
            hidden = self.trunk.capture(batch, [_NORMED], read_rows(at))[_NORMED]
            with torch.no_grad():
                found = self.gate.coefficients(hidden)
            gates[torch.as_tensor(batch.index)] = found.to(gates)
        return readout.bound(self.sign * gates @ weight, self.sign * gates @ bias)

    def _gate_index(self, k: int, encoded: Encoded) -> int:
        try:
            return int(self.gate.index(encoded.ids))
        except TokenizeError as error:
            cut = f"{encoded.cut} of its tokens were cut off, and with them it may be; " * bool(
                encoded.cut)  # fmt: skip
            raise TokenizeError(f"item {k}: {cut}{error}") from error

    def _label(self, k: int) -> dict[str, Any]:
        return {"label": self.labels[k]} if k < len(self.labels) else {}

    def _linear(
        self,
        name: str,
        direction: Tensor,
        bias: float,
        rows: tuple[int, ...],
        meta: Mapping[str, Any],
    ) -> Readout:
        return self._make(name, "linear", direction, bias, rows, {"bias": bias, **meta})

    def _composite(self, weight: Tensor, bias: Tensor, rows: tuple[int, ...]) -> Readout:
        note = f"gate of {len(rows)} objectives, read off each item's prompt"
        return self._make(
            "composite", "composite", weight.mean(0), float(bias.mean()), rows, {"label": note}
        )

    def _make(
        self,
        name: str,
        kind: str,
        direction: Tensor,
        bias: float,
        rows: tuple[int, ...],
        meta: Mapping[str, Any],
    ) -> Readout:
        anatomy = self.trunk.anatomy
        norm = () if anatomy.final_norm is None else ("final_norm",)
        last = len(anatomy.blocks) - 1
        site = Site("resid_post", last) if last >= 0 else _NORMED
        through = (*norm, *anatomy.head.through) if last >= 0 else anatomy.head.through
        return Readout(
            name, kind, site, FINAL, through, direction, bias, rows, self.sign, self.trunk, meta
        )
