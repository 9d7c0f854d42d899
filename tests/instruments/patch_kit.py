"""A changed forward that knows nothing of the library: plain hooks on a transformers model."""

from __future__ import annotations

import torch


def hooked(signal, item, module, columns, value, at):
    """The score of an item with part of one module's output (or input) replaced."""
    (encoded,) = signal.encode([item])
    ids = torch.from_numpy(encoded.ids)[None]

    def after(_, __, out):
        new = (out[0] if isinstance(out, tuple) else out).clone()
        new[0, at, columns] = value
        return (new, *out[1:]) if isinstance(out, tuple) else new

    def before(_, args):
        new = args[0].clone()
        new[0, at, columns] = value
        return (new, *args[1:])

    inward = columns != slice(None)
    hook = (module.register_forward_pre_hook(before) if inward
            else module.register_forward_hook(after))  # fmt: skip
    with torch.no_grad():
        score = float(signal.trunk.model(input_ids=ids).logits[0, 0])
    hook.remove()
    return score
