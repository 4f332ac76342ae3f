"""Value and gradient of in-batch losses against a dense float64 reference on the same batch of text.

`python benchmarks/gradients.py`

MiniLM encodes 16 pairs, of which two have the same question. The reference holds all scores of the batch in one array
and computes in float64: once with each of the two answers as a negative of the other pair, once without. Shown are
the differences of the loss from both, and of the gradient of the token table, relative to the reference's largest
gradient. With dropout the reference replays the masks of the plain loss; for endx_jax, whose masks PyTorch can't
replay, it is endx_jax's own dense form.
"""

import argparse
import csv
import pathlib
import tempfile
import warnings

import common
import numpy as np

from endx_jax.pretrained.locate import locate

SCALE, CHUNK, DROPOUT = 20.0, 4, 0.1
CAPITALS = (
    "France Paris, Japan Tokyo, Peru Lima, Kenya Nairobi, Italy Rome, Egypt Cairo, Norway Oslo, Cuba Havana, "
    "Chile Santiago, Iran Tehran, Spain Madrid, Ghana Accra, Nepal Kathmandu, Iraq Baghdad, Austria Vienna"
)
PAIRS = [
    (f"what is the capital of {country}?", f"{city} is the seat of the government of {country}.")
    for country, city in (pair.split() for pair in CAPITALS.split(", "))
]
PAIRS.append((PAIRS[0][0], "The French parliament sits in Paris."))
TABLE = "embeddings.word_embeddings.weight"


class Peer:
    """sentence-transformers' model on the batch, and references in float64 that replay its dropout."""

    def __init__(self, dropout: float):
        """Loads the model."""
        with common.needs("torch sentence-transformers"):
            import torch
            from sentence_transformers import SentenceTransformer
        torch.set_num_threads(1)  # more are slower for so few texts
        self.torch = torch
        self.model = SentenceTransformer(str(locate("all-MiniLM-L6-v2")), device="cpu")
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = dropout
        self.model.train()
        self.table = dict(self.model.named_parameters())[
            next(name for name, _ in self.model.named_parameters() if name.endswith(TABLE))
        ]

    def features(self, rows: slice) -> list[dict]:
        """Returns the tokens of both sides of some pairs."""
        return [self.model.tokenize(list(side)) for side in zip(*PAIRS[rows], strict=True)]

    def gradient(self, loss) -> tuple[float, np.ndarray]:
        """Computes `loss()` and its gradient, with the random numbers of seed 0."""
        self.model.zero_grad()
        self.torch.manual_seed(0)
        value = loss()
        value.backward()
        return float(value.detach()), self.table.grad.numpy().astype(np.float64)

    def reference(self, masked: bool, chunk: int):
        """Computes the dense loss in float64, from texts that are encoded a chunk at a time."""
        torch = self.torch

        def loss():
            sides = []
            for tokens in self.features(slice(None)):
                chunks = [
                    {k: v[n : n + chunk] if torch.is_tensor(v) else v for k, v in tokens.items()}
                    for n in range(0, len(PAIRS), chunk)
                ]
                sides.append(torch.cat([self.model(part)["sentence_embedding"] for part in chunks]))
            question, answer = (torch.nn.functional.normalize(side) for side in sides)
            scores = SCALE * question @ answer.T
            if masked:
                names = np.array([question for question, _ in PAIRS])
                same = (names[:, None] == names) & ~np.eye(len(names), dtype=bool)
                scores = scores.masked_fill(torch.tensor(same), -torch.inf)
            return torch.nn.functional.cross_entropy(scores, torch.arange(len(PAIRS)))

        self.model.double()
        try:
            return self.gradient(loss)
        finally:
            self.model.float()

    def losses(self):
        """Yields (name, chunk, loss) of each of the library's losses on the batch."""
        from sentence_transformers import losses

        plain = losses.MultipleNegativesRankingLoss(self.model, scale=SCALE)
        cached = losses.CachedMultipleNegativesRankingLoss(self.model, scale=SCALE, mini_batch_size=CHUNK)
        half = len(PAIRS) // 2
        yield "MultipleNegativesRankingLoss", len(PAIRS), lambda: plain(self.features(slice(None)), None)
        yield "CachedMultipleNegativesRankingLoss", CHUNK, lambda: cached(self.features(slice(None)), None)
        yield (
            "MultipleNegativesRankingLoss, two accumulated halves",
            half,
            lambda: sum(plain(self.features(rows), None) for rows in (slice(half), slice(half, None))) / 2,
        )


def ours(folder: pathlib.Path, chunk: int, dropout: float) -> tuple[float, np.ndarray]:
    """Returns loss and gradient of a training step of endx_jax."""
    import jax

    from endx_jax.experiment.run import prepare_run
    from endx_jax.methods.config import base_config
    from endx_jax.parallel.sharding import put

    with open(folder / "pairs.csv", "w", newline="") as file:
        csv.writer(file).writerows([("question", "answer"), *PAIRS])
    config = base_config()
    config.data.update(path=str(folder / "pairs.csv"), validation_fraction=0.0, test_fraction=0.0, cache="")
    config.model.update(pretrained="all-MiniLM-L6-v2", dropout=dropout, attention_dropout=dropout)
    config.objective.temperature = 1 / SCALE
    config.train.update(global_batch_size=len(PAIRS), steps=1, epochs=0.0, tower_chunk=chunk)
    run = prepare_run(config, folder / "run")
    key, params = (
        jax.random.key(0, impl="threefry2x32"),
        put(run.model.initial_params(), run.plan.shardings.params),
    )
    step = jax.value_and_grad(run.plan.objective, has_aux=True)
    (value, _), gradient = jax.jit(step)(params, run.plan.stream[0], key, 0)
    names = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(gradient)}
    (table,) = (leaf for name, leaf in names.items() if "token_embedder" in name and "embedding" in name.split("'")[-2])
    return float(value), np.asarray(table, np.float64)


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--json", help="file for the results")
    chosen = options.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    versions = common.versions("sentence-transformers", "torch")

    def add(library, loss, dropout, found, references) -> None:
        row = {"library": library, "loss": loss, "dropout": dropout}
        for name, (value, gradient) in references.items():
            row[f"loss, {name}"] = f"{abs(found[0] - value):.0e}"
            row[f"gradient, {name}"] = f"{np.abs(found[1] - gradient).max() / np.abs(gradient).max():.0e}"
        rows.append(row)

    for dropout in (0.0, DROPOUT):
        peer = Peer(dropout)
        for name, chunk, loss in peer.losses():
            if dropout and chunk == CHUNK:  # it cuts the padding of each chunk, so the reference can't replay its masks
                continue
            exact = {
                "right answer as negative": peer.reference(False, chunk),
                "right answer masked": peer.reference(True, chunk),
            }
            add(f"sentence-transformers {versions['sentence-transformers']}", name, dropout, peer.gradient(loss), exact)
        with tempfile.TemporaryDirectory() as folder:
            if dropout:
                exact = {"right answer masked": ours(pathlib.Path(folder), 0, dropout)}
            for chunk in (CHUNK,) if dropout else (0, CHUNK):
                what = f"chunks of {chunk}" if chunk else "one chunk"
                found = ours(pathlib.Path(folder), chunk, dropout)
                add(f"endx_jax {versions['endx_jax']}", f"in_batch_softmax, {what}", dropout, found, exact)
    print(common.table(rows))
    common.write(chosen.json, vars(chosen), rows, versions=versions)


if __name__ == "__main__":
    main()
