"""Retrieval sets: de-duplicated questions and candidates, the relevance judgements between them, and mixtures."""

import collections
import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from endx_jax.data.batches.ragged import Ragged
from endx_jax.data.batches.token_tables import Counts, Pairs, TextReader
from endx_jax.data.languages import detect
from endx_jax.data.sets.documents import Document
from endx_jax.errors import EndxError, counted

# Columns of a retrieval set with one entry per question.
COLUMNS = ("questions", "qrels", "question_ids", "groups", "hard_negatives", "sources", "scores", "grades", "excluded")


@dataclasses.dataclass(frozen=True)
class RetrievalSet:
    """Questions, a pool of candidates, and the relevance judgements between them.

    Attributes:
      questions: Q question texts.
      candidates: N candidate texts, the pool that is searched.
      qrels: sorted indices of the right candidates of each question.
      question_ids: Q external ids, used in run and judgement files.
      candidate_ids: N external ids.
      groups: the subject of each question, such as the title of an article; None if unknown.
      hard_negatives: sorted indices of each question's hard negatives; None if there are none.
      sources: for each question, the numbers of the mixed sets that it comes from (see `mix`); None if no sets
        were mixed.
      scores: for each question, a teacher's scores of its right candidates and hard negatives by index, or nothing;
        None if there are none.
      grades: for each question, the grades of its right candidates by index, 1 or more; None if all are 1.
      excluded: for each question, sorted indices of candidates that are not ranked for it, such as its own text; None
        if there are none.
      language: language of the texts, for BM25; empty: it is detected.
    """

    questions: tuple[str, ...]
    candidates: tuple[str, ...]
    qrels: tuple[tuple[int, ...], ...]
    question_ids: tuple[str, ...]
    candidate_ids: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    hard_negatives: tuple[tuple[int, ...], ...] | None = None
    sources: tuple[tuple[int, ...], ...] | None = None
    scores: tuple[Mapping[int, float], ...] | None = None
    grades: tuple[Mapping[int, int], ...] | None = None
    excluded: tuple[tuple[int, ...], ...] | None = None
    language: str = ""

    def __post_init__(self):
        count = len(self.questions)
        for name in COLUMNS[1:]:
            column = getattr(self, name)
            if column is not None and len(column) != count:
                raise EndxError(
                    f"a retrieval set needs one entry per question: {count} questions, {len(column)} {name}"
                )
        if len(self.candidate_ids) != len(self.candidates):
            raise EndxError(
                f"a retrieval set needs one id per candidate: {len(self.candidates)} candidates, "
                f"{len(self.candidate_ids)} ids"
            )

    def __repr__(self) -> str:
        return (
            f"RetrievalSet({counted(len(self.questions), 'question')}, {counted(len(self.candidates), 'candidate')}, "
            f"{counted(len(self.pairs), 'right pair')})"
        )

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Right (question, candidate) index pairs in question order."""
        return [(q, c) for q, right in enumerate(self.qrels) for c in right]

    @functools.cached_property
    def text_language(self) -> str:
        """`language`, or else the language that is detected in the candidates."""
        return self.language or detect(self.candidates)

    @functools.cached_property
    def own_texts(self) -> dict[int, int]:
        """Candidates with a question's own text, by question, unless they are right answers of it."""
        asked: dict[str, list[int]] = {}
        for question, text in enumerate(self.questions):
            asked.setdefault(text, []).append(question)
        alike = ((n, question) for n, text in enumerate(self.candidates) for question in asked.get(text, ()))
        return {question: n for n, question in alike if n not in self.qrels[question]}

    @property
    def gains(self) -> tuple[tuple[int, ...], ...] | None:
        """Grades in the order of `qrels`; None if all are 1."""
        if self.grades is None:
            return None
        return tuple(
            tuple(map(grades.__getitem__, right)) for grades, right in zip(self.grades, self.qrels, strict=True)
        )

    @property
    def documents(self) -> list[Document]:
        """Candidates with their ids, as documents."""
        return [Document(name, text) for name, text in zip(self.candidate_ids, self.candidates, strict=True)]

    def select_questions(self, rows: Sequence[int]) -> "RetrievalSet":
        """Returns the questions in `rows`, in that order, with the whole pool."""
        columns: dict[str, Any] = {name: getattr(self, name) for name in COLUMNS}
        part: dict[str, Any] = {name: column and tuple(column[row] for row in rows) for name, column in columns.items()}
        return dataclasses.replace(self, **part)

    def subset(self, rows: Sequence[int], *, hard_negatives: bool = True) -> "RetrievalSet":
        """Returns the questions in `rows`, in that order, with a pool of only their candidates.

        The pool is their right candidates and, if they are kept, hard negatives, in order of first use.
        """
        hard = self.hard_negatives if hard_negatives else None
        columns = [self.qrels] if hard is None else [self.qrels, hard]
        pool = dict.fromkeys(candidate for row in rows for column in columns for candidate in column[row])
        return dataclasses.replace(self, hard_negatives=hard).select_questions(rows).with_pool([*pool])

    def with_pool(self, pool: Sequence[int]) -> "RetrievalSet":
        """Returns all questions with a pool of only the candidates in `pool`, in that order."""
        new = {candidate: n for n, candidate in enumerate(pool)}

        def renumbered(column):
            return column and tuple(tuple(sorted(new[old] for old in ids if old in new)) for ids in column)

        def rekeyed(column):
            return column and tuple({new[old]: value for old, value in row.items() if old in new} for row in column)

        return dataclasses.replace(
            self,
            candidates=tuple(self.candidates[candidate] for candidate in pool),
            candidate_ids=tuple(self.candidate_ids[candidate] for candidate in pool),
            qrels=renumbered(self.qrels),
            hard_negatives=renumbered(self.hard_negatives),
            scores=rekeyed(self.scores),
            grades=rekeyed(self.grades),
            excluded=renumbered(self.excluded),
        )

    def with_prompts(self, question: str, answer: str) -> "RetrievalSet":
        """Returns the set with strings prepended to all questions and to all candidates."""
        if not (question or answer):
            return self
        questions, candidates = (
            tuple(map(str.__add__, (prompt,) * len(texts), texts))
            for prompt, texts in ((question, self.questions), (answer, self.candidates))
        )
        return dataclasses.replace(self, questions=questions, candidates=candidates)

    def reversed(self) -> "RetrievalSet":
        """Returns the set for retrieval of all questions by the right candidates."""
        questions = questions_by_candidate(self.qrels)
        candidates = sorted(questions)
        grades, excluded = self.grades, questions_by_candidate(self.excluded or ())
        return RetrievalSet(
            questions=tuple(self.candidates[candidate] for candidate in candidates),
            candidates=self.questions,
            qrels=tuple(tuple(questions[candidate]) for candidate in candidates),
            question_ids=tuple(self.candidate_ids[candidate] for candidate in candidates),
            candidate_ids=self.question_ids,
            grades=grades
            and tuple({row: grades[row][candidate] for row in questions[candidate]} for candidate in candidates),
            excluded=self.excluded and tuple(tuple(excluded.get(candidate, ())) for candidate in candidates),
            language=self.language,
        )

    @property
    def sha256(self) -> str:
        """Hash of all data that training reads: texts, judgements, groups, hard negatives and scores."""
        digest = hashlib.sha256()
        some = [part for part in (self.sources, self.scores) if part is not None]
        for part in (self.questions, self.candidates, self.qrels, self.groups, self.hard_negatives, *some):
            digest.update(json.dumps(part, ensure_ascii=False).encode())
        return digest.hexdigest()

    @property
    def counts(self) -> Counts:
        """Numbers of questions, right pairs and hard negatives."""
        return Counts(len(self.questions), sum(map(len, self.qrels)), sum(map(len, self.hard_negatives or ())))

    def question_names(self, rows: np.ndarray) -> list[str]:
        """Returns the ids of the questions in `rows`."""
        return [self.question_ids[row] for row in rows]

    def first(self, count: int) -> "RetrievalSet":
        """Returns the first questions that together have at least `count` right pairs, with their candidates."""
        pairs = np.cumsum([len(right) for right in self.qrels])
        return self.subset(range(min(int(np.searchsorted(pairs, count)) + 1, len(self.questions))))

    def tokenize(self, readers: Mapping[str, TextReader]) -> Pairs:
        """Returns the right pairs, with the questions and candidates as tables."""
        groups = None
        if self.groups is not None:
            number = {name: n for n, name in enumerate(dict.fromkeys(self.groups))}
            groups = np.asarray([number[name] for name in self.groups], np.int32)
        index = np.asarray(self.pairs, np.int32).reshape(-1, 2)
        sizes: tuple[int, ...] = ()
        if self.sources is not None:
            rows = [(source, row) for row, (question, _) in enumerate(index) for source in self.sources[question]]
            sources, order = np.asarray(sorted(rows), np.int32).reshape(-1, 2).T
            index, sizes = index[order], tuple(np.bincount(sources).tolist())
        none = ((),) * len(self.questions)
        same, wrong = self.own_texts, self.hard_negatives or none
        # Prompts of a mixture's sets hide equal texts, which were excluded before.
        excluded = (self.sources and self.excluded) or none
        listed = ({*rows, *excluded[n]} | ({same[n]} if n in same else set()) for n, rows in enumerate(self.qrels))
        right = list(map(sorted, listed))
        scores = None
        if self.scores is not None:
            given = self.scores
            scores = _aligned(right, given), _aligned(wrong, given)
        return Pairs(
            questions=readers["question"](self.questions),
            answers=readers["answer"](self.candidates),
            index=index,
            positives=Ragged.from_rows(right),
            hard_negatives=Ragged.from_rows(wrong),
            scores=scores,
            groups=groups,
            question_length=readers["question"].length,
            answer_length=readers["answer"].length,
            sizes=sizes,
        )

    @classmethod
    def from_pairs(cls, pairs) -> "RetrievalSet":
        """Builds the set from (question text, answer text) pairs, merging equal texts; ids are `q0...`, `d0...`."""
        merged = RetrievalSetBuilder()
        for question, answer in pairs:
            merged.add(question, [answer])
        return merged.build()


