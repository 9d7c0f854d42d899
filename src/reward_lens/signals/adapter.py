"""LoRA adapters saved by PEFT: read from disk and added to the weights of their base model.

``W + s · B A`` with ``s = alpha / r`` (Hu et al. 2021, arXiv 2106.09685), or ``alpha / √r`` where
the configuration asks for rank-stabilised scaling (Kalajdzievski 2023, arXiv 2312.03732). Modules
that were trained whole (``modules_to_save``, the head among them) replace those of the base.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reward_lens.errors import CheckpointError
from reward_lens.signals.checkpoint import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    SIDE_HEAD,
    Stored,
    listed,
    read_header,
    read_json,
)

_LORA = re.compile(r"^(.+)\.lora_(embedding_)?(A|B)(?:\.default)?(?:\.weight)?$")
_PREFIX = "base_model.model."
#: Settings that change what the adapter computes and are not done here -> values that are harmless.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "target_parameters": (None, [], {}),
    "trainable_token_indices": (None, [], {}),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_bdlora": (None, False),
    "arrow_config": (None,),
    # These start from changed base weights, so the adapter does not fit the base as published.
    "init_lora_weights": (True, False, None, "gaussian"),
}


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter on disk.

    Attributes
    ----------
    folder : Path
    config : dict
        ``adapter_config.json`` as written.
    low_rank : dict
        Module name -> its two factors, ``A`` ``[r, in]`` and ``B`` ``[out, r]``.
    whole : dict
        Key of the adapted model -> the tensor that replaces it.
    embeddings : frozenset of str
        Modules of ``low_rank`` that are embeddings.
    """

    folder: Path
    config: Mapping[str, Any]
    low_rank: Mapping[str, Mapping[str, Stored]]
    whole: Mapping[str, Stored]
    embeddings: frozenset[str]

    def scale(self, module: str, rank: int) -> float:
        """Scaling of a module's update of a rank, with ``alpha_pattern`` and ``use_rslora``."""
        alpha = self.config["lora_alpha"]
        for pattern, value in (self.config.get("alpha_pattern") or {}).items():
            # PEFT's rule: the pattern is the end of the module's name, or all of it.
            if re.match(rf"(.*\.)?({pattern})$", module):
                alpha = value
                break
        return float(alpha) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


def open_adapter(folder: Path) -> Adapter:
    """Read an adapter's configuration and headers.

    Raises
    ------
    CheckpointError
        If it is of a kind that is not added up here, holds nothing or one thing twice, or a
        factor has no partner.
    """
    config = read_json(folder / ADAPTER_CONFIG)
    _refuse_unsupported(folder, config)
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise CheckpointError(
            f"{folder} has {ADAPTER_CONFIG} but no {ADAPTER_WEIGHTS}; pickled adapters "
            f"(adapter_model.bin) are not opened: save it again with safe_serialization=True"
        )
    low_rank: dict[str, dict[str, Stored]] = {}
    whole: dict[str, Stored] = {}
    embeddings = set()
    header = read_header(folder / ADAPTER_WEIGHTS)
    if not header:
        raise CheckpointError(
            f"{folder / ADAPTER_WEIGHTS} holds no tensors, so it would leave the base as it is; "
            f"save the adapter again, or load the base itself"
        )
    for key, stored in header.items():
        name = key.removeprefix(_PREFIX)
        if found := _LORA.match(name):
            module, embedding, factor = found.groups()
            _put(low_rank.setdefault(module, {}), factor, stored)
            if embedding:
                embeddings.add(module)
        else:
            _put(whole, re.sub(r"\.modules_to_save(\.default)?", "", name), stored)
    for module, factors in low_rank.items():
        if (replaced := whole.get(f"{module}.weight")) is not None:
            raise _twice(factors["A"] if "A" in factors else factors["B"], replaced)
        if absent := {"A", "B"} - set(factors):
            raise CheckpointError(
                f"{folder / ADAPTER_WEIGHTS}: {module}.lora_{absent.pop()}.weight is missing"
            )
    if (folder / SIDE_HEAD).is_file():
        for key, stored in read_header(folder / SIDE_HEAD).items():
            _put(whole, key, stored)
    return Adapter(folder, config, low_rank, whole, frozenset(embeddings))


def _put(known: dict[str, Stored], name: str, stored: Stored) -> None:
    if name in known:
        raise _twice(known[name], stored)
    known[name] = stored


def _twice(one: Stored, other: Stored) -> CheckpointError:
    return CheckpointError(
        f"{one.file.parent}: {one.key} ({one.file.name}) and {other.key} ({other.file.name}) are "
        f"for the same weight. Which of them was trained cannot be told; remove one, or save the "
        f"adapter again."
    )


def _refuse_unsupported(folder: Path, config: Mapping[str, Any]) -> None:
    if str(config.get("peft_type")).upper() != "LORA":
        raise CheckpointError(
            f"{folder}: peft_type is {config.get('peft_type')!r}; only LoRA adapters are merged. "
            f"Merge it with PEFT (merge_and_unload) and load the result."
        )
    for name, harmless in _UNSUPPORTED.items():
        if name in config and config[name] not in harmless:
            raise CheckpointError(
                f"{folder / ADAPTER_CONFIG}: {name}={config[name]!r} is not supported here. Merge "
                f"the adapter with PEFT (merge_and_unload) and load the result."
            )
    for name in ("r", "lora_alpha"):
        if not isinstance(config.get(name), int | float) or not config[name]:
            raise CheckpointError(f"{folder / ADAPTER_CONFIG}: {name} is {config.get(name)!r}")


