"""Encoders of other libraries, the peers of cpu.py: sentence-transformers, and three runtimes of one ONNX file."""

import contextlib
import os
import pathlib

import common
import numpy as np

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class PeerEncoder:
    """sentence-transformers; each call encodes all given texts, together or one at a time."""

    def __init__(
        self,
        folder: str,
        device: str,
        dtype: str,
        length: int,
        texts: list[str],
        batch_size: int,
        together: bool = True,
    ):
        """Loads the model, which truncates texts to `length` tokens; `dtype` is one of PyTorch, or `autocast`."""
        with common.needs("sentence-transformers torch"):
            import sentence_transformers
            import torch
        self._autocast = torch.autocast("cpu", torch.bfloat16) if dtype == "autocast" else contextlib.nullcontext()
        options = {"dtype": "float32" if dtype == "autocast" else dtype}
        model = sentence_transformers.SentenceTransformer(folder, device=device, model_kwargs=options)
        model.max_seq_length = length
        self._model, self._batch_size = model, batch_size
        self._calls = [texts] if together else [[text] for text in texts]

    def __call__(self) -> np.ndarray:
        """Returns the embeddings, [N, E]."""
        with self._autocast:
            encode, size = self._model.encode, self._batch_size
            return np.concatenate([encode(texts, batch_size=size, show_progress_bar=False) for texts in self._calls])


class _Runtime:
    """An ONNX file that pools, in batches of texts sorted by length, padded to the longest."""

    def __init__(self, file: str, form: str, length: int, texts: list[str], batch_size: int, together: bool):
        """Loads the file, with as many threads as this process has cores, and the tokenizer beside it."""
        with common.needs("tokenizers"):
            from tokenizers import Tokenizer
        self._tokenizer = Tokenizer.from_file(str(pathlib.Path(file).parent / "tokenizer.json"))
        self._tokenizer.enable_truncation(length)
        self._tokenizer.no_padding()
        self._run = self._load(file, form, len(os.sched_getaffinity(0)))
        self._batch_size, self._calls = batch_size, [texts] if together else [[text] for text in texts]

    def __call__(self) -> np.ndarray:
        """Returns the embeddings, [N, E]."""
        return np.concatenate([self._encode(texts) for texts in self._calls])

    def _encode(self, texts: list[str]) -> np.ndarray:
        rows = [found.ids for found in self._tokenizer.encode_batch(texts)]
        order, parts = sorted(range(len(rows)), key=lambda n: -len(rows[n])), []
        for start in range(0, len(rows), self._batch_size):
            chosen = [rows[n] for n in order[start : start + self._batch_size]]
            lengths = np.array([len(row) for row in chosen])
            mask = (np.arange(lengths[0]) < lengths[:, None]).astype(np.int64)
            ids = np.zeros_like(mask)
            ids[mask > 0] = np.concatenate(chosen)
            parts.append(self._run(dict(zip(INPUTS, (ids, mask, np.zeros_like(mask)), strict=True))))
        return np.concatenate(parts)[np.argsort(order)]


class OnnxEncoder(_Runtime):
    """ONNX Runtime, in float32 or with dynamic int8 products (`form`)."""

    def _load(self, file, form, threads):
        with common.needs("onnxruntime"):
            import onnxruntime
            from onnxruntime.quantization import QuantType, quantize_dynamic
        if form == "int8":
            source, file = file, str(pathlib.Path(file).with_name("int8.onnx"))
            quantize_dynamic(source, file, weight_type=QuantType.QInt8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, inputs)[0]


class OpenVinoEncoder(_Runtime):
    """OpenVINO, whose precision `form` is f32 or bf16."""

    def _load(self, file, form, threads):
        with common.needs("openvino"):
            import openvino
        settings = {"INFERENCE_PRECISION_HINT": form, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        model = openvino.compile_model(file, "CPU", settings)
        return lambda inputs: model(inputs)[0].copy()  # a view of memory that the next call overwrites


class FastEncoder:
    """fastembed."""

    def __init__(self, file: str, form: str, length: int, texts: list[str], batch_size: int, together: bool):
        """Registers the ONNX file as a model of fastembed, which takes `length` from its tokenizer's settings."""
        with common.needs("fastembed"):
            from fastembed import TextEmbedding
            from fastembed.common.model_description import ModelSource, PoolingType
        path, name = pathlib.Path(file), "cpu.py/minilm"
        source = ModelSource(hf=name)
        # The file pools and normalizes.
        TextEmbedding.add_custom_model(name, PoolingType.DISABLED, False, source, dim=384, model_file=path.name)
        threads = len(os.sched_getaffinity(0))
        self._model = TextEmbedding(name, specific_model_path=str(path.parent), threads=threads)
        self._batch_size, self._calls = batch_size, [texts] if together else [[text] for text in texts]

    def __call__(self) -> np.ndarray:
        """Returns the embeddings, [N, E]."""
        return np.concatenate([[*self._model.embed(texts, batch_size=self._batch_size)] for texts in self._calls])


def write_onnx(folder: str, file: pathlib.Path) -> None:
    """Writes the tower of a folder, with mean pooling and unit vectors, as an ONNX file; its tokenizer is beside it."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    class Tower(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = AutoModel.from_pretrained(folder, attn_implementation="eager")

        def forward(self, ids, mask, types):
            encodings = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
            weights = mask.to(encodings.dtype)[..., None]
            return torch.nn.functional.normalize((encodings * weights).sum(1) / weights.sum(1), dim=-1)

    ids = torch.ones((2, 8), dtype=torch.long)
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])  # with padding, so that the file has the mask's operations
    axes = {name: {0: "batch", 1: "length"} for name in INPUTS} | {"embedding": {0: "batch"}}
    names = {"input_names": [*INPUTS], "output_names": ["embedding"], "dynamic_axes": axes}
    torch.onnx.export(Tower().eval(), (ids, mask, 0 * ids), str(file), opset_version=17, dynamo=False, **names)
    AutoTokenizer.from_pretrained(folder, local_files_only=True).save_pretrained(file.parent)
    (file.parent / "config.json").write_text((pathlib.Path(folder) / "config.json").read_text())
