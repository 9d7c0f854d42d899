"""From a folder to a model that can be called, and to the convention it is read by."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from reward_lens.backbone.headed import HeadedModel
from reward_lens.errors import CheckpointError, LoadError
from reward_lens.signals.adapter import Adapter, base_of, complete, described, open_adapter
from reward_lens.signals.checkpoint import (
    Checkpoint,
    is_adapter,
    listed,
    open_checkpoint,
    read_config,
    refuse_mixed,
    unfilled,
)
from reward_lens.signals.convention import Convention
from reward_lens.signals.dispatch import VOCABULARY, Choice, choose_head
from reward_lens.signals.head_build import Parts, build_head, tensors_of, widen
from reward_lens.signals.hub import Hub
from reward_lens.signals.trunk_files import (
    NativeHead,
    Placement,
    check_loaded,
    load_base,
    load_config,
    load_native,
    native_head,
    refuse_unfilled,
)
from reward_lens.signals.vocabulary_head import read_vocabulary


class ReadModel(NamedTuple):
    """A model as a checkpoint describes it, and how it is read.

    Attributes
    ----------
    model : nn.Module
        Called with ids it returns ``.logits`` ``[batch, rows]``; in evaluation mode, on the CPU
        unless a device map put it elsewhere.
    convention : Convention
    ignored_keys : tuple of str
        Keys of the files that mean nothing for the score, or belong to a head not asked for.
    architecture : str
        Class name of the checkpoint's configuration, else of the model.
    tokenizer : callable
        Loads and returns the tokenizer that was saved with the checkpoint.
    """

    model: Any
    convention: Convention
    ignored_keys: tuple[str, ...]
    architecture: str
    tokenizer: Callable[[], Any]


@dataclass(frozen=True)
class Wishes:
    """What a caller settles about reading a checkpoint; ``None`` leaves it to the checkpoint."""

    head: str | None = None
    template: str | None = None
    bos: str | None = None
    eos: str | None = None
    sign: float | None = None
    base: str | Path | None = None

    def convention(self, head: str, rule: str | None, **found: Any) -> Convention:
        """Return the convention with the caller's wishes in the place of what was found."""
        if self.eos is not None:
            found["eos"] = None if self.eos == "keep" else self.eos
        if self.sign is not None:
            if self.sign not in (1, -1):
                raise LoadError(f"sign={self.sign!r}: choose 1, or -1 where lower is better")
            found["sign"] = float(self.sign)
        return Convention(head, rule, template=self.template, bos=self.bos, **found)


@dataclass(frozen=True)
class Source:
    """A checkpoint that is about to be loaded.

    Attributes
    ----------
    adapter : Adapter, optional
        To be merged into the checkpoint, which is then its base.
    tokenizer : callable
        Returns the tokenizer that was saved with it.
    """

    checkpoint: Checkpoint
    config: Any
    placement: Placement
    wishes: Wishes
    tokenizer: Callable[[], Any]
    adapter: Adapter | None = None

    @property
    def notes(self) -> list[str]:
        """What is to be said of the source itself."""
        return [described(self.adapter)] if self.adapter is not None else []

    def labels(self, rows: int) -> tuple[str, ...]:
        """Names of the rows where the configuration has names that mean something."""
        named = self.checkpoint.config.get("id2label") or {}
        labels = tuple(str(named[k]) for k in sorted(named, key=int))
        if len(labels) != rows or any(re.fullmatch(r"LABEL_\d+", x) for x in labels):
            return ()
        return labels