@torch.no_grad()
def complete(
    model: Any,
    side: Mapping[str, Stored],
    adapter: Adapter | None,
    *,
    strip: str = "",
    head: Iterable[str] = (),
    apart: Iterable[str] = (),
) -> list[str]:
    """Put into a model, in place, what its own files lack: an adapter, or a head in its own file.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The classifier, or its base model.
    side : dict
        Key -> tensor that goes into the model whole.
    adapter : Adapter, optional
        Whose low-rank updates are added, and whose ``whole`` is among ``side``.
    strip : str
        Prefix that the names have before the model's, with the dot; may be empty.
    head : iterable of str
        Keys of the head, where it is built apart from the model.
    apart : iterable of str
        Keys of ``side`` that are not the model's; those of ``head`` as well.

    Returns
    -------
    list of str
        Keys of ``model`` that were replaced whole.

    Raises
    ------
    CheckpointError
        Naming what has no place in the model or does not fit it, or a module that the adapter
        says it was saved with and lacks.
    """
    own = set(head)
    if adapter is not None:
        _refuse_unsaved(adapter, {*(f"{strip}{k}" for k in model.state_dict()), *own})
        for module, factors in adapter.low_rank.items():
            name = module.removeprefix(strip)
            weight = _weight(adapter, model, module, name)
            update = _update(adapter, module, factors, weight, model.get_submodule(name))
            weight.copy_(weight.float() + update)  # rounded to the weight's dtype once
    names = [k for k in side if k not in own | set(apart)]
    for key in names:
        _replace(model, key, key.removeprefix(strip), side[key], adapter)
    return [k.removeprefix(strip) for k in names]


def _replace(model: Any, key: str, name: str, stored: Stored, adapter: Adapter | None) -> None:
    try:
        target = model.get_parameter(name)
    except AttributeError:
        if adapter is not None and key in adapter.whole:
            raise _no_place(adapter, key) from None
        raise CheckpointError(
            f"{stored.file}: {key} is used by nothing: it is no part of the head, and has no "
            f"place in {type(model).__name__}. Rename it to what it is, or remove it."
        ) from None
    if tuple(target.shape) != stored.shape:
        raise CheckpointError(
            f"{stored.file}: {key} is of another shape: {list(stored.shape)}, in the base model "
            f"{list(target.shape)}"
        )
    target.copy_(stored.load())


def _refuse_unsaved(adapter: Adapter, keys: Iterable[str]) -> None:
    """Refuse an adapter without a module that its configuration says was trained whole.

    PEFT writes there names that the model may not have (``score`` and ``classifier``, whichever
    it is), so a name that none of the model's ``keys`` bears is passed over.
    """
    for name in adapter.config.get("modules_to_save") or []:
        own = [k for k in keys if re.search(rf"(^|\.){re.escape(name)}\.", k)]
        if absent := [k for k in own if k not in adapter.whole]:
            raise CheckpointError(
                f"{adapter.folder / ADAPTER_CONFIG} says that {name!r} was trained and saved with "
                f"the adapter (modules_to_save), and {ADAPTER_WEIGHTS} lacks {listed(absent)}. "
                f"What the base has there is not what was trained; save the adapter again."
            )


def _weight(adapter: Adapter, model: Any, module: str, name: str) -> Tensor:
    try:
        weight = model.get_submodule(name).weight
    except AttributeError:
        raise _no_place(adapter, f"{module}.lora_A.weight") from None
    if not isinstance(weight, nn.Parameter):
        raise _no_place(adapter, f"{module}.lora_A.weight")
    return weight


def _update(
    adapter: Adapter, module: str, factors: Mapping[str, Stored], weight: Tensor, layer: nn.Module
) -> Tensor:
    """Return ``s · B A`` in the layout of a weight, float32."""
    a, b = (factors[k].load().float() for k in ("A", "B"))
    if a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1]:
        raise CheckpointError(
            f"{adapter.folder}: the factors of {module} are {list(a.shape)} and {list(b.shape)}; "
            f"they are not those of a linear map"
        )
    update = adapter.scale(module, a.shape[0]) * (b @ a)
    # Embeddings, and the transposed linear layers of GPT-2, store [in, out].
    if module in adapter.embeddings or type(layer).__name__ == "Conv1D":
        update = update.T
    if update.shape != weight.shape:
        raise CheckpointError(
            f"{adapter.folder}: the update of {module} is {list(update.shape)}, the weight "
            f"{list(weight.shape)}; is this the base model that was adapted?"
        )
    return update.to(weight.device)


def _no_place(adapter: Adapter, key: str) -> CheckpointError:
    return CheckpointError(
        f"{adapter.folder}: {key} has no place in the base model "
        f"({adapter.config.get('base_model_name_or_path')!r} by its configuration). Another base, "
        f"or an architecture whose layers transformers has merged since; merge the adapter with "
        f"PEFT (merge_and_unload) and load the result."
    )


def base_of(adapter: Adapter, base: str | Path | None, find: Callable[[str], Path]) -> Path:
    """Return the folder of an adapter's base model.

    Parameters
    ----------
    base : str or Path, optional
        What the caller named; else what the adapter's configuration says.
    find : callable
        Turns a path or id into a folder, or raises.

    Raises
    ------
    CheckpointError
        If neither is a model that is here.
    """
    named = base if base is not None else adapter.config.get("base_model_name_or_path")
    if not named:
        raise CheckpointError(f"{adapter.folder} does not say its base model; pass base=")
    inside = adapter.folder / str(named)
    return inside if base is None and inside.is_dir() else find(str(named))


def described(adapter: Adapter) -> str:
    """One line on what was merged, for the record."""
    ends = {m.rsplit(".", 1)[-1] for m in adapter.low_rank}
    return (
        f"LoRA adapter {adapter.folder.name} merged into its base: {len(adapter.low_rank)} weights "
        f"({listed(ends)}), r {adapter.config['r']}, alpha {adapter.config['lora_alpha']}"
    )
