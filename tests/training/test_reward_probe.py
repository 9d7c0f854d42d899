"""The probe in short real training runs."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from families import make_model, make_tokenizer
from transformers import Trainer, TrainerCallback, TrainingArguments

import reward_lens as rl
from reward_lens.assets import asset
from reward_lens.errors import AnatomyError, DataError, RewardLensError
from reward_lens.training import RewardProbe
from reward_lens.training.probe_callback import VALUES
from reward_lens.training.undisturbed import plain_model, undisturbed

NAMES = set(VALUES)


def made_pairs(start, count):
    """Pairs whose chosen side says yes."""
    return [(f"Question {k}?", f"yes, {k} it is indeed", f"no, {k} is not") for k in
            range(start, start + count)]  # fmt: skip


PROBE = made_pairs(100, 6)


class Preferences(torch.utils.data.Dataset):
    """Ids of both sides, as an audit would render them."""

    def __init__(self, signal, pairs):
        both = signal.encode([(p, r) for p, a, b in pairs for r in (a, b)])
        self.rows = [(a.ids, b.ids) for a, b in zip(both[::2], both[1::2], strict=True)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        return {"chosen": self.rows[k][0], "rejected": self.rows[k][1]}


class BradleyTerryTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        scores = model(input_ids=inputs["ids"], attention_mask=inputs["mask"]).logits[:, 0]
        chosen, rejected = scores.chunk(2)
        loss = -torch.nn.functional.logsigmoid(chosen - rejected).mean()
        return (loss, {"margin": chosen - rejected}) if return_outputs else loss

    def prediction_step(self, model, inputs, *_, **__):
        with torch.no_grad():
            return self.compute_loss(model, self._prepare_inputs(inputs)), None, None


def collate(rows):
    sides = [torch.as_tensor(r[s]) for s in ("chosen", "rejected") for r in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad(sides, batch_first=True, padding_value=256)
    mask = pad([torch.ones_like(s) for s in sides], batch_first=True)
    return {"ids": ids, "mask": mask}


class Seen(TrainerCallback):
    """Stands for a reporter: sees what is logged."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.append((state.global_step, dict(logs)))


def arguments(tmp_path, **more):
    given = {
        "output_dir": str(tmp_path), "max_steps": 6, "eval_strategy": "steps", "eval_steps": 3,
        "per_device_train_batch_size": 4, "learning_rate": 3e-3, "logging_steps": 2,
        "report_to": [], "use_cpu": True, "remove_unused_columns": False, "disable_tqdm": True,
        "save_strategy": "no", "seed": 1, "dataloader_pin_memory": False, **more,
    }  # fmt: skip
    return TrainingArguments(**given)


def make_trainer(tmp_path, callbacks=(), model=None, **more):
    tokenizer = make_tokenizer()
    model = make_model("llama") if model is None else model
    with torch.no_grad():
        model.score.weight.mul_(0.1)
    data = Preferences(rl.wrap_hf_model(model, tokenizer), made_pairs(0, 12))
    return BradleyTerryTrainer(
        model=model,
        args=arguments(tmp_path, **more),
        train_dataset=data,
        eval_dataset=data,
        data_collator=collate,
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )


def test_a_training_run_logs_what_the_instruments_measure(tmp_path):
    seen = Seen()
    trainer = make_trainer(tmp_path, [seen], max_steps=12, eval_steps=6, learning_rate=1e-2)
    probe = RewardProbe(PROBE).attach(trainer)
    trainer.train()
    assert [p.step for p in probe.history] == [0, 6, 12]
    assert set(probe.history[0].values) == NAMES
    logged = [(s, x) for s, x in seen.logs if "eval_probe_accuracy" in x]
    assert [s for s, _ in logged] == [0, 6, 12]
    for (_, x), found in zip(logged, probe.history, strict=True):
        assert {k: x["eval_probe_" + k] for k in NAMES} == pytest.approx(found.values, nan_ok=True)
    # what was logged last is what an audit of the model finds now
    signal = rl.wrap_hf_model(trainer.model, trainer.processing_class)
    ev, depths = rl.preference(signal, PROBE), rl.lens(signal, PROBE)
    last = probe.history[-1].values
    assert last["accuracy"] == ev.interval("accuracy").estimate
    assert last["length_slope"] == pytest.approx(ev.interval("length.slope").estimate)
    table = depths.tables["crystallization"].set_index("reading")
    for reading in ("frozen", "applied"):
        assert last[f"first_depth_{reading}"] == table.loc[reading, "median_first"]
        assert last[f"stable_depth_{reading}"] == table.loc[reading, "median_stable"]
    norm = trainer.model.score.weight.detach().double().norm()
    assert last["head_norm"] == pytest.approx(float(norm))
    # and training moved it: the probe pairs follow the same rule as the training pairs
    first = probe.history[0].values
    assert last["median_margin"] > first["median_margin"]
    assert last["accuracy"] == 1.0
    signals = {p.preference.subject.signal for p in probe.history}
    assert len(signals) == 3
    assert probe.history[1].preference.subject.notes["source"] == "training, step 6"


