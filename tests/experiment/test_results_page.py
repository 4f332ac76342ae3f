import html.parser
import json

import numpy as np

from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.experiment.results_page import LISTED, curve, results_page
from endx_jax.ranking.evaluate import evaluate_set
from endx_jax.ranking.results import Results


class Page(html.parser.HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.attributes, self.texts = [], {}, []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= dict(attrs)

    def handle_data(self, data):
        self.texts.append(data)


def test_a_page_draws_the_loss_and_lists_what_gained_and_lost_most_without_scripts(tmp_path):
    count = 30
    records = RetrievalSet.from_pairs([(f"<script>ask {n}</script>", f"say {n} & more") for n in range(count)])
    right, wrong = np.eye(count, dtype=np.float32), np.roll(np.eye(count, dtype=np.float32), 1, axis=1)
    results = Results("pairs.csv", "test", Pools(all=records))
    numbers = np.arange(count)[:, None]  # the first twelve questions gain, the next two lose
    before, after = np.where(numbers < 12, wrong, right), np.where(np.isin(numbers, (12, 13)), wrong, right)
    for name, scores in (("untrained hybrid", before), ("hybrid", after)):
        results.add(name, {"all": evaluate_set(lambda a, b, scores=scores: scores[a:b], records)})
    lines = [{"step": 10, "loss": 2.0}, {"step": 20, "loss": float("nan")}, {"step": 30, "loss": 1.0}]
    lines.append({"step": 30, "validation/mrr": 0.75})
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    page = Page(results_page(results, tmp_path, "mrr"))
    assert not {"script", "link", "img", "iframe"} & {*page.tags}
    assert not {"src", "href", "onload"} & {*page.attributes}
    assert page.tags.count("svg") == 2  # loss and mrr
    assert page.tags.count("circle") == 2 + 1
    assert page.tags.count("td") == 4 * (LISTED + 2)
    assert "<script>ask 12</script>" in page.texts
    assert "say 12 & more" in page.texts
    assert "say 13 & more" in page.texts  # the best answer of question 12
    assert page.texts.count("right") == LISTED


def test_a_curve_spans_its_plot():
    drawn = curve([(0, 1.0), (50, 0.5), (100, 0.0)])
    assert 'points="56.0,14.0 343.0,103.0 630.0,192.0"' in drawn
    assert "nan" not in curve([(7, 0.25)])
