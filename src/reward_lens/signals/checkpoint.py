"""What a checkpoint folder holds: keys, shapes and files, read from headers without the weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from reward_lens.errors import CheckpointError, LoadError

#: Checkpoint keys that mean nothing for a score, and why.
INERT_KEYS: tuple[tuple[str, str], ...] = (
    (r"(^|\.)lm_head\.", "the language model's output layer, not used by a classifier"),
    (r"(^|\.)embed_out\.weight$", "the language model's output layer of GPT-NeoX"),
    (r"\.rotary_emb\.inv_freq$", "recomputed from the configuration"),
    (r"\.attn\.(masked_)?bias$", "a stored causal mask"),
    (r"\.attention\.(masked_)?bias$", "a stored causal mask"),
    (r"(^|\.)position_ids$", "the numbers from 0 up"),
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SIDE_HEAD = "value_head.safetensors"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
#: Names of pickled files that hold a part of a head, as published checkpoints call them.
_PICKLED_HEAD = re.compile(
    r"(head|regression_layer|gating|score|classifier|normali[sz]er|decision_tree|modules_to_save)"
    r".*\.(bin|pt|pth|pkl|pickle)$"
)


@dataclass(frozen=True)
class Stored:
    """One tensor on disk.

    Attributes
    ----------
    file : Path
    key : str
        Its name in that file.
    shape : tuple of int
    dtype : str
        As safetensors spells it (``F32``, ``BF16``).
    """

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: str

    def load(self) -> torch.Tensor:
        """Read the tensor, on the CPU, as it is stored; the file is closed again."""
        with safe_open(self.file, framework="pt") as f:
            tensor: torch.Tensor = f.get_tensor(self.key).clone()
        return tensor


@dataclass(frozen=True)
class Checkpoint:
    """A folder with a whole model: configuration and, by name, every stored tensor.

    Attributes
    ----------
    folder : Path
    config : dict
        ``config.json`` as written.
    tensors : dict
        Of the model files.
    side : dict
        Of a head kept in a file of its own, or brought by an adapter; these come on top.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Stored]
    side: Mapping[str, Stored] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, Stored]:
        """Every tensor, the side's in place of the model's where both have a name."""
        return {**self.tensors, **self.side}

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of the configuration."""
        return tuple(self.config.get("architectures") or ())


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and not the model that it adapts."""
    return (folder / ADAPTER_CONFIG).is_file() and not has_weights(folder)


def has_weights(folder: Path) -> bool:
    """Whether a folder holds a model's safetensors."""
    return (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()


def open_checkpoint(folder: Path, config: Mapping[str, Any]) -> Checkpoint:
    """Read the headers of a folder whose configuration has been read.

    Raises
    ------
    CheckpointError
        If a shard named by its index is missing, or a header cannot be read.
    """
    tensors: dict[str, Stored] = {}
    for file in weight_files(folder):
        tensors.update(read_header(file))
    side = folder / SIDE_HEAD
    return Checkpoint(folder, config, tensors, read_header(side) if side.is_file() else {})


def read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json`` of a folder with a whole model.

    Raises
    ------
    LoadError
        If it is no checkpoint, or has pickled weights only.
    """
    if not folder.is_dir():
        raise LoadError(f"{folder} is a file; name the folder of the checkpoint")
    if not (folder / "config.json").is_file():
        raise LoadError(f"{folder} is no checkpoint: it has no config.json")
    if not has_weights(folder):
        if any((folder / p).is_file() for p in _PICKLED):
            raise LoadError(
                f"{folder} has pickled weights only, which can run code when opened; convert them "
                f"to safetensors (model.save_pretrained does) and load those"
            )
        raise LoadError(f"{folder} has no weights: expected model.safetensors, whole or in shards")
    return read_json(folder / "config.json")


def read_json(file: Path) -> dict[str, Any]:
    """Read an object from a JSON file.

    Raises
    ------
    LoadError
        If the file is not JSON or not an object.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LoadError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise LoadError(f"{file} holds a {type(found).__name__}, not an object")
    return found


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model, by its index where it has one.

    Raises
    ------
    CheckpointError
        Naming the shards that are missing.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    named = read_json(folder / INDEX).get("weight_map", {})
    files = sorted({folder / str(f) for f in named.values()})
    absent = [f.name for f in files if not f.is_file()]
    if absent or not files:
        raise CheckpointError(
            f"{folder / INDEX} names shards that are not there: {listed(absent) or 'none at all'}. "
            f"The download or copy is incomplete; fetch them again."
        )
    return files


def read_header(file: Path) -> dict[str, Stored]:
    """Return name -> shape and dtype of a safetensors file.

    Raises
    ------
    CheckpointError
        If the file is not safetensors, or is cut short.
    """
    try:
        with safe_open(file, framework="pt") as f:
            slices = {k: f.get_slice(k) for k in f.keys()}  # noqa: SIM118 - not a mapping
            return {
                k: Stored(file, k, tuple(s.get_shape()), s.get_dtype()) for k, s in slices.items()
            }
    except SafetensorError as error:
        raise CheckpointError(
            f"{file} is not a whole safetensors file ({error}); fetch or write it again"
        ) from error


def pickled_heads(folder: Path) -> list[str]:
    """Names of files that look like a head kept as a pickle, which is never opened."""
    return sorted(f.name for f in folder.iterdir() if _PICKLED_HEAD.search(f.name))


def inert(key: str) -> bool:
    """Whether a key means nothing for a score."""
    return any(re.search(p, key) for p, _ in INERT_KEYS)


def listed(keys: Iterable[str], most: int = 8) -> str:
    """Comma-separated keys, the first few of many."""
    names = sorted(keys)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def unfilled(
    where: str,
    classes: Iterable[str],
    *,
    missing: Iterable[str] = (),
    left: Iterable[str] = (),
    mismatched: Iterable[str] = (),
    advice: str,
) -> CheckpointError:
    """Return the error for a model that a checkpoint does not fill, naming every key."""
    said = [f"{where} (class {', '.join(classes) or 'unknown'}) does not fill a reward model:"]
    for label, keys in (
        ("missing from the checkpoint (would be random)", missing),
        ("in the checkpoint but used by nothing", left),
        ("of another shape", mismatched),
    ):
        if names := listed(keys):
            said.append(f"  {label}: {names}")
    return CheckpointError("\n".join([*said, advice]))
