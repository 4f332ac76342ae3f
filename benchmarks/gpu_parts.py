"""Parts of gpu.py: `python benchmarks/gpu_parts.py PART --data=SQUAD --model=FOLDER --state=FOLDER`.

PART is the name of a method of `Part` with its arguments, such as `train:128:dropout`.
"""

import argparse
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import common

from endx_jax.pretrained.locate import locate


class Part:
    """A part of the queue, in its own process: measures and writes rows."""

    def __init__(self, name: str, options: argparse.Namespace):
        self.name, self.options = name, options
        options.model = str(locate(options.model))
        self.compiling, self.tiny = options.compiling, options.tiny
        self.dtype = "float32" if self.tiny else "bfloat16"

    def row(self, **values) -> None:
        """Prints a row and appends it to the file."""
        if not self.compiling:
            text = json.dumps({"part": self.name, **values}, default=str)
            print(text, flush=True)
            with open(pathlib.Path(self.options.state) / "rows.jsonl", "a") as stream:
                stream.write(text + "\n")

    def time(self, call, repeats: int, **values) -> dict:
        """Times a function that returns when its result is there; adds a row with median, fastest and slowest."""
        seconds = sorted(_seconds(call) for _ in range(1 if self.compiling or self.tiny else repeats))
        found = {"median": common.median(seconds), "fastest": seconds[0], "slowest": seconds[-1], "n": len(seconds)}
        self.row(**values, **found)
        return found

    def ceilings(self) -> None:
        """Rates of a large product and copy, and seconds of many small kernels."""
        import jax
        import jax.numpy as jnp

        device = jax.devices()[0]
        self.row(device=device.device_kind, **common.versions("flax"))
        side, count = (256, 2**16) if self.tiny else (8192, 2**30)
        for dtype in (jnp.bfloat16, jnp.float32):
            a, b = (jax.random.normal(key, (side, side), dtype) for key in jax.random.split(jax.random.key(0)))
            run = _blocking(jax.jit(jnp.matmul), a, b)
            run()
            found = self.time(run, 20, product=jnp.dtype(dtype).name)
            self.row(product=jnp.dtype(dtype).name, tflops=2 * side**3 / found["fastest"] / 1e12)
        run = _blocking(jax.jit(lambda x: x + 1), jnp.ones(count, jnp.float32))
        run()
        self.row(copy_gb_per_s=8 * count / self.time(run, 20, what="copy")["fastest"] / 1e9)
        small = jnp.eye(64, dtype=jnp.bfloat16)
        chain = jax.jit(lambda x: functools.reduce(lambda x, _: jnp.matmul(x, small), range(200), x))
        for what, call in {"200 small products": chain, "one small kernel": jax.jit(lambda x: x + 1)}.items():
            run = _blocking(call, small)
            run()
            self.time(run, 50, what=what)

    def check(self) -> None:
        """Compares embeddings of the device with those of PyTorch on the CPU, in float32."""
        import numpy as np
        from peer_encoder import PeerEncoder

        import endx_jax

        texts = [f"The number {n} is the one after {n - 1}, " * (1 + n % 9) for n in range(64)]
        found = endx_jax.load(self.options.model).encode_document(texts, show_progress_bar=False)
        expected = PeerEncoder(self.options.model, "cpu", "float32", 256, texts, 16)()
        self.row(least_cosine=float((found * expected).sum(1).min()), most=float(np.abs(found - expected).max()))

    def _train_options(self, batch: str) -> argparse.Namespace:
        length, repeats = (32, 2) if self.tiny else (256, 0 if self.compiling else 15)
        return argparse.Namespace(
            data=self.options.data, model=self.options.model, batch=int(batch), length=length, tower_chunk=-1,
            dtype=self.dtype, product_dtype="float32", matryoshka=[], seed=0, repeats=repeats, steps=1 + 2 * repeats,
        )  # fmt: skip

    def _step(self, batch: str, dropout: str, steps_per_call: int = 1):
        import training

        rates = {"": (0.0, 0.0), "hidden": (0.1, 0.0), "dropout": (0.1, 0.1)}[dropout]
        plain = training.configure

        def configure(options):
            config = plain(options)
            config.model.dropout, config.model.attention_dropout = rates
            config.train.steps_per_call = steps_per_call
            return config

        training.configure = configure
        return training.OurStep(self._train_options(batch))

    def train(self, batch: str, dropout: str = "") -> None:
        """Times steps of MiniLM, first waiting for each of them, then without waiting, as in training."""
        import jax

        from endx_jax.parallel.sharding import to_global

        start = time.perf_counter()
        step = self._step(batch, dropout)
        self.row(ready=time.perf_counter() - start, padding=step.about["padding"])
        self.row(first_loss=step())
        if self.compiling:
            return
        step()
        found = self.time(step, 15)
        self.row(pairs_per_s=int(batch) / found["median"])
        rest = list(step._batches)
        start = time.perf_counter()
        for batch_ in rest:
            step._state, _ = step._step(step._state, to_global(batch_, step._mesh, step._size))
        sent = time.perf_counter() - start
        jax.block_until_ready(step._state)
        seconds = time.perf_counter() - start
        self.row(
            unwaited_pairs_per_s=int(batch) * len(rest) / seconds, seconds=seconds / len(rest), host=sent / len(rest)
        )
        self.row(peak_gb=(jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9)

    def calls(self, batch: str, steps: str) -> None:
        """Times steps of MiniLM, several in a call, without waiting for the calls; compare `train` without waiting."""
        import jax

        from endx_jax.parallel.sharding import to_global
        from endx_jax.training.step import Stacked

        step, count = self._step(batch, "", int(steps)), int(steps)
        if self.compiling:
            return
        batches = list(step._batches)
        first, *groups = [batches[n : n + count] for n in range(0, len(batches) - count + 1, count)]

        def send(group) -> None:
            stacked = to_global(Stacked.of(group), step._mesh, step._size, axis=1)
            step._state, _ = step._step(step._state, stacked)

        send(first)
        jax.block_until_ready(step._state)
        start = time.perf_counter()
        for group in groups:
            send(group)
        sent = time.perf_counter() - start
        jax.block_until_ready(step._state)
        taken, seconds = count * len(groups), time.perf_counter() - start
        self.row(unwaited_pairs_per_s=int(batch) * taken / seconds, seconds=seconds / taken, host=sent / taken)

    def profile(self, batch: str, dropout: str = "") -> None:
        """The kernels of a step that take the most time, in milliseconds, without command buffers."""
        import collections

        import jax

        step, steps = self._step(batch, dropout), 1 if self.tiny else 4
        step()
        folder = tempfile.mkdtemp()
        with jax.profiler.trace(folder):
            for _ in range(steps):
                step()
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for line in plane.lines if "GPU" in plane.name else ():
                spent, count = collections.Counter(), 0
                for event in line.events:
                    spent[event.name[:80]] += event.duration_ns / 1e6 / steps
                    count += 1
                self.row(line=line.name, kernels=count / steps, ms=spent.total(), most=spent.most_common(40))

    def peer_train(self, batch: str, form: str) -> None:
        """Steps of sentence-transformers on the same batches."""
        import training
        from peer_step import PeerStep

        from endx_jax.experiment.run import prepare_run

        options = self._train_options(batch)
        config = training.configure(options)
        run = prepare_run(config, pathlib.Path(tempfile.mkdtemp()))
        stream, known = run.plan.padded, run.data.train
        rows = [stream.pairs.index[stream.example_ids(n)] for n in range(2 + options.repeats)]
        texts = [[(known.questions[q], known.candidates[a]) for q, a in pairs] for pairs in rows]
        step = PeerStep(training.recipe(config), form, texts)
        self.row(first_loss=step(), padding=step.about["padding"])
        step()
        self.row(pairs_per_s=int(batch) / self.time(step, options.repeats)["median"])

    def mfu(self, shape: str, batch: str = "0") -> None:
        """Model FLOP utilization of a training step; a batch of 0 is that of the shape."""
        import jax
        import mfu

        sizes = {"batch": 2, "question_length": 4, "answer_length": 8} if self.tiny else {}
        defaults = {"batch": int(batch), "question_length": 64, "answer_length": 256, "seed": 0, "dtype": self.dtype}
        options = argparse.Namespace(**defaults | sizes, repeats=1 if self.compiling or self.tiny else 10)
        dtype = jax.numpy.dtype(self.dtype)
        self.row(**mfu.measure(shape, options, mfu.measure_product(64 if self.tiny else 8192, dtype, 10)))

    def units(self, shape: str, batch: str, length: str) -> None:
        """Texts of one length that a tower with random weights encodes per second, without tokenization.

        Others publish texts of 512 tokens by BERT-base (vLLM #23000: 1,011), answers by ModernBERT-base
        (text-embeddings-inference #897: 3,319 to 3,815 on an RTX 5090; here they have 128 tokens), and pairs of 512
        tokens by MiniLM-L6 (Hugging Face on ettin-reranker: 3,817 on an H100; the head is left out here).
        """
        import jax
        import mfu

        about, rows = mfu.SHAPES[shape], int(batch)
        tower = about.tower(jax.numpy.dtype(self.dtype))
        tokens = mfu.random_batch(about, rows, (int(length), 1), seed=0).question
        encode = _blocking(jax.jit(tower.apply), jax.jit(tower.init)(jax.random.key(0), tokens), tokens)
        encode()
        texts = rows / self.time(encode, 30)["median"]
        self.row(weights="random", texts_per_s=texts, tokens_per_s=texts * int(length))

    def _texts(self) -> list[str]:
        from cpu import read_texts

        count = 8 if self.tiny else 10_000
        return read_texts(argparse.Namespace(data=self.options.data, texts=count, seed=0))["sentences"]

    def encode(self, batch: str) -> None:
        """Texts encoded per second, and the seconds of tokenization within."""
        from cpu import Ours

        texts = self._texts()
        ours = Ours(self.options.model, texts, int(batch))
        first = _seconds(ours)
        ours()
        self.row(first_call=first, programs=len(ours._model.encoder.compiled), padding=ours.about)
        self.row(texts_per_s=len(texts) / self.time(ours, 5)["median"])
        self.time(lambda: ours._model.encoder.processors["answer"](texts), 5, what="tokenization")

    def peer_encode(self, batch: str) -> None:
        """Texts encoded per second by sentence-transformers."""
        import torch
        from peer_encoder import PeerEncoder

        device = "cuda" if torch.cuda.is_available() else "cpu"
        texts = self._texts()
        peer = PeerEncoder(self.options.model, device, self.dtype, 256, texts, int(batch))
        peer()
        self.row(texts_per_s=len(texts) / self.time(peer, 5)["median"])

    def losses(self, batch: str, tile: str) -> None:
        """Value and gradient of the losses; a tile of 0 is the dense form."""
        import jax
        import losses

        arguments = jax.tree.map(jax.numpy.asarray, losses.draw(int(batch), 16 if self.tiny else 384))
        for name, loss in losses.LOSSES.items():
            try:
                compiled = losses.compile_loss(loss, arguments, int(tile) or None)
                run = functools.partial(losses._run, compiled, arguments)
                run()
                self.time(run, 3, loss=name, temporaries_mb=losses.megabytes(compiled))
            except jax.errors.JaxRuntimeError as refused:  # not enough memory
                self.row(loss=name, refused=str(refused)[:200])

    def search(self, count: str) -> None:
        """Exact search for 1,000 questions, from host memory (up to a million vectors) and on the device."""
        import jax
        import numpy as np

        from endx_jax.ranking.search import top_k

        width, k, rows = 384, 10, min(int(count), 250_000)
        questions, corpus = (
            jax.random.normal(jax.random.key(seed), (size, width)) for seed, size in enumerate((1000, int(count)))
        )
        if int(count) <= 1_000_000:
            host, asked = np.asarray(corpus), np.asarray(questions)
            run = functools.partial(top_k, asked, host, k, block=min(131_072, rows))
            run()
            self.time(run, 3, how="top_k from host memory")

        @jax.jit
        def resident(questions, corpus):
            def best(block):
                return jax.lax.top_k(jax.numpy.matmul(questions, block.T, precision="highest"), k)

            scores, _ = jax.lax.map(best, corpus.reshape(-1, rows, width))
            return jax.lax.top_k(jax.numpy.moveaxis(scores, 0, 1).reshape(len(questions), -1), k)

        run = _blocking(resident, questions, corpus)
        run()
        self.time(run, 5, how="products and top k of vectors on the device")

    def tests(self) -> None:
        """The fast tests of losses and models, in parallel."""
        # Other plug-ins of pytest warn, and a warning is an error here.
        command = ["-q", "-n4", "-pno:benchmark", "-pno:cacheprovider", "--tb=line", "-mnot slow and not reference"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *command, "tests/losses", "tests/models"], capture_output=True, text=True
        )
        lines = done.stdout.splitlines()
        self.row(last=lines[-1:], failed=[line[:200] for line in lines if line.startswith(("FAILED", "ERROR"))])

    def recipe(self) -> None:
        """A whole run of `minilm_squad`; each line is a row with its time."""
        data = pathlib.Path(self.options.data)
        values = {"model.pretrained": self.options.model}
        values |= {"data.path": data / "train-v1.1.json", "data.test_path": data / "dev-v1.1.json"}
        flags = [f"--config.{name}={value}" for name, value in values.items()]
        command = [sys.executable, "-m", "endx_jax.main", "--config=configs/minilm_squad.py", *flags]
        command.append(f"--workdir={tempfile.mkdtemp()}/run")
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
            for line in run.stdout:
                self.row(at=round(time.perf_counter() - start, 2), line=line.rstrip())


