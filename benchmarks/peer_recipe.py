"""sentence-transformers' trainer with its defaults on given pairs, as a process, which may have a Python of its own.

`python benchmarks/peer_recipe.py PRETRAINED PAIRS TARGET SEED` trains on the pairs of a JSON-lines file with its
in-batch loss, and saves the model in TARGET.
"""

import json
import pathlib
import sys

import common

NEEDED = "sentence-transformers datasets accelerate"


def train(pretrained: str, pairs: str, target: str, seed: int) -> None:
    """Trains the peer: batches of 8, three epochs, learning rate 5e-5, without warm-up, dropout of the folder."""
    with common.needs(NEEDED):
        from datasets import Dataset
        from sentence_transformers import (
            SentenceTransformer,
            SentenceTransformerTrainer,
            SentenceTransformerTrainingArguments,
        )
        from sentence_transformers.sentence_transformer import losses
    model = SentenceTransformer(pretrained)
    rows = [json.loads(line) for line in pathlib.Path(pairs).read_text().rstrip("\n").split("\n")]
    SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=f"{target}-trainer", seed=seed, save_strategy="no", report_to="none", disable_tqdm=True
        ),
        train_dataset=Dataset.from_dict({name: [row[name] for row in rows] for name in ("question", "answer")}),
        loss=losses.MultipleNegativesRankingLoss(model),
    ).train()
    model.save(target)


if __name__ == "__main__":
    train(*sys.argv[1:4], seed=int(sys.argv[4]))
