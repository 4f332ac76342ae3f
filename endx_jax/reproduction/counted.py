"""Rows that count a data set, as ENDX's Table 1 and RR's do."""

from endx_jax.data.settings import PARAGRAPHS, DataSettings
from endx_jax.errors import EndxError
from endx_jax.experiment.data import counts_of, paths_of
from endx_jax.reproduction.outcome import Outcome
from endx_jax.reproduction.plan import Options
from endx_jax.reproduction.table import Row


def count(row: Row, options: Options) -> Outcome:
    """Counts train and test data of a row, or one of them where it names a `split`."""
    pool = row.pool or "answers"
    try:
        paths = paths_of(DataSettings(path=options.place_of(row.data), pool=pool))
        counts = {split: counts_of(path, pool) for split, path in zip(("train", "test"), paths, strict=True) if path}
    except EndxError as reason:
        return Outcome(row, why=str(reason))
    if pool == PARAGRAPHS:
        named = {"questions": counts[row.split]["questions"], "paragraphs": counts[row.split]["answers"]}
    else:
        named = {f"{split}_{name}": count for split, found in counts.items() for name, count in found.items()}
    if missing := [name for name in row.measures if name not in named]:
        return Outcome(row, why=f"the data have no {', '.join(missing)}")
    return Outcome(row, (tuple(float(named[name]) for name in row.measures),))