def smaller(part: str) -> str:
    """Returns the part at half its size, the first number of its name; empty if it has none above 1."""
    found = re.search(r":(\d+)", part)
    return f"{part[: found.start()]}:{int(found[1]) // 2}{part[found.end() :]}" if found and int(found[1]) > 1 else ""


def lacks_memory(failure: Exception) -> bool:
    """Returns true for the errors of JAX, PyTorch and endx_jax where the device's memory is too small."""
    return re.search("out of memory|RESOURCE_EXHAUSTED|of memory and", str(failure), re.IGNORECASE) is not None


def _seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _blocking(call, *arguments):
    import jax

    return lambda: jax.block_until_ready(call(*arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part")
    for name in ("data", "model", "state"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--compiling", action="store_true", help="only compile the part's programs")
    options = parser.parse_args()
    part, (name, *arguments) = Part(options.part, options), options.part.split(":")
    try:
        getattr(part, name)(*arguments)
    except Exception as failure:
        half = smaller(options.part)
        if not (half and lacks_memory(failure)):
            raise
        part.row(refused=str(failure)[:200], goes_on_with=half)
        again = [half if argument == options.part else argument for argument in sys.argv]
        os.execv(sys.executable, [sys.executable, *again])  # a new process, as this one holds memory


if __name__ == "__main__":
    main()
