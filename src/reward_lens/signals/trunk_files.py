"""Loading what carries a head: transformers' own classes, with every key accounted for."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from reward_lens.errors import CheckpointError, LoadError
from reward_lens.signals.checkpoint import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    Checkpoint,
    inert,
    unfilled,
    zero_head,
)
from reward_lens.signals.head_table import ALIASES

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_CHUNK = 1 << 22
_RANDOM = "A reward read from it would not be the model's."


@dataclass(frozen=True)
class Placement:
    """In what dtype and where a model is put.

    Attributes
    ----------
    dtype : str, optional
        ``None`` keeps the checkpoint's.
    device_map : str or dict, optional
        As transformers takes it; needs accelerate.
    trust_remote_code : bool
    """

    dtype: str | None = None
    device_map: Any = None
    trust_remote_code: bool = False

    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``from_pretrained``.

        Raises
        ------
        LoadError
            If a device map is asked for and accelerate is not installed.
        """
        if self.device_map is not None and find_spec("accelerate") is None:
            raise LoadError(
                "device_map needs the package accelerate, which is not installed: pip install "
                "accelerate, or pass device= to put the whole model on one device"
            )
        placed = {} if self.device_map is None else {"device_map": self.device_map}
        return {
            "dtype": DTYPES[self.dtype] if self.dtype is not None else "auto",
            "use_safetensors": True,
            "output_loading_info": True,
            "ignore_mismatched_sizes": True,  # so that they are named by us instead
            "local_files_only": True,
            "trust_remote_code": self.trust_remote_code,
            **placed,
        }


@dataclass(frozen=True)
class NativeHead:
    """What transformers' own classifier of an architecture adds to its base model.

    Attributes
    ----------
    shapes : dict
        Key -> shape, for the number of labels that the configuration states.
    scored : tuple of str
        Those whose first dimension is the number of labels.
    prefix : str
        Under which the base model's keys stand, with the dot.
    """

    shapes: Mapping[str, tuple[int, ...]]
    scored: tuple[str, ...]
    prefix: str

    @property
    def name(self) -> str:
        """What ``head=`` takes for it: ``score``, ``classifier``, …."""
        stems = sorted({k.split(".")[0] for k in self.scored or self.shapes})
        return stems[0] if stems else "native"


@dataclass(frozen=True)
class Loaded:
    """A model out of ``from_pretrained`` and the keys that it and the files disagree on."""

    model: Any
    missing: tuple[str, ...]
    left: tuple[str, ...]
    mismatched: tuple[str, ...]
    ignored: tuple[str, ...] = field(default=())


