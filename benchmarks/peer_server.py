"""Search server with FastAPI and sentence-transformers, the peer of serving.py.

`python benchmarks/peer_server.py --model=FOLDER --index=FILE --port=8001`. It encodes one batch at a time: the first
question at once, and those that come meanwhile as the next batch. The documents' embeddings are one tensor.
"""

import argparse
import asyncio
import pathlib
import sqlite3

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
parser.add_argument("--batch", type=int, default=64, help="questions that are encoded together, at most")
options = parser.parse_args()

model = sentence_transformers.SentenceTransformer(options.model, device="cpu")
query = "SELECT id, text, embedding FROM passages JOIN documents ON documents.row = document ORDER BY passages.row"
columns = sqlite3.connect(options.index).execute(query).fetchall()
documents = [{"id": id, "text": text} for id, text, _ in columns]
embeddings = torch.from_numpy(np.stack([np.frombuffer(blob, np.float32) for *_, blob in columns]))
app = fastapi.FastAPI()
waiting: list[tuple[str, int, asyncio.Future]] = []
encoding = asyncio.Lock()


class Question(pydantic.BaseModel):
    """Request body."""

    query: str
    k: int = 10


@torch.inference_mode()
def answers(batch: list[tuple[str, int, asyncio.Future]]) -> list[dict]:
    """Returns the best documents of each question."""
    questions = model.encode([query for query, *_ in batch], convert_to_tensor=True, show_progress_bar=False)
    bests = [torch.topk(scores, k) for scores, (_, k, _) in zip(questions @ embeddings.T, batch, strict=True)]
    results = [zip(scores.tolist(), rows.tolist(), strict=True) for scores, rows in bests]
    return [{"results": [{"score": score, **documents[row]} for score, row in result]} for result in results]


@app.post("/search")
async def search(question: Question) -> dict:
    """Returns the best documents."""
    own = asyncio.get_running_loop().create_future()
    waiting.append((question.query, question.k, own))
    async with encoding:
        if not own.done():
            batch = waiting[: options.batch]
            del waiting[: options.batch]
            for (*_, future), result in zip(batch, await asyncio.to_thread(answers, batch), strict=True):
                future.set_result(result)
    return await own


@app.get("/readyz")
def ready() -> dict:
    """Answers 200 once the server is ready, as `endx serve` does."""
    return {"status": "ready"}


uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", access_log=False)
