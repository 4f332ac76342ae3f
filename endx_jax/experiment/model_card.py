"""README of a run's model or of an export: usage, training data and settings, results and limitations."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence

import jax

from endx_jax import json_files
from endx_jax.buckets import NOT_OF_MODEL, local_copy
from endx_jax.data.tokenization import TextOptions
from endx_jax.experiment.config import Settings
from endx_jax.experiment.workdir import DATA, MANIFEST, RESULTS, read_config, read_data, saved_system
from endx_jax.files import write_text
from endx_jax.inference.manifest import MODEL, STABLEHLO, model_folder, read_manifest
from endx_jax.methods.evaluation import UNTRAINED
from endx_jax.models.token_embeddings import TOKENS
from endx_jax.pretrained.locate import PUBLISHED
from endx_jax.ranking.evaluate import VALIDATION
from endx_jax.ranking.results import COLUMNS, read_results
from endx_jax.settings import results_only

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

# Training data of initial checkpoints.
SEEN = {
    hub_id: (
        f"The initial checkpoint is [{hub_id}](https://huggingface.co/{hub_id}), which was fine-tuned on "
        "a billion sentence pairs, including SQuAD 2.0, Natural Questions, TriviaQA, MS MARCO, Quora and WikiAnswers. "
        "Results on these data sets are not zero-shot; compare with that checkpoint to see the effect of this training."
    )
    for hub_id in ("sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-mpnet-base-v2")
}
UNKNOWN = "endx_jax has no record of the training data of {checkpoint}. Check it before you compare results."

_ENCODE = """queries = model.encode_query(["How many people live in Berlin?"])
documents = model.encode_document(["Around 3.5 million people live in Berlin.", "Cats sleep for most of the day."])
print(model.similarity(queries, documents))
```
"""
RUN = "endx_jax"  # the model folder of a run, beside the formats of exports
USAGE = {
    RUN: f"""With endx_jax, for this folder:

```python
import endx_jax

model = endx_jax.load(".")
{_ENCODE}
`endx export` writes the model for sentence-transformers and StableHLO.
""",
    "sentence-transformers": f"""In this folder, with `pip install -U "sentence-transformers>=6.2"`:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")
{_ENCODE}""",
    STABLEHLO: f"""In this folder, with `pip install jax flatbuffers numpy safetensors tokenizers`:

```python
from encode import encode

queries = encode("question", ["How many people live in Berlin?"])
documents = encode("answer", ["Around 3.5 million people live in Berlin.", "Cats sleep for most of the day."])
print(queries @ documents.T)
```

`encode.py` is an example to read and change. A `.stablehlo` file is a program serialised by `jax.export` for CPU, CUDA
and TPU, for any number of texts of any length. Its arguments are the weights by name, token ids int32 [b, l] and their
mask bool [b, l], true for tokens and false for the padding after them; its result is float32 [b, E]. The weights are in
`model.safetensors`: both sides use those named `shared/...`, and each side those with its own name.

