import numpy as np
import pytest

from endx_jax.data.articles import cut, join
from endx_jax.data.records import RetrievalSet

# Question 2 is about Cats, and one of its right sentences stands in Dogs; Birds has a question and no sentence, Fish a
# sentence and no question.
RECORDS = RetrievalSet(
    questions=("who sleeps?", "who barks?", "who eats?", "who flies?"),
    candidates=("Cats sleep.", "Dogs bark.", "They eat.", "Mäuse – nicht.", "Fish swim."),
    qrels=((0,), (1,), (2, 3), (2,)),
    question_ids=("q0", "q1", "q2", "q3"),
    candidate_ids=("s0.0", "s1.0", "s1.1", "s2.0", "s3.0"),
    groups=("Cats", "Dogs", "Cats", "Birds"),
    hard_negatives=((), (0, 2), (0,), ()),
)
HOMES = ["Cats", "Dogs", "Dogs", "Cats", "Fish"]


def test_an_article_has_its_sentences_its_questions_and_their_pairs():
    cats, dogs, fish, birds = cut(RECORDS, HOMES)
    assert [cats["title"], dogs["title"], fish["title"], birds["title"]] == ["Cats", "Dogs", "Fish", "Birds"]
    assert cats["sentences"]["index"].tolist() == [0, 3]
    assert cats["sentences"]["id"] == ["s0.0", "s2.0"]
    assert cats["sentences"]["text"] == ["Cats sleep.", "Mäuse – nicht."]
    assert cats["questions"]["index"].tolist() == [0, 2]
    assert cats["answers"].tolist() == [[0, 0], [2, 2], [2, 3]]
    assert cats["hard_negatives"].tolist() == [[2, 0]]


def test_what_an_article_lacks_is_empty_and_keeps_its_shape():
    *_, fish, birds = cut(RECORDS, HOMES)
    assert birds["sentences"]["index"].shape == (0,)
    assert fish["answers"].shape == fish["hard_negatives"].shape == (0, 2)
    assert all(birds[name].dtype == np.int32 for name in ("answers", "hard_negatives"))


@pytest.mark.parametrize("step", [1, -1], ids=["in order", "reversed"])
def test_articles_are_put_together_to_the_same_set(step):
    assert join(list(cut(RECORDS, HOMES))[::step]) == RECORDS


def test_texts_may_be_bytes():
    def encoded(value):
        if isinstance(value, dict):
            return {key: encoded(inner) for key, inner in value.items()}
        return [text.encode() for text in value] if isinstance(value, list) else value

    articles = [encoded(article) | {"title": article["title"].encode()} for article in cut(RECORDS, HOMES)]
    assert join(articles) == RECORDS


def test_a_lost_article_is_noticed():
    _, *rest = cut(RECORDS, HOMES)
    with pytest.raises(KeyError):
        join(rest)
