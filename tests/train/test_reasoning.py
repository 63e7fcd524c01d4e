"""Questions of reasoning-gym: the same each time, and none asked that was trained on."""

import pytest

from attnres.train import reasoning
from attnres.train.data import DataConfig, load_data
from attnres.train.reasoning import FIRST_TRAINED, GENERATORS, questions, reasoning_documents

BAD_PATHS = [
    ("reasoning:own", "no generator 'own'; there are: chain_sum"),
    ("reasoning:chain_sum,n=0", "'n=0' is no setting"),
    ("reasoning:chain_sum,m=10", "'m=10' is no setting"),
    ("reasoning:n=many", "'n=many' is no setting"),
]


@pytest.mark.parametrize(("path", "words"), BAD_PATHS)
def test_bad_paths_are_refused(path, words):
    with pytest.raises(ValueError, match=words):
        reasoning_documents(path)


def test_without_the_package_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    reasoning._generator.cache_clear()
    with pytest.raises(ValueError, match=r"reasoning-gym is not installed: pip install"):
        reasoning_documents("reasoning:chain_sum,n=10")


@pytest.fixture
def gym():
    return pytest.importorskip("reasoning_gym")


@pytest.mark.parametrize("name", GENERATORS)
def test_a_question_is_its_number_alone_and_its_own_answer_is_right(gym, name):
    first = questions(name, n=12)
    assert questions(name, 5, 7) == first[5:]
    assert len({question.text for question in first}) > 6
    for question in first:
        assert question.text.endswith("\nAnswer:")
        assert "\n" not in question.answer
        assert reasoning.score(name, question.number, question.answer) == 1.0
        assert reasoning.score(name, question.number, "no such answer") < 1.0


def test_no_document_holds_a_question_that_is_asked(gym):
    names = "syllogism,chain_sum"
    documents = reasoning_documents(f"reasoning:{names},n=3000")
    texts = {document.rpartition("Answer:")[0] for document in documents}
    for name in names.split(","):
        asked = {question.text.removesuffix("Answer:") for question in questions(name)}
        trained = {q.text.removesuffix("Answer:") for q in questions(name, FIRST_TRAINED, 1500)}
        assert not asked & texts
        assert len(trained & texts) > 1000
    assert documents == reasoning_documents(f"reasoning:{names},n=3000")
    assert 5 < sum("statements" in document for document in documents[:20]) < 15


def test_a_recipe_reads_them_and_holds_out_of_each_generator(gym, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNRES_CACHE", str(tmp_path))
    path = "reasoning:chain_sum,leg_counting,n=400"
    found = load_data(DataConfig(path=path, vocab_size=300))
    assert found.n_validation_documents == 19
    assert 350 < found.n_train_documents < 381  # less what is asked
    held_out = found.tokenizer.decode(found.validation_tokens.tolist())
    assert "arithmetic problem" in held_out
    assert "legs" in held_out
