"""README of an export: its usage, and what `experiment.model_card` tells about the model."""

import jax

from endx_jax.experiment import model_card
from endx_jax.export import sentence_transformers, stablehlo
from endx_jax.export.towers import Towers

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
    stablehlo.STABLEHLO: f"""In this folder, with `pip install jax flatbuffers numpy safetensors tokenizers`:

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


def text(kind: str, towers: Towers) -> str:
    """Returns the README of an export in the format `kind`."""
    subject = model_card.Subject(
        name=towers.name,
        width=towers.width,
        normalize=towers.normalize,
        cosine=towers.cosine,
        one_tower=towers.one_tower,
        sides={side: (processor.length, processor.prompt) for side, processor in towers.processors.items()},
        loaded_from=towers.loaded_from,
        workdir=towers.workdir,
    )
    library = "jax" if kind == stablehlo.STABLEHLO else kind
    return model_card.text(subject, library, USAGE[kind])
