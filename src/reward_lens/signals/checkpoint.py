"""What a checkpoint folder holds: keys, shapes and files, read from headers without the weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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
#: How a weight may be stored; anything else is packed by a scheme that a header does not tell.
WEIGHT_DTYPES = ("F16", "BF16", "F32", "F64")
#: Tensors that are no weights and may be of other dtypes: key pattern -> those dtypes.
PLAIN_BUFFERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"(^|\.)(position_ids|token_type_ids)$", ("I64", "I32")),
    (r"\.num_batches_tracked$", ("I64", "I32")),
    (r"^normalizer\.count$", ("I64", "I32")),
    (r"\.(attn|attention)\.(masked_)?bias$", ("BOOL", "U8")),
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
        """Read the tensor, on the CPU, as it is stored; the file is closed again.

        Raises
        ------
        CheckpointError
            If the file cannot be read, or is cut short.
        """
        with opened(self.file) as f:
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
    """Whether a folder holds an adapter, alone or beside a whole model."""
    return (folder / ADAPTER_CONFIG).is_file()


def refuse_mixed(folder: Path) -> None:
    """Refuse a folder with a whole model and an adapter: either alone gives other scores.

    Raises
    ------
    CheckpointError
        Saying how to load either.
    """
    parts = [f for f in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if (folder / f).is_file()]
    if parts and has_weights(folder):
        raise CheckpointError(
            f"{folder} holds a whole model and an adapter ({', '.join(parts)}); which is meant "
            f"cannot be told. For the model alone, move {' and '.join(parts)} away; for the "
            f"adapter on this model, pass base={str(folder)!r}; on another model, pass that as "
            f"base=."
        )


def has_weights(folder: Path) -> bool:
    """Whether a folder holds a model's safetensors."""
    return (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()


def open_checkpoint(folder: Path, config: Mapping[str, Any]) -> Checkpoint:
    """Read the headers of a folder whose configuration has been read.

    Raises
    ------
    CheckpointError
        If a shard named by its index is missing, a header cannot be read, a weight is no plain
        floating point, or the files contradict each other about where a key is.
    """
    tensors: dict[str, Stored] = {}
    for file in weight_files(folder):
        found = read_header(file)
        _refuse_twice(tensors, found)
        tensors.update(found)
    if (folder / INDEX).is_file():
        _refuse_misplaced(folder, tensors)
    file = folder / SIDE_HEAD
    side = read_header(file) if file.is_file() else {}
    _refuse_twice(tensors, side)
    return Checkpoint(folder, config, tensors, side)


def _refuse_twice(known: Mapping[str, Stored], found: Mapping[str, Stored]) -> None:
    if twice := [k for k in found if k in known]:
        key = min(twice)
        raise CheckpointError(
            f"{listed(twice)}: stored twice, in {known[key].file} and in {found[key].file.name}. "
            f"Which of them is the model's cannot be told; remove one, or fetch the files again."
        )


def _refuse_misplaced(folder: Path, tensors: Mapping[str, Stored]) -> None:
    """Refuse an index that names a file for a key that is not in it."""
    odd = []
    for key, name in _index(folder).items():
        stored = tensors.get(key)
        if stored is None and inert(key):
            continue  # of no use, and left out by whoever cleaned the files
        if stored is None or stored.file != folder / name:
            odd.append(f"{key} (in {stored.file.name})" if stored else f"{key} (in none)")
    if odd:
        raise CheckpointError(
            f"{folder / INDEX} names for these keys a shard that does not hold them: "
            f"{listed(odd)}. The shards and the index are not of one model; fetch them again."
        )


def _index(folder: Path) -> dict[str, str]:
    """Key -> name of the file that holds it, as a model's index says."""
    named = read_json(folder / INDEX).get("weight_map")
    return {str(k): str(v) for k, v in named.items()} if isinstance(named, dict) else {}


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
        If the file cannot be read, is not JSON or not an object.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LoadError(f"{file} cannot be read as JSON: {error}") from error
    except OSError as error:
        raise LoadError(_unreadable(file, error)) from error
    if not isinstance(found, dict):
        raise LoadError(f"{file} holds a {type(found).__name__}, not an object")
    return found


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model, by its index where it has one.

    Raises
    ------
    CheckpointError
        Naming the shards that are missing; or if a whole file stands beside shards.
    """
    if not (folder / INDEX).is_file():
        return [folder / WEIGHTS]
    files = sorted({folder / f for f in _index(folder).values()})
    if (folder / WEIGHTS).is_file() and files != [folder / WEIGHTS]:
        raise CheckpointError(
            f"{folder} has {WEIGHTS}, and {INDEX} names other files "
            f"({listed(f.name for f in files) or 'none at all'}). Which of them hold the model "
            f"cannot be told; move the ones that do not, and the index if it is theirs, away."
        )
    absent = [f.name for f in files if not f.is_file()]
    if absent or not files:
        raise CheckpointError(
            f"{folder / INDEX} names shards that are not there: {listed(absent) or 'none at all'}. "
            f"The download or copy is incomplete; fetch them again."
        )
    return files


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """A safetensors file, open to be read on the CPU.

    Raises
    ------
    CheckpointError
        If the file cannot be read, is not safetensors or is cut short.
    """
    try:
        file.open("rb").close()  # safetensors says of a file it may not read that there is none
        with safe_open(file, framework="pt") as f:
            yield f
    except SafetensorError as error:
        raise CheckpointError(
            f"{file} is not a whole safetensors file ({error}); fetch or write it again"
        ) from error
    except OSError as error:
        raise CheckpointError(_unreadable(file, error)) from error


def _unreadable(file: Path, error: OSError) -> str:
    why = error.strerror or error
    return f"{file} cannot be read ({why}); see to its permissions, or fetch it again"


def read_header(file: Path) -> dict[str, Stored]:
    """Return name -> shape and dtype of a safetensors file.

    Raises
    ------
    CheckpointError
        If the file cannot be read, is not safetensors, is cut short, or holds packed or quantised
        weights.
    """
    with opened(file) as f:
        slices = {k: f.get_slice(k) for k in f.keys()}  # noqa: SIM118 - not a mapping
        found = {k: Stored(file, k, tuple(s.get_shape()), s.get_dtype()) for k, s in slices.items()}
    if packed := [f"{k} ({s.dtype})" for k, s in found.items() if not _plain(s)]:
        raise CheckpointError(
            f"{file} holds weights that are not stored as {', '.join(WEIGHT_DTYPES)}: "
            f"{listed(packed)}. Packed or quantised weights are no numbers without the scheme "
            f"that packed them: load the model with its own loader and use "
            f"wrap_hf_model(model, tokenizer), or save it unpacked."
        )
    return found


def _plain(stored: Stored) -> bool:
    """Whether a tensor is stored as a weight can be, or is a buffer known to be otherwise."""
    return stored.dtype in WEIGHT_DTYPES or any(
        re.search(p, stored.key) and stored.dtype in dtypes for p, dtypes in PLAIN_BUFFERS
    )


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


def zero_head(name: str) -> CheckpointError:
    """Return the error for a head with a matrix of zeros, which scores every text the same."""
    return CheckpointError(
        f"head weight {name} is all zeros, so every text would have the same score. The file was "
        f"fetched or written in part (a sparse download reads as zeros); fetch or save it again."
    )


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
