"""Which head a checkpoint has: decided by keys and shapes, never by the name of its class alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reward_lens.errors import CheckpointError, LoadError
from reward_lens.signals.checkpoint import Checkpoint, Stored, listed, pickled_heads, unfilled
from reward_lens.signals.head_table import (
    HEADS,
    REFUSED,
    REFUSED_CLASSES,
    HeadRow,
    matching,
    plain,
    row_named,
)
from reward_lens.signals.trunk_files import NativeHead, base_keys, stray_keys

VOCABULARY = "vocab:"


@dataclass(frozen=True)
class Choice:
    """The head that a checkpoint is read with.

    Attributes
    ----------
    name : str
    row : HeadRow, optional
        ``None`` for the native class and for a vocabulary row.
    keys : frozenset of str
        Of the checkpoint, that belong to the head.
    others : frozenset of str
        Of heads that were left out because ``head=`` named another.
    """

    name: str
    row: HeadRow | None
    keys: frozenset[str]
    others: frozenset[str] = frozenset()


def choose_head(
    checkpoint: Checkpoint, config: Any, native: NativeHead | None, head: str | None
) -> Choice:
    """Find the one head of a checkpoint, or take the one that was asked for.

    Raises
    ------
    CheckpointError
        If it has none, several, a part of one, or is no scalar reward model; with the candidates
        and what to do.
    LoadError
        If ``head`` is no name of a head.
    """
    stored = checkpoint.all
    if head is not None and head.startswith(VOCABULARY):
        return Choice(head, None, frozenset(), frozenset(_head_keys(stored, native)))
    candidates, partial = _candidates(stored, config, native)
    if head is not None:
        return _asked_for(checkpoint, head, candidates, partial, native)
    _refuse_other_graders(checkpoint)
    complaints = {
        name: absent
        for name, absent in partial.items()
        if not _explained(name, stored, candidates.values(), native)
    }
    if len(candidates) == 1 and not complaints:
        (choice,) = candidates.values()
        _refuse_tree(checkpoint, choice)
        return choice
    if candidates and (len(candidates) > 1 or complaints):
        raise _ambiguous(checkpoint, config, candidates, complaints)
    raise _none(checkpoint, config, native, complaints)


def _candidates(
    stored: Mapping[str, Stored], config: Any, native: NativeHead | None
) -> tuple[dict[str, Choice], dict[str, tuple[str, ...]]]:
    """Heads whose keys are all there, by name, and those of which a part is."""
    whole, partial = matching(stored)
    found = {
        name: Choice(name, row, frozenset(k for k in stored if row.owns(k)))
        for name, row in whole.items()
    }
    if native is not None:
        keys = frozenset(k for k in native.shapes if k in stored)
        if keys and keys == frozenset(native.shapes):
            found[native.name] = Choice(native.name, None, keys)
    prefix = getattr(config, "value_head_prefix", None)
    if isinstance(prefix, str) and f"{prefix}.weight" in stored:
        row = _openrlhf(prefix)
        found[prefix] = Choice(prefix, row, frozenset({f"{prefix}.weight"}))
    return found, partial


def _openrlhf(prefix: str) -> HeadRow:
    """OpenRLHF's row for a head of any name: it writes the name into its configuration."""
    from dataclasses import replace

    row = row_named("value_head")
    assert row is not None
    return replace(row, name=prefix, stem=prefix, keys=(rf"^{re.escape(prefix)}\.weight$",))


def _asked_for(
    checkpoint: Checkpoint,
    head: str,
    candidates: dict[str, Choice],
    partial: dict[str, tuple[str, ...]],
    native: NativeHead | None,
) -> Choice:
    every = frozenset(_head_keys(checkpoint.all, native))
    if head in candidates:
        chosen = candidates[head]
        return Choice(head, chosen.row, chosen.keys, every - chosen.keys)
    names = [*(r.name for r in HEADS), *([native.name] if native is not None else [])]
    if head not in names:
        raise LoadError(
            f"head={head!r} is no name of a head: choose one of {listed(set(names), 99)}, or "
            f"'{VOCABULARY}K' for a row of a language model's output layer; this checkpoint has "
            f"{listed(candidates) or 'none of them'}"
        )
    if head in partial:
        absent = ", ".join(map(plain, partial[head]))
        lacking = f"it lacks {absent}"
    elif native is not None and head == native.name:
        lacking = f"it lacks {listed(k for k in native.shapes if k not in checkpoint.all)}"
    else:
        row = row_named(head)
        lacking = f"it lacks {', '.join(map(plain, row.keys))}" if row is not None else "it is not"
    raise CheckpointError(
        f"{checkpoint.folder} has no head {head!r}: {lacking}. Heads found in it: "
        f"{listed(candidates) or 'none'}."
    )


def _head_keys(stored: Iterable[str], native: NativeHead | None) -> set[str]:
    """Keys of a checkpoint that belong to any head that we know."""
    own = set(native.shapes) if native is not None else set()
    return {k for k in stored if k in own or any(r.owns(k) for r in HEADS)}


