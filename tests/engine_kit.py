"""Changed forwards in two ways: by the library's engine, and by plain hooks on the model.

The hooks know nothing of the library. They name a model's modules by hand, and do in one unpadded
forward what a list of edits says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from families import PAD, VOCAB

from reward_lens.backbone import Change, Target
from reward_lens.data import Item
from reward_lens.signals.patching import clean_runs

FULL, TREE, JOINING = "full forward", "tree row", "joining batch"

_LLAMA = ("model.layers", "self_attn", "mlp", "self_attn.o_proj")
#: Blocks, what is added to the stream by attention and by the MLP, and the last map of attention.
MODULES = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "gpt_oss": _LLAMA,
    "deepseek_v3": _LLAMA,
    "gemma2": ("model.layers", "post_attention_layernorm", "post_feedforward_layernorm",
               "self_attn.o_proj"),
    "phi": ("model.layers", "self_attn", "mlp", "self_attn.dense"),
    "gpt2": ("transformer.h", "attn", "mlp", "attn.c_proj"),
    "gpt_neox": ("gpt_neox.layers", "attention", "mlp", "attention.dense"),
    "falcon": ("transformer.h", "self_attention", "mlp", "self_attention.dense"),
    "bloom": ("transformer.h", "self_attention.dense", "mlp.dense_4h_to_h",
              "self_attention.dense"),
    "mpt": ("transformer.blocks", "attn.out_proj", "ffn.down_proj", "attn.out_proj"),
}  # fmt: skip


def ids_item(seed: int, length: int) -> Item:
    """Random ids that hold no padding."""
    ids = np.random.default_rng(seed).integers(1, min(PAD, VOCAB) - 1, length)
    return Item(ids=tuple(int(i) for i in ids))


def clean_lot(signal: Any, items: Any, targets: Any, *, read: Any = None, **options: Any) -> Any:
    """All items in one lot, run clean, with the sources of the targets captured."""
    encoded = signal.encode(items)
    sites = list(dict.fromkeys(Target.parse(t).source for t in targets))
    return next(clean_runs(
        signal, encoded, read or signal.read_index(encoded), signal.bound("reward", encoded),
        [list(range(len(encoded)))], sites, **options,
    ))  # fmt: skip


def all_targets(signal: Any, *, heads: bool = True) -> list[str]:
    """Every tensor of a trunk that can be replaced, by name."""
    anatomy, found = signal.trunk.anatomy, ["embed"]
    for k, block in enumerate(anatomy.blocks):
        found += [f"L{k}.resid_pre", f"L{k}.resid_post"]
        if block.attn is not None:
            found.append(f"L{k}.attn_out")
            if heads and block.attn.heads is not None:
                found += [f"L{k}.H{h}" for h in range(block.attn.heads.n)]
        if block.mlp is not None:
            found.append(f"L{k}.mlp_out")
        try:
            Target.parse(f"L{k}.resid_mid").width(anatomy)
        except ValueError:
            continue
        found.append(f"L{k}.resid_mid")
    return [*found, "final_norm"]


def change(signal: Any, lot: Any, name: str, at: Any, other: int, theirs: Any = None) -> Change:
    """Put another item's activation in place; ``theirs`` are its tokens, by default the same."""
    target = Target.parse(name)
    state = lot.state(target.source, other)
    rows = state[list(at if theirs is None else theirs)] if lot.whole else state[None]
    return Change(target, tuple(at), target.of(rows, signal.trunk.anatomy))


def drawn(signal: Any, name: str, at: Any, seed: int, add: bool = False) -> Change:
    """A random value."""
    target = Target.parse(name)
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(len(at), target.width(signal.trunk.anatomy), generator=generator)
    return Change(target, tuple(at), value, add)


class PlainHooks:
    """One model's forward on one text, edited by hooks that are written out here."""

    def __init__(self, model: Any, family: str) -> None:
        self.model = model
        blocks, *self.parts = MODULES[family]
        self.blocks = model.get_submodule(blocks)

    def place(self, change: Change) -> tuple[Any, str, slice]:
        """The module, whether its input or output is edited, and the channels."""
        target, layer = change.target, change.target.site.layer
        if target.site.kind == "embed":
            return self.blocks[0], "in", slice(None)
        block = self.blocks[layer]
        attn, mlp, mix = self.parts
        if target.head is not None:
            width = change.value.shape[-1]
            start = target.head * width
            return block.get_submodule(mix), "in", slice(start, start + width)
        inside = {"attn_out": attn, "mlp_out": mlp}.get(target.site.kind)
        if inside is not None:
            return block.get_submodule(inside), "out", slice(None)
        return block, {"resid_pre": "in", "resid_post": "out"}[target.site.kind], slice(None)

    @torch.no_grad()
    def logits(self, ids: Any, run: Any = ()) -> float:
        """The model's own score of a text with a run's changes."""
        handles = []
        for one in run:
            module, side, channels = self.place(one)
            if side == "in":
                handles.append(module.register_forward_pre_hook(_before(one, channels)))
            else:
                handles.append(module.register_forward_hook(_after(one, channels)))
        try:
            return float(self.model(input_ids=torch.tensor([list(ids)])).logits[0, 0])
        finally:
            for handle in handles:
                handle.remove()


