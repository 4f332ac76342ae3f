"""Command lines that are refused: words of the one line that names the flag, its value and a remedy."""

import json
import shlex

import pytest
from helpers import written
from small_beir import write_beir
from tiny_bert import PLAN

# Data without rules, endpoints without servers: what is asked of them would end in another line.
GENERATE = "generate --corpus=corpus.jsonl --output=new.jsonl --endpoint=http://127.0.0.1:9 --model=m"
EVALUATE = "evaluate --model={bert} --output=new"
ENCODE = "encode --model={bert} --corpus=corpus.jsonl --output=new"
MINE = "mine --data={pairs} --output=new"
SEARCH = "search --workdir={run}"
SERVE = "serve --index=nowhere"
TRAIN = "train --config=quickstart"

# The command line by verb, and the words.
REFUSED = {
    "compare nowhere nowhere": "nowhere no such file",
    "compare results results": "results endx evaluate",
    "encode --model={bert}": "--corpus",
    "encode --model={bert} --corpus=corpus.jsonl --shard=1/2": "shard output=FILE",
    "encode --join a b": "--join --output=FILE",
    "encode --join a b --output=new --precision=int8": "--join other flags --output",
    "encode --join a b --output=new --id-column=": "--join other flags --output",
    "encode --join {run} --output=new": "no file of an index {run}/index.sqlite",
    "encode --workdir=unfinished --corpus=corpus.jsonl --output=new": "unfinished workdir finish training",
    "encode --model=m --corpus=a --corpus b": "--corpus 'a' 'b' one of them",
    f"{ENCODE} --product-dtype=float16": "product_dtype float16",
    f"{ENCODE} --truncate-dim=33": "truncate_dim=33 32",
    f"{ENCODE} --truncate-dim=0": "truncate_dim=0",
    f"{ENCODE} --batch-size=0": "batch_size 0 1",
    f"{ENCODE} --shard=3/2": "shard=3/2 1 to 2",
    f"{ENCODE} --shard=0/2": "shard=0/2 1 to 2",
    f"{ENCODE} --shard=half": "--shard=half 1/8",
    f"{ENCODE} --text-column=body": "line 1 'body'",
    f"{ENCODE} --pool=answers": "reading-comprehension answers",
    f"{ENCODE} --reuse=nowhere": "nowhere index",
    "evaluate": "workdir=RUN model=NAME",
    "evaluate --model=x --workdir=x": "workdir=RUN model=NAME not both",
    "evaluate --workdir={bert}": "pretrained model model=",
    EVALUATE: "model data=FILE",
    f"{EVALUATE} --top=-1": "top -1",
    f"{EVALUATE} --min-questions 0": "min_questions whole number",
    "evaluate --model={bert} --data={pairs} --output={pairs}/out": "output",
    f"{EVALUATE} --data=empty": "empty: questions and answers, documents",
    f"{EVALUATE} --data=suite": "suite/b queries.jsonl",
    f"{EVALUATE} --data=suite/a --split=dev": "suite/a/qrels 'dev' split test",
    "evaluate --workdir={run} --language=none": "language data=FILE",
    "evaluate --workdir={run} --split=dev": "split data=FILE",
    "evaluate --index=x": "index needs data",
    "evaluate --index=x --data={pairs} --reverse": "rerank reverse index",
    "evaluate --index={run}/index.sqlite --data=suite": "suite (a, b) one of them",
    f"{GENERATE} --questions=0": "--questions 0 1 to 1,000",
    f"{GENERATE} --timeout=0": "--timeout=0.0 above 0",
    f"{GENERATE} --limit=-1": "--limit=-1",
    f"{GENERATE} --fields=[1]": "--fields object list",
    f"{GENERATE} --endpoint=ftp://a": "--endpoint http",
    f"{GENERATE} --prompt=corpus.jsonl": "corpus.jsonl {{passage}}",
    "generate --corpus=corpus.jsonl --endpoint=http://a --model=m --output=no/x.jsonl": "no folder",
    "generate --corpus=corpus.jsonl --endpoint=http://a --model=m --output=gs://bucket/x.jsonl": "bucket local file",
    "generate --corpus=c --endpoint=http://a --model=m --output=corpus.jsonl": "corpus.jsonl journal --output",
    f"{GENERATE} --filter-with=no/such/model": "no/such/model",
    "merge {run} before --output=new": "before training other models",
    "merge before/model {run} --output=new": "before/model training other models",
    MINE: "bm25=True",
    f"{MINE} --bm25 --index=x": "bm25=True workdir",
    f"{MINE} --model=x --workdir=x": "bm25=True workdir",
    f"{MINE} --bm25 --strata": "strata=True score_with",
    f"{MINE} --bm25 --questions=-1": "number of questions",
    f"{MINE} --bm25 --ranks=5-2": "ranks 5 to 2",
    f"{MINE} --bm25 --pool=answers": "columns data.pool",
    "mine --data={pairs} --bm25 --output={pairs}": "output= {pairs} file",
    "mine --data=wrong.csv --bm25 --output=new": "--question-column --answer-column",
    "mine --data=halves.csv --bm25 --output=new": "line 3 'answer' --skip-invalid",
    "mine --data=reqa/squad --bm25 --output=new": "reqa/squad data.pool",
    "mine --data=~/none.csv --bm25 --output=new": "{home}/none.csv: no such file",
    "mine --data=~user/none.csv --bm25 --output=a~/b": "~user/none.csv: no such file",
    "plan": "config",
    f"{PLAN} --devices=-1": "--devices=-1 positive",
    f"{PLAN} --topology=v5e:2x4 --devices=8": "--chip --devices",
    f"{PLAN} --encode": "--encode --topology --chip",
    f"{PLAN} --config.mesh.fsdp=3": "8 devices",
    f"{PLAN} --config.train.global_batch_size=12": "batch of 12 8 devices",
    f"{PLAN} --config.data.answer_length=80": "data.answer_length 80 64 positions",
    f"{PLAN} --config.model.pretrained=none/such": "none/such",
    "publish --index={run}/index.sqlite --to=http://root:secret@host --collection=a": "address password",
    "search 'the cat'": "nothing to search",
    f"{SEARCH} cat --text-column=body --id-column=": "--text-column, --id-column --add=FILE",
    f"{SEARCH} 'the cat' --questions=x": "not both",
    f"{SEARCH} 'the cat' --top=0": "at least 1",
    f"{SEARCH} 'the cat' --weight=0.5 --mode=dense": "--weight --mode=hybrid dense",
    f"{SEARCH} --output=x": "--output questions",
    SEARCH: "standard input terminal",
    "search a --workdir=nowhere": "nowhere no such folder",
    "search a --workdir=stopped": "stopped training not ended again resume",
    f"{SEARCH} a --weight=-2": "weight BM25 0",
    f"{SEARCH} a ' '": "question 2 empty",
    f"{SEARCH} --questions=x.txt": "x.txt: no such file",
    f"{SEARCH} --questions=unnamed.jsonl": "line 1 'text' 'question'",
    f"{SEARCH} a --rerank={{run}}": "pair classifier objective.name=pair",
    f"{SEARCH} a --rerank-top=0": "--rerank-top=0",
    f"{SEARCH} --mode=bm25 a --where=year=2019": "JSON --where=",
    f"{SEARCH} --delete=nobody": "no document 'nobody'",
    f"{SEARCH} --add=unnamed.jsonl": "text_column",
    f"{SEARCH} --add=parts": "split test, train",
    f"{SERVE} --port=99999": "--port=99999 1 to 65535",
    f"{SERVE} --host=no.such.host.invalid": "--host=no.such.host.invalid everyone",
    f"{SERVE} --host=0.0.0.0": "--host=0.0.0.0 everyone",
    f"{SERVE} --port=0": "nowhere",
    f"{SERVE} --port=0 --host=localhost": "nowhere",  # of this machine, as 127.1.2.3: no token is needed
    f"{SERVE} --port=0 --host=127.1.2.3": "nowhere",
    "serve": "--workdir=RUN --index=FILE --model=NAME --corpus=FOLDER",
    "serve --corpus=docs": "--workdir=RUN --index=FILE --model=NAME --corpus=FOLDER",
    f"{SERVE} --corpus=docs": "--corpus --index",
    f"{SERVE} --split=dev": "--split --corpus=FILE",
    f"{SERVE} --rerank=missing": "missing",
    f"{SERVE} --max-k=0": "--max-k positive",
    f"{SERVE} --token-file=missing": "--token-file=missing",
    f"{SERVE} --token-file=blank": "--token-file=blank ASCII",
    f"{SERVE} --token-file=words": "--token-file=words ASCII",
    f"{SERVE} --token-file=accents": "--token-file=accents ASCII",
    "train --config=t5:base,adespl": "sde, ade, ade_ste, ade_fte, ade_spl 'ade_spl'",
    "train --config=fcrr:questions": "SIDE fcrr:SIDE,BASE 'questions' 'question'",
    "train --config=t5:bass,sde": "SIZE t5:SIZE,SHARING 'bass' 'base'",
    "train": "config quickstart",
    "train --config=quickstat": "'quickstart'",
    f"{TRAIN} --config.train.stps=3": "--config.train.stps train.steps'",
    f"{TRAIN} --config.trin.steps=3": "'--config.train.steps'",
    f"{TRAIN} --config.train.batch_size=3": "'--config.train.global_batch_size'",
    f"{TRAIN} --data.path=x": "--data.path '--config.data.path'",
    f"{TRAIN} --zzzzzz=1": "--zzzzzz --help",
    f"{TRAIN} --config.train.steps=ten": "steps 'ten' whole number",
    f"{TRAIN} --config.train.epochs=3,5": "epochs '3,5' number",
    f"{TRAIN} --config.data.skip_invalid='x: y'": "skip_invalid 'x' true or false",
    f"{TRAIN} --config.evaluation.sets='[a,'": "sets '[a,' list",
    f"{TRAIN} --config.objective=endx": "--config.objective section",
    f"{TRAIN} --config.objective.name=late": "objective.name=late dual config late:RECIPE",
    f"{TRAIN} --wrkdir=x": "--wrkdir '--workdir'",
    "train --config=quickstart:fast": "TypeError get_config()",
    "train --config=pairs:64,a": "'64,a' get_config(width:",
    f"{TRAIN} extra": "'extra'",
    f"{TRAIN} --config.train.steps=3 --config.train.epochs=2.0": "train.steps=3 train.epochs=2.0 one of the two",
    f"{TRAIN} --config.optimizer.learning_rate=-1.0": "train: optimizer.learning_rate -1.0",
    "plan --config=quickstart --config.optimizer.learning_rate=-1.0": "plan: optimizer.learning_rate -1.0",
    "trian": "'trian' 'train'",
}