def load_config(folder: Path, raw: Mapping[str, Any], trust_remote_code: bool) -> Any:
    """Return the transformers configuration of a folder.

    Raises
    ------
    LoadError
        If there is none to be made of it.
    CheckpointError
        If the architecture is not one of transformers', or its padding id is not embedded.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    kind = str(raw.get("model_type", ""))
    if kind in ALIASES and not trust_remote_code:
        stated = {k: v for k, v in raw.items() if k not in ("model_type", "auto_map")}
        return _with_pad(folder, CONFIG_MAPPING[ALIASES[kind]].from_dict(stated))
    if kind and kind not in CONFIG_MAPPING and not trust_remote_code:
        raise CheckpointError(
            f"{folder}: model type {kind!r} (class {', '.join(raw.get('architectures') or ['?'])}) "
            f"is not an architecture of the installed transformers, so its trunk cannot be built. "
            f"Update transformers; or convert the weights to an architecture that it has; or, if "
            f"you trust the code that comes with the checkpoint, load the model with it yourself "
            f"and use wrap_hf_model(model, tokenizer)."
        )
    try:
        config = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # whatever a malformed configuration makes transformers raise
        raise LoadError(f"{folder}: its config.json cannot be used: {error}") from error
    return _with_pad(folder, config)


def _with_pad(folder: Path, config: Any) -> Any:
    """Return a configuration after a look at its padding id, which must not be past the embedding.

    A negative one, as old conversions have it, matches no token: transformers and we read the last.
    """
    text = config.get_text_config()
    pad, size = getattr(text, "pad_token_id", None), getattr(text, "vocab_size", None)
    if isinstance(pad, int) and isinstance(size, int) and pad >= size:
        raise CheckpointError(
            f"{folder}: config.json has pad_token_id {pad}, which is not among the ids 0 to "
            f"{size - 1} that the model embeds; give the id of the padding token there, or null"
        )
    return config


def native_head(config: Any) -> NativeHead | None:
    """What transformers' classifier of this architecture has on top; ``None`` if it has none.

    Found by building the class without memory, so that no list of classes is kept here.
    """
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as CLASSES
    from transformers import AutoModelForSequenceClassification

    if type(config) not in CLASSES:
        return None
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config)
    prefix = f"{model.base_model_prefix}."
    shapes = {k: tuple(t.shape) for k, t in model.state_dict().items() if not k.startswith(prefix)}
    labels = int(config.num_labels)
    scored = tuple(
        name
        for name in shapes
        if name.rsplit(".", 1)[0] == _last_linear(model, prefix) and shapes[name][0] == labels
    )
    return NativeHead(shapes, scored, prefix)


def _last_linear(model: Any, prefix: str) -> str:
    """Name of the last map outside the base model: the one that makes the labels."""
    names = [
        n
        for n, m in model.named_modules()
        if not f"{n}.".startswith(prefix) and getattr(m, "weight", None) is not None
    ]
    return names[-1] if names else ""


def base_keys(config: Any) -> tuple[set[str], str]:
    """Keys of the base model of an architecture, and its prefix in bigger classes, with the dot."""
    from transformers import AutoModel

    with torch.device("meta"):
        model = AutoModel.from_config(config)
    return set(model.state_dict()), f"{model.base_model_prefix}."


def body_prefix(keys: Iterable[str], base: set[str]) -> str:
    """The prefix under which most of a base model's keys stand among ``keys``."""
    counts: dict[str, int] = {}
    for key in keys:
        parts = key.split(".")
        for k in range(len(parts)):
            if ".".join(parts[k:]) in base:
                prefix = "".join(f"{p}." for p in parts[:k])
                counts[prefix] = counts.get(prefix, 0) + 1
    return max(counts, key=lambda p: counts[p]) if counts else ""


def stray_keys(keys: Iterable[str], base: set[str]) -> list[str]:
    """Keys that stand outside the body, whatever the body's blocks are made of."""
    names = list(keys)
    prefix = body_prefix(names, base)
    tops = {k.split(".")[0] for k in base}
    return [
        k
        for k in names
        if not inert(k)
        and not (k.startswith(prefix) and k.removeprefix(prefix).split(".")[0] in tops)
    ]


def load_native(checkpoint: Checkpoint, config: Any, placement: Placement) -> Loaded:
    """Load transformers' own sequence classifier."""
    from transformers import AutoModelForSequenceClassification

    return _load(AutoModelForSequenceClassification, checkpoint, config, placement)


def load_base(
    checkpoint: Checkpoint, config: Any, placement: Placement, apart: Iterable[str]
) -> Loaded:
    """Load the base model; ``apart`` are keys of the files that belong to something else."""
    from transformers import AutoModel

    base, native = base_keys(config)
    others = set(apart)
    prefix = body_prefix((k for k in checkpoint.tensors if k not in others), base)
    mapped = {} if prefix in ("", native) else {"key_mapping": {f"^{re.escape(prefix)}": ""}}
    return _load(AutoModel, checkpoint, config, placement, **mapped)


def load_causal_lm(checkpoint: Checkpoint, config: Any, placement: Placement) -> Loaded:
    """Load the causal language model, output layer and all."""
    from transformers import AutoModelForCausalLM

    return _load(AutoModelForCausalLM, checkpoint, config, placement)


