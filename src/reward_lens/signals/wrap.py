"""From a model and a tokenizer that are already loaded to a signal."""

from __future__ import annotations

from typing import Any

from reward_lens.backbone import Encoder, Trunk
from reward_lens.errors import CheckpointError
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.protocol import SignalMeta

_SUFFIX = "ForSequenceClassification"


def wrap_hf_model(
    model: Any,
    tokenizer: Any,
    *,
    architecture: str | None = None,
    source: str = "memory",
    position: str = "native",
    conformance_quickcheck: bool = True,
    ignored_keys: tuple[str, ...] = (),
) -> ClassifierRM:
    """Make a signal of a transformers sequence classifier.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A ``*ForSequenceClassification``. It is put in evaluation mode; nothing else is changed.
    tokenizer : transformers.PreTrainedTokenizerBase
    architecture : str, optional
        Name to record; the model's class by default.
    source : str
        Where it came from, for the record.
    position : {"native", "last"}
        Which token the head reads: the one transformers reads, or the last whatever it is.
    conformance_quickcheck : bool
        Check that our reading equals the model's own before handing the signal out. Skipping is
        recorded in ``meta.quickcheck``.

    Returns
    -------
    ClassifierRM

    Raises
    ------
    CheckpointError
        If the tokenizer knows more ids than the model has embeddings.
    AnatomyError
        If no residual blocks or no linear head are found.
    ConformanceError
        If the quick check fails; the message is its table.
    """
    name = architecture or type(model).__name__
    _check_vocabulary(model, tokenizer)
    notes = []
    if model.training:
        model.eval()
        notes.append("the model was in training mode and was put in evaluation mode")
    trunk = Trunk(model)
    encoder = Encoder(tokenizer, trunk.config)
    if not encoder.has_chat_template:
        notes.append(f"the tokenizer has no chat template; texts are {encoder.template!r}")
    notes.extend(f"{place}: {why}" for place, why in trunk.anatomy.missing.items())
    stem = name.removesuffix(_SUFFIX)
    meta = SignalMeta(
        adapter=f"{stem}Adapter",
        architecture=name,
        source=source,
        template=encoder.template,
        bos=encoder.bos,
        position=position,
        pad_id=encoder.pad_id,
        max_length=encoder.max_length,
        dtype=str(trunk.dtype).removeprefix("torch."),
        device=str(trunk.device),
        kernel=trunk.kernel,
        n_layers=trunk.n_layers,
        width=trunk.anatomy.width,
        n_rows=int(model.config.num_labels),
        granularity=trunk.anatomy.granularity.name.lower(),
        ignored_keys=ignored_keys,
        notes=tuple(notes),
    )
    signal = ClassifierRM(trunk, encoder, meta)
    if not conformance_quickcheck:
        return signal
    from reward_lens.signals.conformance import quickcheck

    quickcheck(signal).raise_if_failed()
    return signal.with_meta(quickcheck="passed")


def _check_vocabulary(model: Any, tokenizer: Any) -> None:
    rows = int(model.get_input_embeddings().weight.shape[0])
    ids = tokenizer.get_vocab().values()
    if ids and max(ids) >= rows:
        raise CheckpointError(
            f"the tokenizer has ids up to {max(ids)}, the model embeds {rows} (0 to {rows - 1}): "
            f"they do not belong together. Load the tokenizer that was saved with the model."
        )