def test_training_is_the_same_with_and_without_the_probe(tmp_path):
    def run(probed):
        torch.manual_seed(0)
        model = make_model("llama", attention_dropout=0.3)  # uses the random state
        trainer = make_trainer(tmp_path, model=model)
        if probed:
            RewardProbe(PROBE, every=1).attach(trainer)
        trainer.train()
        return {k: v.clone() for k, v in trainer.model.state_dict().items()}

    plain, probed = run(False), run(True)
    assert all(torch.equal(plain[k], probed[k]) for k in plain)


def test_everything_is_left_as_it_was_found(tmp_path):
    trainer = make_trainer(tmp_path)
    probe = RewardProbe(PROBE).attach(trainer)
    model = trainer.model
    model.train()
    model.model.layers[1].eval()  # a part that the user froze
    modes = [m.training for m in model.modules()]
    loss = trainer.compute_loss(model, collate([trainer.train_dataset[0]]))
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.model.embed_tokens.weight.requires_grad_(False)
    wanted = [p.requires_grad for p in model.parameters()]
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    state = (random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state())
    probe.measure()
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == wanted
    for kept, p in zip(gradients, model.parameters(), strict=True):
        assert torch.equal(kept, p.grad)
    assert random.getstate() == state[0]
    assert np.array_equal(np.random.get_state()[1], state[1])
    assert torch.equal(torch.get_rng_state(), state[2])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_modes_and_random_states_come_back_after_an_error():
    model = make_model("llama").train()
    torch.manual_seed(3)
    before = torch.get_rng_state()

    def fail():
        with undisturbed(model):
            assert not model.training
            torch.rand(3)
            random.random()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert all(m.training for m in model.modules())
    assert torch.equal(torch.get_rng_state(), before)


def test_values_join_the_metrics_of_an_evaluation_and_are_not_measured_twice(tmp_path):
    trainer = make_trainer(tmp_path)
    probe = RewardProbe(PROBE, at_start=False).attach(trainer)
    metrics = trainer.evaluate()
    assert metrics["eval_probe_accuracy"] == probe.history[0].values["accuracy"]
    again = trainer.evaluate()  # a second evaluation set at the same step
    assert len(probe.history) == 1
    assert again["eval_probe_accuracy"] == metrics["eval_probe_accuracy"]
    with torch.no_grad():
        trainer.model.score.weight.mul_(-1)
    trainer.evaluate()
    assert len(probe.history) == 2


def test_every_so_many_steps_and_a_store(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=4, eval_strategy="no")
    with rl.EvidenceStore(tmp_path / "probe.db") as store:
        probe = RewardProbe(PROBE, every=2, at_start=False, store=store).attach(trainer)
        trainer.train()
        assert [p.step for p in probe.history] == [2, 4]
        assert sorted(store.to_dataframe()["instrument"]) == ["lens", "lens"] + ["preference"] * 2
    assert json.dumps(trainer.state.log_history)


def test_a_best_checkpoint_may_be_chosen_by_a_probe(tmp_path):
    trainer = make_trainer(
        tmp_path, save_strategy="best", metric_for_best_model="eval_probe_accuracy"
    )
    RewardProbe(PROBE).attach(trainer)
    trainer.train()
    assert trainer.state.best_metric is not None


def test_a_model_that_was_exchanged_is_found_anew(tmp_path):
    trainer = make_trainer(tmp_path)
    probe = RewardProbe(PROBE).attach(trainer)
    first = probe.measure()
    other = make_model("llama", seed=5)
    trainer.model = other
    found = probe.measure()
    assert found.preference.subject.signal != first.preference.subject.signal
    expected = rl.preference(rl.wrap_hf_model(other, make_tokenizer()), PROBE)
    np.testing.assert_array_equal(found.preference.value, expected.value)


def test_probe_refuses_with_the_reason(tmp_path):
    for every in ("epoch", 0, True, 1.5):
        with pytest.raises(DataError, match="give 'evaluate' or a number of steps"):
            RewardProbe(PROBE, every=every)
    trainer = make_trainer(tmp_path, [RewardProbe(PROBE)])
    with pytest.raises(RewardLensError, match=r"call probe\.attach\(trainer\)"):
        trainer.train()
    probe = RewardProbe(PROBE).attach(make_trainer(tmp_path))
    with pytest.raises(RewardLensError, match="attached to a trainer already"):
        probe.attach(trainer)
    trainer.processing_class = None
    with pytest.raises(RewardLensError, match="no tokenizer"):
        RewardProbe(PROBE).attach(trainer)


