"""Training pairs on disk: tokens of distinct texts, and the pairs between them, mapped into memory by `Pairs`.

A store is written in two passes. `PartWriter` appends the tokens, lengths and hashes of the texts of one part of the
data, in blocks, so that parts can be written by several processes and after an interruption. `merge` then joins parts:
texts with the same hash are one row, as in `RetrievalSet`. Its memory is about 65 bytes a text.

The hash of a text is 64 bits of BLAKE2b. Two of 100 million texts have the same one with a probability of 0.0003.
"""

import contextlib
import dataclasses
import hashlib
import json
import mmap
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import IO

import numpy as np

from endx_jax import json_files
from endx_jax.data.batches import Pairs, TextReader
from endx_jax.data.ragged import Ragged, offsets_of
from endx_jax.data.readers.examples import Example
from endx_jax.data.token_tables import TokenTable
from endx_jax.errors import EndxError
from endx_jax.files import reporting_full_disk, write_text

SIDES = ("question", "answer")
MANIFEST, PART = "pairs.json", "part.json"
# Examples that are tokenised at once; texts or pairs that are copied at once.
BLOCK, COPIED = 8192, 1 << 16
# Judgement of an answer by a row: `right` is false for a hard negative; `score` is a teacher's, NaN if unknown.
EDGE = np.dtype([("question", "<i4"), ("answer", "<i4"), ("right", "?"), ("score", "<f4")])
# Largest row number, as batches hold ids as int32.
MOST_ROWS = 2**31 - 1


def hashes(texts: Iterable[str]) -> np.ndarray:
    """Returns the hashes of texts, int64 [N]."""
    digests = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), "<i8")


class PartWriter:
    """Writer of one part of a store: a folder with the texts and judgements of some rows, in their order."""

    def __init__(
        self,
        folder: pathlib.Path,
        processors: Mapping[str, TextReader],
        prompts: tuple[str, str] = ("", ""),
        held_out: Set[str] = frozenset(),
    ):
        """Creates the folder, and removes files that an interrupted process left in it.

        Args:
          folder: folder of the part.
          processors: text readers of the sides `question` and `answer`.
          prompts: strings prepended to questions and answers.
          held_out: questions that are not trained on.
        """
        self._folder, self._processors, self._prompts, self._held_out = folder, processors, prompts, held_out
        self._counts = dict.fromkeys(SIDES, 0)
        self._cut = dict.fromkeys(SIDES, 0)
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            file.unlink()

    def write(self, examples: Iterator[Example], contents: str = "") -> None:
        """Writes all examples, and then the file that marks a part as complete.

        Args:
          examples: examples of the part.
          contents: description of their source, for `is_complete`.

        Raises:
          DiskFull: the disk is full.
        """
        with reporting_full_disk(self._folder):
            while block := [example for example, _ in zip(examples, range(BLOCK), strict=False)]:
                self._append(block)
            if not (self._folder / "edges").exists():
                self._append([])
            write_text(
                self._folder / PART, json.dumps({"texts": self._counts, "cut": self._cut, "of": contents}) + "\n"
            )

    def _append(self, examples: list[Example]) -> None:
        questions: dict[str, int] = {}
        answers: dict[str, int] = {}
        edges: list[tuple[int, int, bool, float]] = []
        for question, right, wrong, scores in examples:
            if not (right or wrong) or question.text in self._held_out:
                continue
            row = questions.setdefault(question.text, len(questions))
            known = iter(scores or ())
            for passages, is_right in ((right, True), (wrong, False)):
                for passage in passages:
                    answer = answers.setdefault(passage.text, len(answers))
                    edges.append((row, answer, is_right, next(known, np.nan)))
        found = np.asarray(edges, EDGE)
        for side, texts, prompt in zip(SIDES, (questions, answers), self._prompts, strict=True):
            found[side] += self._counts[side]
            prompted = [prompt + text for text in texts] if prompt else list(texts)
            table = self._processors[side](prompted)
            assert isinstance(table, TokenTable)
            self._add(f"{side}.ids", table.ids.astype("<i4"))
            self._add(f"{side}.lengths", table.lengths.astype("<i4"))
            self._add(f"{side}.hashes", hashes(prompted))
            self._counts[side] += len(texts)
            self._cut[side] += table.cut
        self._add("edges", found)

    def _add(self, name: str, values: np.ndarray) -> None:
        with open(self._folder / name, "ab") as stream:
            stream.write(values.tobytes())


