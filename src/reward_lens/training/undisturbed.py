"""Looking at a model in the middle of its training, and leaving it as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from reward_lens.errors import AnatomyError


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode for a with-block, and everything back after it.

    Restored, whatever happens inside: the mode of every module (not only of the whole), and the
    random state of torch (all devices in use), numpy and Python. Gradients, weights and
    ``requires_grad`` are nobody's to write in between.
    """
    modes = [(module, module.training) for module in model.modules()]
    python, array = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if _cuda_in_use() else []
    try:
        with torch.random.fork_rng(devices=devices):
            model.eval()
            yield
    finally:
        for module, training in modes:
            module.training = training
        random.setstate(python)
        np.random.set_state(array)


def plain_model(model: nn.Module) -> Any:
    """The transformers model inside what a trainer holds.

    Adapters of PEFT that live inside the layers (LoRA and its kin) stay in force: the model that
    they were put into is returned, layers and all.

    Raises
    ------
    AnatomyError
        If the parameters are sharded over processes, or adapters work outside the layers; says
        what to do.
    """
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id") or type(parameter).__name__ in _SHARDED:
            raise AnatomyError(
                f"the parameters are sharded over processes (ZeRO-3 or FSDP; first {name!r}), so "
                f"no process can run the model alone. Probe saved checkpoints with load_signal, or "
                f"train with DDP or ZeRO-1/2"
            )
    inner: Any = model
    while isinstance(inner, _WRAPPERS) or hasattr(inner, "_orig_mod"):  # the latter: compiled
        inner = inner._orig_mod if hasattr(inner, "_orig_mod") else inner.module
    for name, config in getattr(inner, "peft_config", {}).items():
        if getattr(config, "is_prompt_learning", False):
            raise AnatomyError(
                f"the adapter {name!r} ({type(config).__name__}) adds learned tokens around the "
                f"model, which is not looked at here; train with LoRA, or probe checkpoints"
            )
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


_SHARDED = ("DTensor", "FlatParameter")
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
