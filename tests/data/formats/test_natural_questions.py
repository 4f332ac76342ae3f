import gzip
import pathlib

import pytest
from helpers import written
from small_natural_questions import NO_ANSWER, annotation, full, page, simplified, span

from endx_jax.data import read
from endx_jax.data.formats import natural_questions, registry
from endx_jax.data.reqa import convert
from endx_jax.data.sets.paragraphs import AnswerSpan

HTML = (
    "<H1>Bees</H1> <P>The <B>bee</B> (<A href='x y'>Apis</A>) is\n small<SUP>2</SUP>. It  flies – to Käse.</P> "
    "<P>It stings.</P> <Table><Tr><Td>Wings</Td> <Td>four</Td></Tr></Table> <P></P>"
)
TOKENS = page(HTML)
FIRST = span(TOKENS, "<P> The bee ( Apis ) is small 2 . It flies – to Käse . </P>")
SECOND = span(TOKENS, "<P> It stings . </P>")
TABLE = {"start_token": span(TOKENS, "<Table>")["start_token"], "end_token": span(TOKENS, "</Table>")["end_token"]}
APIS, KAESE, STINGS = span(TOKENS, "Apis"), span(TOKENS, "Käse"), span(TOKENS, "stings")
FOUR = span(TOKENS, "four")


@pytest.fixture
def write(tmp_path):
    return lambda *rows: str(written(tmp_path / "x.jsonl", rows))


def test_the_full_files_tell_where_white_space_stands_and_in_simplified_ones_tokens_stand_apart(write):
    """As ReQA: one space where the page has some outside of tags, none where only a tag parts two tokens."""
    (found,) = natural_questions.natural_paragraphs(write(full(1, "what are bees", HTML, annotation(FIRST, KAESE))))
    assert found.context == "The bee (Apis) is small2. It flies – to Käse."
    assert found.article == "Bees"
    (question,) = found.questions
    assert (question.id, question.text) == ("1", "what are bees")
    assert question.answers == (AnswerSpan("Käse", found.context.index("Käse")),)
    row = simplified(full(1, "what are bees", HTML, annotation(FIRST, KAESE), title="Honey_bee%C3%A9"))
    (found,) = natural_questions.natural_paragraphs(write(row))
    assert found.context == "The bee ( Apis ) is small 2 . It flies – to Käse ."
    assert found.article == "Honey beeé"
    assert found.questions[0].answers == (AnswerSpan("Käse", found.context.index("Käse")),)


@pytest.mark.parametrize("form", [lambda row: row, simplified])
def test_one_short_answer_of_a_single_annotator_counts(write, form):
    kept = form(full(1, "kept", HTML, annotation(FIRST, APIS)))
    dropped = [annotation(FIRST), annotation(FIRST, APIS, KAESE), annotation(NO_ANSWER), annotation(TABLE, FOUR)]
    dropped.append(annotation(FIRST, yes_no="YES"))
    rows = [form(full(2 + n, f"dropped {n}", HTML, found)) for n, found in enumerate(dropped)]
    (found,) = natural_questions.natural_paragraphs(write(*rows, kept))
    assert found.questions[0].text == "kept"


def test_every_short_answer_of_several_annotators_counts(write):
    """Five of a question, as in the development files: two in the first paragraph, one of them twice, one elsewhere."""
    annotations = [annotation(FIRST, APIS, KAESE), annotation(SECOND, STINGS), annotation(TABLE, FOUR)]
    annotations += [annotation(NO_ANSWER), annotation(FIRST, KAESE)]
    path = write(full(1, "what are bees", HTML, *annotations))
    first, second = natural_questions.natural_paragraphs(path)
    assert [answer.text for answer in first.questions[0].answers] == ["Apis", "Käse"]
    assert (second.context, second.questions[0].answers) == ("It stings.", (AnswerSpan("stings", 3),))
    conversion = convert(path)
    assert conversion.records.candidates == ("The bee (Apis) is small2.", "It flies – to Käse.", "It stings.")
    assert conversion.records.qrels == ((0, 1, 2),)
    assert conversion.rows == 3
    whole = registry.open_data(path, registry.ReadOptions(pool="paragraphs")).records()
    assert (whole.question_ids, whole.qrels) == (("1",), ((0, 1),))


def test_an_answer_starts_at_its_first_word(write):
    html = "<P>They live <Br>in hives.</P>"
    tokens = page(html)
    short = span(tokens, "<Br> in hives")
    long = {"start_token": 0, "end_token": len(tokens)}
    rows = full(1, "where", html, annotation(long, short)), full(2, "?", html, annotation(long, span(tokens, "<Br>")))
    (found,) = natural_questions.natural_paragraphs(write(*rows))
    assert found.questions[0].answers == (AnswerSpan("in hives", found.context.index("in")),)


def test_whole_paragraphs_and_packed_files(write, tmp_path):
    plain = write(full(1, "what are bees", HTML, annotation(FIRST, APIS)))
    packed = written(tmp_path / "y.jsonl.gz", gzip.compress(pathlib.Path(plain).read_bytes()))
    assert registry.open_data(packed).format.paragraphs
    records = read(packed)
    assert records == read(plain)
    assert records.candidates == ("The bee (Apis) is small2. It flies – to Käse.",)
    assert records.groups == ("Bees",)
    row = full(9, "what", HTML, annotation(FIRST, APIS))
    del row["document_title"], row["document_url"]
    (found,) = natural_questions.natural_paragraphs(write(row))
    assert found.article == "page of 9"
