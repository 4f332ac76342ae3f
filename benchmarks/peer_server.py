"""Search server with FastAPI and sentence-transformers, the peer of serving.py.

`python benchmarks/peer_server.py --model=FOLDER --index=FILE --port=8001`. It is a
simple server: a `def` endpoint, which FastAPI runs in its threads, and the documents' embeddings in one tensor.
"""

import argparse
import pathlib
import sqlite3
import threading

import fastapi
import numpy as np
import pydantic
import sentence_transformers
import torch
import uvicorn

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", required=True, help="folder of a sentence-transformers model")
parser.add_argument("--index", required=True, type=pathlib.Path, help="a float32 index of endx_jax")
parser.add_argument("--port", type=int, default=8001)
parser.add_argument("--at_once", type=int, default=40, help="concurrent questions [FastAPI's threads]")
parser.add_argument("--threads", type=int, help="PyTorch threads per question [PyTorch's default]")
options = parser.parse_args()
if options.threads:
    torch.set_num_threads(options.threads)

model = sentence_transformers.SentenceTransformer(options.model, device="cpu")
columns = sqlite3.connect(options.index).execute("SELECT id, text, embedding FROM documents ORDER BY row").fetchall()
documents = [{"id": id, "text": text} for id, text, _ in columns]
embeddings = torch.from_numpy(np.stack([np.frombuffer(blob, np.float32) for *_, blob in columns]))
gate = threading.Semaphore(options.at_once)
app = fastapi.FastAPI()


class Question(pydantic.BaseModel):
    """Request body."""

    query: str
    k: int = 10


@app.post("/search")
def search(question: Question) -> dict:
    """Returns the best documents."""
    with gate, torch.inference_mode():
        embedding = model.encode(question.query, convert_to_tensor=True, show_progress_bar=False)
        scores, rows = torch.topk(embeddings @ embedding, question.k)
    results = [{"score": score, **documents[row]} for score, row in zip(scores.tolist(), rows.tolist(), strict=True)]
    return {"results": results}


@app.get("/readyz")
def ready() -> dict:
    """Answers 200 once the server is ready, as `endx serve` does."""
    return {"status": "ready"}


uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", access_log=False)
