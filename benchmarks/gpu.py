"""Benchmarks on a GPU that is available for half an hour, without a network.

    python benchmarks/gpu.py pack FOLDER --data=SQUAD     wheels, SQuAD and MiniLM in float16, 54 MB, to copy there
    python benchmarks/gpu.py unpack FOLDER TARGET         TARGET/packages (for PYTHONPATH), TARGET/squad, TARGET/model
    python benchmarks/gpu.py run OUTPUT --data=TARGET/squad --model=TARGET/model [--seconds=560] [PART=LIMIT ...]

`run` takes the parts of the queue in order, each in a process of its own with a limit of seconds, and writes a row to
OUTPUT/rows.jsonl as soon as it is measured. It ends after --seconds; called again, it goes on with the parts that are
left. A part whose size, the first number of its name, does not fit into the device's memory goes on with half of it, as
a row says. `compile(PART,...)` compiles parts in parallel, so that their measurements find their programs in the cache.
With --state the cache and the list of finished parts are kept in another folder. --tiny runs small parts on any
machine.
"""

import argparse
import gzip
import json
import lzma
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# What the usual images with JAX, PyTorch and sentence-transformers lack.
WHEELS = (
    "array-record datasets dill googleapis-common-protos grain ml-collections multiprocess portpicker py3langid "
    "PyStemmer"
)
# Parts and their limits in seconds, the most valuable first: those up to `units` have 560 seconds together. On an H200
# with 16 cores all take about 25 minutes.
UNITS = "units:bert-base:64:512 units:modernbert-base:64:128 units:minilm:128:512"
QUEUE = f"""
compile(train:128,mfu:minilm:256,mfu:bert-base:128,mfu:t5-base:128,{UNITS.replace(" ", ",")})=190
train:128=70 peer_train:128:plain=60 mfu:minilm:256=40 mfu:bert-base:128=40 mfu:t5-base:128=40
{UNITS.replace(" ", "=40 ")}=40 encode:512=80 peer_encode:512=60 ceilings=50 check=70
compile(train:128:dropout,train:128:hidden,train:1024,calls:128:8)=200
calls:128:8=60 train:1024=60 peer_train:1024:plain=90 peer_train:1024:128=100
train:128:dropout=60 train:128:hidden=60 tests=240 recipe=240
compile(losses:16384:0,losses:16384:1024,mfu:t5-small:256,mfu:t5-large:48)=240
losses:16384:0=40 losses:16384:1024=40 search:1000000=60 search:10000000=40 mfu:t5-small:256=40 mfu:t5-large:48=40
profile:128=60 profile:128:dropout=60 losses:65536:1024=120 losses:65536:0=120
"""
# For any CPU, however busy: no part comes near these limits.
TINY_QUEUE = """
compile(train:8,calls:8:2,mfu:tiny,units:tiny:2:8)=900 train:8=900 peer_train:8:plain=900 mfu:tiny=900
units:tiny:2:8=900 calls:8:2=900 encode:8=900 peer_encode:8=900 ceilings=900 check=900
losses:64:16=900 search:2000=900 profile:8=900
"""


def pack(options: argparse.Namespace) -> None:
    """Collects in `options.folder` what a machine without a network lacks."""
    import numpy as np
    import safetensors.numpy

    from endx_jax.data.formats import squad
    from endx_jax.pretrained.locate import locate

    folder, model = pathlib.Path(options.folder), locate("all-MiniLM-L6-v2")
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [f"--platform=manylinux_2_{version}_x86_64" for version in (28, 27, 24, 17)]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version=3.12"]
    subprocess.run([*pip, *platforms, "--platform=manylinux2014_x86_64", f"-d{folder}", *WHEELS.split()], check=True)
    weights = safetensors.numpy.load_file(model / "model.safetensors")
    half = {name: value.astype(np.float16) for name, value in weights.items() if value.dtype == np.float32}
    (folder / "model.safetensors.xz").write_bytes(lzma.compress(safetensors.numpy.save(half, {"format": "pt"})))
    for path in ("config.json", "modules.json", "sentence_bert_config.json", "tokenizer.json", "1_Pooling/config.json"):
        (folder / path.replace("/", "@")).write_bytes((model / path).read_bytes())
    for name, path in zip(("train", "dev"), squad.files_of(options.data), strict=True):
        content = (gzip.open if str(path).endswith(".gz") else open)(path, "rb").read()
        (folder / f"{name}-v1.1.json.xz").write_bytes(lzma.compress(content))