def _load(
    auto: Any, checkpoint: Checkpoint, config: Any, placement: Placement, **more: Any
) -> Loaded:
    options = placement.options()
    try:
        with _quiet_report(), _without_adapter(checkpoint.folder) as folder:
            model, info = auto.from_pretrained(folder, config=config, **options, **more)
    except Exception as error:  # whatever transformers and accelerate raise on what does not fit
        raise CheckpointError(f"{checkpoint.folder} could not be loaded: {error}") from error
    left = sorted(info["unexpected_keys"])
    mismatched = (str(m[0] if isinstance(m, tuple) else m) for m in info["mismatched_keys"])
    return Loaded(
        model.eval(),
        tuple(sorted(info["missing_keys"])),
        tuple(k for k in left if not inert(k)),
        tuple(sorted(mismatched)),
        tuple(k for k in left if inert(k)),
    )


@contextmanager
def _without_adapter(folder: Path) -> Iterator[Path]:
    """The folder as it looks without an adapter's configuration.

    Where peft is installed, transformers puts an adapter that lies beside a model into it unasked.
    Adapters are merged by us, and only where one was asked for.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        yield folder
        return
    with tempfile.TemporaryDirectory() as name:
        for entry in folder.iterdir():
            if entry.name not in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
                (Path(name) / entry.name).symlink_to(entry.resolve())
        yield Path(name)


@contextmanager
def _quiet_report() -> Iterator[None]:
    """Leave out transformers' own table of keys: every key in it is judged and named by us."""
    logger = logging.getLogger("transformers.modeling_utils")

    def keep(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in str(record.msg)

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def refuse_unfilled(
    checkpoint: Checkpoint, loaded: Loaded, *, filled: Iterable[str] = (), apart: Iterable[str] = ()
) -> None:
    """Refuse a load with any key missing, left over or of another shape.

    Parameters
    ----------
    filled : iterable of str
        Missing or mismatched keys of the model that are filled from elsewhere.
    apart : iterable of str
        Keys of the files that belong to the head, or were left out by choice.

    Raises
    ------
    CheckpointError
        Naming the keys.
    """
    known, others = set(filled), set(apart)
    missing = [k for k in loaded.missing if k not in known]
    mismatched = [k for k in loaded.mismatched if k not in known]
    left = [k for k in loaded.left if k not in others]
    if missing or mismatched or left:
        raise unfilled(
            str(checkpoint.folder),
            checkpoint.classes,
            missing=missing,
            left=left,
            mismatched=mismatched,
            advice=f"{_RANDOM} If the files are damaged, fetch or save them again; if they hold "
            f"another kind of model, it cannot be read as this one.",
        )


@torch.no_grad()
def check_loaded(model: Any) -> list[str]:
    """Refuse weights that are not finite, that were not put on any device, or a head of zeros.

    Looks at a slice at a time: a whole mask of a large embedding would add to the peak memory.

    Returns
    -------
    list of str
        Names of the matrices of the trunk that hold nothing but zeros.

    Raises
    ------
    CheckpointError
        Naming the weight.
    """
    prefix, zeros = str(getattr(model, "base_model_prefix", "")), []
    for name, p in model.named_parameters():
        if p.is_meta:
            raise CheckpointError(
                f"weight {name} was left on disk by device_map (offloaded), where it can neither "
                f"be checked nor seen by a hook; give a device_map whose devices hold the model"
            )
        if not p.is_floating_point():
            continue
        chunks = p.reshape(-1).split(_CHUNK)
        bad = sum(int((~torch.isfinite(c)).sum()) for c in chunks)
        if bad:
            raise CheckpointError(f"weight {name} holds {bad} values that are NaN or infinite")
        if p.dim() < 2 or any(bool(c.any()) for c in chunks):
            continue
        if prefix and not name.startswith(f"{prefix}."):
            raise zero_head(name)
        zeros.append(name)
    return zeros
