"""How many tokens a model reads, and who says so."""

from __future__ import annotations

from typing import Any, NamedTuple

_UNBOUNDED = 10**9  # tokenizers state "no limit" as a number near 1e30
_NAMES = ("max_position_embeddings", "max_seq_len")


class Limit(NamedTuple):
    """The longest item.

    Attributes
    ----------
    tokens : int or None
        ``None`` where nothing bounds it.
    source : str
        Where the number comes from, for people.
    """

    tokens: int | None
    source: str


def longest_input(tokenizer: Any, config: Any, model: Any = None) -> Limit:
    """Return how many tokens a model reads: the smaller of its own limit and the tokenizer's.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
        ``model_max_length`` counts where it is a real number.
    config : transformers.PreTrainedConfig
        ``max_position_embeddings``, by whatever name the configuration maps to it, or
        ``max_seq_len``. Not a bound under ALiBi; rotary positions of type ``dynamic`` reach
        ``factor`` times as far.
    model : torch.nn.Module, optional
        Looked through for a table of positions that reserves rows for padding: RoBERTa counts
        from ``padding_idx + 1``, so 514 rows hold 512 tokens.
    """
    own = _model_limit(config, model)
    stated = getattr(tokenizer, "model_max_length", None)
    if stated is None or not 0 < stated < _UNBOUNDED:
        return own
    if own.tokens is None or stated < own.tokens:
        beside = "" if own.tokens is None else f" (the model itself would read {own.tokens})"
        return Limit(int(stated), f"tokenizer.model_max_length{beside}")
    return own


def _model_limit(config: Any, model: Any) -> Limit:
    for name in _NAMES:
        rows = getattr(config, name, None)
        if isinstance(rows, int) and not isinstance(rows, bool) and rows > 0:
            break
    else:
        return Limit(None, "neither the configuration nor the tokenizer states a limit")
    if name == _NAMES[0] and getattr(config, "alibi", None) is True:
        return Limit(None, f"ALiBi: config.{name}={rows} is no bound")
    skipped = _reserved_rows(rows, model)
    if skipped:
        source = f"config.{name}={rows} less {skipped} positions kept for padding"
        return Limit(rows - skipped, source)
    reach, why = _rotary_reach(rows, config)
    return Limit(reach, f"config.{name}{why}")


def _reserved_rows(rows: int, model: Any) -> int:
    """Rows of the position table below the first position that a token is given."""
    if model is None:
        return 0
    words = model.get_input_embeddings()
    for module in model.modules():
        reserved = getattr(module, "padding_idx", None)
        if (
            module is not words
            and reserved is not None
            and getattr(module, "num_embeddings", None) == rows
        ):
            return int(reserved) + 1
    return 0


def _rotary_reach(rows: int, config: Any) -> tuple[int, str]:
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        return rows, ""
    kind, factor = rope.get("rope_type"), rope.get("factor")
    if kind != "dynamic" or not isinstance(factor, int | float) or factor <= 1:
        return rows, ""
    return int(rows * factor), f"={rows} × {factor:g} (dynamic rotary positions)"
