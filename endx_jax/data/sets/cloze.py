"""Training pairs from documents without questions: titles, headings and sentences as questions for their passages.

A sentence is a question for the passage that it was taken from: the inverse cloze task (Lee et al. 2019).
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from endx_jax.data.sets.documents import Document
from endx_jax.data.sets.paragraphs import split_sentences
from endx_jax.data.sets.records import RetrievalSet, RetrievalSetBuilder
from endx_jax.data.sets.splits import hash_fraction
from endx_jax.errors import EndxError

LEAST_WORDS = 5  # of a sentence that becomes a question; shorter ones are rarely about anything
SEVERAL = ""  # in place of the document of a text that occurs in several

# A heading of Markdown, or lines up to the next heading or blank line.
_BLOCK = re.compile(r"(?m)^#{1,6} .*|(?:^(?!#{1,6} ).*\S.*\n?)+")


class Cloze(NamedTuple):
    """Part `text[start:end]` of a passage, and the question that it makes."""

    start: int
    end: int
    question: str


def cloze_questions(passages: Iterable[Document], source: str, sentences: int, removal: float) -> RetrievalSet:
    """Returns passages with the questions that they make.

    Questions are the title of each document, for all its passages, and for each passage its headings and some of its
    sentences. They are removed from the passage with a probability. Both choices are made by hashes, so that they are
    the same in every epoch and on every machine. A question's group is its document: all passages with the same title
    and `source`, the file in a folder of documents. A passage without a title is a document.

    Questions and passages that occur in several documents, such as notices of copyright, are left out, since they do
    not tell documents apart.

    Args:
      passages: passages in order, as of `corpus.read_corpus`.
      source: name of the corpus, for messages.
      sentences: maximum number of sentences of a passage that become questions; at least one sentence does not.
      removal: probability with which a question is removed from its passage, in [0, 1].

    Raises:
      EndxError: there is only one document, or nothing in the passages makes a question.
    """
    triples: list[tuple[str, str, Document]] = []
    owners: tuple[dict[str, str], dict[str, str]] = {}, {}  # of questions and passages by text
    for document in passages:
        name = document_of(document)
        questions, passage = make_questions(document, sentences, removal)
        for question in questions:
            triples.append((question, passage, document))
            for owner, text in zip(owners, (question, passage), strict=True):
                if owner.setdefault(text, name) != name:
                    owner[text] = SEVERAL
    merged = RetrievalSetBuilder()
    for question, passage, document in triples:
        if owners[0][question] and owners[1][passage]:
            merged.add(question, [(passage, document.id)], group=owners[0][question])
    records = merged.build()
    if not records.questions:
        raise EndxError(
            f"{source}: no titles, headings or passages of two sentences to train on; give longer passages or titles"
        )
    if len(set(records.groups or ())) < 2:
        raise EndxError(
            f"{source}: all passages that make questions are of one document, and passages of the same document "
            "are not compared in training; split it into documents of their own titles, such as one for each chapter"
        )
    return records


def document_of(passage: Document) -> str:
    """Returns the name of a passage's document."""
    about = passage.metadata
    return f"{about.get('source', '')}\n{about['title']}" if about.get("title") else passage.id


def make_questions(document: Document, sentences: int, removal: float) -> tuple[list[str], str]:
    """Returns the questions that a passage makes, and the passage without those of them that are removed."""
    title, text = str(document.metadata.get("title", "")), document.text
    begin = len(title) if text.startswith(title) else 0
    body = text[begin:].lstrip()
    headings, listed = [Cloze(0, begin, title)] if title else [], []
    for block in _BLOCK.finditer(body):
        start = len(text) - len(body) + block.start()
        if heading := re.fullmatch(r"#{1,6} (.*\w.*)", block[0]):
            question = f"{title}: {heading[1].strip()}" if title else heading[1].strip()
            headings.append(Cloze(start, start + len(block[0]), question))
        else:
            spans = ((start + a, start + b) for a, b in split_sentences(block[0]))
            listed += [Cloze(a, b, " ".join(text[a:b].split())) for a, b in spans]
    if not listed:
        return [], text
    whole = [part for part in listed if len(part.question.split()) >= LEAST_WORDS]
    whole.sort(key=lambda part: hash_fraction(part.question))
    asked = headings + whole[: min(sentences, len(listed) - 1)]
    pieces, end = [], 0
    for part in sorted(asked):
        if hash_fraction(f"{document.id} {part.question}") < removal:
            pieces.append(text[end : part.start].strip())
            end = part.end
    return [part.question for part in asked], " ".join(filter(None, [*pieces, text[end:].strip()]))
