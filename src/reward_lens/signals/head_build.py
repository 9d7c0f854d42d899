"""From a row of the head table and the tensors on disk to torch modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from reward_lens.backbone.headed import Affine, Gate
from reward_lens.errors import CheckpointError
from reward_lens.signals.checkpoint import Stored, zero_head
from reward_lens.signals.head_table import GATE_TEXTS, HeadRow

_EPSILON = (
    1e-8  # that of the safe-rlhf normaliser; nothing at float32 unless the spread is as small
)
_BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


@dataclass
class Parts:
    """What there is to build a head from.

    Attributes
    ----------
    row : HeadRow
    tensors : dict
        Name -> stored tensor, of the keys that the row owns.
    config : dict
        ``config.json`` as written.
    classes : tuple of str
    width : int
        Of the states that the head reads.
    tokenizer : callable
        Returns the tokenizer; called only where a gate's pattern has to be looked up.
    used : set of str
        Keys that were read.
    """

    row: HeadRow
    tensors: Mapping[str, Stored]
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    width: int
    tokenizer: Callable[[], Any]
    used: set[str] = field(default_factory=set)

    def load(self, key: str) -> Tensor:
        """Read a tensor of the head.

        Raises
        ------
        CheckpointError
            If it is missing, holds a value that is not finite, or is a matrix of zeros.
        """
        tensor = _get(self, key).load()
        self.used.add(key)
        if not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise CheckpointError(f"weight {key} holds {bad} values that are NaN or infinite")
        if tensor.dim() > 1 and not bool(tensor.any()):
            raise zero_head(key)
        return tensor


@dataclass
class BuiltHead:
    """A head, in the dtypes in which it is stored, and what was chosen for it."""

    module: nn.Module
    rows: int
    rule: str
    sign: float = 1.0
    gate: Gate | None = None
    notes: list[str] = field(default_factory=list)


def build_head(parts: Parts) -> BuiltHead:
    """Build the head of a row.

    Raises
    ------
    CheckpointError
        Naming the key that is missing or has another shape than the convention.
    """
    build = {"linear": _linear, "mlp": _mlp, "gated": _gated}[parts.row.form]
    built = build(parts)
    if parts.row.rows == "one" and built.rows != 1:
        raise _shape(parts, f"{parts.row.stem}.weight", f"[1, {parts.width}]")
    _normalise(parts, built)
    return built


def _linear(parts: Parts) -> BuiltHead:
    key = f"{parts.row.stem}.weight"
    weight = parts.tensors[key]
    if len(weight.shape) != 2 or weight.shape[1] != parts.width:
        rows = "1" if parts.row.rows == "one" else "rows"
        raise _shape(parts, key, f"[{rows}, {parts.width}]")
    if parts.row.stem == "regression_layer":
        return _objectives(parts)
    if parts.row.rows == "one" and weight.shape[0] != 1:
        raise _shape(parts, key, f"[1, {parts.width}]")
    stated = parts.row.bias == "any" and parts.config.get("bias") is True
    module = _layer(parts, parts.row.stem, needs_bias=parts.row.bias == "yes" or stated)
    return BuiltHead(module, weight.shape[0], _rule(parts))


def _layer(parts: Parts, stem: str, *, needs_bias: bool) -> nn.Linear:
    weight, bias = _get(parts, f"{stem}.weight"), parts.tensors.get(f"{stem}.bias")
    if bias is None and needs_bias:
        raise _missing(parts, f"{stem}.bias")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise _shape(parts, f"{stem}.bias", f"[{weight.shape[0]}]")
    return as_linear(
        parts.load(f"{stem}.weight"), parts.load(f"{stem}.bias") if bias is not None else None
    )


def as_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear map of a weight ``[out, in]`` and a bias ``[out]``, in the weight's dtype."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.to(weight.dtype), requires_grad=False)
    return linear


def widen(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Bring a head's maps to the widest of their dtypes and the trunk's: none is downcast.

    A normaliser stays in float32.
    """
    maps = [m for m in module.modules() if isinstance(m, nn.Linear)]
    for linear in maps:
        dtype = torch.promote_types(dtype, linear.weight.dtype)
    for linear in maps:
        linear.to(dtype)
    return module


