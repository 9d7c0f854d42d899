"""The conformance checks: each measures one thing and says what a failure means."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reward_lens.backbone import MEAN, Encoded, Site, engine_of, write_sites
from reward_lens.backbone.engine import TOLERANCE
from reward_lens.data import Item
from reward_lens.errors import RewardLensError
from reward_lens.signals.check_report import Check
from reward_lens.signals.checkpoint import opened
from reward_lens.signals.decomposition import CLOSURE, COMPLETENESS_FP32, decompose
from reward_lens.signals.probed import WHOLE, Probed
from reward_lens.signals.protocol import Capability

_COPY_LIMIT = 2 * 10**9  # bytes of weights up to which other dtypes are tried in a copy


def determinism(s: Probed) -> Check:
    """Two runs of the same text agree bit for bit."""
    again = np.array([s.scores([k], "right")[0] for k in range(len(s.encoded))])
    gap = float(np.abs(again - s.alone).max())
    return Check(
        "determinism", gap == 0, f"{gap:.1e} between two runs", "0",
        "the same text gets another score on the next call: dropout, or a random layer, is on",
    )  # fmt: skip


def batch_alone(s: Probed) -> Check:
    """A score is the same alone and in a batch."""
    gap = np.abs(s.scores(range(len(s.encoded)), "right") - s.alone)
    return s.gap(
        "batch = alone", float(gap.max()),
        "a score depends on what else is in the batch: padding reaches the read token",
    )  # fmt: skip


def padding_side(s: Probed) -> Check:
    """Ids that come padded on either side give the scores of the ids alone."""
    pad, gap, tokenizer = s.signal.encoder.pad_id, 0.0, s.signal.encoder.tokenizer
    meant = pad in (None, tokenizer.eos_token_id, tokenizer.bos_token_id)  # then it may be text
    if not meant and all(pad not in e.ids for e in s.encoded):
        rows = [e.ids.tolist() for e in s.encoded]
        for padded in ([[*r, pad, pad] for r in rows], [[pad, pad, pad, *r] for r in rows]):
            again = s.signal.score([Item(ids=tuple(r)) for r in padded], truncate="right")
            gap = max(gap, float(np.abs(again.value.values - s.by_ids).max()))
    if s.signal.trunk.inputs.positions:  # where positions are ours, the layout must not matter
        left = s.scores(range(len(s.encoded)), "left")
        gap = max(gap, float(np.abs(left - s.scores(range(len(s.encoded)), "right")).max()))
    return s.gap(
        "padding side", gap,
        "padding on the left moves scores: positions or the read token do not follow the mask",
    )  # fmt: skip


def head_native(s: Probed) -> Check:
    """Our score is the model's own logit."""
    native = np.array([s.native(k) for k in range(len(s.encoded))])
    gap = float(np.abs(s.natively_read - native).max())
    if not s.half:
        return s.gap("head = native", gap, _HEAD_MEANS)
    allowed = _native_rounding(s)
    return Check(
        "head = native", bool(gap <= allowed), f"{gap:.1e}",
        f"{allowed:.1e}, what {s.signal.meta.dtype} loses in the model's own head", _HEAD_MEANS,
    )  # fmt: skip


_HEAD_MEANS = "our score is not the model's own: head, norm or read position were taken wrongly"


@torch.no_grad()
def _native_rounding(s: Probed) -> float:
    """Bound on what the model's own half-precision head loses: its epsilon times Σ|w·h|."""
    rows, biases = (t[list(s.readout.rows)].abs() for t in s.readout.head.rows())
    weight, bias, sizes = rows.mean(0), biases.mean(), []
    for batch in s.signal.trunk.batches(s.encoded, WHOLE):
        h = s.signal.trunk.final_states(batch).float()
        sizes.append((s.readout.head.features(h).abs() @ weight + bias).max())
    steps = len(s.readout.head.steps)  # every module of the head rounds once more
    return 2 * steps * torch.finfo(s.signal.trunk.dtype).eps * float(max(sizes))


@torch.no_grad()
def composite_native(s: Probed) -> Check:
    """The gated score, read by a direction per item, is the one of the checkpoint's formula."""
    means = "the gate is read at another token, or its weights are put on other rows"
    model: Any = s.signal.trunk.model
    if s.signal.gate is None:
        return Check("composite = native", True, "the head has no gate", "-", means)
    try:
        ours = s.signal.score(s.items, readout="composite", truncate="right").value.values
    except RewardLensError as error:
        return Check("composite = native", False, str(error), "-", means)
    native = [float(model.composite(torch.from_numpy(e.ids)[None].to(s.signal.trunk.device)))
              for e in s.encoded]  # fmt: skip
    gap = np.abs(ours - s.signal.meta.sign * np.array(native)).max()
    return s.gap("composite = native", float(gap), means, spread=max(np.ptp(native), 1e-12))


