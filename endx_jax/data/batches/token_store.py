"""Training pairs on disk: tokens of distinct texts, and the pairs between them, mapped into memory by `Pairs`.

`write_part` writes a part of the data as an Arrow file, with a row for each block of examples: tokens, lengths and
hashes of the block's distinct texts, and its judgements. `join_parts` joins parts: texts with the same hash are one
row, as in `RetrievalSet`. It writes `.npy` files, since batches gather rows from whole arrays, which Arrow could only
write from memory. Each file gets its name when it is complete; the manifest with their sha256 is written last.

The hash of a text is 64 bits of BLAKE2b. Two of 100 million texts have the same one with a probability of 0.0003.
"""

import dataclasses
import hashlib
import itertools
import json
import mmap
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import numpy as np

from endx_jax import json_files
from endx_jax.data.batches.ragged import Ragged, concatenated_ranges, offsets_of
from endx_jax.data.batches.token_tables import Counts, Pairs, TokenTable
from endx_jax.data.tokenization import TextProcessor
from endx_jax.errors import EndxError
from endx_jax.files import replacing, sha256_of, write_text

SIDES = ("question", "answer")
MANIFEST = "tokens.json"
BLOCK = 8192  # examples that are tokenized at once
# Fields of `data.sets.examples.Example`: question, right and wrong passages, a teacher's scores of the right and then
# of the wrong ones or None, and excluded passages.
Example = tuple[str, Sequence[str], Sequence[str], Sequence[float] | None, Sequence[str]]
# Largest row number, as batches hold ids as int32.
MOST_ROWS = 2**31 - 1
LISTS = ("positives", "hard_negatives")
SCORES = tuple(f"{name}.scores" for name in LISTS)
ARRAYS = ("question.hashes", "index", "sizes", *LISTS, *(f"{name}.offsets" for name in LISTS))
ARRAYS += tuple(f"{side}.{name}" for side in SIDES for name in ("ids", "offsets"))
# Columns of a part, lists of values; an edge is a judgement: `right` is 0 for a hard negative and 2 for an excluded
# passage, `score` NaN if unknown. `texts` are hashes of texts without their prompts.
OF_TEXTS = {"ids": "<i4", "lengths": "<i4", "hashes": "<i8", "texts": "<i8"}
TEXTS = {f"{side}.{name}": kind for side in SIDES for name, kind in OF_TEXTS.items()}
EDGES = {"edge.question": "<i4", "edge.answer": "<i4", "edge.right": "<i1", "edge.score": "<f4"}


def hashes(texts: Iterable[str]) -> np.ndarray:
    """Returns the hashes of texts, int64 [N]."""
    digests = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), "<i8")


def write_part(
    file: pathlib.Path,
    examples: Iterator[Example],
    processors: Mapping[str, TextProcessor],
    prompts: tuple[str, str] = ("", ""),
    held_out: Set[str] = frozenset(),
) -> None:
    """Writes one part of a store, and then its sha256 beside it.

    Args:
      file: Arrow file to write.
      examples: examples of the part.
      processors: text processors of the sides `question` and `answer`.
      prompts: strings prepended to questions and answers.
      held_out: questions that are not trained on, neither as questions nor as right answers.

    Raises:
      DiskFull: the disk is full.
    """
    import pyarrow as pa

    schema = pa.schema({name: pa.list_(pa.from_numpy_dtype(kind)) for name, kind in (TEXTS | EDGES).items()})
    blocks = iter(lambda: list(itertools.islice(examples, BLOCK)), [])
    with replacing(file, "wb") as stream, pa.ipc.new_file(stream, schema) as writer:
        for block in itertools.chain(blocks, [[]]):
            training = [example for example in block if held_out.isdisjoint([example[0], *example[1]])]
            columns = _columns(training, processors, prompts)
            arrays = [pa.ListArray.from_arrays([0, len(column)], pa.array(column)) for column in columns.values()]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    write_text(file.with_suffix(".sha256"), sha256_of(file))


def is_whole(file: pathlib.Path) -> bool:
    """Returns true if a part was written to its end and is unchanged."""
    sidecar = file.with_suffix(".sha256")
    return file.is_file() and sidecar.is_file() and sidecar.read_bytes() == sha256_of(file).encode()