def is_complete(folder: pathlib.Path, contents: str) -> bool:
    """Returns true if a part with these contents was written to its end."""
    return json_files.read_optional(folder / PART).get("of") == contents


def _columns(parts: Sequence[pathlib.Path], name: str, dtype: str | np.dtype) -> list[np.ndarray]:
    """Maps a column of parts, a file in each."""
    files = [part / name for part in parts]
    return [np.memmap(file, dtype, "r") if file.stat().st_size else np.zeros(0, dtype) for file in files]


def merge(folder: pathlib.Path, parts: Sequence[Sequence[pathlib.Path]], names: Sequence[str], about: Mapping) -> None:
    """Joins parts into a store.

    Args:
      folder: folder of the store.
      parts: complete parts of each source.
      names: paths of the sources, for messages.
      about: further contents of the manifest.

    Raises:
      EndxError: a source has no usable pair.
    """
    files = [part for own in parts for part in own]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    rows, counts = {}, {}
    for side in SIDES:
        found = np.concatenate(_columns(files, f"{side}.hashes", "<i8"))
        digest.update(found.data)
        rows[side], kept, distinct = _distinct(found)
        if side == "question":
            np.save(folder / "question.hashes.npy", distinct)
        counts[side] = len(distinct)
        if counts[side] > MOST_ROWS:
            raise EndxError(f"{folder}: {counts[side]:,} distinct {side}s, more than {MOST_ROWS:,}: use less data")
        _write_tokens(folder, side, files, kept)
        del found, kept, distinct
    judged = _judgements(parts, rows, names, digest)
    sizes = _write_judgements(folder, judged, counts)
    cut = {side: sum(json_files.read(part / PART)["cut"][side] for part in files) for side in SIDES}
    manifest = {**about, **sizes, "texts": counts, "cut": cut, "sha256": digest.hexdigest()}
    sizes_of_files = {file.name: file.stat().st_size for file in sorted(folder.glob("*.npy"))}
    write_text(folder / MANIFEST, json.dumps({**manifest, "files": sizes_of_files}, indent=1) + "\n")