def _aligned(candidates: Sequence[Sequence[int]], scores: Sequence[Mapping[int, float]]) -> Ragged:
    """Returns the scores of each question's candidates, NaN where unknown."""
    rows = [[by_row.get(row, np.nan) for row in listed] for listed, by_row in zip(candidates, scores, strict=True)]
    return Ragged.from_rows(rows, np.float32, np.nan)


# Text of a passage, alone or as (text, id in the file).
Passage = str | tuple[str, str]


class Example(NamedTuple):
    """Question with its right passages and hard negatives, as of a row of a file.

    Attributes:
      question: text of the question.
      right: right passages.
      wrong: hard negatives.
      scores: a teacher's scores of the right and then of the wrong passages, NaN where unknown; None if there are none.
      id: id of the question; empty if it has none.
      group: subject of the question, such as the title of an article; None if unknown.
    """

    question: str
    right: Sequence[Passage]
    wrong: Sequence[Passage] = ()
    scores: Sequence[float] | None = None
    id: str = ""
    group: str | None = None


def texts_of(passages: Iterable[Passage]) -> list[str]:
    """Returns the texts of passages without their ids."""
    return [passage if isinstance(passage, str) else passage[0] for passage in passages]


class UniqueIds:
    """Ids of texts; each belongs to one text."""

    def __init__(self, kind: str = ""):
        """Starts without ids; `kind` names the texts in messages."""
        self._name, self._texts = f"{kind} id".strip(), dict[str, str]()

    def add(self, named: Iterable[tuple[str, str]], where: str) -> None:
        """Adds all of the (text, id) pairs, or none of them; empty ids are ignored.

        Raises:
          EndxError: an id belongs to two texts; `where` is its location for the message.
        """
        new: dict[str, str] = {}
        for text, name in named:
            before = self._texts.get(name, new.setdefault(name, text))
            if name and text != before:
                texts = f"{before[:80]!r} and {text[:80]!r}"
                raise EndxError(f"{where}: the {self._name} {name[:100]!r} belongs to two texts, {texts}")
        self._texts |= new


