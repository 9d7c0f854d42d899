"""From a path or an id to a signal: nothing missing, nothing random, nothing left over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from reward_lens.backbone import AnatomyNames
from reward_lens.errors import LoadError
from reward_lens.signals.checkpoint_model import Wishes, read_checkpoint
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.hub import Hub
from reward_lens.signals.trunk_files import DTYPES
from reward_lens.signals.wrap import wrap_hf_model


def load_signal(
    path_or_id: str | Path,
    *,
    dtype: str | None = None,
    device: str | None = None,
    device_map: Any = None,
    head: str | None = None,
    position: str = "native",
    template: str | None = None,
    bos: str | None = None,
    eos: str | None = None,
    sign: float | None = None,
    base: str | Path | None = None,
    anatomy: AnatomyNames | None = None,
    revision: str | None = None,
    token: Any = None,
    allow_download: bool = False,
    trust_remote_code: bool = False,
    conformance_quickcheck: bool = True,
) -> ClassifierRM:
    """Load a reward model and prove the load.

    The head convention is found by keys and shapes (``reward_lens.signals.head_table``); what was
    chosen is in ``signal.meta``. Where transformers lacks the checkpoint's class, its trunk is
    loaded as the base model and the head put on it, so no code of the checkpoint runs.

    Parameters
    ----------
    path_or_id : str or Path
        A folder with a checkpoint or a LoRA adapter, or a hub id that is in the local cache.
    dtype : {"float32", "bfloat16", "float16"}, optional
        Of the trunk; float32 on a CPU, the checkpoint's own on an accelerator by default. The head
        is always read in float32.
    device : str, optional
        An accelerator if there is one, by default.
    device_map : str or dict, optional
        As transformers takes it, to spread a model over several devices; needs accelerate.
    head : str, optional
        Name of the head convention where the checkpoint leaves it open; ``"vocab:K"`` for the
        logit of id (or token) ``K`` of a causal language model, ``"vocab:A-B"`` for a difference.
    position : {"native", "last", "first", "mean"}
        Which token the head reads: the one of its convention, or another.
    template, bos, eos : str, optional
        How an item becomes text and ids; see :class:`~reward_lens.backbone.Encoder`. ``eos="keep"``
        leaves the end of the text as it is rendered whatever the convention says.
    sign : {1, -1}, optional
        −1 where lower is better; by the checkpoint's convention if not given.
    base : str or Path, optional
        Base model of an adapter, where it is not what the adapter's configuration names, or where
        the adapter's folder holds a whole model as well.
    anatomy : AnatomyNames, optional
        See :func:`wrap_hf_model`.
    revision : str, optional
        Of a hub id.
    token : str or bool, optional
        Of the hub, for models that need it.
    allow_download : bool
        Let files that are not here be fetched; their size is written to stderr first.
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
        If the path is no checkpoint, or an argument has no meaning.
    DownloadRefused
        If files would have to be fetched; names the id, its size where known, and both ways on.
    CheckpointError
        Naming every key that is missing, left over, stored twice or of the wrong shape; several
        heads, with the candidates; a grader that has no score for one response; weights that are
        packed, quantised or not finite; a head of zeros; files that contradict each other; a
        tokenizer that does not fit.
    ConformanceError
        If the loaded model does not behave as its checkpoint.
    """
    name = str(path_or_id)
    if dtype is not None and dtype not in DTYPES:
        raise LoadError(f"dtype={dtype!r}: choose one of {', '.join(DTYPES)}")
    if device is not None and device_map is not None:
        raise LoadError("device and device_map were both given; pass the one that you mean")
    if revision is not None and Path(name).expanduser().exists():
        raise LoadError(f"revision={revision!r} is of a hub id, and {name} is a folder here")
    hub = Hub(revision, token, allow_download, trust_remote_code)
    folder = hub.folder(name)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    _check_device(place)
    if dtype is None and device_map is None and torch.device(place).type == "cpu":
        dtype = "float32"
    read = read_checkpoint(
        folder,
        dtype=dtype,
        device_map=device_map,
        trust_remote_code=trust_remote_code,
        wishes=Wishes(head, template, bos, eos, sign, base),
        hub=hub,
    )
    signal = wrap_hf_model(
        read.model if device_map is not None else read.model.to(place),
        read.tokenizer(),
        architecture=read.architecture,
        source=name,
        position=position,
        anatomy=anatomy,
        conformance_quickcheck=conformance_quickcheck,
        ignored_keys=read.ignored_keys,
        convention=read.convention,
    )
    notes = [*signal.meta.notes]
    notes += [f"revision {revision} of {name}"] if revision is not None else []
    notes += [f"base model of the adapter: {base}, as was asked for"] if base is not None else []
    return signal.with_meta(notes=tuple(notes))


def _check_device(place: str) -> None:
    try:
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise LoadError(f"device={place!r} cannot be used here: {first}") from error