def read_checkpoint(
    folder: str | Path,
    *,
    dtype: str | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
    wishes: Wishes | None = None,
    hub: Hub | None = None,
) -> ReadModel:
    """Load the model of a folder by the convention that its keys and shapes show.

    Parameters
    ----------
    folder : str or Path
        With a whole model, or a LoRA adapter.
    dtype : {"float32", "bfloat16", "float16"}, optional
        Of the trunk; the checkpoint's own if not given. A head stored wider stays wider.
    device_map : str or dict, optional
    trust_remote_code : bool
    wishes : Wishes, optional
    hub : Hub, optional
        Where an adapter's base model is looked up.

    Raises
    ------
    LoadError, CheckpointError, DownloadRefused
        As :func:`~reward_lens.signals.loading.load_signal` says.
    """
    folder, wishes, hub = Path(folder), wishes or Wishes(), hub or Hub()
    if wishes.base is None:
        refuse_mixed(folder)
    adapter = open_adapter(folder) if is_adapter(folder) else None
    if adapter is None and wishes.base is not None:
        raise LoadError(f"base= is for adapters, and {folder} holds a whole model")
    home = folder if adapter is None else base_of(adapter, wishes.base, hub.folder)
    if home.resolve() != folder.resolve():
        refuse_mixed(home)
    raw = read_config(home)
    config = load_config(home, raw, trust_remote_code)
    checkpoint = open_checkpoint(home, raw)
    if adapter is not None:
        checkpoint = replace(checkpoint, side={**checkpoint.side, **adapter.whole})
    source = Source(
        checkpoint,
        config,
        Placement(dtype, device_map, trust_remote_code),
        wishes,
        lambda: load_tokenizer(folder, home, trust_remote_code),
        adapter,
    )
    read = _read(source)
    zeros = check_loaded(read.model)
    if not zeros:
        return read
    many = f"{len(zeros)} matrices are" if len(zeros) > 1 else "1 matrix is"
    note = f"{many} all zeros: {listed(zeros)}"
    notes = (*read.convention.notes, note)
    return read._replace(convention=replace(read.convention, notes=notes))


def _read(source: Source) -> ReadModel:
    own_code = source.checkpoint.config.get("auto_map") or {}
    if source.placement.trust_remote_code and "AutoModelForSequenceClassification" in own_code:
        loaded = load_native(source.checkpoint, source.config, source.placement)
        filled = complete(loaded.model, source.checkpoint.side, source.adapter)
        refuse_unfilled(source.checkpoint, loaded, filled=filled)
        convention = source.wishes.convention(
            "the checkpoint's own code", None, notes=tuple(source.notes)
        )
        return ReadModel(
            loaded.model, convention, loaded.ignored, type(loaded.model).__name__, source.tokenizer
        )
    native = native_head(source.config)
    choice = choose_head(source.checkpoint, source.config, native, source.wishes.head)
    if choice.name.startswith(VOCABULARY):
        return _read_vocabulary(source, choice)
    if choice.row is not None:
        return _read_headed(source, choice)
    assert native is not None
    return _read_native(source, choice, native)


def _read_native(source: Source, choice: Choice, native: NativeHead) -> ReadModel:
    notes = [*source.notes, *_fit_labels(source, native)]
    loaded = load_native(source.checkpoint, source.config, source.placement)
    side, adapter = source.checkpoint.side, source.adapter
    filled = complete(loaded.model, side, adapter, apart=choice.others)
    if adapter is not None and source.config.get_text_config().pad_token_id is None:
        notes.append(
            "the base's configuration has no pad_token_id, so the last token is read; if the "
            "adapter was trained with padding that equals a token of the text, it may have been "
            "read elsewhere"
        )
    refuse_unfilled(source.checkpoint, loaded, filled=filled, apart=choice.others)
    labels = source.labels(int(loaded.model.config.num_labels))
    convention = source.wishes.convention(choice.name, None, labels=labels, notes=tuple(notes))
    ignored = tuple(sorted({*loaded.ignored, *choice.others}))
    name = type(loaded.model).__name__
    return ReadModel(loaded.model, convention, ignored, name, source.tokenizer)