def _edit(tensor: Any, one: Change, channels: slice) -> Any:
    shape = tensor.shape
    new = (tensor if tensor.dim() == 3 else tensor[None]).clone()
    for token, value in zip(one.at, one.value, strict=True):
        old = new[0, token, channels]
        new[0, token, channels] = old + value if one.add else value
    return new.reshape(shape)


def _before(one: Change, channels: slice) -> Any:
    return lambda _, args: (_edit(args[0], one, channels), *args[1:])


def _after(one: Change, channels: slice) -> Any:
    def hook(_: Any, __: Any, out: Any) -> Any:
        if isinstance(out, tuple):
            return (_edit(out[0], one, channels), *out[1:])
        return _edit(out, one, channels)

    return hook


@contextmanager
def edited(module: Any, edit: Any, *, output: bool = False) -> Iterator[None]:
    """A module's input, or output, passed through ``edit`` as long as the block lasts."""

    def after(_, __, out):
        return (edit(out[0]), *out[1:]) if isinstance(out, tuple) else edit(out)

    if output:
        handle = module.register_forward_hook(after)
    else:
        handle = module.register_forward_pre_hook(lambda _, args: (edit(args[0]), *args[1:]))
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def plain_reception(model: Any, ids: Any, receptions: Any, changes: Any = ()) -> float:
    """The score of a llama one of whose receivers reads another stream.

    The modules that read the stream are given another input; what the receiver makes of it is noted
    and put in place in a second forward. Receptions are made one after the other, each with the
    earlier ones' writes in place; ``changes`` are ``(module, edit, whether of its output)``.
    """
    layers, done = model.model.layers, list(changes)
    for one in receptions:
        block, r = layers[one.receiver.layer], one.receiver
        attn = r.role == "attn"
        norm = block.input_layernorm if attn else block.post_attention_layernorm
        given, seen = [], []
        with ExitStack() as stack:
            for module, edit, output in done:
                stack.enter_context(edited(module, edit, output=output))
            watch = norm.register_forward_pre_hook(lambda _, args, kept=given: kept.append(args))
            model(input_ids=ids)
            watch.remove()
            stream = given[0][0].clone()
            stream[0, list(one.at)] += one.delta
            changed = norm.forward(stream)
            readers = [getattr(block.self_attn, f"{p}_proj") for p in r.part or "qkv"]
            for module in readers if attn else [block.mlp]:
                stack.enter_context(edited(module, lambda x, new=changed: new))
            mixed = block.self_attn.o_proj
            watch = (
                mixed.register_forward_pre_hook(lambda _, args, kept=seen: kept.append(args[0]))
                if attn
                else block.mlp.register_forward_hook(lambda *a, kept=seen: kept.append(a[-1]))
            )
            model(input_ids=ids)
            watch.remove()
        if not attn:
            done.append((block.mlp, lambda _, new=seen[0]: new, True))
        elif r.head is None:
            done.append((mixed, lambda _, new=seen[0]: new, False))
        else:
            done.append((mixed, _slice(r.head, seen[0]), False))
    with ExitStack() as stack:
        for module, edit, output in done:
            stack.enter_context(edited(module, edit, output=output))
        return float(model(input_ids=ids).logits[0, 0])


def _slice(head: int, new: Any) -> Any:
    def edit(x):
        width = x.shape[-1] // 4
        out, mine = x.clone(), slice(head * width, (head + 1) * width)
        out[..., mine] = new[..., mine]
        return out

    return edit


def grain(signal: Any, items: Any) -> float:
    """What float32 leaves open of a score: its last bits are those of the terms that it sums."""
    normed = signal.capture(items, ["final_norm"])["final_norm"].double()
    terms = (normed * signal.readout().direction.double()).abs().sum(-1)
    return 8 * float(torch.finfo(torch.float32).eps * terms.max())


def assert_effects(found: Any, expected: Any, clean: float, rounding: float) -> None:
    """Scores of changed runs agree to 1e-5 of the largest effect, or to float32's rounding.

    The second matters where effects are tiny beside the terms of the score; see :func:`grain`.
    """
    expected = np.asarray(expected, dtype=np.float64)
    largest = np.abs(expected - clean).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=max(1e-5 * largest, rounding))