def _distinct(found: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Assigns row numbers to distinct hashes, given as [N], in the order of their first occurrence.

    Returns:
      The number of each hash, int32 [N]; bool [N], true for first occurrences; and the distinct hashes, sorted.
    """
    order = np.argsort(found)
    ordered = found[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(found) else np.zeros(0, np.int64)
    firsts = np.minimum.reduceat(order, starts) if len(found) else starts
    kept = np.zeros(len(found), bool)
    kept[firsts] = True
    number = np.cumsum(kept, dtype=np.int64) - 1
    rows = np.empty(len(found), np.int32)
    rows[order] = np.repeat(number[firsts], np.diff(np.append(starts, len(found))))
    return rows, kept, ordered[starts]


def _write_tokens(folder: pathlib.Path, side: str, files: Sequence[pathlib.Path], kept: np.ndarray) -> None:
    """Writes the tokens of the texts that are kept, bool [N], of all parts."""
    ids, lengths = (_columns(files, f"{side}.{name}", "<i4") for name in ("ids", "lengths"))
    offsets = offsets_of(np.concatenate(lengths)[kept])
    largest = max((int(part.max()) for part in ids if len(part)), default=0)
    dtype = np.uint16 if largest < 1 << 16 else np.int32
    np.save(folder / f"{side}.offsets.npy", offsets)
    before = 0
    with _array_file(folder / f"{side}.ids.npy", np.dtype(dtype), (int(offsets[-1]),)) as stream:
        for own, of_part in zip(ids, lengths, strict=True):
            read = 0
            for start in range(0, len(of_part), COPIED):
                block = of_part[start : start + COPIED]
                tokens = own[read : read + int(block.sum(dtype=np.int64))]
                read += len(tokens)
                chosen = kept[before + start : before + start + len(block)]
                if not chosen.all():
                    tokens = tokens[np.repeat(chosen, block)]
                stream.write(tokens.astype(dtype).data)
            before += len(of_part)


@contextlib.contextmanager
def _array_file(file: pathlib.Path, dtype: np.dtype, shape: tuple[int, ...]) -> Iterator[IO[bytes]]:
    """Context that yields an `.npy` file to which the values are appended.

    A write to a memory-mapped file on a full disk would end the process with SIGBUS.
    """
    with open(file, "wb") as stream:
        about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, about)
        yield stream


@dataclasses.dataclass(frozen=True)
class _Judged:
    """Distinct pairs as sorted keys, question * 2^32 + answer, with scores: right ones by source, and wrong ones."""

    sources: list[np.ndarray]
    right: np.ndarray
    wrong: np.ndarray
    scores: tuple[np.ndarray, np.ndarray] | None


def _judgements(
    parts: Sequence[Sequence[pathlib.Path]],
    rows: Mapping[str, np.ndarray],
    names: Sequence[str],
    digest: "hashlib._Hash",
) -> _Judged:
    """Returns the judgements of all parts."""
    before = dict.fromkeys(SIDES, 0)
    sources: list[np.ndarray] = []
    keys: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    scores: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for own, name in zip(parts, names, strict=True):
        of_source = [np.zeros(0, np.int64)]
        for part in own:
            edges = np.array(*_columns([part], "edges", EDGE))
            digest.update(edges.data)
            places = {side: edges[side].astype(np.int64) + before[side] for side in SIDES}
            for side in SIDES:
                before[side] += json_files.read(part / PART)["texts"][side]
            question, answer = (rows[side][places[side]].astype(np.int64) for side in SIDES)
            for n, chosen in enumerate((edges["right"], ~edges["right"])):
                keys[n].append((question << 32 | answer)[chosen])
                scores[n].append(edges["score"][chosen])
            of_source.append(keys[0][-1])
        sources.append(np.unique(np.concatenate(of_source)))
        if not len(sources[-1]):
            raise EndxError(f"{name}: no questions with a right passage are left to train on; leave it out of the data")
    scored = any(not np.isnan(part).all() for own in scores for part in own)
    found = [_first(own, of_keys if scored else None) for own, of_keys in zip(keys, scores, strict=True)]
    (right, of_right), (wrong, of_wrong) = found
    negative = ~np.isin(wrong, right, assume_unique=True)
    return _Judged(sources, right, wrong[negative], (of_right, of_wrong[negative]) if scored else None)


def _first(keys: list[np.ndarray], scores: list[np.ndarray] | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns distinct keys, sorted, and the first known score of each, NaN without scores."""
    joined = np.concatenate([np.zeros(0, np.int64), *keys])
    if scores is None:
        return np.unique(joined), np.zeros(0, np.float32)
    values = np.concatenate([np.zeros(0, np.float32), *scores])
    distinct = np.unique(joined)
    found = np.full(len(distinct), np.nan, np.float32)
    known = np.flatnonzero(~np.isnan(values))[::-1]  # the first of several is assigned last
    found[np.searchsorted(distinct, joined[known])] = values[known]
    return distinct, found


def _write_judgements(folder: pathlib.Path, judged: _Judged, counts: Mapping[str, int]) -> dict:
    """Writes pairs and lists of right answers and hard negatives; returns their numbers for the manifest."""
    sizes = [len(own) for own in judged.sources]
    with _array_file(folder / "index.npy", np.dtype(np.int32), (sum(sizes), 2)) as stream:
        for own in judged.sources:
            for start in range(0, len(own), COPIED):
                block = own[start : start + COPIED]
                stream.write(np.stack([block >> 32, block & 0xFFFFFFFF], axis=1).astype(np.int32).data)
    widths = {}
    for n, (name, keys) in enumerate((("positives", judged.right), ("hard_negatives", judged.wrong))):
        lengths = np.bincount(keys >> 32, minlength=counts["question"])
        np.save(folder / f"{name}.offsets.npy", offsets_of(lengths))
        np.save(folder / f"{name}.npy", (keys & 0xFFFFFFFF).astype(np.int32))
        if judged.scores:
            np.save(folder / f"{name}.scores.npy", judged.scores[n])
        widths[name] = int(lengths.max(initial=0))
    return {"pairs": sizes, "widths": widths, "scored": judged.scores is not None}


class _NoTexts(Sequence[str]):
    """Sequence of texts of which only the number is known."""

    def __init__(self, count: int, folder: pathlib.Path):
        self._count, self._folder = count, folder

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row):
        raise EndxError(
            f"{self._folder} holds tokens and no texts, which token weights, a guide or teacher and heads on frozen "
            "towers need: leave data.tokens empty"
        )


