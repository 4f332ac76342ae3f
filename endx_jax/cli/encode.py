"""`endx encode`: encodes a corpus of any size into an index; run the same command to resume.

Several processes or machines divide the work by --shard=1/N to N/N; --join makes one index of their files.
"""

import re
from typing import Any, Literal

from etils import epath

from endx_jax.buckets import local_copy, url_of
from endx_jax.cli.data_flags import add_corpus_flags, add_product_flag
from endx_jax.cli.parser import main_of
from endx_jax.data.languages import LANGUAGES
from endx_jax.data.sets.paragraphs import POOLS
from endx_jax.errors import EndxError, counted
from endx_jax.settings import require


def encode(
    *,
    workdir: epath.Path | None = None,
    model: str = "",
    join: list[str] | None = None,
    corpus: str = "",
    output: epath.Path | None = None,
    precision: Literal["float32", "float16", "int8", "binary"] = "float32",
    truncate_dim: int | None = None,
    shard: str = "1/1",
    reuse: str | None = None,
    batch_size: int = 64,
    pool_factor: float | None = None,
    pool: str = "",
    language: str = "",
    **reading: Any,
) -> None:
    """Encodes a corpus, or joins the indexes of its shards.

    Args:
      workdir: workdir of a run, whose model is used
      model: pretrained folder or name
      join: join the indexes of all shards, in place of encoding
      corpus: folder of documents (.md, .rst, .txt, .html, .pdf), BEIR, MS MARCO, DPR or save_to_disk; .parquet or
        .arrow file; or .jsonl, .json, .csv, .tsv or .txt file, also with .gz; SQuAD's .json too
      output: file of the index [one in ~/.cache/endx_jax/indexes]
      precision: data type of the embeddings; binary: one bit for each dimension finds candidates, and int8 ranks them
      truncate_dim: keep the first N dimensions [all]
      shard: encode the I-th of N parts of the corpus, from 1 [all of it]
      reuse: older index of the same model, whose embeddings of unchanged texts are taken over
      batch_size: texts of maximum length encoded together
      pool_factor: late interaction keeps about one of this many vectors of a text, means of similar ones [the model's]
      pool: sentences of reading-comprehension data [paragraphs]
      language: language of the texts, for BM25 [detected]
      **reading: split and columns, as for `read_corpus`
    """
    require(sum(map(bool, (workdir, model, join))) == 1, "set one of --workdir=RUN, --model=NAME and --join=FILE")
    from endx_jax.experiment.workdir import check_writable, run_language
    from endx_jax.index.corpus_encoding import Encoding, encode_corpus
    from endx_jax.index.shards import join_shards
    from endx_jax.parallel.console import say
    from endx_jax.parallel.environment import keep_programs

    encoding = Encoding(precision, truncate_dim, batch_size, pool_factor)
    if join:
        if output is None:
            raise EndxError("--join needs --output=FILE, the file of the joined index")
        of_shards = corpus or reuse or pool or language or shard != "1/1" or encoding != Encoding()
        require(
            not of_shards and {*reading.values()} <= {None},
            "--join joins shards as they were encoded: leave out all other flags except --output",
        )
        count = join_shards(output, list(map(local_copy, join)))
        say(f"{counted(count, 'document')} of {len(join)} shards; the index is {output}")
        return
    require(bool(corpus), "nothing to encode: set --corpus=FILE or --corpus=FOLDER")
    numbers = re.fullmatch(r"(\d{1,6})/(\d{1,6})", shard)
    if not numbers:
        raise EndxError(f"--shard={shard}: give the number of the shard and of all shards, such as 1/8")
    if output and not url_of(output):
        check_writable(output.parent, "--output")
    keep_programs()
    encode_corpus(
        workdir or model,
        corpus,
        output,
        encoding,
        language=language or run_language(workdir),
        shard=(int(numbers[1]), int(numbers[2])),
        reuse=reuse,
        pool=pool,
        **reading,
    )


CHOICES = {"pool": {"choices": POOLS}, "language": {"choices": LANGUAGES, "metavar": "NAME"}}
main = main_of(__doc__, encode, add_corpus_flags, add_product_flag, **CHOICES, shard={"metavar": "I/N"})
