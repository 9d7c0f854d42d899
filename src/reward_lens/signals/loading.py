"""From a path or an id to a signal: nothing missing, nothing random, nothing left over."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from reward_lens.errors import CheckpointError, DownloadRefused, LoadError
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.wrap import wrap_hf_model

#: Checkpoint keys that mean nothing for a score, and why.
INERT_KEYS: tuple[tuple[str, str], ...] = (
    (r"(^|\.)lm_head\.", "the language model's output layer, not used by a classifier"),
    (r"\.rotary_emb\.inv_freq$", "recomputed from the configuration"),
    (r"\.attn\.(masked_)?bias$", "a stored causal mask"),
    (r"\.attention\.(masked_)?bias$", "a stored causal mask"),
)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def load_signal(
    path_or_id: str | Path,
    *,
    dtype: str | None = None,
    device: str | None = None,
    position: str = "native",
    revision: str | None = None,
    allow_download: bool = False,
    trust_remote_code: bool = False,
    conformance_quickcheck: bool = True,
) -> ClassifierRM:
    """Load a reward model and prove the load.

    Parameters
    ----------
    path_or_id : str or Path
        A folder with a checkpoint, or a hub id that is in the local cache.
    dtype : {"float32", "bfloat16", "float16"}, optional
        Of the trunk; float32 on a CPU, the checkpoint's own on an accelerator by default. The head
        is always read in float32.
    device : str, optional
        An accelerator if there is one, by default.
    position : {"native", "last"}
        Which token the head reads.
    revision : str, optional
        Of a hub id.
    allow_download : bool
        Let files that are not here be fetched.
    trust_remote_code : bool
        Let the checkpoint run its own code. Off unless you turn it on.
    conformance_quickcheck : bool
        See :func:`wrap_hf_model`.

    Returns
    -------
    ClassifierRM

    Raises
    ------
    LoadError
        If the path is no checkpoint.
    DownloadRefused
        If files would have to be fetched; names the id, its size where known, and both ways on.
    CheckpointError
        Naming every key that is missing, left over or of the wrong shape; weights that are not
        finite; a tokenizer that does not fit.
    ConformanceError
        If the loaded model does not behave as its checkpoint.
    """
    name = str(path_or_id)
    if dtype is not None and dtype not in _DTYPES:
        raise LoadError(f"dtype={dtype!r}: choose one of {', '.join(_DTYPES)}")
    folder = Path(name).expanduser()
    if folder.exists():
        _check_folder(folder)
        target, local = str(folder), True
    else:
        _check_id(name, revision, allow_download)
        target, local = name, not allow_download
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype is None and torch.device(place).type == "cpu":
        dtype = "float32"
    options = {
        "local_files_only": local,
        "revision": revision or "main",
        "trust_remote_code": trust_remote_code,
    }
    model, ignored = _load_model(target, dtype, options)
    tokenizer = _load_tokenizer(target, options)
    _check_finite(model)
    return wrap_hf_model(
        model.to(place),
        tokenizer,
        source=name,
        position=position,
        conformance_quickcheck=conformance_quickcheck,
        ignored_keys=ignored,
    )


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise LoadError(f"{folder} is a file; name the folder of the checkpoint")
    if not (folder / "config.json").is_file():
        raise LoadError(f"{folder} is no checkpoint: it has no config.json")
    if not any((folder / w).is_file() for w in _WEIGHTS):
        if any((folder / p).is_file() for p in _PICKLED):
            raise LoadError(
                f"{folder} has pickled weights only, which can run code when opened; convert them "
                f"to safetensors (model.save_pretrained does) and load those"
            )
        raise LoadError(f"{folder} has no weights: expected model.safetensors, whole or in shards")


def _check_id(name: str, revision: str | None, allow_download: bool) -> None:
    from huggingface_hub import try_to_load_from_cache

    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise LoadError(f"{name}: there is no such folder")
    if allow_download:
        return
    found = try_to_load_from_cache(name, "config.json", revision=revision or "main")
    if not isinstance(found, str):
        raise DownloadRefused(
            f"{name} is neither a folder here nor in the local cache, and would have to be "
            f"downloaded{_size(name, revision)}. Either pass allow_download=True, or download it "
            f"beforehand (hf download {name}) and pass the folder."
        )


def _size(name: str, revision: str | None) -> str:
    """Size of a hub checkpoint's weights where the hub can be asked, for the refusal."""
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return " (size unknown: offline)"
    try:
        info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=3)
    except Exception:  # no network, no such id, no access: the refusal stands without a size
        return " (size unknown: the hub did not answer)"
    files = [s for s in info.siblings or () if s.rfilename.endswith(".safetensors")]
    total = sum(s.size or 0 for s in files)
    return f" ({total / 1e9:.1f} GB)" if total else " (size unknown)"


def _load_model(
    target: str, dtype: str | None, options: dict[str, Any]
) -> tuple[Any, tuple[str, ...]]:
    from transformers import AutoConfig
    from transformers import AutoModelForSequenceClassification as Auto

    try:
        config = AutoConfig.from_pretrained(target, **options)
    except (OSError, ValueError, KeyError) as error:
        raise LoadError(f"{target}: its config.json cannot be used: {error}") from error
    try:
        model, info = Auto.from_pretrained(
            target,
            config=config,
            dtype=_DTYPES[dtype] if dtype is not None else "auto",
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that they are named below instead
            **options,
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"{target} could not be loaded: {error}") from error
    ignored = _check_keys(target, info, getattr(config, "architectures", None) or ["unknown"])
    return model.eval(), ignored


def _check_keys(target: str, info: Any, architectures: Iterable[str]) -> tuple[str, ...]:
    """Refuse a load with any key missing, left over or mismatched; return the inert ones."""
    missing, left = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    mismatched = sorted(str(m[0] if isinstance(m, tuple) else m) for m in info["mismatched_keys"])
    ignored = tuple(k for k in left if any(re.search(p, k) for p, _ in INERT_KEYS))
    left = [k for k in left if k not in ignored]
    if not (missing or left or mismatched):
        return ignored
    said = [f"{target} (class {', '.join(architectures)}) does not fill a sequence classifier:"]
    for label, keys in (
        ("missing from the checkpoint (would be random)", missing),
        ("in the checkpoint but used by nothing", left),
        ("of another shape", mismatched),
    ):
        if keys:
            more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
            said.append(f"  {label}: {', '.join(keys[:8])}{more}")
    said.append(
        "A reward read from it would not be the model's. If the head was saved under another name, "
        "rename its key to the one missing above; if this is no classifier, it cannot be one."
    )
    raise CheckpointError("\n".join(said))


def _load_tokenizer(target: str, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(target, **options)
    except Exception as error:  # tokenizers raise whatever their files make them raise
        raise CheckpointError(
            f"{target}: its tokenizer could not be loaded ({error}); save the tokenizer beside the "
            f"model, or use wrap_hf_model(model, tokenizer)"
        ) from error


@torch.no_grad()
def _check_finite(model: Any) -> None:
    for name, p in model.named_parameters():
        if p.is_floating_point() and not bool(torch.isfinite(p).all()):
            bad = int((~torch.isfinite(p)).sum())
            raise CheckpointError(f"weight {name} holds {bad} values that are NaN or infinite")