JAX {jax.__version__} wrote these programs. Releases of JAX from three weeks before it to six months after it promise to
run them. Newer ones may refuse them: then export the model again.
""",
}

RENAMED = ("SentenceTransformer", "MultiVectorEncoder")  # the class of late interaction


@dataclasses.dataclass(frozen=True)
class Subject:
    """Model that a card describes.

    Attributes:
      name: name of the model.
      width: width E of embeddings.
      normalize: true if they have unit norm.
      cosine: true if they are compared by cosine rather than inner product.
      one_tower: true if both sides share everything.
      sides: maximum length in tokens, prompt and other options of texts, by side.
      loaded_from: path or name that the model was loaded from.
      workdir: workdir of the run that trained the model; None for other models.
      by_token: true if every token of a text has an embedding.
      truncate_dim: number of leading dimensions that an export keeps by default; None for all.
    """

    name: str
    width: int
    normalize: bool
    cosine: bool
    one_tower: bool
    sides: Mapping[str, TextOptions]
    loaded_from: str
    workdir: pathlib.Path | None
    by_token: bool = False
    truncate_dim: int | None = None


def card_text(subject: Subject, kind: str) -> str:
    """Returns the model card of a model in the format `kind`, of `USAGE`."""
    workdir = subject.workdir
    library = "jax" if kind == STABLEHLO else kind  # `library_name` on the hub
    settings, system = (read_config(workdir), saved_system(workdir)) if workdir else (None, "")
    rows = read_results(workdir / RESULTS) if workdir and (workdir / RESULTS).is_file() else []
    results = [row for row in rows if row["direction"] == "question_to_answer"]
    parts = [
        _front_matter(subject, library, settings, [row for row in results if row["system"] == system][:1]),
        f"# {subject.name}\n",
        _about(subject, system),
        f"## Usage\n\n{USAGE[kind].replace(*RENAMED) if subject.by_token else USAGE[kind]}",
    ]
    if workdir and settings:
        parts += [_training(workdir, settings), _results(results), _validation(workdir)]
    seen = [SEEN.get(name, UNKNOWN.format(checkpoint=f"`{name}`")) for name in _checkpoints(subject, settings)]
    if settings and settings.model.init_from:
        seen.append(f"Training started from the best parameters of the run `{_public(settings.model.init_from)}`.")
    parts.append("## Data of the initial checkpoint\n\n" + "\n\n".join(seen) + "\n")
    return "\n".join(part for part in parts if part)


def write_run_card(workdir: pathlib.Path) -> None:
    """Writes the card of a finished run into its model folder."""
    about, settings = read_manifest(workdir / MODEL), read_config(workdir).model
    subject = Subject(
        name=about.name,
        width=about.width,
        normalize=about.normalize,
        cosine=about.cosine,
        one_tower=settings.sharing == "sde" and not (settings.answer_pretrained or about.method),
        sides=about.sides,
        loaded_from=settings.pretrained,
        workdir=workdir,
        by_token=settings.pooling == TOKENS,
    )
    write_text(workdir / MODEL / "README.md", card_text(subject, RUN))


def _front_matter(subject: Subject, library: str, settings: Settings | None, results: Sequence[dict]) -> str:
    """Returns the metadata that the hub reads, with the measures in `results`, which are the model's."""
    from huggingface_hub import EvalResult, ModelCardData

    tags = ["sentence-similarity", "feature-extraction", "late-interaction" if subject.by_token else "dense"]
    measured = [
        EvalResult(
            task_type="information-retrieval",
            task_name="Information Retrieval",
            dataset_type="unknown",
            dataset_name=f"{_public(row['dataset'])}, {row['split']}, pool {row['pool']}",
            metric_type=name,
            metric_value=row["metrics"][name],
        )
        for row in results
        for name in COLUMNS
        if name in row["metrics"]
    ]
    data = ModelCardData(
        library_name=library,
        pipeline_tag="sentence-similarity",
        base_model=[name for name in _checkpoints(subject, settings) if HUB_ID.fullmatch(name)] or None,
        tags=[library] * (library == "sentence-transformers") + [*tags, "retrieval", "endx_jax"],
        model_name=subject.name,
        eval_results=measured or None,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def _about(subject: Subject, system: str) -> str:
    """Describes towers, width, similarity, lengths and prompts."""
    what = (
        "One tower encodes questions and answers"
        if subject.one_tower
        else "A question tower and an answer tower encode texts"
    )
    if subject.normalize:
        compared = " of unit norm, so that inner products are cosines"
    else:
        compared = f" without normalization, compared by {'cosine' if subject.cosine else 'inner product'}"
    if system == UNTRAINED:
        made = "It is the model before training with endx_jax, since search was better by it in validation."
    elif subject.workdir:
        made = "Trained with endx_jax."
    elif model_folder(local_copy(subject.loaded_from, skip=NOT_OF_MODEL)):
        made = ""  # a merged or copied model of runs, whose training is not known
    else:
        made = "Exported by endx_jax without further training."
    if subject.by_token:
        compared = f", one for each token,{compared}; texts are compared by MaxSim"
    lines = [f"{what} as {subject.width}-dimensional vectors{compared}. {made}".rstrip(), ""]
    if subject.truncate_dim:
        kept = f"By default, only the first {subject.truncate_dim} dimensions are kept, and not normalized again"
        lines += [f"{kept}; measures in this card are of all {subject.width}.", ""]
    for side, texts in subject.sides.items():
        given = f", after the prompt {json.dumps(texts.prompt, ensure_ascii=False)}" if texts.prompt else ""
        lines.append(f"- {side}s: up to {texts.length} tokens{given}")
    return "\n".join(lines) + "\n"


def _training(workdir: pathlib.Path, settings: Settings) -> str:
    """Describes the data and the recipe."""
    data, where = read_data(workdir), f"{workdir / DATA}: 'questions'"
    questions = json_files.as_object(data.get("questions"), where)
    counts = ", ".join(f"{json_files.as_whole(count, where):,} {split}" for split, count in questions.items())
    rows = {name: _public(value) for name, value in results_only(settings).items()}
    recipe = "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in rows.items())
    made = json_files.read_optional(workdir / MANIFEST)
    versions = {"Python": made.get("python", ""), **made.get("versions", {})} if made else {}
    with_versions = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return (
        f"## Training\n\nData: `{_public(settings.data.path)}` (questions: {counts}; sha256 of the training set "
        f"`{data['sha256'][:16]}`).\n\nAll settings that affect results:\n\n```yaml\n{recipe}\n```\n"
        + (f"\nVersions: {with_versions}.\n" if versions else "")
    )


def _results(results: Sequence[dict]) -> str:
    """Formats the measures of every system and pool; empty if the run has none."""
    if not results:
        return ""
    rows = [((row["pool"], f"{row['candidates']:,}", row["system"]), row["metrics"]) for row in results]
    about = results[0]
    return (
        f"## Results\n\n{_table(('pool', 'candidates', 'system'), rows)}\n\n{about['questions']:,} questions of "
        f"`{_public(about['dataset'])}`, {about['split']}; fractions of 1.\n"
    )


def _validation(workdir: pathlib.Path) -> str:
    """Formats the metrics of `evaluation.sets` at the best step; empty without any."""
    watched = json_files.read_optional(workdir / RESULTS).get(VALIDATION)
    if not watched:
        return ""
    rows = [((name,), metrics) for name, metrics in watched["metrics"].items()]
    return f"## Validation at step {watched['step']}\n\n{_table(('set',), rows)}\n"


def _table(head: Sequence[str], rows: Sequence[tuple[Sequence[str], Mapping[str, float]]]) -> str:
    """Formats rows of names and metrics as a table in Markdown."""
    cells = [[*names, *(f"{values[name]:.3f}" if name in values else "" for name in COLUMNS)] for names, values in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in ([*head, *COLUMNS], ["---"] * len(cells[0]), *cells))


def _checkpoints(subject: Subject, settings: Settings | None) -> list[str]:
    """Names the initial weights: hub ids if known, else folder names."""
    names = [settings.model.pretrained, settings.model.answer_pretrained] if settings else [subject.loaded_from]
    ids = [PUBLISHED.get(name) or _public(name) for name in names if name]
    return list(dict.fromkeys(ids))


def _public(value):
    """Replaces each local path in a setting, which may be a nested list, by its last part."""
    if isinstance(value, list):
        return [_public(item) for item in value]
    if isinstance(value, str) and "/" in value and (value.startswith(("/", ".", "~")) or pathlib.Path(value).exists()):
        return pathlib.Path(value).name
    return value
