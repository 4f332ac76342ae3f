"""Retrieval sets, with their builder: de-duplicated questions and candidates, and judgements between them."""

import collections
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from endx_jax.data.batches.ragged import Ragged
from endx_jax.data.batches.token_tables import Counts, Pairs, TextReader
from endx_jax.data.languages import detect
from endx_jax.data.sets.documents import Document
from endx_jax.data.sets.examples import Example, Judgements, Passage
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
      sources: for each question, the numbers of the mixed sets (see `mix`) that have each of its right candidates, by
        index; None if no sets were mixed.
      scores: for each question, a teacher's scores of its right candidates and hard negatives by index, or nothing;
        None if there are none.
      grades: for each question, the grades of its right candidates by index, 1 or more; None if all are 1.
      excluded: for each question, sorted indices of candidates that are neither ranked for it nor negatives of it, such
        as its own text; None if there are none.
      language: language of the texts, for BM25; empty: it is detected.
      numbered: true if the data has no ids of candidates, so that they were counted, and mean nothing elsewhere.
      own: first of the mixed sets, unchanged, whose texts are searched; None if no sets were mixed.
    """

    questions: tuple[str, ...]
    candidates: tuple[str, ...]
    qrels: tuple[tuple[int, ...], ...]
    question_ids: tuple[str, ...]
    candidate_ids: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    hard_negatives: tuple[tuple[int, ...], ...] | None = None
    sources: tuple[Mapping[int, tuple[int, ...]], ...] | None = None
    scores: tuple[Mapping[int, float], ...] | None = None
    grades: tuple[Mapping[int, int], ...] | None = None
    excluded: tuple[tuple[int, ...], ...] | None = None
    language: str = ""
    numbered: bool = dataclasses.field(default=False, compare=False)
    own: "RetrievalSet | None" = dataclasses.field(default=None, compare=False, repr=False)

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
    def judgements(self) -> Judgements:
        """Questions with the ids of their right candidates, as of documents of an index."""
        names = self.candidate_ids
        graded = self.grades or [dict.fromkeys(rows, 1) for rows in self.qrels]
        right = tuple({names[row]: grade for row, grade in grades.items()} for grades in graded)
        excluded = tuple(tuple(names[row] for row in rows) for rows in self.excluded or [()] * len(right))
        return Judgements(self.question_ids, self.questions, right, excluded)

    @property
    def documents(self) -> list[Document]:
        """Candidates with their ids, as documents."""
        named = zip(self.candidate_ids, self.candidates, strict=True)
        return [Document(name, text, numbered=self.numbered) for name, text in named]

    @property
    def examples(self) -> Iterator[Example]:
        """Questions with the texts of their right candidates, hard negatives and excluded candidates."""
        for row, (question, name) in enumerate(zip(self.questions, self.question_ids, strict=True)):
            listed = [column[row] if column else () for column in (self.qrels, self.hard_negatives, self.excluded)]
            right, wrong, excluded = ([self.candidates[candidate] for candidate in rows] for rows in listed)
            given = None if self.scores is None else self.scores[row]
            scores = None if given is None else [given.get(one, np.nan) for one in (*listed[0], *listed[1])]
            yield Example(question, right, wrong, scores, name, self.groups[row] if self.groups else None, excluded)

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
            sources=rekeyed(self.sources),
            scores=rekeyed(self.scores),
            grades=rekeyed(self.grades),
            excluded=renumbered(self.excluded),
        )

    def with_prompts(self, question: str, answer: str) -> "RetrievalSet":
        """Returns the set with strings prepended to all questions and to all candidates."""
        if not (question or answer):
            return self
        questions = tuple(question + text for text in self.questions)
        candidates = tuple(answer + text for text in self.candidates)
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

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of all data that training reads: texts, judgements, groups, hard negatives, scores and exclusions."""
        digest = hashlib.sha256()
        some = [part for part in (self.sources, self.scores, self.excluded) if part is not None]
        for part in (self.questions, self.candidates, self.qrels, self.groups, self.hard_negatives, *some):
            digest.update(json.dumps(part, ensure_ascii=False).encode())
        return digest.hexdigest()

    @functools.cached_property
    def ranked_sha256(self) -> str:
        """Hash of all data that rankings and indexes depend on: those of `sha256`, grades and ids."""
        parts = (self.sha256, self.grades, self.question_ids, self.candidate_ids)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @functools.cached_property
    def counts(self) -> Counts:
        """Numbers of questions, right pairs and hard negatives, and the largest score."""
        pairs, wrong = sum(map(len, self.qrels)), sum(map(len, self.hard_negatives or ()))
        largest = max((abs(score) for given in self.scores or () for score in given.values()), default=0.0)
        return Counts(len(self.questions), pairs, wrong, largest)

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
            rows = [(source, row) for row, (q, c) in enumerate(self.pairs) for source in self.sources[q][c]]
            sources, order = np.asarray(sorted(rows), np.int32).reshape(-1, 2).T
            index, sizes = index[order], tuple(np.bincount(sources).tolist())
        none = ((),) * len(self.questions)
        wrong, excluded = self.hard_negatives or none, self.excluded or none
        same = self.own_texts  # not in `excluded` if the set was not made by `RetrievalSetBuilder`
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