@pytest.fixture
def folder(tmp_path, monkeypatch, variables, trained_workdir):
    """The current folder: data of all kinds that do not fit."""
    monkeypatch.chdir(tmp_path)
    variables(HOME=str(tmp_path))
    for name in ("empty/nothing", "results", "parts", "unfinished", "stopped/model", "before/model", "a~"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("a", "b"):
        write_beir(tmp_path / "suite" / name, {"d": "a"}, {"q": "b"}, test=[("q", "d", 1)])
        (tmp_path / "parts" / f"{'train' if name == 'a' else 'test'}.jsonl").write_text('{"text": "the ant"}\n')
    (tmp_path / "suite" / "b" / "queries.jsonl").unlink()
    (tmp_path / "unfinished" / "config.json").write_text((trained_workdir / "config.json").read_text())
    model = json.loads((trained_workdir / "model" / "endx.json").read_text())
    (tmp_path / "before" / "model" / "endx.json").write_text(json.dumps(model | {"system": "untrained"}))
    (tmp_path / "stopped" / "model" / "method.json").write_text('{"name": "softmax", "embeds": true}')
    written(tmp_path / "corpus.jsonl", [{"_id": "d", "text": "the cat"}])
    written(tmp_path / "unnamed.jsonl", [{"txt": "the cat"}])
    for name, token in (("blank", " "), ("words", "two words"), ("accents", "naïve")):
        written(tmp_path / name, token)
    written(tmp_path / "wrong.csv", "asked,answer\nq,a\n")
    written(tmp_path / "halves.csv", "question,answer\nq,a\nr,\n")
    return tmp_path


def files(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("line", REFUSED)
def test_a_refusal_is_one_line_that_names_the_flag_and_leaves_nothing(line, folder, tiny_bert, pairs_csv, request):
    places = {"bert": tiny_bert, "pairs": pairs_csv, "home": folder}
    places["run"] = request.getfixturevalue("trained_workdir")
    if line.startswith("publish"):
        pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    before = files(folder)
    error = request.getfixturevalue("endx")(*shlex.split(line.format(**places)), status=2).err
    assert [word for word in REFUSED[line].format(**places).split() if word not in error] == [], error
    assert files(folder) == before
