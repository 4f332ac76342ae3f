"""Fine-tunes MiniLM with optax in a custom training loop, on docstrings of the standard library.

python examples/training_loop.py
"""

import dataclasses
import importlib
import inspect

import jax
import numpy as np
import optax

import endx_jax
from endx_jax import losses
from endx_jax.ranking.search import top_k

MODULES = ("argparse", "asyncio", "collections", "email.utils", "logging", "os", "random", "shutil", "statistics")
TRAIN, BATCH, LENGTH, STEPS = 160, 32, 48, 20


def docstring_pairs():
    """Returns pairs of a function's first sentence and the rest of its docstring, in a random order."""
    pairs = {}
    for module in map(importlib.import_module, MODULES):
        for name, function in inspect.getmembers(module, inspect.isroutine):
            question, _, answer = (inspect.getdoc(function) or "").partition("\n\n")
            if answer:
                pairs[question] = f"{name}: {answer}"
    return [list(pairs.items())[row] for row in np.random.default_rng(0).permutation(len(pairs))]


def accuracy(model, pairs):
    """Returns the fraction of questions for which the best of all answers is the right one."""
    questions, answers = zip(*pairs, strict=True)
    best = top_k(model.encode_query(questions), model.encode_document(answers), k=1).rows[:, 0]
    return np.mean(best == np.arange(len(pairs)))


def loss_fn(params, question, answer):
    """Returns the in-batch softmax loss of both sides' embeddings [B, E], and its metrics."""
    embedded = (towers.encode(params, side, tokens) for side, tokens in (("question", question), ("answer", answer)))
    return losses.in_batch_softmax(*embedded, temperature=0.05)


@jax.jit
def train_step(params, opt_state, question, answer):
    """Updates the parameters on one batch."""
    (loss, _), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params, question, answer)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


pairs = docstring_pairs()
train, test = pairs[:TRAIN], pairs[TRAIN:]
model = endx_jax.load("all-MiniLM-L6-v2")
towers, params = model.encoder.model, model.params
questions, answers = (
    dataclasses.replace(model.encoder.processors[side], length=LENGTH)(texts)
    for side, texts in zip(("question", "answer"), zip(*train, strict=True), strict=True)
)
optimizer = optax.adamw(2e-5)
opt_state = optimizer.init(params)
print(f"{len(test)} other questions, accuracy before training: {accuracy(model, test):.2f}")
random = np.random.default_rng(1)
for step in range(STEPS):
    rows = random.choice(TRAIN, BATCH, replace=False)
    batch = questions.pad(rows, LENGTH), answers.pad(rows, LENGTH)
    params, opt_state, loss = train_step(params, opt_state, *batch)
    if step % 5 == 0 or step == STEPS - 1:
        print(f"step {step:2d}  loss {loss:.3f}")
print(f"accuracy after training: {accuracy(dataclasses.replace(model, params=params), test):.2f}")