def _columns(
    examples: list[Example], processors: Mapping[str, TextProcessor], prompts: tuple[str, str]
) -> dict[str, np.ndarray]:
    """Returns the columns of a block."""
    questions: dict[str, int] = {}
    answers: dict[str, int] = {}
    edges: list[tuple[int, int, int, float]] = []
    for question, right, wrong, scores, excluded in examples:
        if not (right or wrong):
            continue
        row = questions.setdefault(question, len(questions))
        passage_scores = iter(scores or ())
        for passages, kind in ((right, 1), (wrong, 0), (excluded, 2)):
            for passage in passages:
                answer = answers.setdefault(passage, len(answers))
                edges.append((row, answer, kind, next(passage_scores, np.nan)))
    columns = {}
    for side, texts, prompt in zip(SIDES, (questions, answers), prompts, strict=True):
        prompted = [prompt + text for text in texts]
        table = processors[side](prompted)
        columns[f"{side}.ids"], columns[f"{side}.lengths"] = table.ids, table.lengths
        columns[f"{side}.hashes"], columns[f"{side}.texts"] = hashes(prompted), hashes(texts)
    values = zip(*edges, strict=True) if edges else [()] * len(EDGES)
    columns |= dict(zip(EDGES, map(np.array, values), strict=True))
    return {name: columns[name].astype(kind) for name, kind in (TEXTS | EDGES).items()}


def _blocks(files: Iterable[pathlib.Path], *names: str) -> Iterator[list[np.ndarray]]:
    """Yields the columns `names` of each block of parts, one block in memory at a time."""
    import pyarrow as pa

    places = list(TEXTS | EDGES)
    for file in files:
        options = pa.ipc.IpcReadOptions(included_fields=[places.index(name) for name in names])
        with pa.OSFile(str(file)) as source, pa.ipc.open_file(source, options=options) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                # Copies, since an array would keep the memory of its whole block.
                yield [batch.column(name).values.to_numpy().copy() for name in names]


def join_parts(
    folder: pathlib.Path, parts: Sequence[Sequence[pathlib.Path]], names: Sequence[str], about: Mapping
) -> None:
    """Joins parts into a store.

    Args:
      folder: folder of the store.
      parts: whole parts of each source.
      names: paths of the sources, for messages.
      about: what the store depends on, and `length` and `pad_id` of the sides.

    Raises:
      EndxError: a source has no usable pair.
    """
    files = [file for of_source in parts for file in of_source]
    rows, count, by_row = {}, 0, {}
    for side in reversed(SIDES):
        rows[side], kept, distinct = _distinct(np.concatenate([block for (block,) in _blocks(files, f"{side}.hashes")]))
        by_row[side] = np.concatenate([block for (block,) in _blocks(files, f"{side}.texts")])[kept]
        count = len(distinct)
        if count > MOST_ROWS:
            raise EndxError(f"{folder}: {count:,} distinct {side}s, more than {MOST_ROWS:,}: use less data")
        if side == "question":
            _save(folder, "question.hashes", [distinct], count)
        _write_tokens(folder, side, files, kept)
    del kept, distinct
    own_pairs = _equal(*(by_row.pop(side) for side in SIDES))
    sources, judged, scores, excluded = _judgements(parts, rows, names)
    # A question's own text is no negative, neither as the answer of another pair nor as a hard one.
    alike = np.setdiff1d(np.concatenate([own_pairs, excluded]), judged[0])
    at = np.searchsorted(judged[0], alike)
    judged[0] = np.insert(judged[0], at, alike)
    moved = np.isin(judged[1], alike)
    if scores:
        scores[0] = np.insert(scores[0], at, np.nan)
        scores[0][np.searchsorted(judged[0], judged[1][moved])] = scores[1][moved]
        scores[1] = scores[1][~moved]
    judged[1] = judged[1][~moved]
    index = np.concatenate(sources)
    _save(folder, "index", [np.stack([index >> 32, index & 0xFFFFFFFF], axis=1).astype(np.int32)], len(index))
    _save(folder, "sizes", [np.array([len(keys) for keys in sources])], len(sources))
    arrays = [*ARRAYS, *(SCORES if scores else ())]
    for n, (name, keys) in enumerate(zip(LISTS, judged, strict=True)):
        _save(folder, f"{name}.offsets", [offsets_of(np.bincount(keys >> 32, minlength=count))], count + 1)
        _save(folder, name, [(keys & 0xFFFFFFFF).astype(np.int32)], len(keys))
        if scores:
            _save(folder, SCORES[n], [scores[n]], len(keys))
    digests = {name: sha256_of(folder / f"{name}.npy") for name in arrays}
    write_text(folder / MANIFEST, json.dumps({"about": about, "sha256": digests}, indent=1) + "\n")


