"""README of an export: usage, training data and settings, results and limitations."""

import json
import pathlib
import re

from endx_jax import json_files
from endx_jax.experiment.config import Settings
from endx_jax.experiment.workdir import DATA, RESULTS, read_config, read_data
from endx_jax.export import hugging_face, sentence_transformers, stablehlo
from endx_jax.export.towers import Towers
from endx_jax.pretrained.locate import MINILM, MPNET, PUBLISHED
from endx_jax.retrieval.results import COLUMNS, read_results
from endx_jax.settings import results_only

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

# Training data of initial checkpoints.
SEEN = {
    model.hub_id: (
        f"The initial checkpoint is [{model.hub_id}](https://huggingface.co/{model.hub_id}), which was fine-tuned on "
        "a billion sentence pairs, including SQuAD 2.0, Natural Questions, TriviaQA, MS MARCO, Quora and WikiAnswers. "
        "Results on these data sets are not zero-shot; compare with that checkpoint to see the effect of this training."
    )
    for model in (MINILM, MPNET)
}
UNKNOWN = "endx_jax has no record of the training data of {checkpoint}. Check it before you compare results."

USAGE = {
    sentence_transformers.NAME: """In this folder, with `pip install -U "sentence-transformers>=6.2"`:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")
queries = model.encode_query(["How many people live in Berlin?"])
documents = model.encode_document(["Around 3.5 million people live in Berlin.", "Cats sleep for most of the day."])
print(model.similarity(queries, documents))
```
""",
    hugging_face.HUGGING_FACE: """In this folder, with `pip install torch transformers safetensors`:

```python
from encode import encode

queries = encode("question", ["How many people live in Berlin?"])
documents = encode("answer", ["Around 3.5 million people live in Berlin.", "Cats sleep for most of the day."])
print(queries @ documents.T)
```

`encode.py` is the complete code; it reads the model's settings from `endx.json`:

```python
{code}
```
""",
    stablehlo.STABLEHLO: """In this folder, with `pip install jax flatbuffers numpy safetensors tokenizers`:

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
""",
}


def text(kind: str, towers: Towers) -> str:
    """Returns the README of an export in the format `kind`."""
    usage = USAGE[kind]
    if kind == hugging_face.HUGGING_FACE:
        usage = usage.format(code=hugging_face.EXAMPLE.read_text().rstrip())
    settings = read_config(towers.workdir) if towers.workdir else None
    parts = [_front_matter(kind, towers, settings), f"# {towers.name}\n", _about(towers), f"## Usage\n\n{usage}"]
    if towers.workdir and settings:
        parts += [_training(towers.workdir, settings), _results(towers.workdir)]
    seen = [SEEN.get(name, UNKNOWN.format(checkpoint=f"`{name}`")) for name in _checkpoints(towers, settings)]
    if settings and settings.model.init_from:
        seen.append(f"Training started from the best parameters of the run `{_public(settings.model.init_from)}`.")
    parts.append("## Data of the initial checkpoint\n\n" + "\n\n".join(seen) + "\n")
    return "\n".join(part for part in parts if part)


def _front_matter(kind: str, towers: Towers, settings: Settings | None) -> str:
    library = {sentence_transformers.NAME: kind, hugging_face.HUGGING_FACE: "transformers"}.get(kind, "jax")
    tags = ["sentence-similarity", "feature-extraction", "dense", "retrieval", "endx_jax"]
    if kind == sentence_transformers.NAME:
        tags.insert(0, kind)
    hub_ids = [name for name in _checkpoints(towers, settings) if HUB_ID.fullmatch(name)]
    base = ["base_model:", *(f"- {name}" for name in hub_ids)] if hub_ids else []
    lines = [f"library_name: {library}", "pipeline_tag: sentence-similarity", *base, "tags:", *(f"- {t}" for t in tags)]
    return "\n".join(["---", *lines, "---", ""])


def _about(towers: Towers) -> str:
    """Describes towers, width, similarity, lengths and prompts."""
    one = towers.shared_encoder and towers.projection("question") is towers.projection("answer")
    what = "One tower encodes questions and answers" if one else "A question tower and an answer tower encode texts"
    if towers.normalize:
        compared = "of unit norm, so that inner products are cosines"
    else:
        compared = f"without normalization, compared by {'cosine' if towers.cosine else 'inner product'}"
    made = "Trained with endx_jax" if towers.workdir else "Exported by endx_jax without further training"
    lines = [f"{what} as {towers.width}-dimensional vectors {compared}. {made}.", ""]
    for side, processor in towers.processors.items():
        shown = json.dumps(processor.prompt, ensure_ascii=False)
        prompt = f", after the prompt {shown}" if processor.prompt else ""
        lines.append(f"- {side}s: up to {processor.length} tokens{prompt}")
    return "\n".join(lines) + "\n"


def _training(workdir: pathlib.Path, settings: Settings) -> str:
    """Describes the data and the recipe."""
    data, where = read_data(workdir), f"{workdir / DATA}: 'questions'"
    questions = json_files.mapped(data.get("questions"), where)
    counts = ", ".join(f"{json_files.whole(count, where):,} {split}" for split, count in questions.items())
    rows = {name: _public(value) for name, value in results_only(settings).items()}
    recipe = "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in rows.items())
    return (
        f"## Training\n\nData: `{_public(settings.data.path)}` (questions: {counts}; sha256 of the training set "
        f"`{data['sha256'][:16]}`).\n\nAll settings that affect results:\n\n```yaml\n{recipe}\n```\n"
    )


def _results(workdir: pathlib.Path) -> str:
    """Formats the measures of every system and pool; empty if the run has none."""
    file = workdir / RESULTS
    if not file.is_file():
        return ""
    found = read_results(file)
    lines = [
        "## Results",
        "",
        f"| pool | candidates | system | {' | '.join(COLUMNS)} |",
        "|---" * (3 + len(COLUMNS)) + "|",
    ]
    for row in found:
        measures = " | ".join(f"{row['metrics'][name]:.3f}" if name in row["metrics"] else "" for name in COLUMNS)
        lines.append(f"| {row['pool']} | {row['candidates']:,} | {row['system']} | {measures} |")
    about = found[0]
    lines += [
        "",
        f"{about['questions']:,} questions of `{_public(about['dataset'])}`, {about['split']}; fractions of 1.",
    ]
    return "\n".join(lines) + "\n"


def _checkpoints(towers: Towers, settings: Settings | None) -> list[str]:
    """Names the initial weights: hub ids if known, else folder names."""
    names = [settings.model.pretrained, settings.model.answer_pretrained] if settings else [towers.loaded_from]
    found = [PUBLISHED[name].hub_id if name in PUBLISHED else _public(name) for name in names if name]
    return list(dict.fromkeys(found))


def _public(value):
    """Returns a setting without local paths: the last part of a path."""
    if isinstance(value, str) and "/" in value and (value.startswith(("/", ".", "~")) or pathlib.Path(value).exists()):
        return pathlib.Path(value).name
    return value