def unpack(options: argparse.Namespace) -> None:
    """Lays out a packed folder in `options.target`."""
    folder, target = pathlib.Path(options.folder), pathlib.Path(options.target)
    for name in ("packages", "squad", "model/1_Pooling"):
        (target / name).mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", f"--target={target / 'packages'}"]
    subprocess.run([*pip, *folder.glob("*.whl")], check=True)
    for path in folder.glob("*.json"):
        (target / "model" / path.name.replace("@", "/")).write_bytes(path.read_bytes())
    for path in folder.glob("*.xz"):
        place = target / ("model" if path.stem == "model.safetensors" else "squad")
        (place / path.stem).write_bytes(lzma.decompress(path.read_bytes()))


def start(part: str, options: argparse.Namespace, compiling: bool) -> subprocess.Popen:
    """Starts the process of a part."""
    values = {name: getattr(options, name) for name in ("data", "model", "state")}
    flags = [f"--{name}={value}" for name, value in values.items()] + ["--tiny"] * options.tiny
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": f"{options.state}/cache",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # PyTorch and other parts need memory too
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, HERE / "gpu_parts.py", part, *flags, *["--compiling"] * compiling]
    return subprocess.Popen(command, env=environment)


def run(options: argparse.Namespace) -> None:
    """Runs the parts that are left, until the seconds are over."""
    begin = time.perf_counter()
    output, options.state = pathlib.Path(options.output), str(pathlib.Path(options.state or options.output).resolve())
    output.mkdir(parents=True, exist_ok=True)
    rows, finished = pathlib.Path(options.state) / "rows.jsonl", pathlib.Path(options.state) / "finished.txt"
    rows.parent.mkdir(parents=True, exist_ok=True)
    finished.touch()
    failed = []
    for text in options.parts or (TINY_QUEUE if options.tiny else QUEUE).split():
        name, limit = text.rsplit("=", 1)
        left = options.seconds - (time.perf_counter() - begin)
        if text in finished.read_text().splitlines() or left < 20:
            continue
        side_by_side = re.fullmatch(r"compile\((.*)\)", name)
        names = side_by_side[1].split(",") if side_by_side else [name]
        processes = {part: start(part, options, compiling=bool(side_by_side)) for part in names}
        end = time.perf_counter() + min(float(limit), left)
        for part, process in processes.items():
            try:
                process.wait(max(end - time.perf_counter(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            failed += [part] * (process.returncode != 0)
            ended = json.dumps({"part": part, "status": process.returncode, "at": time.perf_counter() - begin})
            with open(rows, "a") as stream:
                stream.write(ended + "\n")
        if left >= float(limit):
            with open(finished, "a") as stream:
                stream.write(text + "\n")
        if rows.parent != output.resolve():
            (output / "rows.jsonl").write_bytes(rows.read_bytes())
    if failed:
        raise SystemExit(f"failed or stopped at their limit: {', '.join(failed)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("pack")
    command.set_defaults(run=pack)
    command.add_argument("folder")
    command.add_argument("--data", required=True, help="folder of SQuAD 1.1")
    command = commands.add_parser("unpack")
    command.set_defaults(run=unpack)
    command.add_argument("folder")
    command.add_argument("target")
    command = commands.add_parser("run")
    command.set_defaults(run=run)
    command.add_argument("output")
    command.add_argument("parts", nargs="*", help="PART=LIMIT, in place of the queue")
    command.add_argument("--data", required=True, help="folder of SQuAD 1.1")
    command.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder of MiniLM")
    command.add_argument("--state", default="", help="folder of the cache and of what is finished; empty: OUTPUT")
    command.add_argument("--seconds", type=float, default=560)
    command.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