def read_position(s: Probed) -> Check:
    """Of all tokens, the one we read is where the model's own head gives the model's own score."""
    if s.readout.head.pool in ("mean", "late"):
        return Check("read position", True, "the head reads the mean over all tokens", "-", "")
    wrong, away = 0, 0
    for k, (encoded, read) in enumerate(zip(s.encoded, s.read, strict=True)):
        places = {"native": encoded.native, "last": len(encoded.ids) - 1, "first": 0, "mean": MEAN}
        expected = places[s.signal.meta.position]
        gap = np.abs(s.native_curve(k) - s.native(k))
        wrong += read != expected or bool(gap[encoded.native] > gap.min())
        away += encoded.native != encoded.last
    return Check(
        "read position", wrong == 0,
        f"{wrong} of {len(s.encoded)} items read elsewhere; native differs from the last token "
        f"on {away}", "0 elsewhere",
        "the head is read at another token than the model's own forward reads",
    )  # fmt: skip


def prefix_curve(s: Probed) -> Check:
    """The curve of prefix scores is the scores of the cut ids."""
    if Capability.PREFIX_SCORES not in s.signal.caps:
        return Check("prefix curve", True, "not causal: no prefix scores are offered", "-", "")
    limit = s.signal.trunk.alone_beyond
    gap, low, high = 0.0, np.inf, -np.inf
    for k, encoded in enumerate(s.encoded):
        if limit is not None and encoded.last >= limit:
            continue
        curve = s.curve(k)
        low, high = min(low, float(curve.min())), max(high, float(curve.max()))
        for cut in {len(encoded.ids) // 3, len(encoded.ids) // 2, len(encoded.ids) - 2} - {0}:
            alone = s.curve(k, Encoded(encoded.ids[:cut], cut - 1))[-1]
            gap = max(gap, abs(float(alone - curve[cut - 1])))
    means = "the curve of prefix scores is not the scores of the cut texts"
    # Prefix scores range wider than the scores of whole texts; rounding follows what is compared.
    return s.gap("prefix curve", gap, means, spread=max(high - low, s.spread))


def completeness(s: Probed) -> Check:
    """The writes found add up to the score."""
    means = "attribution would leave something out: a write, a norm or a scale was not found"
    if not s.signal.trunk.anatomy.adds_up:
        why = "no writes verified here, so none are offered"
        return Check("completeness", True, why, "-", means)
    try:
        found = decompose(s.signal, s.encoded, s.read, s.readout)
    except RewardLensError as error:
        return Check("completeness", False, str(error), "-", means)
    if s.half:
        ok, value = found.closure <= CLOSURE, found.closure
        allowed = f"{CLOSURE:.0e} with rounding"
    else:
        ok, value = found.completeness <= COMPLETENESS_FP32, found.completeness
        allowed = f"{COMPLETENESS_FP32:.0e}"
    return Check(
        "completeness", bool(ok), f"writes miss the score by {value:.1e} of their size", allowed,
        means,
    )  # fmt: skip


@torch.no_grad()
def hooked_plain(s: Probed) -> Check:
    """A forward that is looked at is bit-equal to one that is not."""
    trunk = s.signal.trunk
    anatomy = trunk.anatomy
    sites = [Site("resid_post", i) for i in range(trunk.n_layers)]
    sites += write_sites(anatomy) if anatomy.adds_up else []
    different = 0
    for encoded in s.encoded:
        (batch,) = trunk.batches([encoded], WHOLE)
        different += not torch.equal(trunk.forward(batch, {})[0], trunk.looked_at(batch, sites))
    return Check(
        "hooked = plain", different == 0, f"{different} of {len(s.encoded)} forwards differ", "0",
        "looking changes what is looked at: activations are not those of the scored forward",
    )  # fmt: skip


def tokenizer_fits(s: Probed) -> Check:
    """Every id of the tokenizer has an embedding."""
    rows = int(s.signal.trunk.model.get_input_embeddings().weight.shape[0])
    top = max(s.signal.encoder.tokenizer.get_vocab().values())
    return Check(
        "tokenizer fits", top < rows, f"ids up to {top}, {rows} embeddings", "every id embedded",
        "texts with the ids beyond would crash, or the tokenizer is another model's",
    )  # fmt: skip


def checkpoint_keys(s: Probed) -> Check:
    """Every weight equals the one in the checkpoint's files, where they are in a local folder."""
    means = "the model that is scored is not the checkpoint: weights were lost, or changed later"
    folder = Path(s.signal.meta.source).expanduser()
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    inert = len(s.signal.meta.ignored_keys)
    if not files:
        return Check("checkpoint keys", True, "not loaded from a folder: nothing to compare", "-",
                     means)  # fmt: skip
    held = s.signal.trunk.model.state_dict()
    differ, same, other = list(s.signal.trunk.written_to()), 0, 0
    for file in files:
        with opened(file) as tensors:
            for key in tensors.keys():  # noqa: SIM118 - the handle is no mapping
                name = _held_as(key, tuple(tensors.get_slice(key).get_shape()), held)
                if name is None or not held[name].is_floating_point():  # counters, mask buffers
                    other += 1  # inert, merged or packed on loading; missing keys are refused there
                elif torch.equal(tensors.get_tensor(key).to(held[name].dtype), held[name].cpu()):
                    same += 1
                else:
                    differ.append(key)
    differ = list(dict.fromkeys(differ))
    named = f", first {differ[0]}" if differ else ""
    return Check(
        "checkpoint keys", not differ,
        f"{same} equal, {len(differ)} differ or were written to since{named}, {other} merged or "
        f"inert ({inert} named as inert)", "0 differ", means,
    )  # fmt: skip


def _held_as(key: str, shape: tuple[int, ...], held: Mapping[str, torch.Tensor]) -> str | None:
    """The name under which the model holds a tensor of the files: the same, or with another prefix.

    The longest common ending decides, if only one name of that shape has it.
    """
    if key in held:
        return key if tuple(held[key].shape) == shape else None
    parts = key.split(".")
    for start in range(1, len(parts)):
        ending = ".".join(parts[start:])
        found = [n for n, t in held.items() if tuple(t.shape) == shape
                 and (n == ending or n.endswith(f".{ending}"))]  # fmt: skip
        if found:
            return found[0] if len(found) == 1 and start < len(parts) - 1 else None
    return None


def template_round_trip(s: Probed) -> Check:
    """One BOS where there is one at all, and tokens that decode to the text they stand for."""
    encoder, wrong = s.signal.encoder, []
    bos, convention = encoder.frame.opening, s.signal.meta.bos
    for item, encoded in zip(s.items, s.encoded, strict=True):
        ids = encoded.ids.tolist()
        starts = next((k for k, i in enumerate(ids) if i != bos), len(ids))
        if bos is not None and convention in ("template", "tokenizer") and starts != 1:
            wrong.append(f"{starts} BOS at the start")
        if not encoded.cut and encoder.align(item).verified is None:
            wrong.append("tokens could not be placed in the text they stand for")
    return Check(
        "template round trip", not wrong,
        f"{len(wrong)} faults" + (f": {wrong[0]}" if wrong else f"; BOS by {convention}"), "0",
        "the model is given another text than the one shown, or begins with a doubled BOS",
    )  # fmt: skip


@torch.no_grad()
def patch_engine(s: Probed) -> Check:
    """Which executors of changed runs agree with the full forward here."""
    means = "patches are run by full forwards only, which is right and slower"
    if not s.signal.trunk.anatomy.blocks:
        return Check("patch engine", True, "no blocks were found: nothing can be changed", "-", "")
    engine = engine_of(s.signal.trunk)
    ran = [f"{name} {gap:.1e}" for name, gap in engine.gaps.items() if engine.offers(name)]
    lost = [f"no {name}: {why}" for name, why in engine.missing.items()]
    return Check("patch engine", True, "; ".join([*ran, *dict.fromkeys(lost)]),
                 f"{TOLERANCE:.0e} of the largest effect, else full forwards", means)  # fmt: skip


def finite(s: Probed) -> Check:
    """States are finite in the dtype in use; other dtypes are tried in a copy where it is small."""
    trunk = s.signal.trunk
    said = []
    size = sum(p.numel() * 4 for p in trunk.model.parameters())
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        if dtype == trunk.dtype:
            said.append(f"{name} {'finite' if bool(np.isfinite(s.alone).all()) else 'NOT FINITE'}")
            continue
        if size > _COPY_LIMIT:
            said.append(f"{name} not tried (a copy would be large)")
            continue
        said.append(f"{name} {_finite_in(s, dtype)}")
    return Check(
        "finite", bool(np.isfinite(s.alone).all()), "; ".join(said), "finite in the dtype in use",
        "scores are NaN or infinite: load the model in another dtype",
    )  # fmt: skip


def _finite_in(s: Probed, dtype: torch.dtype) -> str:
    """What a copy of the model in another dtype does with the probes."""
    model: Any = copy.deepcopy(s.signal.trunk.model).to(dtype)
    try:
        logits = [
            model(input_ids=torch.from_numpy(e.ids)[None].to(s.signal.trunk.device)).logits
            for e in s.encoded
        ]
    except (RuntimeError, ValueError, TypeError) as error:  # some kernels lack some dtypes
        return f"does not run ({type(error).__name__})"
    ok = all(bool(torch.isfinite(x).all()) for x in logits)
    return "finite" if ok else "NOT FINITE: do not load it so"


def four_threads(s: Probed) -> Check:
    """Capture from four threads at once gives the serial results."""
    site = [Site("resid_post", k) for k in range(s.signal.meta.n_layers)]

    def capture(k: int) -> list[torch.Tensor]:
        (batch,) = s.signal.trunk.batches([s.encoded[k]], WHOLE)
        return list(s.signal.trunk.capture(batch, site).values())

    jobs = list(range(len(s.encoded))) * 2
    serial = [capture(k) for k in jobs]
    with ThreadPoolExecutor(4) as pool:
        threaded = list(pool.map(capture, jobs))
    pairs = zip(serial, threaded, strict=True)
    wrong = sum(not all(map(torch.equal, a, b)) for a, b in pairs)
    return Check(
        "four threads", wrong == 0, f"{wrong} of {len(jobs)} captures differ", "0",
        "activations of one text end up in another's when threads share the signal",
    )  # fmt: skip