def _explained(
    name: str,
    stored: Iterable[str],
    chosen: Iterable[Choice],
    native: NativeHead | None,
) -> bool:
    """Whether the keys that made a row match in part all belong to a head that is whole."""
    row = row_named(name)
    assert row is not None
    taken = {k for c in chosen for k in c.keys} | (set(native.shapes) if native else set())
    return all(k in taken for k in stored if row.owns(k))


def _refuse_other_graders(checkpoint: Checkpoint) -> None:
    for pattern, why in REFUSED:
        if keys := [k for k in checkpoint.all if re.search(pattern, k)]:
            raise CheckpointError(f"{checkpoint.folder} has {listed(keys, 3)}: {why}.")
    for pattern, why in REFUSED_CLASSES:
        if named := [c for c in checkpoint.classes if re.search(pattern, c)]:
            raise CheckpointError(f"{checkpoint.folder} is of class {named[0]}: {why}.")
    value = checkpoint.all.get("value_head.weight")
    if value is not None and len(value.shape) == 2 and value.shape[0] > 1:
        raise CheckpointError(
            f"{checkpoint.folder}: value_head.weight is of another shape than a reward head, "
            f"{list(value.shape)}: with several rows it gives a vector per response (a general "
            f"preference model compares those), not a score."
        )


def _refuse_tree(checkpoint: Checkpoint, choice: Choice) -> None:
    """A decision tree on top of the rows is the model's real decision; its rows alone are not."""
    trees = [f for f in pickled_heads(checkpoint.folder) if "tree" in f]
    if trees:
        raise CheckpointError(
            f"{checkpoint.folder} decides by {trees[0]}, a pickled file, which is never opened "
            f"because it can run code. To read its rows without it, pass head={choice.name!r}."
        )


def _ambiguous(
    checkpoint: Checkpoint,
    config: Any,
    candidates: Mapping[str, Choice],
    complaints: Mapping[str, tuple[str, ...]],
) -> CheckpointError:
    said = [f"{checkpoint.folder} has more than one thing that looks like a head:"]
    for name, choice in sorted(candidates.items()):
        shapes = (f"{k} {list(checkpoint.all[k].shape)}" for k in choice.keys)
        said.append(f"  head={name!r}: {listed(shapes, 6)}")
    for name, absent in sorted(complaints.items()):
        row = row_named(name)
        assert row is not None
        present = [k for k in checkpoint.all if row.owns(k)]
        said.append(
            f"  a part of {name!r}: {listed(present, 6)} "
            f"(missing from the checkpoint: {', '.join(map(plain, absent))})"
        )
    base, _ = base_keys(config)
    owned = _head_keys(checkpoint.all, None) | {k for c in candidates.values() for k in c.keys}
    if unknown := [k for k in stray_keys(checkpoint.all, base) if k not in owned]:
        said.append(f"  in the checkpoint but used by nothing: {listed(unknown)}")
    said.append("Pass head= with the name of the one that the model was trained to be read by.")
    return CheckpointError("\n".join(said))


def _none(
    checkpoint: Checkpoint,
    config: Any,
    native: NativeHead | None,
    complaints: Mapping[str, tuple[str, ...]],
) -> CheckpointError:
    stored = checkpoint.all
    missing = [k for k in native.shapes if k not in stored] if native is not None else []
    for name, absent in complaints.items():
        missing += [f"{plain(p)} of head {name!r}" for p in absent]
    base, _ = base_keys(config)
    in_part = [r for r in map(row_named, complaints) if r is not None]
    left = [k for k in stray_keys(stored, base) if not any(r.owns(k) for r in in_part)]
    advice = [
        "A reward read from it would not be the model's. Heads that are known by name: "
        + ", ".join(sorted({plain(r.keys[0]) for r in HEADS}))
        + (f", {', '.join(native.shapes)}" if native is not None else "")
        + ". If the head was saved under another name, rename its key to the one it is."
    ]
    if pickles := pickled_heads(checkpoint.folder):
        advice.append(
            f"Its head may be in {listed(pickles)}: pickled files are never opened because they "
            f"can run code. Save those tensors as {checkpoint.folder.name}/value_head.safetensors."
        )
    if _is_language_model(checkpoint):
        advice.append(
            "This is a causal language model. If its reward is one row of its output layer, say "
            "which: head='vocab:0' for the logit of id 0, head='vocab:yes-no' for the difference "
            "of two tokens' logits."
        )
    if not missing and not left:
        missing = ["a head of any kind"]
    return unfilled(
        str(checkpoint.folder),
        checkpoint.classes,
        missing=missing,
        left=left,
        advice="\n".join(advice),
    )


def _is_language_model(checkpoint: Checkpoint) -> bool:
    named = any(c.endswith(("ForCausalLM", "LMHeadModel")) for c in checkpoint.classes)
    return named or any(re.search(r"(^|\.)(lm_head|embed_out)\.", k) for k in checkpoint.all)
