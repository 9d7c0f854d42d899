"""Which source token each head's write at one position comes from.

A head's output at the read position is ``Σ_j a_j v_j``. Pattern and values are taken from the
attention call itself as the model runs: the arguments of the fused kernel, from which the read
position's row is computed again, or the two factors of the plain product. Nothing is believed until
``Σ_j a_j v_j`` reproduces what the heads handed to their last linear map.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
_TOLERANCE = {torch.float32: 1e-4}
_COARSE = 3e-2  # half precision rounds the pattern itself


@dataclass(frozen=True)
class Sources:
    """One layer's attention at the read position of each row.

    Attributes
    ----------
    pattern : Tensor
        float64 ``[batch, heads, length]``.
    values : Tensor
        float64 ``[batch, heads, length, head width]``; heads that share values repeat them.
    """

    pattern: Tensor
    values: Tensor

    def output(self) -> Tensor:
        """``Σ_j a_j v_j``: float64 ``[batch, heads, head width]``."""
        return torch.einsum("bhj,bhjd->bhd", self.pattern, self.values)

    def reproduces(self, head_in: Tensor) -> bool:
        """Whether the sum is what the heads handed on, ``[batch, heads * head width]``."""
        out = self.output().flatten(1)
        if out.shape != head_in.shape:
            return False
        scale = head_in.abs().max().double()
        allowed = _TOLERANCE.get(head_in.dtype, _COARSE)
        return bool((out - head_in.double()).abs().max() <= allowed * scale)


@dataclass
class AttentionWatch(TorchFunctionMode):
    """Record the attention of every layer at one column per row, in the thread that runs it.

    Parameters
    ----------
    columns : Tensor
        int64 ``[batch]``, the read column of each row.
    layer : callable
        Tells which layer is running.
    """

    columns: Tensor
    layer: Callable[[], int]
    found: dict[int, list[Sources]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look at the call, then let it run as it is."""
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            self._keep(self._from_fused(*args, **kwargs))
        elif func in _PRODUCTS and len(args) == 2:
            a, v = (self._by_head(t) for t in args)
            if a.dim() == v.dim() == 4 and a.shape[-1] == v.shape[-2] and a.shape[0] == len(self):
                self._keep(self._from_product(a, v))
        return func(*args, **kwargs)

    def _by_head(self, x: Any) -> Any:
        """Undo the folding of batch and heads into one dimension, where a product has it so."""
        if isinstance(x, Tensor) and x.dim() == 3 and x.shape[0] % len(self) == 0:
            return x.reshape(len(self), -1, *x.shape[1:])
        return x

    def __len__(self) -> int:
        return len(self.columns)

    def _keep(self, sources: Sources | None) -> None:
        if sources is not None:
            self.found.setdefault(self.layer(), []).append(sources)

    def _row(self, x: Tensor) -> Tensor:
        """The read row of ``[batch, heads, length, ...]``."""
        return x[torch.arange(len(self), device=x.device), :, self.columns.to(x.device)]

    def _from_product(self, a: Tensor, v: Tensor) -> Sources | None:
        if a.shape[2] <= int(self.columns.max()) or a.shape[1] != v.shape[1]:
            return None
        return Sources(self._row(a).double(), v.double())

    def _from_fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Sources | None:
        if query.dim() != 4 or query.shape[2] <= int(self.columns.max()):
            return None
        repeat = query.shape[1] // key.shape[1]
        k = key.repeat_interleave(repeat, 1).double()
        v = value.repeat_interleave(repeat, 1).double()
        q = self._row(query).double()
        factor = scale if scale is not None else query.shape[-1] ** -0.5
        logits = torch.einsum("bhd,bhjd->bhj", q, k) * factor
        if is_causal:
            later = torch.arange(k.shape[2], device=q.device)[None] > self.columns[:, None]
            logits = logits.masked_fill(later[:, None], -torch.inf)
        if attn_mask is not None:
            full = attn_mask.expand(len(self), query.shape[1], query.shape[2], k.shape[2])
            row = self._row(full)
            if row.dtype == torch.bool:
                logits = logits.masked_fill(~row, -torch.inf)
            else:
                logits = logits + row.double()
        return Sources(logits.softmax(-1), v)
