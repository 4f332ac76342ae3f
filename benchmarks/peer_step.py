"""Training step of sentence-transformers' trainer."""

import dataclasses
import tempfile
from collections.abc import Sequence

import common

NEEDED = "sentence-transformers datasets accelerate"
PLAIN = "plain"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings that are equal on both sides.

    Attributes:
      folder: folder of the pretrained weights.
      length: maximum tokens of a text.
      batch: pairs per step.
      temperature: temperature of the softmax.
      learning_rate: initial learning rate of AdamW, which decays linearly to 0 over `steps`.
      weight_decay: weight decay of matrices and tables.
      clip_norm: maximum norm of the gradient.
      steps: length of the schedule.
      bfloat16: true if the towers compute in bfloat16; weights and optimizer are float32.
      matryoshka: widths of the prefixes that are trained; empty for the whole embedding.
    """

    folder: str
    length: int
    batch: int
    temperature: float
    learning_rate: float
    weight_decay: float
    clip_norm: float
    steps: int
    bfloat16: bool
    matryoshka: tuple[int, ...] = ()


class PeerStep:
    """Training step over given batches; each call uses the next one.

    A call does the work of the trainer's loop between two batches: forward, loss and backward (`training_step`),
    clipping, the steps of the optimizer and the schedule, and zeroing the gradients. It returns the loss.

    Attributes:
      about: padded over real tokens in the mini-batches of the loss.
    """

    def __init__(self, recipe: Recipe, form: str, batches: Sequence[Sequence[tuple[str, str]]]):
        """Builds model, loss and trainer, and tokenizes the batches.

        Args:
          recipe: settings of the training.
          form: `PLAIN` for the in-batch loss, or the mini-batch size of the cached loss.
          batches: (question, answer) texts of each batch.
        """
        self._trainer = _trainer(recipe, _loss(recipe, form))
        rows = [[{"question": question, "answer": answer} for question, answer in batch] for batch in batches]
        inputs = [self._trainer.data_collator(batch) for batch in rows]
        self.about = {"padding": _padding(inputs, recipe.batch if form == PLAIN else int(form))}
        self._inputs = iter(inputs)

    def __call__(self) -> float:
        """Takes a step on the next batch."""
        trainer = self._trainer
        loss = trainer.training_step(trainer.model, dict(next(self._inputs)))
        trainer._clip_grad_norm(trainer.model)
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
        trainer.model.zero_grad()
        return float(loss)  # waits for a GPU


def _loss(recipe: Recipe, form: str):
    with common.needs(NEEDED):
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import losses
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = SentenceTransformer(recipe.folder, config_kwargs=no_dropout)
    model.max_seq_length = recipe.length
    scale = 1 / recipe.temperature
    if form == PLAIN:
        loss = losses.MultipleNegativesRankingLoss(model, scale=scale)
    else:
        loss = losses.CachedMultipleNegativesRankingLoss(model, scale=scale, mini_batch_size=int(form))
    return losses.MatryoshkaLoss(model, loss, list(recipe.matryoshka)) if recipe.matryoshka else loss


def _trainer(recipe: Recipe, loss):
    with common.needs(NEEDED):
        import torch
        from datasets import Dataset
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    arguments = SentenceTransformerTrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=recipe.batch,
        max_steps=recipe.steps,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="linear",
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip_norm,
        bf16=recipe.bfloat16,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
    )
    columns = Dataset.from_dict({"question": [""], "answer": [""]})
    trainer = SentenceTransformerTrainer(model=loss.model, args=arguments, train_dataset=columns, loss=loss)
    trainer.create_optimizer_and_scheduler(num_training_steps=recipe.steps)
    trainer.accelerator.prepare_model(trainer.model)  # as in the trainer's loop: makes forward passes bfloat16
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def _padding(inputs: Sequence[dict], rows: int) -> float:
    """Returns padded over real tokens, with mini-batches of `rows` padded to their longest row."""
    padded = real = 0
    for batch in inputs:
        for column in ("question", "answer"):
            lengths = batch[f"{column}_attention_mask"].sum(dim=1)
            real += int(lengths.sum())
            padded += sum(len(part) * int(part.max()) for part in lengths.split(rows))
    return padded / real