class RetrievalSetBuilder:
    """Builder of a retrieval set, in which equal texts are one row with the id of the first and all their judgements.

    Attributes:
      questions: row of each question by its text.
      candidates: row of each candidate by its text.
      without_right: questions without a right passage when they were added; see `add`.
    """

    def __init__(self):
        self.questions: dict[str, int] = {}
        self.candidates: dict[str, int] = {}
        self.without_right: list[Example] = []
        self._listed: list[tuple[str, str, str | None]] = []
        self._candidate_ids: list[str] = []
        self._grades: list[dict[int, int]] = []
        self._wrong: dict[int, set[int]] = collections.defaultdict(set)
        self._excluded: dict[int, set[int]] = collections.defaultdict(set)
        self._scores: dict[int, dict[int, float]] = collections.defaultdict(dict)

    def candidate(self, text: str, id: str = "") -> int:
        """Returns the row of a candidate; a new one gets this id, by default `d` and its row."""
        row = self.candidates.setdefault(text, len(self._candidate_ids))
        if row == len(self._candidate_ids):
            self._candidate_ids.append(id)
        return row

    def add(
        self,
        question: str,
        right: Sequence[Passage],
        wrong: Sequence[Passage] = (),
        scores: Sequence[float] | None = None,
        id: str = "",
        group: str | None = None,
        *,
        grades: Sequence[int] = (),
        excluded: Sequence[str] = (),
        merge: bool = True,
    ) -> None:
        """Adds a question with its passages: the fields of an `Example`, so that `add(*example)` adds one.

        A question without a right passage is in the set only if another call gives it one. Passages that are right in
        any call are not hard negatives. Of several scores of a passage the first counts.

        Args:
          question: text of the question.
          right: right passages.
          wrong: hard negatives.
          scores: as in `Example`.
          id: id of a new question; by default `q` and its row.
          group: group of a new question.
          grades: grades of the right passages, by default 1; of several grades of a passage the highest counts.
          excluded: texts of candidates that are not ranked for the question, unless they are right. The candidate with
            the question's own text is always one of them.
          merge: false for a new row even if there is a question with this text.
        """
        if not right and question not in self.questions:
            self.without_right.append(Example(question, right, wrong, scores, id, group))
            return
        row = self.questions.setdefault(question, len(self._listed)) if merge else len(self._listed)
        if row == len(self._listed):
            self._listed.append((question, id, group))
            self._grades.append({})
        passages = [self.candidate(*((text,) if isinstance(text, str) else text)) for text in (*right, *wrong)]
        known = self._grades[row]
        for candidate, grade in zip(passages, grades or [1] * len(right), strict=False):
            known[candidate] = max(grade, known.get(candidate, grade))
        for candidate, score in zip(passages, scores or (), strict=scores is not None):
            if score == score:
                self._scores[row].setdefault(candidate, score)
        if wrong:  # most questions have none, and a million empty sets take 200 MB
            self._wrong[row].update(passages[len(right) :])
        if excluded:
            self._excluded[row].update(map(self.candidate, excluded))

    def build(self, *, hard_negatives: bool = False) -> RetrievalSet:
        """Returns the set; true keeps the column of hard negatives even if there are none."""
        for example in self.without_right:
            if example.question in self.questions:
                self.add(*example)

        def unless_right(column: Mapping[int, set[int]]) -> tuple[tuple[int, ...], ...]:
            rows = enumerate(self._grades)
            return tuple(tuple(sorted(column[row] - right.keys())) if row in column else () for row, right in rows)

        for row, (text, *_) in enumerate(self._listed):
            if text in self.candidates:
                self._excluded[row].add(self.candidates[text])
        wrong, excluded = unless_right(self._wrong), unless_right(self._excluded)
        questions, question_ids, groups = zip(*self._listed, strict=True) if self._listed else ((), (), (None,))
        return RetrievalSet(
            questions=questions,
            candidates=tuple(self.candidates),
            qrels=tuple(tuple(sorted(right)) for right in self._grades),
            question_ids=_filled_ids(question_ids, "q"),
            candidate_ids=_filled_ids(self._candidate_ids, "d"),
            groups=None if None in groups else groups,
            hard_negatives=wrong if hard_negatives or any(wrong) else None,
            scores=tuple(self._scores.get(row, {}) for row in range(len(questions))) if self._scores else None,
            grades=tuple(self._grades)
            if any(grade > 1 for right in self._grades for grade in right.values())
            else None,
            excluded=excluded if any(excluded) else None,
        )


