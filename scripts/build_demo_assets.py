#!/usr/bin/env python3
"""Build the demo's files from the reference data: ``build_demo_assets.py DATA OUT``.

Copies the small trained model, chooses pairs it was not trained on, and writes where each came from
(``SOURCES.md``, ``licences/``). Pairs: held-out ids only, permissive sources, no subset of harmful
requests, both sides short enough for the model, at most `LARGEST` of a subset. The choice depends
on the ids alone, so running it again gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoTokenizer


class Source(NamedTuple):
    """A repository that pairs were taken from."""

    repository: str
    commit: str
    licence: str
    labels: str

    @property
    def licence_file(self) -> str:
        """Name of the licence text in the reference data and in the demo."""
        return self.repository.replace("/", "_") + ".txt"


BBQ = Source("nyu-mll/BBQ", "bea11bd97d79", "CC-BY-4.0", "made from templates by its authors")
GSM8K = Source(
    "openai/grade-school-math",
    "3101c7d50724",
    "MIT",
    "right against wrong final answer; no human judged",
)
HHH = Source(
    "prometheus-eval/prometheus-eval",
    "dcfb44272d5d",
    "Apache-2.0",
    "written by hand (the HHH alignment set of BIG-bench)",
)
LLMBAR = Source(
    "princeton-nlp/LLMBar",
    "900616bff90b",
    "MIT",
    "curated by its authors: does it do what was asked",
)
PANDALM = Source(
    "WeOpenML/PandaLM", "3871806e72b4", "Apache-2.0", "at least two of three annotators agree"
)

SUBSETS = {
    "bbq-ambig": BBQ,
    "bbq-disambig": BBQ,
    "gsm8k-solutions": GSM8K,
    "hhh-helpful": HHH,
    "hhh-honest": HHH,
    "llmbar-adver-gptinst": LLMBAR,
    "llmbar-adver-gptout": LLMBAR,
    "llmbar-adver-manual": LLMBAR,
    "llmbar-adver-neighbor": LLMBAR,
    "llmbar-case-constraint": LLMBAR,
    "llmbar-natural": LLMBAR,
    "pandalm-human": PANDALM,
}
LARGEST = 24  # pairs of one subset: all that `bbq-ambig` has
LONGEST = 400  # tokens of one side under the model's own template
SEED = 0
MODEL = "llama-small-rm"
MODEL_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)

PAGE = """# What the demo ships, and from where

## `model/`

A 4-layer Llama reward model of 4.6 MiB (MIT, with this project), trained from scratch on the
training split of the preference data that the pairs below are held out from. It is small and
honestly weak: on the 591 held-out pairs of that data its accuracy is 0.560 (standard error 0.020),
and 0.541 without `bbq-ambig`. It learned to prefer "cannot be determined" on the ambiguous BBQ
questions, and some refusal style; elsewhere it is near chance. It saw at most 192 tokens of an item
in training. Numbers of the demo are findings about this model and about nothing else.
`reference_scores.json` holds its float32 scores (chosen, rejected) of those pairs below that are at
most 192 tokens long; expect them within 1e-3.

## `pairs.jsonl`

{n} pairs, held out by prompt and at most {longest} tokens a side, chosen by
`scripts/build_demo_assets.py`. The licence is that of the repository a row was taken from; the
texts are in `licences/`.

| subset | pairs | source | commit | licence | how labelled |
|---|---|---|---|---|---|
{table}

**Held out, but not unlike.** The BBQ questions are made from templates: no demo prompt was trained
on, but {near} of the {bbq} BBQ prompts are at least {alike:.0%} alike, character for character, to
one that was. What the model gets right there shows a rule it learned, not that it generalises.

**Content note.** The BBQ rows are built from offensive stereotypes about age, disability,
nationality, appearance, religion and sexual orientation; the rejected side of `bbq-ambig` often
names the stereotyped group. They are here because they measure bias, not because anyone holds them.

