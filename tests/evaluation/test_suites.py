"""Suites by name: the paper's fifteen tasks, what is made from files, and what is refused."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

import attnres
from attnres.evaluation import cloze
from attnres.evaluation.big_bench import read_task
from attnres.evaluation.paper import ATTN_RES, BASELINE, PAPER, _cmath_answer
from attnres.evaluation.suites import chosen_tasks, tasks_of
from attnres.train.corpus import embedded_documents
from attnres.train.data import split_documents

pytest.importorskip("tokenizers")


def test_the_paper_has_fifteen_tasks_of_which_one_is_a_tie():
    assert len({task.name for task in PAPER}) == len(PAPER) == 15
    gains = [round(t.reported[ATTN_RES] - t.reported[BASELINE], 1) for t in PAPER]
    assert sorted(gains)[0] == 0.0 < sorted(gains)[1]
    assert max(gains) == 7.5
    assert [task.name for task in PAPER if task.n_runs == 8] == ["gpqa_diamond"]
    assert {task.name for task in PAPER if task.runs_code} == {"humaneval", "mbpp"}
    assert all(task.source.count(": ") >= 2 for task in PAPER)


def test_the_page_has_every_task_of_the_paper_with_its_shots_and_metric():
    page = (Path(attnres.__file__).parent.parent / "docs" / "evaluation.md").read_text()
    rows = [[cell.strip(" *") for cell in line.split("|")] for line in page.splitlines()]
    rows = [row for row in rows if len(row) == 7 and row[3].isdecimal()]
    assert [(row[1], row[3]) for row in rows] == [(t.name, str(t.n_shots)) for t in PAPER]
    for row, task in zip(rows, PAPER, strict=True):
        assert row[4].split(", ")[0] == task.metric


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [("12", 1), ("12。因为", 1), ("x=12", 1), ("1,200", 0), ("", 0), ("-12", 0), ("120", 0)],
)
def test_the_first_number_of_a_chinese_answer_counts(answer, is_right):
    assert _cmath_answer({"golden": "12"}, [answer]) == {"exact_match": is_right}


@pytest.mark.parametrize(
    ("suites", "specs", "words"),
    [
        (["own"], [], "no suite 'own'; there are: paper, reasoning"),
        (["paper:mmlu,own"], [], "suite 'paper' has no task 'own'; it has: mmlu"),
        ([], [], "give tasks by --suite or --tasks"),
        (["paper:mmlu"], ["mmlu"], "asked for twice: mmlu"),
        (["bigbench"], [], "--big-bench FOLDER"),
    ],
)
def test_what_there_is_not_is_refused(suites, specs, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        chosen_tasks(suites, specs, None, None)


def test_some_tasks_of_a_suite_with_other_shots():
    found = chosen_tasks(["paper:gsm8k,mmlu"], ["arc_easy"], 2, None)
    assert [(task.name, task.n_shots) for task in found] == [
        ("gsm8k", 2), ("mmlu", 2), ("arc_easy", 2)
    ]  # fmt: skip


def test_passages_end_with_a_word_they_had_and_offer_others_they_had():
    texts = [document.text for document in embedded_documents()]
    train, held_out = split_documents(texts, 0.05)
    common = cloze.common_words(train)
    rows = cloze.passages(held_out, common)
    assert len(rows) == 792
    assert len({row["text"] for row in rows}) > 0.99 * len(rows)
    places = [0] * cloze.N_CHOICES
    for row in rows:
        words = row["text"].split(" ")
        assert len(words) == cloze.N_WORDS
        assert len(set(row["choices"])) == cloze.N_CHOICES
        assert set(row["choices"]) <= set(words) - common
        assert row["choices"][row["gold"]] == row["answer"]
        places[row["gold"]] += 1
    assert min(places) > 150
    trained = "\n".join(train)
    assert not any(row["text"] in trained for row in rows[::20])
    assert rows == cloze.passages(held_out, common)
    assert len(cloze.passages(held_out, common, 50)) == 50


def test_a_choice_is_not_given_away_by_length_or_by_how_common_a_word_is():
    texts = [document.text for document in embedded_documents()]
    train, held_out = split_documents(texts, 0.05)
    count = Counter(word for text in train for word in cloze.WORD.findall(text.lower()))
    rows = cloze.passages(held_out, cloze.common_words(train))
    assert share_right(rows, lambda word: -len(word)) < 0.3
    assert share_right(rows, lambda word: count[word]) < 0.35


def share_right(rows, score) -> float:
    """Of a reader that takes the choice of highest score, knowing nothing of the passage."""
    return sum(max(row["choices"], key=score) == row["answer"] for row in rows) / len(rows)


def big_bench_file(folder: Path, **settings) -> Path:
    examples = [
        {"input": "2 and 2", "target_scores": {"4": 1, "5": 0}},
        {"input": "any", "target_scores": {"a": 1, "b": 1}},
        {"input": "3 and 3", "target_scores": {"5": 0, "6": 0.5}},
    ]
    file = folder / "sums" / "task.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"examples": examples} | settings))
    return file


def test_questions_of_big_bench_are_put_as_their_file_says(tmp_path):
    first, second = read_task(big_bench_file(tmp_path, task_prefix="Add."))
    assert first["text"] == "Add.\nQ: 2 and 2\n  choice: 4\n  choice: 5\nA:"
    assert (first["choices"], first["gold"]) == (["4", "5"], 0)
    assert (second["choices"], second["gold"]) == (["5", "6"], 1)
    (tmp_path / "other").mkdir()
    file = big_bench_file(
        tmp_path / "other",
        append_choices_to_input="false", example_input_prefix="", example_output_prefix="=",
    )  # fmt: skip
    assert read_task(file)[0]["text"] == "2 and 2="


def test_tasks_of_big_bench_go_by_their_folders(tmp_path):
    big_bench_file(tmp_path)
    (task,) = tasks_of("bigbench:sums", tmp_path)
    assert task.name == "bigbench_sums"
    with pytest.raises(ValueError, match="no task 'navigate' of BIG-bench"):
        tasks_of("bigbench:navigate", tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "task.json").write_text('{"examples": [{"input": "x", "target": "y"}]}')
    with pytest.raises(ValueError, match="no multiple-choice questions"):
        read_task(tmp_path / "empty" / "task.json")
