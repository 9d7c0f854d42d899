from __future__ import annotations

import json

import pandas as pd
import pytest

from reward_lens.data import as_pairs
from reward_lens.data.choices import Choices, as_choices, load_choices
from reward_lens.errors import DataError

ROW = {
    "id": "7",
    "prompt": "Name a colour",
    "chosen": ["red"],
    "rejected": ["one", "two", "three"],
    "num_correct": 1,
    "num_incorrect": 3,
    "total_completions": 4,
    "models": ["a", "b", "c", "d"],
    "subset": "Focus",
    "additional_metadata": {"label": None},
}


def test_a_row_of_rewardbench_2():
    (choice,) = as_choices([ROW])
    assert (choice.id, choice.subset) == ("7", "Focus")
    assert [x.response for x in choice.correct] == ["red"]
    assert [x.response for x in choice.wrong] == ["one", "two", "three"]
    assert {x.prompt_text for x in choice.items} == {"Name a colour"}
    assert len({x.lineage for x in choice.items} | {choice.lineage}) == 1


def test_other_forms_of_the_same_choice():
    plain = {"prompt": "Name a colour", "chosen": "red", "rejected": ["one", "two", "three"]}
    turns = {
        "prompt": [{"role": "user", "content": "Name a colour"}],
        "chosen": [{"role": "assistant", "content": "red"}],
        "rejected": ["one", "two", "three"],
    }
    labelled = {
        "question": "Name a colour",
        "responses": ["one", "red", "two", "three"],
        "labels": [0, True, 0, False],
    }
    found = {as_choices([row]).fingerprint for row in (ROW, plain, turns, labelled)}
    assert len(found) == 1


def test_tables_files_and_saved_data_sets(tmp_path):
    import datasets

    rows = [{**ROW, "id": str(k)} for k in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    table = pd.DataFrame(rows).drop(columns="additional_metadata")
    table.to_parquet(tmp_path / "a.parquet")
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    expected = as_choices(rows).fingerprint
    for source in ("a.jsonl", "a.json", "a.parquet", "saved"):
        assert load_choices(tmp_path / source).fingerprint == expected, source
    assert load_choices(table).fingerprint == expected
    assert len(load_choices(tmp_path / "a.jsonl", limit=2)) == 2


def test_pairs_are_best_of_two_and_choices_give_pairs():
    pairs = as_pairs([("p", "a", "b"), ("q", "c", "d")])
    choices = as_choices(pairs)
    assert [len(c.items) for c in choices] == [2, 2]
    assert choices.ids == pairs.ids
    assert choices.pairs().fingerprint == pairs.fingerprint
    several = as_choices([{**ROW, "chosen": ["red", "blue"], "num_correct": 2,
                           "total_completions": 5}]).pairs()  # fmt: skip
    assert len(several) == 6
    assert len(set(several.lineages)) == 1


def test_slices_and_counts():
    choices = as_choices([{**ROW, "id": str(k), "subset": "ab"[k % 2]} for k in range(4)])
    assert choices.subset_counts == {"a": 2, "b": 2}
    assert isinstance(choices[:2], Choices)
    assert "4 choices among 16 responses" in repr(choices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_correct": 2}, "row 0: num_correct is 2, but the row has 1"),
        ({"total_completions": 5}, "total_completions is 5, but the row has 4"),
        ({"rejected": []}, "row 0: no response is wrong"),
        ({"rejected": ["one", " "]}, r"row 0: rejected\[1\] is empty"),
        ({"rejected": None}, "neither chosen and rejected, nor responses and labels"),
        ({"responses": ["x"]}, "it is not clear what is scored"),
        ({"prompt": None}, "row 0 has no field 'prompt'"),
        ({"question": "again"}, "'prompt' and 'question' could each be the prompt"),
    ],
)
def test_rows_that_are_not_understood_are_refused_by_name(change, message):
    with pytest.raises(DataError, match=message):
        as_choices([{**ROW, **change}])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 0], "3 responses, but 2 labels"),
        ([1, 0, 2], "must be a list with true or false"),
        ([0, 0, 0], "no response is correct"),
        ("101", "must be a list with true or false"),
    ],
)
def test_labels_that_do_not_fit(labels, message):
    with pytest.raises(DataError, match=message):
        as_choices([{"prompt": "p", "responses": ["a", "b", "c"], "labels": labels}])


def test_other_refusals(tmp_path):
    with pytest.raises(DataError, match="the id '7' was used before, at row 0"):
        as_choices([ROW, ROW])
    with pytest.raises(DataError, match="got one Choice; put it in a list"):
        as_choices(as_choices([ROW])[0])
    with pytest.raises(DataError, match="for a file use load_choices"):
        as_choices("file.jsonl")
    with pytest.raises(DataError, match=r"there is no such file.*datasets\.load_dataset"):
        load_choices("allenai/reward-bench-2")
    (tmp_path / "a.csv").write_text("prompt\n")
    with pytest.raises(DataError, match="CSV cannot hold lists"):
        load_choices(tmp_path / "a.csv")
    with pytest.raises(DataError, match="no column 'kind'"):
        as_choices([ROW], subset="kind")
    with pytest.raises(DataError, match="there are no choices"):
        as_choices([])
