"""One trunk: run it and see its sites.

Every forward is the model's own; nothing of it is replaced or rewritten. Hooks look.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from reward_lens.backbone.anatomy import Anatomy
from reward_lens.backbone.anatomy_search import find_anatomy, probe_ids
from reward_lens.backbone.batch_effect import remembers
from reward_lens.backbone.batching import Batch, collate, plan_batches
from reward_lens.backbone.heads import head_writes
from reward_lens.backbone.inputs import Inputs
from reward_lens.backbone.naming import AnatomyNames
from reward_lens.backbone.norms import FrozenNorm
from reward_lens.backbone.row_choice import ReadRows, Rows
from reward_lens.backbone.site_taps import site_taps
from reward_lens.backbone.sites import Site
from reward_lens.backbone.taps import Around, Handler, Tap, attach, merge
from reward_lens.backbone.tokenise import Encoded
from reward_lens.errors import AnatomyError, NumericsError, RewardLensError

if TYPE_CHECKING:
    from reward_lens.backbone.plants import Plants

#: Parameter -> where it lies, and how often it was written to.
Versions = dict[str, tuple[int, int]]
#: Handlers that change the forward of a batch: before, and after, what else is done in it.
Edits = Callable[[Batch], Around]


class Shelf(Protocol):
    """Clean runs of items, from which forwards of a planted view can start."""

    def states(
        self, trunk: Trunk, batch: Batch, sites: Sequence[Site], read: Sequence[int]
    ) -> dict[Site, Tensor] | None:
        """What :meth:`Trunk.capture` gives at read tokens; ``None`` if an item is not there."""


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

    def __init__(self, model: Any, names: AnatomyNames | None = None) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        self.base: nn.Module = model.base_model
        self.device: torch.device = next(model.parameters()).device
        self.dtype: torch.dtype = next(self.base.parameters()).dtype
        pad, known = self.config.pad_token_id, self.config.vocab_size
        # Masked, so any id of the vocabulary; some configurations name one that is none.
        self.pad_id = int(pad) if pad is not None and 0 <= pad < known else 0
        self.anatomy: Anatomy = find_anatomy(model, self.config, self.device, names)
        self.inputs = Inputs.of(self.base, probe_ids(self.config, self.device))
        self._made = self.versions()
        self.remembers = remembers(self.config)
        # What is remembered is one for all threads.
        self._memory: Any = threading.RLock() if self.remembers else nullcontext()
        #: Items longer than this are run alone; ``None`` if what else is in a batch never matters.
        self.alone_beyond: int | None = None
        self._edits: tuple[Edits, ...] = ()
        #: What is planted in this view, and the clean runs that its forwards can start from.
        self.plants: Plants | None = None
        self.shelf: Shelf | None = None
        self._planted: Versions = {}
        #: The trunk that this is a changed view of.
        self.clean: Trunk | None = None
        self._modules = {name: id(module) for name, module in model.named_modules()}

    @property
    def kernel(self) -> str:
        """The attention implementation that runs now."""
        return str(getattr(self.config, "_attn_implementation", None) or "unknown")

    @property
    def edited(self) -> bool:
        """Whether every forward is changed."""
        return bool(self._edits)

    @property
    def edits(self) -> tuple[Edits, ...]:
        """What changes every forward."""
        return self._edits

    def changed(self, edits: Edits) -> Trunk:
        """The same trunk, every forward of which is changed; the model itself is not touched.

        Parameters
        ----------
        edits : callable
            Gives the handlers that change the forward of a batch.
        """
        new = copy.copy(self)
        new._edits = (*self._edits, edits)
        new.plants = new.shelf = None  # what comes on top is in no clean run that is kept
        new.clean = self.clean or self
        return new

    def planted(self, plants: Plants, shelf: Shelf | None = None) -> Trunk:
        """The same trunk with rules planted in it; the model itself is not touched.

        Parameters
        ----------
        shelf : Shelf, optional
            Clean runs of items that will be asked for.

        Raises
        ------
        RewardLensError
            If this is a changed view already.
        """
        if self.edited:
            raise RewardLensError("rules are planted in a signal itself, not in a changed view")
        new = self.changed(plants)
        new.plants, new.shelf, new._planted = plants, shelf, self.versions()
        return new

    def refuse_rebuilt(self) -> None:
        """Raise if modules were replaced or wrapped, or the dtype changed, since this was made.

        Raises
        ------
        AnatomyError
            Naming the first.
        """
        now = {name: id(module) for name, module in self.model.named_modules()}
        other = sorted(n for n in {*now, *self._modules} if now.get(n) != self._modules.get(n))
        if other:
            raise AnatomyError(
                f"the model was rebuilt after it was wrapped (first at {other[0]!r}), so what was "
                f"found out about it no longer holds: wrap it again"
            )
        dtype = next(self.base.parameters()).dtype
        if dtype != self.dtype:
            raise AnatomyError(
                f"the model was {str(self.dtype).removeprefix('torch.')} when it was wrapped and "
                f"is {str(dtype).removeprefix('torch.')} now: wrap it again"
            )

    def refuse_training(self) -> None:
        """Raise if the model, or a part of it, is in training mode.

        Raises
        ------
        RewardLensError
        """
        if any(part.training for part in self.model.modules()):
            raise RewardLensError(
                "the model, or a part of it, is in training mode, so its scores are random: call "
                "model.eval() first"
            )

    def refuse_written(self, since: Versions) -> None:
        """Raise if weights were written to since :meth:`versions` gave these.

        Raises
        ------
        RewardLensError
            Naming the first.
        """
        if written := self.written_to(since):
            raise RewardLensError(
                f"weights were written to after rules were planted (first {written[0]!r}), so what "
                f"is known of the rules is of another model: make a new planter"
            )

    @property
    def hooked(self) -> bool:
        """Whether somebody else's hooks are on the model."""
        hooks = (
            hook
            for m in self.model.modules()
            for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())
        )
        # Our own are there for the length of a forward, of this or another thread.
        ours = (getattr(h, "func", h).__module__ for h in hooks)
        return any(not str(name).startswith("reward_lens.") for name in ours)

    def written_to(self, since: Versions | None = None) -> list[str]:
        """Names of parameters that were written to, or replaced, since the trunk was made.

        Parameters
        ----------
        since : dict, optional
            What :meth:`versions` gave at another time.
        """
        now, before = self.versions(), self._made if since is None else since
        return [name for name, state in before.items() if now.get(name) != state]

    def versions(self) -> Versions:
        """Where every parameter lies and how often torch saw it written to."""
        return {n: (p.data_ptr(), written(p)) for n, p in self.model.named_parameters()}

    @property
    def n_layers(self) -> int:
        """Number of residual blocks."""
        return len(self.anatomy.blocks)

    def forward(self, batch: Batch, handlers: Mapping[Tap, Handler], **given: Any) -> Any:
        """Run the trunk on a batch with handlers attached; returns the trunk's own output.

        Parameters
        ----------
        given : dict
            Further arguments of the trunk's forward, in place of what it is usually given.

        Raises
        ------
        RewardLensError
            If the model is in training mode, where dropout would make scores random.
        """
        self.refuse_training()
        if self.plants is not None:
            self.refuse_written(self._planted)
        # First what changes, so that whoever looks sees what was changed.
        around = [edits(batch) for edits in self._edits]
        handlers = merge(*(a for a, _ in around), handlers, *(b for _, b in around))
        with self._memory:
            self.forget()
            with attach(handlers):
                return self.base(**{**self.inputs.of_batch(batch), **given})

    @torch.no_grad()
    def forget(self) -> None:
        """Undo what an earlier long text left behind: one short forward resets the frequencies."""
        if self.remembers:
            self.base(input_ids=torch.full((1, 1), self.pad_id, device=self.device))

    def batches(
        self, encoded: Sequence[Encoded], batch_tokens: int, side: str = "right"
    ) -> Iterator[Batch]:
        """Lay items out in batches of about equal length."""
        for index in plan_batches(encoded, batch_tokens, self.alone_beyond):
            yield collate(encoded, index, self.pad_id, self.device, side)

    @torch.no_grad()
    def capture(
        self,
        batch: Batch,
        sites: Sequence[Site],
        rows: Rows | None = None,
        also: Mapping[Tap, Handler] | None = None,
    ) -> dict[Site, Tensor]:
        """Run one batch and return the tensors at sites.

        Parameters
        ----------
        batch : Batch
        sites : sequence of Site
        rows : callable, optional
            Selects from each ``[batch, length, width]`` tensor as it passes, so that only what is
            asked for is kept; e.g. :func:`read_rows`.
        also : mapping of Tap to callable, optional
            Further handlers to attach.

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
        wanted = {tap for site in sites for tap in site_taps(self.anatomy, site)} | {
            self.anatomy.normed
        }
        if self.shelf is not None and also is None and isinstance(rows, ReadRows):
            found = self.shelf.states(self, batch, sites, rows.read)
            if found is not None:
                return found
        seen: dict[Tap, Tensor] = {}

        def keep(tap: Tap) -> Handler:
            def handle(tensor: Tensor) -> None:
                if tensor.shape[:2] != batch.ids.shape:  # some modules see all tokens in one row
                    tensor = tensor.reshape(*batch.ids.shape, -1)
                # A copy: some models add to a tensor in place later on.
                kept = tensor.clone() if rows is None else rows(batch, tensor)
                seen[tap] = kept.detach()

            return handle

        self.forward(batch, merge(also or {}, {tap: keep(tap) for tap in wanted}))
        self._refuse_nonfinite(batch, seen[self.anatomy.normed], whole_rows=rows is None)
        return {site: self.assemble(site, seen) for site in sites}

    def looked_at(self, batch: Batch, sites: Sequence[Site]) -> Tensor:
        """The trunk's output of a forward whose sites are looked at and left as they are."""

        def look(tensor: Tensor) -> None:
            return None

        taps = [tap for site in sites for tap in site_taps(self.anatomy, site)]
        out: Tensor = self.forward(batch, dict.fromkeys(taps, look))[0]
        return out

    def final_states(self, batch: Batch) -> Tensor:
        """The states that the head reads: ``[batch, length, width]``."""
        return self.capture(batch, [Site("final_norm")])[Site("final_norm")]

    def assemble(self, site: Site, seen: Mapping[Tap, Tensor]) -> Tensor:
        """Make a site's tensor of those seen at its taps."""
        values = [seen[tap] for tap in site_taps(self.anatomy, site)]
        if site.kind == "resid_mid":
            return values[0] if len(values) == 1 else values[0] + values[1]
        if site.kind == "head_out":
            raw = values[1] if len(values) == 2 else None
            return head_writes(self.anatomy.write(site), values[0], raw)
        if site.kind in ("attn_out", "mlp_out"):
            scale = self.anatomy.write(site).scale
            return values[0] if scale is None else (values[0] * scale).to(values[0].dtype)
        return values[0]

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
        if self.anatomy.blocks:
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


def written(tensor: Tensor) -> int:
    """How often torch saw a tensor written to; of one made in inference mode it does not count."""
    return -1 if tensor.is_inference() else tensor._version