def _mlp(parts: Parts) -> BuiltHead:
    stem = parts.row.stem
    numbers = sorted({int(k.removeprefix(f"{stem}.").split(".")[0]) for k in parts.tensors})
    expected = list(range(0, max(2, numbers[-1]) + 1, 2))
    for number in expected:
        _get(parts, f"{stem}.{number}.weight")
    if odd := [n for n in numbers if n not in expected]:
        raise CheckpointError(
            f"head {parts.row.name!r}: {stem}.{odd[0]} is where this convention has an activation "
            f"(linear layers are {stem}.0, {stem}.2, …); its form is not known"
        )
    layers: list[nn.Module] = []
    width = parts.width
    for number in expected:
        key = f"{stem}.{number}.weight"
        shape = parts.tensors[key].shape
        last = number == expected[-1]
        if len(shape) != 2 or shape[1] != width or (last and shape[0] != 1):
            raise _shape(parts, key, f"[{1 if last else 'any'}, {width}]")
        layers += [_layer(parts, f"{stem}.{number}", needs_bias=True), nn.ReLU()]
        width = shape[0]
    return BuiltHead(nn.Sequential(*layers[:-1]), 1, _rule(parts))


def _objectives(parts: Parts, objectives: int | None = None) -> BuiltHead:
    """Rows of a regression layer; the mean over quantiles where the rows are quantiles."""
    stored = parts.tensors["regression_layer.weight"]
    quantiles = parts.config.get("num_quantiles") or len(parts.config.get("quantiles") or [0])
    rows, rest = divmod(stored.shape[0], int(quantiles))
    if rest or (objectives is not None and rows != objectives):
        told = f"{objectives} objectives" if objectives is not None else "objectives"
        raise CheckpointError(
            f"regression_layer.weight is {list(stored.shape)}, which is not {told} × {quantiles} "
            f"quantile{'s' * (quantiles != 1)} (config.num_quantiles). What its rows are is not "
            f"known (means and spreads, as URM has?), so no score is made of them."
        )
    weight = parts.load("regression_layer.weight")
    notes = []
    if quantiles > 1:
        # Objective-major, as QRM lays them out; it computes them in float32 whatever the trunk is.
        weight = weight.float().reshape(rows, int(quantiles), -1).mean(1)
        notes.append(f"each row is the mean of {quantiles} quantiles")
    return BuiltHead(as_linear(weight, None), rows, _rule(parts), notes=notes)


def _gated(parts: Parts) -> BuiltHead:
    if len(shape := parts.tensors["regression_layer.weight"].shape) != 2 or (
        shape[1] != parts.width
    ):
        raise _shape(parts, "regression_layer.weight", f"[rows, {parts.width}]")
    layers, out = _gate_layers(parts)
    transform = parts.tensors["reward_transform_matrix"]
    if transform.shape != (out, out):
        raise _shape(parts, "reward_transform_matrix", f"[{out}, {out}], as the gate's output")
    scale = parts.tensors["gating.logit_scale"]
    if scale.shape not in ((1,), ()):
        raise _shape(parts, "gating.logit_scale", "[1]")
    built = _objectives(parts, out)
    pattern, text = _pattern(parts)
    built.gate = Gate(
        layers,
        parts.load("reward_transform_matrix"),
        parts.load("gating.logit_scale").reshape(1),
        float(parts.config.get("gating_temperature", 10.0)),
        pattern,
        text,
    )
    return built


def _gate_layers(parts: Parts) -> tuple[nn.Sequential, int]:
    """The gate's network; a number that no tensor has is an activation.

    ArmoRM numbers its linear layers 0, 1, 2, 3 and applies ReLU between them in code; QRM numbers
    linear, ReLU, batch norm in turn.
    """
    prefix = "gating.layers."
    numbers = sorted({int(k.split(".")[2]) for k in parts.tensors if k.startswith(prefix)})
    gaps = numbers != list(range(numbers[-1] + 1))
    _get(parts, f"{prefix}0.weight")  # a network begins with a map, never with an activation
    layers: list[nn.Module] = []
    width = parts.width
    for number in range(numbers[-1] + 1):
        stem = f"{prefix}{number}"
        if number not in numbers:
            layers.append(nn.ReLU())
        elif len(shape := _get(parts, f"{stem}.weight").shape) == 1:
            layers.append(_batch_norm(parts, stem, width))
        elif shape[1] != width:
            raise _shape(parts, f"{stem}.weight", f"[any, {width}]")
        else:
            # ArmoRM has a bias in every layer, QRM's batch norm replaces that of the hidden ones.
            needs = not gaps or number == numbers[-1]
            layers.append(_layer(parts, stem, needs_bias=needs))
            width = shape[0]
            if not gaps and number != numbers[-1]:
                layers.append(nn.ReLU())
    return nn.Sequential(*layers).eval(), width


def _batch_norm(parts: Parts, stem: str, width: int) -> nn.BatchNorm1d:
    found = {name: _get(parts, f"{stem}.{name}") for name in _BATCH_NORM}
    for name, stored in found.items():
        if stored.shape != (width,):
            raise _shape(parts, f"{stem}.{name}", f"[{width}]")
    norm = nn.BatchNorm1d(width)
    norm.load_state_dict({n: parts.load(f"{stem}.{n}").float() for n in found}, strict=False)
    return norm.eval()


