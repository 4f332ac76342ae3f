"""Table of public test collections: BM25, untrained models, and each model fused with BM25.

The file that it writes has the form of docs/tables/collections.json, which a page shows.
"""

import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence

from endx_jax import json_files
from endx_jax.data.formats import Data, open_data
from endx_jax.errors import EndxError
from endx_jax.experiment.comparison import compare_systems, read_per_question
from endx_jax.experiment.evaluate import evaluate
from endx_jax.experiment.workdir import MANIFEST, RESULTS
from endx_jax.files import write_text
from endx_jax.inference import load
from endx_jax.parallel.environment import environment
from endx_jax.ranking.evaluate import NDCG
from endx_jax.ranking.results import aligned, read_results
from reproduction.runs import Options, slug

NAME = "public"  # of the table, and of its data
TITLE = "Public test collections: BM25, untrained models, and each model fused with BM25, in per cent"
DEFAULT = ("all-MiniLM-L6-v2",)
MEASURES = {NDCG: "nDCG@10", "map": "MAP", "recall@10": "recall@10", "mrr": "MRR"}
COLUMNS = ["collection", "documents", "questions", "system", "nDCG@10", "nDCG@10 - BM25", *list(MEASURES.values())[1:]]


def public_table(models: Sequence[str], options: Options) -> str:
    """Ranks every collection of a suite with every model, writes the table, and returns it as text.

    A collection that a model has ranked already is not ranked again.

    Args:
      models: folders or names of models; names may have a place in `options.weights`.
      options: the suite, a folder of BEIR folders, as the data `public`; weights; and the output folder.

    Raises:
      EndxError: there is no suite or no model, or the output has the results of other data.
    """
    suite, home = options.place_of(NAME), options.output / NAME
    sets = open_data(suite).sets()
    if not sets:
        raise EndxError(f"--data={NAME}={suite}: give a folder of BEIR folders, one for each collection")
    models = list(dict.fromkeys(models)) or list(DEFAULT)
    for model in models:
        rank(options.weights.get(model, model), sets, home / slug(model))
    rows = [row for name in sets for row in rows_of(name, {model: home / slug(model) / name for model in models})]
    made = [
        json_files.read_json_file(home / slug(model) / name / MANIFEST) | {"model": model}
        for model in models
        for name in sets
    ]
    products = _different(f"{pathlib.Path(one['model']).name} in {one['product_dtype']}" for one in made)
    notes = (
        "Differences are in points with 95 % bootstrap intervals for other questions, not corrected for the number of "
        f"comparisons. Products: {products}"
    )
    about = {
        "title": TITLE,
        "page": "collections.md",
        "command": list(_commands(made, options)),
        "seeds": "0 (bootstrap)",
        "data": f"{', '.join(sets)}; equal texts count once",
        "machine": _different(f"{one['cores']} cores of {one['processor']}" for one in made),
        "versions": _different(f"Python {one['python']}, JAX {one['versions']['jax']}" for one in made),
        "origin": f"the command, at commit {_different(one['commit'][:8] or 'unknown' for one in made)}",
        "notes": notes,
        "columns": COLUMNS,
    }
    file = home / f"{NAME}.json"
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    write_text(file, f'{json.dumps(about, indent=2)[:-2]},\n  "rows": [\n{lines}\n  ]\n}}\n')
    return "\n".join([TITLE, "", *aligned([COLUMNS, *rows]), "", notes, f"the table is in {file}"])


def rank(place: str, sets: dict[str, Data], folder: pathlib.Path) -> None:
    """Evaluates a model on the collections for which the folder has no results."""
    model = None
    for name, one in sets.items():
        if (folder / name / RESULTS).exists():
            held = read_results(folder / name / RESULTS)[0]["dataset"]
            if held != one.path:
                raise EndxError(f"{folder / name} has results of {held}, not of {one.path}: give another --output")
            continue
        model = model or load(place)
        manifest = environment() | {"product_dtype": str(model.product_dtype)}
        write_text(folder / name / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        evaluate(model, one.path, split=one.split, min_questions=(), output=folder / name)


def rows_of(collection: str, folders: dict[str, pathlib.Path]) -> Iterator[list[str]]:
    """Yields the rows of a collection: BM25's, and two of each model, alone and fused; `folders` has the results."""
    for number, (model, folder) in enumerate(folders.items()):
        name = pathlib.Path(model).name
        bm25, *others = read_results(folder / RESULTS)
        if number == 0:
            yield _row(collection, "BM25", bm25, "")
        for label, entry in zip((name, f"{name} + BM25"), others, strict=True):
            systems = (read_per_question(folder, one["system"]) for one in (bm25, entry))
            (measured,) = (row for row in compare_systems(*systems).rows if row["measure"] == NDCG)
            yield _row(collection, label, entry, _points(measured))


def _commands(made: Iterable[dict], options: Options) -> Iterator[str]:
    """Yields the command that ranks the models in each data type of products."""
    ranked: dict[str, dict[str, None]] = {}
    for one in made:
        ranked.setdefault(one["product_dtype"], {})[one["model"]] = None
    for product_dtype, models in ranked.items():
        weights = "".join(f" --weights={model}=FOLDER" for model in models if model in options.weights)
        flags = f"--data={NAME}=SUITE{weights} --product-dtype={product_dtype}"
        yield f"python -m reproduction table {NAME} {' '.join(models)} {flags}"


def _row(collection: str, label: str, entry: dict, difference: str) -> list[str]:
    first, *others = (f"{100 * entry['metrics'][measure]:.1f}" for measure in MEASURES)
    return [collection, f"{entry['candidates']:,}", f"{entry['questions']:,}", label, first, difference, *others]


def _points(row: dict) -> str:
    """Returns a difference in points, with its interval if there are enough questions."""
    interval = f" ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})" if row["p"] is not None else ""
    return f"{100 * row['difference']:+.1f}{interval}"


def _different(values: Iterable[str]) -> str:
    """Returns the different values of all results, as one text."""
    return "; ".join(dict.fromkeys(values))
