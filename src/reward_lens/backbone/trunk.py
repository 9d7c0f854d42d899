"""One trunk: run it, see its sites, and differentiate through it.

Every forward is the model's own; nothing of it is replaced or rewritten. Hooks look, and in the
gradient methods put a detached copy of the same values in place, so that differentiation starts at
the site that was asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from reward_lens.backbone.anatomy import Anatomy
from reward_lens.backbone.anatomy_search import find_anatomy
from reward_lens.backbone.attention import AttentionWatch
from reward_lens.backbone.batching import Batch, collate, plan_batches
from reward_lens.backbone.linear import linear_map
from reward_lens.backbone.norms import FrozenNorm
from reward_lens.backbone.sites import Site
from reward_lens.backbone.taps import Handler, Tap, attach
from reward_lens.backbone.tokenise import Encoded
from reward_lens.errors import AnatomyError, NumericsError, RewardLensError

#: Rows to keep of a batch's tensor ``[batch, length, ...]``, or ``None`` for all of them.
Rows = Callable[[Batch, Tensor], Tensor]


@dataclass(frozen=True)
class SourceShares:
    """Attention writes of a batch, projected and split by source token; all float64.

    Attributes
    ----------
    shares : Tensor
        ``[batch, layer, length]``, by column of the batch.
    constant : Tensor
        ``[batch, layer]``: biases, which no token owns.
    write : Tensor
        ``[batch, layer]``: the projection of the write itself.
    """

    shares: Tensor
    constant: Tensor
    write: Tensor


class Trunk:
    """A sequence classifier's trunk with its verified anatomy.

    Parameters
    ----------
    model : nn.Module
        A transformers sequence classifier in evaluation mode.

    Attributes
    ----------
    anatomy : Anatomy
    base : nn.Module
        The model without its head, as transformers names it.
    config : transformers.PreTrainedConfig
        The text configuration.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        self.base: nn.Module = model.base_model
        self.device: torch.device = next(model.parameters()).device
        self.dtype: torch.dtype = next(self.base.parameters()).dtype
        self.kernel = str(getattr(self.config, "_attn_implementation", None) or "unknown")
        accepted = inspect.signature(self.base.forward).parameters
        self._takes_positions = "position_ids" in accepted
        pad = self.config.pad_token_id
        self.pad_id = int(pad) if pad is not None else 0  # masked, so any id of the vocabulary
        self.anatomy: Anatomy = find_anatomy(model, self.config, self.device)

    @property
    def n_layers(self) -> int:
        """Number of residual blocks."""
        return len(self.anatomy.blocks)

    def forward(self, batch: Batch, handlers: Mapping[Tap, Handler]) -> None:
        """Run the trunk on a batch with handlers attached.

        Raises
        ------
        RewardLensError
            If the model is in training mode, where dropout would make scores random.
        """
        if self.model.training:
            raise RewardLensError(
                "the model is in training mode, so its scores are random: call model.eval() first"
            )
        positions = {"position_ids": batch.positions} if self._takes_positions else {}
        with attach(handlers):
            self.base(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False, **positions)

    def batches(
        self, encoded: Sequence[Encoded], batch_tokens: int, side: str = "right"
    ) -> Iterator[Batch]:
        """Lay items out in batches of about equal length."""
        for index in plan_batches(encoded, batch_tokens):
            yield collate(encoded, index, self.pad_id, self.device, side)

    @torch.no_grad()
    def capture(
        self, batch: Batch, sites: Sequence[Site], rows: Rows | None = None
    ) -> dict[Site, Tensor]:
        """Run one batch and return the tensors at sites.

        Parameters
        ----------
        batch : Batch
        sites : sequence of Site
        rows : callable, optional
            Selects from each ``[batch, length, width]`` tensor as it passes, so that only what is
            asked for is kept; e.g. :func:`read_rows`.

        Returns
        -------
        dict
            Site -> tensor in the trunk's dtype; ``head_out`` as ``[..., heads, width]``.

        Raises
        ------
        AnatomyError
            If this model does not have a site.
        NumericsError
            If the trunk's output at a kept row is not finite; names the item.
        """
        wanted = {tap for site in sites for tap in self._taps(site)} | {self.anatomy.normed}
        seen: dict[Tap, Tensor] = {}

        def keep(tap: Tap) -> Handler:
            def handle(tensor: Tensor) -> None:
                seen[tap] = (rows(batch, tensor) if rows is not None else tensor).detach()

            return handle

        self.forward(batch, {tap: keep(tap) for tap in wanted})
        self._refuse_nonfinite(batch, seen[self.anatomy.normed], whole_rows=rows is None)
        return {site: self._assemble(site, seen) for site in sites}

    def _taps(self, site: Site) -> list[Tap]:
        """The taps a site is read from."""
        anatomy = self.anatomy
        if site.kind == "embed":
            return [anatomy.blocks[0].enter]
        if site.kind == "final_norm":
            return [anatomy.normed]
        block = anatomy.block(site)
        if site.kind == "resid_pre":
            return [block.enter]
        if site.kind == "resid_post":
            return [block.leave]
        write = anatomy.write(site)
        if site.kind == "resid_mid":
            if not block.sequential:
                raise AnatomyError(
                    f"{site} does not exist: attention and MLP of this block read the same stream"
                )
            return [block.enter, write.tap]
        if site.kind == "attn_raw":
            return [write.norm_input or write.tap]
        if write.heads is not None and site.kind in ("head_in", "head_out"):
            post = [write.norm_input] if write.norm_input and site.kind == "head_out" else []
            return [write.heads.mixed, *post]
        return [write.tap]

    def _assemble(self, site: Site, seen: Mapping[Tap, Tensor]) -> Tensor:
        taps = self._taps(site)
        if site.kind == "resid_mid":
            return seen[taps[0]] + seen[taps[1]]
        if site.kind == "head_out":
            return self._head_writes(site, seen)
        return seen[taps[0]]

    def _head_writes(self, site: Site, seen: Mapping[Tap, Tensor]) -> Tensor:
        write = self.anatomy.write(site)
        assert write.heads is not None
        heads, z = write.heads, seen[write.heads.mixed]
        flat = z.reshape(-1, heads.n, heads.width).double()
        matrix, _ = linear_map(heads.linear, heads.n * heads.width, z.device)
        out = torch.einsum("nhw,hwd->nhd", flat, matrix.reshape(heads.n, heads.width, -1))
        if write.norm is not None and write.norm_input is not None:
            frozen = write.norm.freeze(seen[write.norm_input].reshape(len(flat), -1))
            out = torch.stack([frozen.apply(o) - frozen.bias for o in out.unbind(1)], 1)
        return out.to(z.dtype).reshape(*z.shape[:-1], heads.n, -1)

    def _refuse_nonfinite(self, batch: Batch, state: Tensor, *, whole_rows: bool) -> None:
        if whole_rows:
            state = state * batch.mask[..., None].to(state.dtype)
        finite = torch.isfinite(state.reshape(len(batch.index), -1)).all(-1)
        if bool(finite.all()):
            return
        bad = int(batch.index[int(torch.nonzero(~finite)[0])])
        raise NumericsError(
            f"item {bad}: the trunk's output is NaN or infinite{self._where_it_starts(batch)}. "
            f"The trunk runs in {str(self.dtype).removeprefix('torch.')}; weights that are NaN, or "
            f"a float16 overflow, look like this: try dtype=float32."
        )

    def _where_it_starts(self, batch: Batch) -> str:
        """Rerun a batch to name the first place whose stream is not finite."""
        bad: list[str] = []

        def look(name: str) -> Handler:
            def handle(tensor: Tensor) -> None:
                real = tensor * batch.mask[..., None].to(tensor.dtype)
                if not bool(torch.isfinite(real).all()):
                    bad.append(name)

            return handle

        handlers = {b.leave: look(f"layer {i}") for i, b in enumerate(self.anatomy.blocks)}
        handlers[self.anatomy.blocks[0].enter] = look("the embedding")
        self.forward(batch, handlers)
        return f", first at {bad[0]}" if bad else ", first at the final norm"

    def freeze_final_norm(self, state: Tensor) -> FrozenNorm | None:
        """Freeze the final norm at last states ``[n, width]``; ``None`` if there is no norm."""
        norm = self.anatomy.final_norm
        return norm.freeze(state) if norm is not None else None

    @torch.no_grad()
    def apply_final_norm(self, state: Tensor) -> Tensor:
        """Apply the model's own final norm to states ``[n, width]``."""
        norm = self.anatomy.final_norm
        return norm.module(state) if norm is not None else state

    def head_shares(
        self, layer: int, u: Tensor, head_in: Tensor, attn_raw: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Project every head's write of one layer on a functional per row.

        Parameters
        ----------
        layer : int
        u : Tensor
            float64 ``[n, width]``, a functional on the attention write.
        head_in, attn_raw : Tensor
            The layer's sites of these names at the same rows, ``[n, ...]``.

        Returns
        -------
        shares : Tensor
            float64 ``[n, heads]``.
        constant : Tensor
            float64 ``[n]``: the constant of the map (and of a post-norm), which no head owns.
        """
        pulled, constant = self._head_functional(layer, u, attn_raw)
        return (pulled * head_in.double().reshape(pulled.shape)).sum(-1), constant

    def _head_functional(self, layer: int, u: Tensor, attn_raw: Tensor) -> tuple[Tensor, Tensor]:
        """Turn a functional on the attention write into one on the heads' outputs.

        Returns ``[n, heads, head width]`` and the constant ``[n]`` that no head owns.
        """
        write = self.anatomy.write(Site("head_out", layer))
        assert write.heads is not None
        heads = write.heads
        constant = torch.zeros(len(u), dtype=torch.float64, device=u.device)
        if write.norm is not None:
            frozen = write.norm.freeze(attn_raw)
            constant = u @ frozen.bias
            u = frozen.pull_back(u)
        matrix, offset = linear_map(heads.linear, heads.n * heads.width, u.device)
        return (u @ matrix.T).reshape(len(u), heads.n, heads.width), constant + u @ offset

    @torch.no_grad()
    def attention_sources(
        self, batch: Batch, read: Sequence[int], last: Callable[[Tensor], Tensor]
    ) -> SourceShares:
        """Split every layer's attention write at one token per row by source token.

        Parameters
        ----------
        read : sequence of int
            Token index per item.
        last : callable
            Maps the last block's states at those tokens ``[batch, width]`` to the functional that
            writes are projected on, float64 ``[batch, width]``.

        Raises
        ------
        AnatomyError
            Naming the layer whose attention, computed again, does not reproduce its write.
        """
        layers = range(self.n_layers)
        select = read_rows(read)
        columns = torch.as_tensor([read[int(i)] for i in batch.index], device=self.device)
        columns = columns + batch.offset
        seen: dict[Site, Tensor] = {}
        running = [0]
        watch = AttentionWatch(columns, lambda: running[0])
        handlers: dict[Tap, Handler] = {}

        def keep(site: Site) -> Handler:
            def handle(tensor: Tensor) -> None:
                seen[site] = select(batch, tensor)

            return handle

        def enter(layer: int) -> Handler:
            def handle(tensor: Tensor) -> None:
                running[0] = layer

            return handle

        end = Site("resid_post", self.n_layers - 1)
        wanted = [end, *(Site(k, i) for i in layers for k in ("head_in", "attn_raw", "attn_out"))]
        for site in wanted:
            (tap,) = self._taps(site)
            handlers = _merge(handlers, {tap: keep(site)})
        for i in layers:
            handlers = _merge(handlers, {self.anatomy.blocks[i].enter: enter(i)})
        with watch:
            self.forward(batch, handlers)
        u = last(seen[end])
        shares, constants, writes = [], [], []
        for i in layers:
            head_in = seen[Site("head_in", i)]
            found = next((s for s in watch.found.get(i, []) if s.reproduces(head_in)), None)
            if found is None:
                raise AnatomyError(
                    f"L{i}: the attention seen in the forward does not reproduce the heads' output "
                    f"(kernel {self.kernel}), so it cannot be split by source token"
                )
            pulled, constant = self._head_functional(i, u, seen[Site("attn_raw", i)])
            shares.append(torch.einsum("bhj,bhjd,bhd->bj", found.pattern, found.values, pulled))
            constants.append(constant)
            writes.append((seen[Site("attn_out", i)].double() * u).sum(-1))
        return SourceShares(
            torch.stack(shares, 1), torch.stack(constants, 1), torch.stack(writes, 1)
        )

    def differentiate(
        self,
        batch: Batch,
        site: Site,
        score: Callable[[Tensor], Tensor],
        vectors: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Gradient of a score with respect to a site, or a Hessian-vector product.

        Parameters
        ----------
        batch : Batch
        site : Site
            Not ``head_out``: its gradient is that of ``attn_out``.
        score : callable
            Maps the trunk's normed states ``[batch, length, width]`` to one number per row.
        vectors : Tensor, optional
            ``[batch, length, width]``; if given, the Hessian of each row's score times it.

        Returns
        -------
        value : Tensor
            ``[batch, length, width]``, the site's values.
        result : Tensor
            The same shape: gradient, or Hessian times ``vectors``.
        """
        tap = self._leaf_tap(site)
        leaf: list[Tensor] = []
        normed: list[Tensor] = []

        def start(tensor: Tensor) -> Tensor:
            leaf.append(tensor.detach().requires_grad_(True))
            torch.set_grad_enabled(True)  # until the forward ends; nothing before needs a graph
            return leaf[0]

        # The fused attention kernels have no second derivative.
        with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            self.forward(batch, _merge({tap: start}, {self.anatomy.normed: normed.append}))
            with torch.enable_grad():
                total = score(normed[0]).sum()
                (gradient,) = torch.autograd.grad(total, leaf[0], create_graph=vectors is not None)
                if vectors is None:
                    return leaf[0].detach(), gradient.detach()
                if not gradient.requires_grad:  # the score is linear in the site
                    return leaf[0].detach(), torch.zeros_like(gradient)
                inner = (gradient * vectors.to(gradient)).sum()
                (product,) = torch.autograd.grad(inner, leaf[0], allow_unused=True)
        if product is None:
            product = torch.zeros_like(gradient)
        return leaf[0].detach(), product.detach()

    def _leaf_tap(self, site: Site) -> Tap:
        if site.kind == "head_out":
            raise AnatomyError(
                f"{site}: heads add up, so the gradient with respect to each head's write is that "
                f"of L{site.layer}.attn_out; ask for that"
            )
        # The stream between the sublayers is the clean stream plus the attention write, so the
        # derivative with respect to either is the same.
        return self._taps(site)[-1]


def _merge(*handlers: Mapping[Tap, Handler]) -> dict[Tap, Handler]:
    """Join handlers; two on one tap run one after the other."""
    merged: dict[Tap, Handler] = {}
    for group in handlers:
        for tap, handler in group.items():
            merged[tap] = _then(merged[tap], handler) if tap in merged else handler
    return merged


def _then(first: Handler, second: Handler) -> Handler:
    def both(tensor: Tensor) -> Tensor | None:
        new = first(tensor)
        later = second(tensor if new is None else new)
        return new if later is None else later

    return both


def read_rows(read: Sequence[int]) -> Rows:
    """Select one row per item: ``read[i]`` is the index of item ``i``'s token.

    Returns
    -------
    callable
        ``[batch, length, width] -> [batch, width]``.
    """

    def select(batch: Batch, tensor: Tensor) -> Tensor:
        at = torch.as_tensor([read[int(i)] for i in batch.index], device=tensor.device)
        columns = at + batch.offset.to(tensor.device)
        return tensor[torch.arange(len(columns), device=tensor.device), columns]

    return select
