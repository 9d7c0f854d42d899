"""Every reading of a hand-set organism by hooks written here on the model's own modules.

Nothing of the library runs but the model it was given: the answers on paper are judged by this
before any instrument is judged by them. All pairs are one batch, so the texts of a side have one
length; what is changed in different ways are further rows of it, each a whole forward.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor

HEADS, HEAD_WIDTH = 4, 4
_NAME = re.compile(r"(?:L(\d+)\.)?(embed|attn_out|mlp_out|attn_in|mlp_in|H(\d+))(?:\.([qkv]))?")
EVERYWHERE = " everywhere"
#: Name of a place -> what is put there, given what is there; ``None`` leaves it.
Edits = dict[str, Callable[[Tensor], Tensor | None]]


class BruteForce:
    """Both sides of the pairs, run through the organism's model."""

    def __init__(self, key, pairs=None) -> None:
        self.model = key.signal.trunk.model
        chosen = key.pairs if pairs is None else key.pairs.select(pairs)
        self.ids = [torch.tensor([item.ids for item in side])
                    for side in (chosen.chosen, chosen.rejected)]  # fmt: skip
        layers = range(len(self.model.model.layers))
        self.writes = ["embed", *(f"L{i}.{w}_out" for i in layers for w in ("attn", "mlp"))]
        self.heads = [f"L{i}.H{h}" for i in layers for h in range(HEADS)]
        self.components = [*self.writes, *self.heads]
        self.streams = [f"L{i}.attn_in" for i in layers]
        self.states, self.gradients = zip(*(self._seen(k) for k in range(2)), strict=True)
        with torch.no_grad():
            self.clean = [self.run(k, [{}])[0] for k in range(2)]

    def module(self, name: str):
        """Module, whether its input is meant, and the channels."""
        layer, kind, head, part = _NAME.fullmatch(name).groups()
        if kind == "embed":
            return self.model.model.embed_tokens, False, slice(None)
        block = self.model.model.layers[int(layer)]
        if head is None:
            module = {
                "attn_out": block.self_attn, "mlp_out": block.mlp,
                "attn_in": block.input_layernorm, "mlp_in": block.post_attention_layernorm,
            }[kind]  # fmt: skip
            return module, kind.endswith("_in"), slice(None)
        own = slice(int(head) * HEAD_WIDTH, (int(head) + 1) * HEAD_WIDTH)
        if part is None:
            return block.self_attn.o_proj, True, own
        return getattr(block.self_attn, f"{part}_proj"), False, own

    def run(self, side: int, variants: list[Edits]) -> Tensor:
        """Scores ``[variant, pair]`` with some tensors looked at, or replaced."""
        n = len(self.ids[side])
        with ExitStack() as stack:
            for k, edits in enumerate(variants):
                for name, edit in edits.items():
                    module, entering, own = self.module(name)
                    change = _Change(slice(k * n, (k + 1) * n), own, edit)
                    handle = (module.register_forward_pre_hook(change.before) if entering
                              else module.register_forward_hook(change.after))  # fmt: skip
                    stack.callback(handle.remove)
            ids = self.ids[side].repeat(len(variants), 1)
            return self.model(input_ids=ids).logits[:, 0].reshape(-1, n)

    def _seen(self, side: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What every place holds, ``[pair, tokens, channels]``, and the score's gradient there."""
        seen: dict[str, Tensor] = {}
        places = [*self.components, *self.streams]

        def look(name):
            def keep(tensor):
                # A copy in the tensor's place, so that its gradient is that of what comes after.
                seen[name] = tensor.clone()
                return seen[name]

            return keep

        total = self.run(side, [{name: look(name) for name in places}]).sum()
        found = torch.autograd.grad(total, [seen[p] for p in places])
        return {k: v.detach() for k, v in seen.items()}, dict(zip(places, found, strict=True))

    def written(self, side: int, name: str) -> Tensor:
        """What a component adds to the stream: ``[pair, tokens, width]``."""
        state = self.states[side][name].double()
        module, _, own = self.module(name)
        return state @ module.weight.detach().double()[:, own].T if ".H" in name else state

    def direct(self, side: int, added: Tensor) -> np.ndarray:
        """Read something added to the last stream at the read token through the norm as it was."""
        stream = sum(self.written(side, n)[:, -1] for n in self.writes)
        norm = self.model.model.norm
        row = self.model.score.weight[0].detach().double() * norm.weight.detach().double()
        scale = (stream.pow(2).mean(-1) + norm.variance_epsilon).rsqrt()
        return (added @ row * scale).numpy()

    def values(self, reading: str, names: list[str]) -> np.ndarray:
        """One reading of components or paths, ``[pair, name]``."""
        everywhere = reading.endswith(EVERYWHERE)
        reading, at = reading.removesuffix(EVERYWHERE), slice(None if everywhere else -1, None)
        if reading in ("attribution", "zero"):
            return np.stack(getattr(self, reading)(names), axis=1)
        noise = "denoise" not in reading
        how = (self.gradient if "gradient" in reading else
               self.path if "path" in reading else self.patched)  # fmt: skip
        run, other = (0, 1) if noise else (1, 0)
        gain = how(names, run, other, at)
        return np.stack(gain, axis=1) * (-1 if noise else 1)

    def attribution(self, names: list[str]) -> list[np.ndarray]:
        sides = [[self.direct(k, self.written(k, n)[:, -1]) for n in names] for k in range(2)]
        return [a - b for a, b in zip(*sides, strict=True)]

    @torch.no_grad()
    def zero(self, names: list[str]) -> list[np.ndarray]:
        nothing = [{n: lambda t: _put(t, slice(-1, None), torch.zeros(()))} for n in names]
        lost = [(self.clean[k] - self.run(k, nothing)).double().numpy() for k in range(2)]
        return list(lost[0] - lost[1])

    @torch.no_grad()
    def patched(self, names: list[str], run: int, other: int, at: slice) -> list[np.ndarray]:
        put = [{n: lambda t, n=n: _put(t, at, self.states[other][n][:, at])} for n in names]
        return list((self.run(run, put) - self.clean[run]).double().numpy())

    def gradient(self, names: list[str], run: int, other: int, at: slice) -> list[np.ndarray]:
        steps = [(self.states[other][n] - self.states[run][n])[:, at].double() for n in names]
        slopes = [self.gradients[run][n][:, at].double() for n in names]
        return [(s * g).sum((1, 2)).numpy() for s, g in zip(steps, slopes, strict=True)]

    @torch.no_grad()
    def path(self, names: list[str], run: int, other: int, at: slice) -> list[np.ndarray]:
        """Sender's change seen by one receiver; that receiver and all after it are recomputed."""
        edits: list[Edits] = []
        found: dict[str, np.ndarray] = {}
        ends = [name.split(" -> ") for name in names]
        for name, (sender, receiver) in zip(names, ends, strict=True):
            delta = self.written(other, sender) - self.written(run, sender)
            if receiver == "readout":
                found[name] = self.direct(run, delta[:, -1])
            else:
                step = _put(torch.zeros_like(delta), at, delta[:, at])
                edits.append(self._received(run, receiver, step))
        moved = (self.run(run, edits) - self.clean[run]).double().numpy()
        rest = iter(moved)
        return [found[n] if n in found else next(rest) for n in names]

    def _received(self, run: int, receiver: str, step: Tensor) -> Edits:
        """Edits that add a step to what one receiver reads, and to nothing else."""
        layer, _, head, part = _NAME.fullmatch(receiver).groups()
        if head is None:
            return {receiver: lambda t: t + step.to(t)}
        # What the head's projections are when the whole attention reads the changed stream.
        block, stream = self.model.model.layers[int(layer)], self.states[run][f"L{layer}.attn_in"]
        read = block.input_layernorm(stream + step.to(stream))
        edits: Edits = {}
        for p in part or "qkv":
            projection, _, own = self.module(f"L{layer}.H{head}.{p}")
            new = projection(read)[..., own]
            edits[f"L{layer}.H{head}.{p}"] = lambda t, new=new: new
        return edits

    def receivers_after(self, sender: str) -> list[str]:
        """Paths to everything that comes after a sender, the readout included."""
        layer, kind, *_ = _NAME.fullmatch(sender).groups()
        first, found = -1 if kind == "embed" else int(layer), []
        for k in range(len(self.streams)):
            if k > first:
                found += [f"L{k}.H{h}{p}" for h in range(HEADS) for p in ("", ".q", ".k", ".v")]
                found.append(f"L{k}.attn_in")
            if k > first or (k == first and kind != "mlp_out"):
                found.append(f"L{k}.mlp_in")
        return [f"{sender} -> {r}" for r in (*found, "readout")]


class _Change:
    """One edit in some rows and channels of a module's input or output."""

    def __init__(self, rows: slice, own: slice, edit) -> None:
        self.rows, self.own, self.edit = rows, own, edit

    def changed(self, tensor: Tensor) -> Tensor:
        new = self.edit(tensor[self.rows][..., self.own])
        if new is None:
            return tensor
        whole = tensor.clone()
        whole[self.rows, :, self.own] = new
        return whole

    def before(self, _, args):
        return (self.changed(args[0]), *args[1:])

    def after(self, _, args, out):
        return (self.changed(out[0]), *out[1:]) if isinstance(out, tuple) else self.changed(out)


def _put(tensor: Tensor, at: slice, new: Tensor) -> Tensor:
    whole = tensor.clone()
    whole[:, at] = new
    return whole