def _save(folder: pathlib.Path, name: str, chunks: Iterable[np.ndarray], count: int) -> None:
    """Writes an array of `count` rows, given in at least one chunk."""
    with replacing(folder / f"{name}.npy", "wb") as stream:
        for number, chunk in enumerate(chunks):
            if number == 0:
                descr, shape = np.lib.format.dtype_to_descr(chunk.dtype), (count, *chunk.shape[1:])
                np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
            stream.write(chunk.tobytes())


def _distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the row of each hash, by first occurrence; bool, true for first ones; and the sorted distinct hashes."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int32)
    number[np.argsort(first)] = np.arange(len(first))
    kept = np.zeros(len(values), bool)
    kept[first] = True
    return number[inverse], kept, distinct


def _equal(questions: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Returns the keys, question * 2^32 + answer, of rows with equal hashes."""
    order = np.argsort(answers)
    begin, end = (np.searchsorted(answers, questions, side, order) for side in ("left", "right"))
    return np.repeat(np.arange(len(questions)), end - begin) << 32 | order[concatenated_ranges(begin, end - begin)]


def _write_tokens(folder: pathlib.Path, side: str, files: Sequence[pathlib.Path], kept: np.ndarray) -> None:
    """Writes the tokens of the texts that are kept, bool [N], of all parts."""
    blocks = list(_blocks(files, f"{side}.lengths"))
    offsets = offsets_of(np.concatenate([lengths for (lengths,) in blocks])[kept])
    largest = max(int(ids.max(initial=0)) for (ids,) in _blocks(files, f"{side}.ids"))
    dtype = np.uint16 if largest < 1 << 16 else np.int32

    def chunks() -> Iterator[np.ndarray]:
        start = 0
        for ids, lengths in _blocks(files, f"{side}.ids", f"{side}.lengths"):
            chosen = kept[start : start + len(lengths)]
            start += len(lengths)
            yield ids[np.repeat(chosen, lengths)].astype(dtype)

    _save(folder, f"{side}.offsets", [offsets], len(offsets))
    _save(folder, f"{side}.ids", chunks(), int(offsets[-1]))


def _judgements(
    parts: Sequence[Sequence[pathlib.Path]], rows: Mapping[str, np.ndarray], names: Sequence[str]
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray] | None, np.ndarray]:
    """Returns sorted distinct keys of the right pairs of each source, of all right and all wrong pairs, and scores.

    The last array is the keys of excluded pairs, in any order.
    """
    before = np.zeros(2, np.int64)
    sources: list[np.ndarray] = []
    keys: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    scores: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    excluded: list[np.ndarray] = []
    for files, name in zip(parts, names, strict=True):
        begin = len(keys[0])
        for *lengths, question, answer, right, score in _blocks(files, *(f"{side}.lengths" for side in SIDES), *EDGES):
            question_row, answer_row = rows["question"][before[0] + question], rows["answer"][before[1] + answer]
            before += [len(part) for part in lengths]
            edges = question_row.astype(np.int64) << 32 | answer_row
            for n, chosen in enumerate((right == 1, right == 0)):
                keys[n].append(edges[chosen])
                scores[n].append(score[chosen])
            excluded.append(edges[right == 2])
        sources.append(np.unique(np.concatenate(keys[0][begin:])))
        if not len(sources[-1]):
            raise EndxError(f"{name}: no questions with a right passage are left to train on; leave it out of the data")
    if all(np.isnan(part).all() for of_kind in scores for part in of_kind):
        right = sources[0] if len(sources) == 1 else np.unique(np.concatenate(sources))
        wrong = np.unique(np.concatenate(keys[1]))
        return sources, [right, np.setdiff1d(wrong, right, assume_unique=True)], None, np.concatenate(excluded)
    judged, values = list[np.ndarray](), list[np.ndarray]()
    for of_kind, kind_scores in zip(keys, map(np.concatenate, scores), strict=True):
        known_first = np.argsort(np.isnan(kind_scores), kind="stable")  # the first known score of a pair is kept
        pairs, first = np.unique(np.concatenate(of_kind)[known_first], return_index=True)
        kept = ~np.isin(pairs, judged[0]) if judged else np.ones(len(pairs), bool)
        judged.append(pairs[kept])
        values.append(kind_scores[known_first][first][kept])
    return sources, judged, values, np.concatenate(excluded)


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """Store of training pairs, without their texts.

    Attributes:
      folder: its folder.
      about: what it depends on, and `length` and `pad_id` of the sides.
      files: sha256 of each array by its name.
    """

    folder: pathlib.Path
    about: Mapping
    files: Mapping[str, str]

    @classmethod
    def open(cls, folder: pathlib.Path) -> "TokenStore":
        """Opens a store, and checks all its files.

        Raises:
          EndxError: there is no complete store, or a file was changed or removed.
        """
        where = str(folder / MANIFEST)
        manifest = json_files.read_json_file(folder / MANIFEST)
        about, files = (
            json_files.as_object(json_files.value(manifest, key, where), where) for key in ("about", "sha256")
        )
        for name, side in itertools.product(("length", "pad_id"), SIDES):
            json_files.as_whole(json_files.value(json_files.value(about, name, where), side, where), where)
        if set(files) not in ({*ARRAYS}, {*ARRAYS, *SCORES}):
            raise EndxError(f"{where}: 'sha256' names other files than those of a store: remove {folder}")
        for name, digest in files.items():
            file = folder / f"{name}.npy"
            if file.is_symlink() or not file.is_file() or sha256_of(file) != digest:
                raise EndxError(f"{file} is damaged or missing: remove {folder} to write it again")
        return cls(folder, about, files)

    @property
    def sha256(self) -> str:
        """Hash of all tokens and judgements."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()

    @property
    def counts(self) -> Counts:
        """Counts as of `Pairs.counts`, where a pair counts once for each source that has it."""
        return self.pairs().counts

    def question_names(self, rows: np.ndarray) -> list[str]:
        """Returns names of the questions by their row, as their texts are unknown."""
        return [f"question {row}" for row in rows]

    def pairs(self) -> Pairs:
        """Returns the pairs, whose arrays are mapped into memory."""
        maps = {name: self._load(name) for name in self.files}
        arrays = {name: np.asarray(array) for name, array in maps.items()}  # `np.memmap` adds time to every access
        about = self.about

        def table(side: str) -> TokenTable:
            return TokenTable(arrays[f"{side}.ids"], arrays[f"{side}.offsets"], about["pad_id"][side])

        def ragged(name: str, values: str, fill: float = -1) -> Ragged:
            offsets = arrays[f"{name}.offsets"]
            return Ragged(arrays[values], offsets, int(np.diff(offsets).max(initial=0)) or 1, fill)

        scores = [ragged(name, values, np.nan) for name, values in zip(LISTS, SCORES, strict=True) if values in arrays]
        sizes = tuple(arrays["sizes"].tolist())
        return Pairs(
            questions=table("question"),
            answers=table("answer"),
            index=arrays["index"],
            positives=ragged("positives", "positives"),
            hard_negatives=ragged("hard_negatives", "hard_negatives"),
            scores=(scores[0], scores[1]) if scores else None,
            groups=None,
            question_length=about["length"]["question"],
            answer_length=about["length"]["answer"],
            sizes=sizes if len(sizes) > 1 else (),
            mapped=tuple(array._mmap for array in maps.values() if array.size),  # type: ignore[attr-defined]
        )

    def contains(self, questions: Sequence[str], prompts: Iterable[str]) -> list[str]:
        """Returns the given questions that the store holds with one of the prompts."""
        stored, trained = self._load("question.hashes"), np.zeros(len(questions), bool)
        for prompt in prompts:
            wanted = hashes(prompt + question for question in questions)
            trained |= stored[np.minimum(np.searchsorted(stored, wanted), len(stored) - 1)] == wanted
        return [question for question, held in zip(questions, trained, strict=True) if held]

    def _load(self, name: str) -> np.memmap:
        """Maps an array."""
        array = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        if array.size and hasattr(mmap, "MADV_RANDOM"):
            array._mmap.madvise(mmap.MADV_RANDOM)  # reading ahead would read many times as much as is used
        return array