**Attribution.** BBQ: A Hand-Built Bias Benchmark for Question Answering, Alicia Parrish and
co-authors, 2022, CC-BY-4.0 (https://creativecommons.org/licenses/by/4.0/),
https://github.com/nyu-mll/BBQ. Changed here: rows were selected, and each question was put together
with two of its answers as a pair.
"""
ALIKE = 0.9  # share of matching characters from which two BBQ prompts count as alike


def longest_side(row: dict[str, str], tokenizer: Any) -> int:
    """Tokens of the longer side of a pair, as the model reads it."""

    def length(response: str) -> int:
        messages = [
            {"role": "user", "content": row["prompt"]},
            {"role": "assistant", "content": response},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    return max(length(row["chosen"]), length(row["rejected"]))


def draw_key(row: dict[str, str]) -> str:
    """A pseudo-random number of the row's id, the same on every machine and Python."""
    return hashlib.sha256(f"{SEED} {row['id']}".encode()).hexdigest()


def choose(rows: list[dict[str, str]], held_out: set[str], tokenizer: Any) -> list[str]:
    """Ids of the pairs to ship."""
    chosen: list[str] = []
    for subset in SUBSETS:
        fit = [
            r
            for r in rows
            if r["subset"] == subset
            and r["id"] in held_out
            and longest_side(r, tokenizer) <= LONGEST
        ]
        chosen += [r["id"] for r in sorted(fit, key=draw_key)[:LARGEST]]
    return chosen


def count_alike(prompts: list[str], trained_on: list[str]) -> int:
    """How many prompts are at least `ALIKE` to one that was trained on."""

    def alike(a: str, b: str) -> bool:
        match = SequenceMatcher(None, a, b, autojunk=False)
        return match.quick_ratio() >= ALIKE and match.ratio() >= ALIKE

    return sum(any(alike(p, q) for q in trained_on) for p in prompts)


def sources_page(pairs: list[dict[str, str]], rows: list[dict[str, str]], trained: set[str]) -> str:
    """The text of ``SOURCES.md``."""
    counts = Counter(r["subset"] for r in pairs)
    table = "\n".join(
        f"| {subset} | {counts[subset]} | {s.repository} | {s.commit} | {s.licence} | {s.labels} |"
        for subset, s in SUBSETS.items()
    )
    bbq = [r["prompt"] for r in pairs if SUBSETS[r["subset"]] is BBQ]
    seen = [r["prompt"] for r in rows if r["id"] in trained and SUBSETS.get(r["subset"]) is BBQ]
    return PAGE.format(
        n=len(pairs),
        longest=LONGEST,
        table=table,
        near=count_alike(bbq, seen),
        bbq=len(bbq),
        alike=ALIKE,
    )


def copy_model(data: Path, out: Path, ids: list[str]) -> int:
    """Copy the model and the reference scores of the shipped pairs; how many have one."""
    source = data / "models" / MODEL
    out.mkdir(parents=True, exist_ok=True)
    for name in MODEL_FILES:
        shutil.copyfile(source / name, out / name)
    reference = json.loads((source / "reference_scores.json").read_text(encoding="utf-8"))
    scores = {i: reference["scores"][i] for i in ids if i in reference["scores"]}
    text = json.dumps({**reference, "scores": scores}, indent=1) + "\n"
    (out / "reference_scores.json").write_text(text, encoding="utf-8")
    return len(scores)


def main() -> None:
    """Write model, pairs, sources and licences."""
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    split = json.loads((data / "split.json").read_text(encoding="utf-8"))
    with (data / "pairs.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    tokenizer = AutoTokenizer.from_pretrained(data / "models" / MODEL)
    kept = set(choose(rows, set(split["test"]), tokenizer))
    pairs = [r for r in rows if r["id"] in kept]

    n_scores = copy_model(data, out / "model", [r["id"] for r in pairs])
    with (out / "pairs.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in pairs)
    page = sources_page(pairs, rows, set(split["train"]))
    (out / "SOURCES.md").write_text(page, encoding="utf-8")
    (out / "licences").mkdir(exist_ok=True)
    for source in set(SUBSETS.values()):
        name = source.licence_file
        shutil.copyfile(data / "licences" / name, out / "licences" / name)
    sys.stdout.write(f"{len(pairs)} pairs, {n_scores} of them with reference scores\n")


if __name__ == "__main__":
    main()
