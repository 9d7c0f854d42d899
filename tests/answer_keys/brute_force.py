"""Every reading of a hand-set organism by hooks written here on the model's own modules.

Nothing of the library runs but the model it was given: the answers on paper are judged by this
before any instrument is judged by them. All pairs are one batch, so the texts of a side have one
length.
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


class BruteForce:
    """Both sides of the pairs, run through the organism's model one whole forward at a time."""

    def __init__(self, key, pairs=None) -> None:
        self.model = key.signal.trunk.model
        chosen = key.pairs if pairs is None else key.pairs.select(pairs)
        self.ids = [torch.tensor([item.ids for item in side])
                    for side in (chosen.chosen, chosen.rejected)]  # fmt: skip
        self.layers = len(self.model.model.layers)
        heads = [f"L{i}.H{h}" for i in range(self.layers) for h in range(HEADS)]
        writes = [f"L{i}.{kind}" for i in range(self.layers) for kind in ("attn_out", "mlp_out")]
        self.components = ["embed", *writes, *heads]
        self.states = [self._states(k) for k in range(2)]
        self.clean = [self.run(k) for k in range(2)]

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

    def run(self, side: int, edits: dict[str, Callable[[Tensor], Tensor | None]] | None = None):
        """Scores ``[pair]`` with some tensors looked at, or replaced by what a function gives."""
        with ExitStack() as stack:
            for name, edit in (edits or {}).items():
                module, entering, own = self.module(name)

                def changed(tensor, edit=edit, own=own):
                    new = edit(tensor[..., own])
                    if new is None:
                        return tensor
                    whole = tensor.clone()
                    whole[..., own] = new
                    return whole

                def before(_, args, changed=changed):
                    return (changed(args[0]), *args[1:])

                def after(_, args, out, changed=changed):
                    if isinstance(out, tuple):
                        return (changed(out[0]), *out[1:])
                    return changed(out)

                handle = (module.register_forward_pre_hook(before) if entering
                          else module.register_forward_hook(after))  # fmt: skip
                stack.callback(handle.remove)
            return self.model(input_ids=self.ids[side]).logits[:, 0]

    @torch.no_grad()
    def _states(self, side: int) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}
        looks = {name: lambda t, n=name: seen.__setitem__(n, t.clone()) for name in self.components}
        self.run(side, looks)
        return seen

    def written(self, side: int, name: str) -> Tensor:
        """What a component adds to the stream: ``[pair, tokens, width]``."""
        state = self.states[side][name].double()
        module, _, own = self.module(name)
        return state @ module.weight.double()[:, own].T if ".H" in name else state

    def direct(self, side: int, added: Tensor) -> np.ndarray:
        """Read something added to the last stream at the read token through the norm as it was."""
        writes = [n for n in self.components if ".H" not in n]
        stream = sum(self.written(side, n)[:, -1] for n in writes)
        norm, row = self.model.model.norm, self.model.score.weight[0].double()
        scale = (stream.pow(2).mean(-1) + norm.variance_epsilon).rsqrt()
        return ((added * norm.weight.double()) @ row * scale).detach().numpy()

    def attribution(self, name: str) -> np.ndarray:
        sides = [self.direct(k, self.written(k, name)[:, -1]) for k in range(2)]
        return sides[0] - sides[1]

    def _at(self, everywhere: bool) -> slice:
        return slice(None) if everywhere else slice(-1, None)

    @torch.no_grad()
    def patched(self, name: str, noise: bool, everywhere: bool) -> np.ndarray:
        at, run, other = self._at(everywhere), *((0, 1) if noise else (1, 0))

        def put(tensor):
            new = tensor.clone()  # at the read token the sides may have different lengths
            new[:, at] = self.states[other][name][:, at]
            return new

        moved = self.run(run, {name: put})
        return self._effect(moved, run, noise)

    def _effect(self, moved: Tensor, run: int, noise: bool) -> np.ndarray:
        gain = (moved - self.clean[run]).double().detach().numpy()
        return -gain if noise else gain

    @torch.no_grad()
    def zero(self, name: str) -> np.ndarray:
        def nothing(tensor):
            new = tensor.clone()
            new[:, -1] = 0
            return new

        lost = [self.clean[k] - self.run(k, {name: nothing}) for k in range(2)]
        return (lost[0] - lost[1]).double().detach().numpy()

    def gradient(self, name: str, noise: bool, everywhere: bool) -> np.ndarray:
        at, run, other = self._at(everywhere), *((0, 1) if noise else (1, 0))
        leaves = []

        def start(tensor):
            leaves.append(tensor.detach().clone().requires_grad_(True))
            return leaves[0]

        self.run(run, {name: start}).sum().backward()
        step = (self.states[other][name] - self.states[run][name])[:, at]
        first = (leaves[0].grad[:, at].double() * step.double()).sum((1, 2)).numpy()
        return -first if noise else first

    @torch.no_grad()
    def path(self, name: str, noise: bool, everywhere: bool) -> np.ndarray:
        """Sender's change seen by one receiver; that receiver and all after it are recomputed."""
        sender, receiver = name.split(" -> ")
        at, run, other = self._at(everywhere), *((0, 1) if noise else (1, 0))
        delta = self.written(other, sender) - self.written(run, sender)
        if receiver == "readout":
            moved = self.direct(run, delta[:, -1])
            return -moved if noise else moved
        step = torch.zeros_like(delta)
        step[:, at] = delta[:, at]
        return self._effect(self.run(run, self._received(run, receiver, step)), run, noise)

    def _received(self, run: int, receiver: str, step: Tensor):
        """Edits that add a step to what one receiver reads, and to nothing else."""
        layer, _, head, part = _NAME.fullmatch(receiver).groups()
        add = lambda t: t + step.to(t)  # noqa: E731
        if head is None:
            return {receiver: add}
        # What the projections of this head are when the whole attention reads the changed stream.
        parts, seen = [f"L{layer}.H{head}.{p}" for p in (part or "qkv")], {}
        looks = {p: lambda t, p=p: seen.__setitem__(p, t.clone()) for p in parts}
        self.run(run, {f"L{layer}.attn_in": add, **looks})
        return {p: lambda t, p=p: seen[p] for p in parts}

    def value(self, reading: str, name: str) -> np.ndarray:
        """One reading of one component or path, ``[pair]``."""
        everywhere = reading.endswith(EVERYWHERE)
        reading = reading.removesuffix(EVERYWHERE)
        if reading in ("attribution", "zero"):
            return getattr(self, reading)(name)
        noise = "denoise" not in reading
        how = (self.gradient if "gradient" in reading else
               self.path if "path" in reading else self.patched)  # fmt: skip
        return how(name, noise, everywhere)

    def receivers_after(self, sender: str) -> list[str]:
        """Every receiver that comes after a sender, the readout included."""
        layer, kind, *_ = _NAME.fullmatch(sender).groups()
        first = -1 if kind == "embed" else int(layer)
        found = []
        for k in range(self.layers):
            if k > first:
                parts = ("", ".q", ".k", ".v")
                found += [f"L{k}.H{h}{p}" for h in range(HEADS) for p in parts]
                found.append(f"L{k}.attn_in")
            if k > first or (k == first and kind != "mlp_out"):
                found.append(f"L{k}.mlp_in")
        return [f"{sender} -> {r}" for r in (*found, "readout")]
