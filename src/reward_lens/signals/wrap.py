"""From a model and a tokenizer that are already loaded to a signal."""

from __future__ import annotations

from os import PathLike
from typing import Any

from torch.nn import Module

from reward_lens.backbone import (
    AnatomyNames,
    Encoder,
    Trunk,
    batch_limit,
    measured_rule,
    registered_names,
)
from reward_lens.errors import CheckpointError, DataError
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.convention import Convention
from reward_lens.signals.protocol import SignalMeta

_SUFFIX = "ForSequenceClassification"
_NATIVE = Convention(head="native", rule=None)
#: What the head reads -> the read rule, where no padding id can matter.
_RULES = {"first": "first", "mean": "mean", "late": "mean"}


def wrap_hf_model(
    model: Any,
    tokenizer: Any,
    *,
    architecture: str | None = None,
    source: str = "memory",
    position: str = "native",
    template: str | None = None,
    bos: str | None = None,
    eos: str | None = None,
    sign: float | None = None,
    anatomy: AnatomyNames | None = None,
    conformance_quickcheck: bool = True,
    ignored_keys: tuple[str, ...] = (),
    convention: Convention = _NATIVE,
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
    position : {"native", "last", "first", "mean"}
        Which token the head reads: the one the model's own class reads, or another.
    template, bos, eos : str, optional
        How an item becomes ids; see :class:`~reward_lens.backbone.Encoder`.
    sign : float, optional
        −1 where a lower number is better.
    anatomy : AnatomyNames, optional
        Where the parts of the trunk are, if the search needs help.
    conformance_quickcheck : bool
        Check that our reading equals the model's own before handing the signal out. Skipping is
        recorded in ``meta.quickcheck``.
    ignored_keys : tuple of str
        Inert keys of the checkpoint, for the record.
    convention : Convention
        How the checkpoint's score is read, where its class is not transformers' own.

    Returns
    -------
    ClassifierRM

    Raises
    ------
    DataError
        If the model is a path or no transformers model, or there is no tokenizer.
    CheckpointError
        If the tokenizer knows more ids than the model has embeddings.
    AnatomyError
        If no way from the trunk to the logits is found.
    ConformanceError
        If the quick check fails; the message is its table.
    """
    _check_given(model, tokenizer)
    name = architecture or type(model).__name__
    _check_vocabulary(model, tokenizer)
    notes = list(convention.notes)
    if model.training:
        model.eval()
        notes.append("the model was in training mode and was put in evaluation mode")
    known = anatomy or registered_names(str(getattr(model.config, "model_type", "")))
    trunk = Trunk(model, known)
    rule = _rule(trunk, convention)
    encoder = Encoder(
        tokenizer,
        trunk.config,
        rule=rule,
        template=template if template is not None else convention.template,
        bos=bos if bos is not None else convention.bos,
        eos=eos if eos is not None else convention.eos,
        pair_default=not trunk.anatomy.causal,
        model=trunk.base,
    )
    _check_types(trunk, encoder)
    notes.extend(_notes(trunk, encoder, template))
    meta = _meta(trunk, encoder, convention, name, notes)
    meta = meta.updated(source=source, position=position, ignored_keys=ignored_keys)
    if sign is not None:
        meta = meta.updated(sign=float(sign))
    if meta.sign != 1:
        notes.append(f"scores are {meta.sign:g} times the checkpoint's own number")
    if position != "native":
        notes.append(f"the head is read at position={position!r}, which was asked for")
    meta = meta.updated(notes=tuple(notes))
    signal = ClassifierRM(trunk, encoder, meta, convention.gate)
    signal.read_index([], position)  # refuses a position that cannot be read
    trunk.alone_beyond, why = batch_limit(trunk)
    if why:
        signal = signal.with_meta(notes=(*notes, why))
    if not conformance_quickcheck:
        return signal
    from reward_lens.signals.conformance import quickcheck

    quickcheck(signal).raise_if_failed()
    return signal.with_meta(quickcheck="passed")


def _rule(trunk: Trunk, convention: Convention) -> str:
    """The read rule: measured on the model, which a convention must agree with."""
    pool = trunk.anatomy.head.pool
    measured = _RULES[pool] if pool in _RULES else measured_rule(trunk)
    unpadded = trunk.config.pad_token_id is None and pool == "read"  # then all rules read the last
    if convention.rule is None:
        return "rightmost_non_pad" if unpadded else measured
    if not unpadded and measured != convention.rule:
        raise CheckpointError(
            f"the convention {convention.head!r} reads by the rule {convention.rule}, the model "
            f"by {measured}"
        )
    return convention.rule


def _notes(trunk: Trunk, encoder: Encoder, template: str | None) -> list[str]:
    notes = []
    if not encoder.has_chat_template and template is None:
        form = "question and answer as a text pair" if encoder.template == "pair" else repr(
            encoder.template)  # fmt: skip
        notes.append(f"the tokenizer has no chat template; texts are {form}")
    notes.extend(f"{place}: {why}" for place, why in trunk.anatomy.missing.items())
    return notes


def _meta(
    trunk: Trunk, encoder: Encoder, convention: Convention, name: str, notes: list[str]
) -> SignalMeta:
    anatomy = trunk.anatomy
    labels = convention.labels or row_labels(trunk.model.config)
    rows = len(anatomy.head.rows()[0])
    return SignalMeta(
        adapter=f"{name.removesuffix(_SUFFIX)}Adapter",
        architecture=name,
        source="memory",
        template=encoder.template,
        bos=encoder.bos,
        eos=encoder.eos,
        position="native",
        reads=encoder.rule,
        head=convention.head,
        sign=convention.sign,
        labels=labels if len(labels) == rows and rows > 1 else (),
        pad_id=encoder.pad_id,
        max_length=encoder.max_length,
        max_length_source=encoder.max_length_source,
        dtype=str(trunk.dtype).removeprefix("torch."),
        device=str(trunk.device),
        kernel=trunk.kernel,
        n_layers=trunk.n_layers,
        width=anatomy.width,
        n_rows=rows,
        granularity=anatomy.granularity.name.lower(),
        notes=tuple(notes),
    )


def row_labels(config: Any) -> tuple[str, ...]:
    """The configuration's names of the rows; empty where they are transformers' own fillers."""
    names = getattr(config, "id2label", None) or {}
    ordered = [str(names[k]) for k in sorted(names, key=int)]
    return () if any(n.startswith("LABEL_") for n in ordered) else tuple(ordered)


def _check_given(model: Any, tokenizer: Any) -> None:
    """Refuse what is no model, such as a path, and a model without its tokenizer."""
    if isinstance(model, (str, PathLike)):
        path = str(model)
        raise DataError(f"a model is wrapped, not a path: load_signal({path!r}) loads one")
    if not isinstance(model, Module) or not hasattr(model, "get_input_embeddings"):
        raise DataError(f"{type(model).__name__} is no transformers model; a signal wraps one")
    if tokenizer is None or isinstance(tokenizer, (str, PathLike)):
        raise DataError(
            f"tokenizer={tokenizer!r}: give the tokenizer itself, as AutoTokenizer.from_pretrained "
            f"loads it"
        )


def _check_vocabulary(model: Any, tokenizer: Any) -> None:
    rows = int(model.get_input_embeddings().weight.shape[0])
    ids = tokenizer.get_vocab().values()
    if ids and max(ids) >= rows:
        raise CheckpointError(
            f"the tokenizer has ids up to {max(ids)}, the model embeds {rows} (0 to {rows - 1}): "
            f"they do not belong together. Load the tokenizer that was saved with the model."
        )


def _check_types(trunk: Trunk, encoder: Encoder) -> None:
    known = getattr(trunk.config, "type_vocab_size", None)
    given = max(encoder.frame.pair_types or (0,))
    if trunk.inputs.types and known and given >= known:  # with 0 the model ignores types
        raise CheckpointError(
            f"the tokenizer gives token types up to {given}, the model embeds {known}: they do not "
            f"belong together. Load the tokenizer that was saved with the model."
        )