def _pattern(parts: Parts) -> tuple[list[int], str]:
    """The ids that a gate looks for: from the configuration, else by the tokenizer."""
    given = parts.config.get("gating_token_pattern")
    if given is not None:
        return [int(i) for i in given], f"ids {given}"
    text = GATE_TEXTS.get(str(parts.config.get("model_type")))
    if text is None:
        raise CheckpointError(
            f"head 'gated': which token the gate of a {parts.config.get('model_type')!r} model "
            f"reads is not known; write the ids that begin there into config.json as "
            f"gating_token_pattern"
        )
    return list(parts.tokenizer().encode(text, add_special_tokens=False)), text


def _rule(parts: Parts) -> str:
    rule = parts.row.rule_for(parts.classes)
    if rule != "config":
        return rule
    pooling = parts.config.get("pooling", "last")
    if pooling not in ("last", "mean"):
        raise CheckpointError(
            f"head {parts.row.name!r}: config.pooling is {pooling!r}; this convention has 'last' "
            f"and 'mean'"
        )
    return str(pooling)


def _normalise(parts: Parts, built: BuiltHead) -> None:
    if parts.row.normaliser == "config":
        _from_config(parts, built)
    elif parts.row.normaliser == "stored":
        _from_buffers(parts, built)


def _from_config(parts: Parts, built: BuiltHead) -> None:
    """OpenRLHF: ``(r − mean) / std`` where ``config.normalize_reward`` is set."""
    mean, std = parts.config.get("mean"), parts.config.get("std")
    if not parts.config.get("normalize_reward"):
        if mean is not None or std is not None:
            built.notes.append(
                f"config.json has mean={mean} and std={std}, not applied: normalize_reward is not "
                f"set there"
            )
        return
    if mean is None or std is None:
        raise CheckpointError(
            "config.json sets normalize_reward but has no mean and std to normalise with"
        )
    scale = 1.0 / torch.tensor([float(std)])
    _append(built, scale, -float(mean) * scale, f"normalised by mean {mean} and std {std}")


def _from_buffers(parts: Parts, built: BuiltHead) -> None:
    """safe-rlhf: affine for a reward, scale only for a cost (which is also turned round)."""
    kind = str(parts.config.get("score_type", "reward"))
    if kind not in ("reward", "cost", "critic"):
        raise CheckpointError(
            f"head {parts.row.name!r}: config.score_type is {kind!r}; this convention has "
            f"'reward', 'cost' and 'critic'"
        )
    if "score_type" not in parts.config:
        built.notes.append("config.json has no score_type; taken for a reward (higher is better)")
    if kind == "cost":
        built.sign = -1.0
        built.notes.append("a cost model: its own number is lower for the better answer")
    if not parts.config.get("do_normalize", False) or kind == "critic":
        return
    stats = {}
    for name in ("mean", "var"):
        stored, said = parts.tensors.get(f"normalizer.{name}"), parts.config.get(name)
        if stored is None and said is None:
            raise _missing(parts, f"normalizer.{name}")
        value = parts.load(f"normalizer.{name}") if stored is not None else torch.tensor(said)
        stats[name] = value.float().reshape(-1)
        if stats[name].shape != (built.rows,):
            raise _shape(parts, f"normalizer.{name}", f"[{built.rows}]")
    scale = 1.0 / (stats["var"].sqrt() + _EPSILON)
    shift = -stats["mean"] * scale if kind == "reward" else torch.zeros_like(scale)
    _append(built, scale, shift, f"normalised by the stored statistics, as a {kind}")


def _append(built: BuiltHead, scale: Tensor, shift: Tensor, note: str) -> None:
    built.module = nn.Sequential(built.module, Affine(scale, shift))
    built.notes.append(note)


def _get(parts: Parts, key: str) -> Stored:
    if key not in parts.tensors:
        raise _missing(parts, key)
    return parts.tensors[key]


def _missing(parts: Parts, key: str) -> CheckpointError:
    here = ", ".join(sorted(parts.tensors))
    return CheckpointError(
        f"head {parts.row.name!r} is incomplete: {key} is missing from the checkpoint (it has "
        f"{here}). A head with a random part gives random scores; fetch or save it again."
    )


def _shape(parts: Parts, key: str, expected: str) -> CheckpointError:
    shape = list(parts.tensors[key].shape) if key in parts.tensors else "not there"
    return CheckpointError(
        f"head {parts.row.name!r}: {key} is of another shape: {shape}, where this convention has "
        f"{expected} (the trunk's states are {parts.width} wide)"
    )


def tensors_of(row: HeadRow, tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """The tensors of a checkpoint that belong to a row."""
    return {k: s for k, s in tensors.items() if row.owns(k)}