def _filled_ids(ids: Sequence[str], letter: str) -> tuple[str, ...]:
    """Returns ids with `letter` and the row in place of empty ones, and underscores after it if another id is equal."""
    if all(ids):
        return tuple(ids)
    taken, filled = set(ids), []
    for row, name in enumerate(ids):
        if not name:
            name = f"{letter}{row}"
            while name in taken:
                name += "_"
            taken.add(name)
        filled.append(name)
    return tuple(filled)


@dataclasses.dataclass(frozen=True)
class Judgements:
    """Questions with the ids of their right documents.

    Attributes:
      ids: Q external ids.
      texts: Q questions.
      right: distinct ids of each question's right documents, at least one, with their grades.
      excluded: ids of the documents that are not ranked for each question, if they exist.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    right: tuple[Mapping[str, int], ...]
    excluded: tuple[tuple[str, ...], ...]

    @classmethod
    def from_records(cls, records: RetrievalSet) -> "Judgements":
        """Returns the questions of a set whose candidate ids are the document ids of an index."""
        names = records.candidate_ids
        graded = records.grades or [dict.fromkeys(rows, 1) for rows in records.qrels]
        right = tuple({names[row]: grade for row, grade in grades.items()} for grades in graded)
        excluded = tuple(tuple(names[row] for row in rows) for rows in records.excluded or [()] * len(right))
        return cls(records.question_ids, records.questions, right, excluded)


def mix(sets: Sequence[RetrievalSet]) -> RetrievalSet:
    """Merges sets into one whose `sources` name the sets of each question.

    Equal candidates are merged, and so are equal questions, with all their right candidates, so that no right answer
    of any set is a negative in a batch, and no right answer is a hard negative. Of several teachers' scores of a pair
    the first is kept, and of several grades the highest. Ids of the first set are kept; those of
    the others are prefixed with the set's number and a colon. If only some sets have groups, each question of the
    others is a group of its own.
    """
    merged = RetrievalSetBuilder()
    sources: dict[str, dict[int, None]] = {}
    grouped = any(records.groups is not None for records in sets)
    for number, records in enumerate(sets):
        prefix, texts = f"{number}:" if number else "", records.candidates
        for text, name in zip(texts, records.candidate_ids, strict=True):
            merged.candidate(text, prefix + name)
        for row, text in enumerate(records.questions):
            right, wrong = records.qrels[row], records.hard_negatives[row] if records.hard_negatives else ()
            name, scores = prefix + records.question_ids[row], None if records.scores is None else records.scores[row]
            merged.add(
                text,
                [texts[candidate] for candidate in right],
                [texts[candidate] for candidate in wrong],
                None if scores is None else [scores.get(candidate, math.nan) for candidate in (*right, *wrong)],
                name,
                ((records.groups and records.groups[row]) or f"question {name}") if grouped else None,
                grades=[records.grades[row][candidate] for candidate in right] if records.grades else (),
                excluded=[texts[candidate] for candidate in records.excluded[row]] if records.excluded else (),
            )
            sources.setdefault(text, {})[number] = None
    mixed = merged.build(hard_negatives=any(records.hard_negatives is not None for records in sets))
    return dataclasses.replace(mixed, sources=tuple(tuple(sources[text]) for text in mixed.questions))


class Pools(dict[str, RetrievalSet]):
    """The same questions with different pools of candidates, by the pool's name; the primary one comes first."""

    @property
    def primary_name(self) -> str:
        """Name of the primary pool."""
        return next(iter(self))

    @property
    def primary(self) -> RetrievalSet:
        """The set with the primary pool."""
        return self[self.primary_name]