class _Names(_NoTexts):
    def __getitem__(self, row):
        return f"question {row}"


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """Store of training pairs, with the attributes of a `RetrievalSet` that a run reads.

    Attributes:
      folder: its folder.
      manifest: contents of its manifest.
    """

    folder: pathlib.Path
    manifest: Mapping

    @classmethod
    def open(cls, folder: pathlib.Path) -> "TokenStore":
        """Opens a store, and checks the sizes of its files.

        Raises:
          EndxError: there is no complete store, or a file is too short or missing.
        """
        manifest = json_files.read(folder / MANIFEST)
        for name, size in json_files.mapped(manifest.get("files"), f"{folder / MANIFEST}: 'files'").items():
            file = folder / name
            found = file.stat().st_size if file.is_file() else 0
            if found != size:
                raise EndxError(f"{file} has {found:,} bytes, and not {size:,}: remove {folder} to write it again")
        return cls(folder, manifest)

    @property
    def questions(self) -> Sequence[str]:
        """Distinct questions, whose texts are unknown."""
        return _NoTexts(self.manifest["texts"]["question"], self.folder)

    @property
    def candidates(self) -> Sequence[str]:
        """Distinct answers, whose texts are unknown."""
        return _NoTexts(self.manifest["texts"]["answer"], self.folder)

    @property
    def question_ids(self) -> Sequence[str]:
        """Names of the questions, by their row."""
        return _Names(len(self.questions), self.folder)

    @property
    def sha256(self) -> str:
        """Hash of all texts and judgements."""
        return self.manifest["sha256"]

    def pairs(self) -> Pairs:
        """Returns the pairs, whose arrays are mapped into memory."""
        about, widths = self.manifest, self.manifest["widths"]
        mapped: list[mmap.mmap] = []

        def load(name: str) -> np.ndarray:
            return self._map(name, mapped)

        def ragged(name: str, values: str = "", fill: float = -1) -> Ragged:
            return Ragged(load(values or name), load(f"{name}.offsets"), widths[name] or 1, fill)

        def scores(name: str) -> Ragged:
            return ragged(name, f"{name}.scores", np.nan)

        def table(side: str) -> TokenTable:
            return TokenTable(load(f"{side}.ids"), load(f"{side}.offsets"), about["pad_id"][side])

        sizes = tuple(about["pairs"])
        return Pairs(
            questions=table("question"),
            answers=table("answer"),
            index=load("index"),
            positives=ragged("positives"),
            hard_negatives=ragged("hard_negatives"),
            scores=(scores("positives"), scores("hard_negatives")) if about["scored"] else None,
            groups=None,
            question_length=about["length"]["question"],
            answer_length=about["length"]["answer"],
            sizes=sizes if len(sizes) > 1 else (),
            mapped=tuple(mapped),
        )

    def contains(self, questions: Sequence[str]) -> list[str]:
        """Returns the given questions that the store holds."""
        known, trained = self._map("question.hashes", []), np.zeros(len(questions), bool)
        for _, prompt, _ in self.manifest["sources"]:
            wanted = hashes(prompt + question for question in questions)
            trained |= known[np.minimum(np.searchsorted(known, wanted), len(known) - 1)] == wanted
        return [question for question, found in zip(questions, trained, strict=True) if found]

    def _map(self, name: str, mapped: list[mmap.mmap]) -> np.ndarray:
        """Maps a column, and adds its map to `mapped`."""
        array = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        if array.size and hasattr(mmap, "MADV_RANDOM"):
            array._mmap.madvise(mmap.MADV_RANDOM)  # reading ahead would read many times as much as is used
            mapped.append(array._mmap)
        return np.asarray(array)  # a plain array, since `np.memmap` adds time to every access
