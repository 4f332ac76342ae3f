"""Value and gradient of the in-batch softmax in endx_jax, PyTorch and sentence-transformers, for `losses.py peers`."""

import concurrent.futures
import functools
import multiprocessing
import pathlib
from collections.abc import Callable, Iterator

import common
import jax
import jax.numpy as jnp
import sides

SCALE = 20.0  # 1 / temperature
NEEDED = "torch sentence-transformers"


def compare(options) -> Iterator[dict]:
    """Yields a row for each form: seconds, in alternation, and peak memory, in processes of their own."""
    cases = {name: sides.Case("peer_losses", "make", (name, options)) for name in FORMS}
    timings = sides.alternate(cases, options.repeats)
    values = {name: timing.results[0] for name, timing in timings.items()}
    if max(values.values()) - min(values.values()) > 1e-4:
        raise SystemExit(f"the losses differ by more than 1e-4, so the times are not comparable: {values}")
    fastest = min(timing.median for name, timing in timings.items() if not name.startswith(OURS))
    for name, timing in timings.items():
        yield {
            "form": name.format(tile=options.tile),
            "batch": options.batch,
            "seconds": timing.median,
            "to_fastest_peer": fastest / timing.median,
            "first_call": timing.first,
            "peak_mb": _in_new_process(name, options),
            "loss": values[name],
        }


def make(name: str, options) -> Callable[[], float]:
    """Returns the function of a form, which computes the loss and the gradient."""
    return FORMS[name](options)


def _ours(options, tile: int | None) -> Callable[[], float]:
    from losses import LOSSES, ONE_DIRECTION, compile_loss, draw

    arguments = jax.tree.map(jnp.asarray, draw(options.batch, options.width, options.seed))
    compiled = compile_loss(LOSSES[ONE_DIRECTION], arguments, tile)
    return lambda: float(jax.block_until_ready(compiled(*arguments))[0])


def _leaves(options):
    """Returns question and answer embeddings as PyTorch tensors with gradients."""
    from losses import draw

    with common.needs(NEEDED):
        import torch
    device = "cuda" if torch.cuda.is_available() and jax.default_backend() == "gpu" else "cpu"
    question, answer = draw(options.batch, options.width, options.seed)[0]
    return [torch.tensor(side, device=device, requires_grad=True) for side in (question, answer)]


def _torch_dense(options) -> Callable[[], float]:
    question, answer = _leaves(options)
    import torch

    labels = torch.arange(options.batch, device=question.device)

    def run() -> float:
        question.grad = answer.grad = None
        loss = torch.nn.functional.cross_entropy(question @ answer.T * SCALE, labels)
        loss.backward()
        return float(loss.detach())

    return run


def _torch_checkpointed(options) -> Callable[[], float]:
    """Computes scores in chunks of rows, which the backward pass recomputes."""
    question, answer = _leaves(options)
    import torch
    from torch.utils.checkpoint import checkpoint

    labels = torch.arange(options.batch, device=question.device)

    def part(rows, targets):
        return torch.nn.functional.cross_entropy(rows @ answer.T * SCALE, targets, reduction="sum")

    def run() -> float:
        question.grad = answer.grad = None
        cuts = zip(question.split(options.tile), labels.split(options.tile), strict=True)
        loss = sum(checkpoint(part, rows, targets, use_reentrant=False) for rows, targets in cuts) / options.batch
        loss.backward()
        return float(loss.detach())

    return run


def _sentence_transformers(options, rows: int | None) -> Callable[[], float]:
    """Computes the plain loss from embeddings, or the part of the cached loss between its two encoding passes."""
    with common.needs(NEEDED):
        import torch
        from sentence_transformers import SentenceTransformer, util
        from sentence_transformers.sentence_transformer import losses
    model = SentenceTransformer(modules=[torch.nn.Identity()], device="cpu")
    question, answer = _leaves(options)
    given = {"scale": SCALE, "similarity_fct": util.dot_score}
    plain = losses.MultipleNegativesRankingLoss(model, **given)
    cached = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=rows or options.batch, **given)

    def run() -> float:
        question.grad = answer.grad = None
        if rows:
            return float(cached.calculate_loss([[question], [answer]], with_backward=True))
        loss = plain.compute_loss_from_embeddings([question, answer], None)
        loss.backward()
        return float(loss.detach())

    return run


OURS = "endx_jax"
FORMS = {
    f"{OURS}, dense": functools.partial(_ours, tile=None),
    f"{OURS}, rows in {{tile}}s": lambda options: _ours(options, options.tile),
    "PyTorch, dense": _torch_dense,
    "PyTorch, rows in {tile}s, checkpointed": _torch_checkpointed,
    "sentence-transformers, plain": functools.partial(_sentence_transformers, rows=None),
    "sentence-transformers, cached, rows in 32s": functools.partial(_sentence_transformers, rows=32),
    "sentence-transformers, cached, rows in {tile}s": lambda options: _sentence_transformers(options, options.tile),
}


def _in_new_process(name: str, options) -> float:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_peak, name, options).result()


def _peak(name: str, options) -> float:
    """Returns the peak memory of one run in MB, without the embeddings, programs and libraries loaded before it."""
    run = FORMS[name](options)
    if jax.default_backend() == "gpu":
        return _peak_of_gpu(name, run)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = common.memory()["VmRSS"]
    run()
    return common.memory()["VmHWM"] - before


def _peak_of_gpu(name: str, run: Callable[[], float]) -> float:
    if name.startswith(OURS):
        device = jax.local_devices()[0]
        before = device.memory_stats()["bytes_in_use"]
        run()
        return (device.memory_stats()["peak_bytes_in_use"] - before) / 1e6
    import torch

    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return (torch.cuda.max_memory_allocated() - before) / 1e6