def questions_by_candidate(qrels: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Returns the questions of each candidate that is right for some, in order."""
    questions: dict[int, list[int]] = {}
    for question, right in enumerate(qrels):
        for candidate in right:
            questions.setdefault(candidate, []).append(question)
    return questions


def known_questions(
    texts: Sequence[str], sets: Sequence[RetrievalSet], *, besides: Set[str] = frozenset()
) -> list[list[str]]:
    """Returns the questions in the sets that each text answers, without those in `besides`."""
    questions_of: dict[str, dict[str, None]] = {text: {} for text in texts}
    for records in sets:
        for question, right in zip(records.questions, records.qrels, strict=True):
            for text in (records.candidates[candidate] for candidate in right):
                if text in questions_of and question not in besides:
                    questions_of[text][question] = None
    return [list(questions_of[text]) for text in texts]


def asked_documents(
    documents: Sequence[Document], questions: Sequence[Sequence[str]], embeddings: Mapping[str, np.ndarray]
) -> tuple[list[Document], np.ndarray | None]:
    """Returns the documents with their known questions, and the embeddings of these in order; None without any."""
    asking = [dataclasses.replace(old, questions=tuple(asked)) for old, asked in zip(documents, questions, strict=True)]
    vectors = [embeddings[question] for asked in questions for question in asked]
    return asking, np.stack(vectors) if vectors else None


def one_to_one(qrels: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Returns right pairs with each question and candidate at most once: the first question of each first answer."""
    first: dict[int, int] = {}
    for question, right in enumerate(qrels):
        first.setdefault(right[0], question)
    return [(question, candidate) for candidate, question in first.items()]


def pad_ids(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns rows of ids as int32 [len(rows), max(longest row, 1)], padded with -1."""
    return pad_rows(rows, -1, np.int32)


def pad_rows(rows: Sequence[Sequence], value, dtype) -> np.ndarray:
    """Returns rows as an array [len(rows), max(longest row, 1)], padded with a value."""
    padded = np.full((len(rows), max(map(len, rows), default=0) or 1), value, dtype)
    for n, row in enumerate(rows):
        padded[n, : len(row)] = row
    return padded