def test_sharded_and_wrapped_models():
    model = make_model("llama")
    assert plain_model(torch.nn.DataParallel(model)) is model
    model.model.embed_tokens.weight.ds_id = 3  # as DeepSpeed marks ZeRO-3 parameters
    with pytest.raises(AnatomyError, match="sharded over processes.*load_signal"):
        plain_model(model)


def test_mixed_precision_is_read_in_the_precision_of_the_weights(tmp_path):
    trainer = make_trainer(tmp_path, bf16=True)
    probe = RewardProbe(PROBE).attach(trainer)
    trainer.train()
    fresh = make_model("llama")
    fresh.load_state_dict(trainer.model.state_dict())
    expected = rl.preference(rl.wrap_hf_model(fresh, make_tokenizer()), PROBE)
    np.testing.assert_array_equal(probe.history[-1].preference.value, expected.value)


# PEFT 0.21 asks for an argument that transformers renamed.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing:FutureWarning")
def test_lora_is_measured_and_prompt_tuning_refused(tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    lora = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["q_proj", "o_proj"])
    trainer = make_trainer(tmp_path, max_steps=3)
    trainer.model = model = peft.get_peft_model(trainer.model, lora)
    probe = RewardProbe(PROBE).attach(trainer)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_()
    found = probe.measure()
    signal = rl.wrap_hf_model(make_model("llama"), make_tokenizer())
    with torch.no_grad():
        encoded = signal.encode([(p, a) for p, a, _ in PROBE])
        own = [model(input_ids=torch.as_tensor(e.ids)[None]).logits.item() for e in encoded]
    np.testing.assert_allclose(found.preference.value.sel(side="chosen"), own, atol=1e-5)
    trainer.model = peft.get_peft_model(
        make_model("llama"), peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2)
    )
    with pytest.raises(AnatomyError, match="PromptTuningConfig.* adds learned tokens"):
        probe.measure()


# TRL checkpoints activations by default, under an argument that transformers renamed.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")
def test_trl_reward_trainer_on_real_pairs(tmp_path):
    trl = pytest.importorskip("trl", reason="trl is not installed")
    import datasets
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    demo = asset("demo/model")
    tokenizer = AutoTokenizer.from_pretrained(demo)
    model = AutoModelForSequenceClassification.from_pretrained(demo, dtype=torch.float32)
    pairs = rl.load_pairs(asset("demo/pairs.jsonl"))
    short = pairs.select(
        [k for k, p in enumerate(pairs) if all(len(x.prompt_text + x.response) < 300
                                               for x in (p.chosen, p.rejected))][:40]
    )  # fmt: skip
    turn = lambda role, text: [{"role": role, "content": text}]  # noqa: E731
    rows = [
        {
            "prompt": turn("user", p.chosen.prompt_text),
            "chosen": turn("assistant", p.chosen.response),
            "rejected": turn("assistant", p.rejected.response),
        }
        for p in short[8:]
    ]
    data = datasets.Dataset.from_list(rows)
    seen = Seen()
    config = trl.RewardConfig(
        output_dir=str(tmp_path), max_steps=4, eval_strategy="steps", eval_steps=2,
        learning_rate=1e-4, per_device_train_batch_size=4, logging_steps=2, report_to=[],
        use_cpu=True, bf16=False, disable_tqdm=True, save_strategy="no",
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = trl.RewardTrainer(
        model=model, args=config, train_dataset=data, eval_dataset=data.select(range(4)),
        processing_class=tokenizer, callbacks=[seen],
    )  # fmt: skip
    probe = RewardProbe(short[:8]).attach(trainer)
    # the probe reads texts as the trainer does
    items = [(p.chosen.prompt_text, p.chosen.response) for p in short[8:]]
    ours = [e.ids.tolist() for e in rl.wrap_hf_model(model, tokenizer).encode(items)]
    assert [list(x) for x in trainer.train_dataset["chosen_ids"]] == ours
    trainer.train()
    assert [p.step for p in probe.history] == [0, 2, 4]
    for found in probe.history:
        assert np.isfinite([found.values[k] for k in NAMES]).all()
    assert len({p.values["median_margin"] for p in probe.history}) == 3
    # the trainer's own averages over training steps still reach its own entries, and no others
    own = [x for _, x in seen.logs if "loss" in x]
    assert len(own) == 2
    assert all("accuracy" in x and "eval_probe_accuracy" not in x for x in own)
    probed = [x for _, x in seen.logs if "eval_probe_accuracy" in x]
    assert len(probed) == 3
    assert all("accuracy" not in x for x in probed)
