import time

import pytest

from endx_jax.data.formats import squad
from endx_jax.data.sets import paragraphs
from endx_jax.data.sets.paragraphs import split_sentences

# For each rule a text that it changes; " | " marks the boundaries that are right.
EXAMPLES = {
    "stop": ['He left. | She stayed! | Who? | "Me," he said.', "It ended (so.)  | 12 remained.", "He went. home at 6."],
    "reference": ["It rained.[citation needed] | It stopped.", 'He said "no."[note 1][c] | 7 others said yes.'],
    "omission": ["They came [...] | They saw [...] | [They] won."],
    "title": ["Then Dr. Watson and Mrs. Hudson came. | Neither spoke."],
    "rank or office": ["Then Gov. Reagan met Lt. Columbo. | Neither spoke."],
    "common abbreviation": ["In Roe v. Wade, e.g. Article 9, cf. Ely, won. | Others lost."],
    "month": ["They met on Oct. 5 and Nov. 7. | Others met in May. | 8 came."],
    "mountain or fort": ["From Mt. Everest to Ft. Worth. | It is far."],
    "time zone": ["It airs at 8 p.m. Eastern and 9 a.m. EST daily.", "It airs at 8 p.m. | Then comes the news."],
    "initials": ["Thus J. R. R. Tolkien, J. R. Smith and J. Doe wrote.", 'He is H. "Buzz" Doe. | See plan B. | 7 go.'],
    "unspaced initials": ["The U.S. Senate met A.A. Milne. | Nobody else came.", "It is in the U.S. | 9 came."],
    "pronoun": ["He was in the U.S. | The Senate met.", "He left the U.S. | It was cold.", "The U.S. Theatre closed."],
    "adverb": ["He left the U.S. | However, she stayed.", "He left Dr. | Meanwhile, she stayed."],
    "preposition": ["He left the U.S. | In May he was back.", "The U.S. Information Agency closed."],
    "numbered part": ["See Vol. II, No. 5. | It says no. | Nobody knew.", "He loved art. | It paid well."],
    "date of a life": ["The king (r. 1066, b. London, c. 1028) died. | His son followed."],
    "cited work": ["So say Smith et al. 1999 and Doe et al. (2001). | Few agree.", "So say Smith et al. | (I do not.)"],
    "House bill": ["They passed H.R. 40 at once. | It helped."],
    "album": ["Her third was I Am... Sasha Fierce. | It sold.", "She made I Am... World Tour and said: I Am... | Me."],
    "company": ["He joined Warner Bros. Records. | He left Warner Bros. | Nobody cared."],
    "American figure": ["It cost U.S. 20 million. | It failed.", "They left the U.S. | 9 came back."],
    "rupees": ["It cost Rs. 500 or more. | It failed."],
    "name with a stop": ["She sang with Jay Z. | Beyond that, they wrote.", "He left Washington, D.C. | Congress met."],
    "small first letter": ["It sold well. | iPods and iTunes did too. | iTunes won."],
    "omission at the end": ["They came, saw | [...]", "They came [...] and saw", "They came [...] | They saw | [...] "],
    "degree": ["He holds a B.Sc. (Honours) of Leeds. | (She does not.)"],
    "bullet": ["There are two: | • One thing | •Another • and more"],
}


def split(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


def examples():
    return [(rule, marked) for rule, texts in EXAMPLES.items() for marked in texts]


@pytest.mark.parametrize(("rule", "marked"), examples())
def test_sentences_end_where_they_should(rule, marked):
    assert split(marked.replace(" | ", " ")) == [sentence.strip() for sentence in marked.split(" | ")]


@pytest.mark.parametrize("rule", [rule.name for rule in paragraphs.RULES])
def test_without_a_rule_its_first_example_splits_otherwise(rule, monkeypatch):
    monkeypatch.setattr(paragraphs, "RULES", [other for other in paragraphs.RULES if other.name != rule])
    marked = EXAMPLES[rule][0]
    assert split(marked.replace(" | ", " ")) != marked.split(" | ")


@pytest.mark.parametrize(
    ("words", "then"),
    [
        ("Mr Mrs Ms Dr Prof Fr Rev Msgr St Sta Lt Gen Col Maj Adm Capt Sgt Rep Gov Sen Pres", "Doe"),
        ("e.g ie i.e v vs p pp cf a.k.a approx app esp est tr Jan Aug Oct Nov Dec Mt Ft", "Doe"),
        ("Art art No no Op Opp ch Sec cl Rec Ecl Cor Lk Jn Vol", "XIV"),
        ("Art art No no Op Opp ch Sec cl Rec Ecl Cor Lk Jn Vol b d r c ca fl", "14"),
        ("b d r c ca fl", "Doe"),
        ("a.m p.m", "EST"),
    ],
)
def test_abbreviations_are_mended_as_whole_words(words, then):
    for word in words.split():
        assert split(f"So {word}. {then}") == [f"So {word}. {then}"]
        assert split(f"So ab{word}. {then}") == [f"So ab{word}.", then]


def test_words_that_begin_a_sentence_break_again_and_white_space_is_in_none():
    pronouns = "The This That These It"
    others = "Meanwhile However In On By During After Under Although Yet As Several"
    for word in [*pronouns.split(), *others.split(), "According to"]:
        assert split(f"In the U.S. {word} was so.") == ["In the U.S.", f"{word} was so."]
    assert split("In the U.S. According many") == ["In the U.S. According many"]
    assert split_sentences("  One.  Two.\t") == [(2, 6), (8, 12)]
    assert split_sentences("One.\u2009Two.\u3000\u00e9t\u00e9") == [(0, 4), (5, 13)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["यह पहला है।", "यह दूसरा है।"],
        ["هذا أول 3.5 من 10.", "هل هذا ثان؟", "نعم قال د. محمد."],
        ["這是第一句。", "這是「第二句！」", "第三句？"],
        ["Это А. С. Пушкин, г. Москва.", "Он жил в 1820.", "«Да!»"],
        ["이것은 첫째다.", "둘째다."],
        ["პირველი.", "მეორე."],
        ["Most of this is in Latin script. 第一。第二。 Это. Он."],
    ],
)
def test_full_stops_of_other_scripts_end_sentences(sentences):
    assert split(" ".join(sentences)) == sentences


def test_spans_of_real_paragraphs_cover_all_but_white_space(test_data):
    paragraphs = squad.squad_paragraphs(str(test_data / "data/squad/dev-v1.1.json.gz"))
    for context in (paragraph.context for paragraph in paragraphs):
        at = 0
        for start, end in split_sentences(context):
            assert not context[at:start].strip()
            assert at <= start < end
            assert context[start:end] == context[start:end].strip()
            at = end
        assert not context[at:].strip()


@pytest.mark.parametrize(
    ("part", "count"), [(".[", 1_000_000), (".[a][", 40_000), ("。»", 200_000), ("же.» ", 50_000), ("!   ", 60_000)]
)
def test_the_time_is_linear(part, count):
    began = time.process_time()
    split(part * count)
    assert time.process_time() - began < 1.5


def test_references_in_one_another_are_those_of_the_last_bracket():
    sentences = ["One.[a .[b][c[ .[]", "Two.[a[b] .[ c][] Three.[d][e] four.[f]", "Five"]
    assert split(" ".join(sentences)) == sentences