def _fit_labels(source: Source, native: NativeHead) -> list[str]:
    """Take the number of rows from the head where the configuration does not state it.

    A configuration without labels means two to transformers, whatever the head has.
    """
    checkpoint, stored, notes = source.checkpoint, source.checkpoint.all, []
    stated = any(k in checkpoint.config for k in ("num_labels", "id2label"))
    rows = {stored[k].shape[0] for k in native.scored if stored[k].shape}
    if len(rows) == 1 and (not stated or any(k in checkpoint.side for k in native.scored)):
        (found,) = rows
        if found != source.config.num_labels:
            source.config.num_labels = found
            notes.append(f"the number of rows, {found}, was taken from the head's shape")
            native = native_head(source.config) or native
    odd = {k: s for k, s in native.shapes.items() if stored[k].shape != s}
    if odd:
        told = ", ".join(f"{k} is {list(stored[k].shape)}, not {list(s)}" for k, s in odd.items())
        raise unfilled(
            str(checkpoint.folder),
            checkpoint.classes,
            mismatched=odd,
            advice=f"{told} (config.json: num_labels {source.config.num_labels}). The weights and "
            f"the configuration do not belong together.",
        )
    return notes


def _read_headed(source: Source, choice: Choice) -> ReadModel:
    assert choice.row is not None
    checkpoint, text = source.checkpoint, source.config.get_text_config()
    parts = Parts(
        choice.row,
        tensors_of(choice.row, checkpoint.all),
        checkpoint.config,
        checkpoint.classes,
        int(getattr(text, "word_embed_proj_dim", None) or text.hidden_size),
        source.tokenizer,
    )
    built = build_head(parts)  # before the trunk, so that a bad head is refused at once
    apart = choice.keys | choice.others
    loaded = load_base(checkpoint, source.config, source.placement, apart)
    filled = complete(
        loaded.model,
        checkpoint.side,
        source.adapter,
        strip=f"{loaded.model.base_model_prefix}.",
        head=choice.keys,
        apart=choice.others,
    )
    refuse_unfilled(checkpoint, loaded, filled=filled, apart=apart)
    base = loaded.model
    base.config.num_labels = built.rows
    model = HeadedModel(
        base,
        widen(built.module, base.dtype),
        rule=built.rule,
        pad_id=text.pad_token_id,
        gate=built.gate,
    )
    convention = source.wishes.convention(
        choice.row.name,
        built.rule,
        sign=built.sign,
        eos=choice.row.eos,
        labels=source.labels(built.rows),
        notes=(*source.notes, *built.notes),
        gate=built.gate,
    )
    unused = set(parts.tensors) - parts.used
    ignored = tuple(sorted({*loaded.ignored, *choice.others, *unused}))
    name = checkpoint.classes[0] if checkpoint.classes else type(base).__name__
    return ReadModel(model.eval(), convention, ignored, name, source.tokenizer)


def _read_vocabulary(source: Source, choice: Choice) -> ReadModel:
    vocabulary = read_vocabulary(
        source.checkpoint,
        source.config,
        source.placement,
        spec=choice.name,
        tokenizer=source.tokenizer,
        adapter=source.adapter,
        apart=choice.others,
    )
    convention = source.wishes.convention(
        choice.name, "last", notes=(*source.notes, vocabulary.note)
    )
    ignored = tuple(sorted({*vocabulary.ignored, *choice.others}))
    return ReadModel(
        vocabulary.model, convention, ignored, vocabulary.architecture, source.tokenizer
    )


def load_tokenizer(folder: Path, home: Path, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer of a folder; an adapter without one has that of its base, ``home``.

    Raises
    ------
    CheckpointError
        If it cannot be loaded.
    """
    from transformers import AutoTokenizer

    own = any((folder / f).is_file() for f in ("tokenizer_config.json", "tokenizer.json"))
    place = folder if own else home
    try:
        return AutoTokenizer.from_pretrained(
            place, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # tokenizers raise whatever their files make them raise
        raise CheckpointError(
            f"{place}: its tokenizer could not be loaded ({error}); save the tokenizer beside the "
            f"model, or use wrap_hf_model(model, tokenizer)"
        ) from error