class RetrievalSetBuilder:
    """Builder of a retrieval set, in which equal texts are one row with the id of the first and all their judgements.

    Attributes:
      questions: row of each question by its text, or by text and id if it is not merged; see `add`.
      candidates: row of each candidate by its text.
      without_right: questions that were added without a right passage; see `add`.
    """

    def __init__(self):
        self.questions: dict[str | tuple[str, str], int] = {}
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
        excluded: Sequence[str] = (),
        *,
        grades: Sequence[int] = (),
        merge: bool = True,
    ) -> None:
        """Adds a question with its passages: the fields of an `Example`, so that `add(*example)` adds one.

        A question without a right passage waits for `build`, and is in the set only if another call gives it one.
        Passages that are right or excluded in any call are not hard negatives. Of several scores of a passage the first
        counts.

        Args:
          question: text of the question.
          right: right passages.
          wrong: hard negatives.
          scores: as in `Example`.
          id: id of a new question; by default `q` and its row.
          group: group of a new question.
          excluded: as in `Example`. The candidate with the question's own text is always one of them.
          grades: grades of the right passages, by default 1; of several grades of a passage the highest counts.
          merge: false to merge the question only with those that have its id too.
        """
        if not right:
            self.without_right.append(Example(question, right, wrong, scores, id, group, excluded))
            return
        row = self.questions.setdefault(question if merge else (question, id), len(self._listed))
        if row == len(self._listed):
            self._listed.append((question, id, group))
            self._grades.append({})
        self._judge(row, right, wrong, scores, excluded, grades)

    def _judge(
        self,
        row: int,
        right: Sequence[Passage],
        wrong: Sequence[Passage],
        scores: Sequence[float] | None,
        excluded: Sequence[str],
        grades: Sequence[int] = (),
    ) -> None:
        """Adds passages to the question of a row."""
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
                row = self.questions[example.question]
                self._judge(row, (), example.wrong, example.scores, example.excluded)

        def unless_right(column: Mapping[int, set[int]]) -> tuple[tuple[int, ...], ...]:
            rows = enumerate(self._grades)
            return tuple(tuple(sorted(column[row] - right.keys())) if row in column else () for row, right in rows)

        for row, (text, *_) in enumerate(self._listed):
            if text in self.candidates:
                self._excluded[row].add(self.candidates[text])
        for row, rows in self._wrong.items():
            rows -= self._excluded.get(row, set())
        wrong, excluded = unless_right(self._wrong), unless_right(self._excluded)
        questions, question_ids, groups = zip(*self._listed, strict=True) if self._listed else ((), (), (None,))
        return RetrievalSet(
            questions=questions,
            candidates=tuple(self.candidates),
            qrels=tuple(tuple(sorted(right)) for right in self._grades),
            question_ids=_unique_ids(question_ids, "q"),
            candidate_ids=_unique_ids(self._candidate_ids, "d"),
            groups=None if None in groups else groups,
            hard_negatives=wrong if hard_negatives or any(wrong) else None,
            scores=tuple(self._scores.get(row, {}) for row in range(len(questions))) if self._scores else None,
            grades=tuple(self._grades)
            if any(grade > 1 for right in self._grades for grade in right.values())
            else None,
            excluded=excluded if any(excluded) else None,
            numbered=not all(self._candidate_ids),
        )


def _unique_ids(ids: Sequence[str], letter: str) -> tuple[str, ...]:
    """Returns unique ids: `letter` and the row for empty ones, and underscores after an id that is taken already.

    The first of equal ids is kept.
    """
    given, unique = {*ids}, dict[str, None]()
    if len(given) == len(ids) and "" not in given:
        return tuple(ids)
    for row, name in enumerate(ids):
        new = name or f"{letter}{row}"
        while new in unique or (new != name and new in given):
            new += "_"
        unique[new] = None
    return tuple(unique)


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
