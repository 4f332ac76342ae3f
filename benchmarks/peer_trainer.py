"""sentence-transformers' trainer on given pairs, for its data loader, or as a process for its first step.

`python benchmarks/peer_trainer.py FILE` runs the `Job` in a JSON file and prints a line after the first step.
"""

import dataclasses
import json
import pathlib
import sys
import tempfile

import common

NEEDED = "sentence-transformers datasets accelerate"


@dataclasses.dataclass(frozen=True)
class Job:
    """Description of a training.

    Attributes:
      folder: folder of the pretrained weights.
      questions: questions of the pairs.
      answers: answers of the pairs.
      batch: pairs per step.
      length: maximum tokens of a text.
      temperature: temperature of the softmax.
      workers: processes that prepare batches; 0, the trainer's default: the training process.
    """

    folder: str
    questions: list[str]
    answers: list[str]
    batch: int
    length: int
    temperature: float = 0.05
    workers: int = 0


def trainer(job: Job, callbacks=()):
    """Returns the trainer with its in-batch loss and one step to train."""
    with common.needs(NEEDED):
        from datasets import Dataset
        from sentence_transformers import (
            SentenceTransformer,
            SentenceTransformerTrainer,
            SentenceTransformerTrainingArguments,
        )
        from sentence_transformers.sentence_transformer import losses
    model = SentenceTransformer(job.folder)
    model.max_seq_length = job.length
    return SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=job.batch,
            max_steps=1,
            dataloader_num_workers=job.workers,
            dataloader_pin_memory=False,  # the model, if any, is on the CPU
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"question": job.questions, "answer": job.answers}),
        loss=losses.MultipleNegativesRankingLoss(model, scale=1 / job.temperature),
        callbacks=list(callbacks),
    )


def read_batches(job: Job, steps: int):
    """Returns a function that reads `steps` batches of the trainer's data loader."""
    loader = trainer(job).get_train_dataloader()

    def read() -> None:
        for _, _ in zip(range(steps), loader, strict=False):
            pass

    return read


def tokenize(folder: str, length: int, *columns: list[str]):
    """Returns a function that tokenizes all texts with transformers' tokenizer."""
    with common.needs("transformers"):
        from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def run() -> None:
        for texts in columns:
            tokenizer(texts, truncation=True, max_length=length, return_attention_mask=False)

    return run


def first_step(file: str) -> None:
    """Trains one step and prints a line after it."""
    with common.needs(NEEDED):
        from transformers import TrainerCallback

    class Say(TrainerCallback):
        def on_step_end(self, *_, **__):
            print("step 1", flush=True)

    job = Job(**json.loads(pathlib.Path(file).read_text()))
    trainer(job, [Say()]).train()


if __name__ == "__main__":
    first_step(sys.argv[1])
