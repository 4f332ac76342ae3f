"""Settings of evaluation."""

import dataclasses

from endx_jax.retrieval.evaluate import MEASURES
from endx_jax.settings import check, check_choice, key


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """Held in `config.evaluation`."""

    metric: str = key("mrr", "of the validation split, that chooses the best checkpoint; higher is better")
    reverse: bool = key(False, "whether the questions are also ranked for each answer, in the report (RR, Table 10)")
    min_questions: tuple[int, ...] = key(
        (8,),
        "the report also ranks the questions whose answer has at least so many, in the whole pool and among such "
        "answers alone (ENDX, Table 4)",
        changes_results=False,
    )
    untrained: bool = key(
        True, "whether the report ranks by the towers as they were before training, too", changes_results=False
    )
    batch_size: int = key(64, "texts encoded together", changes_results=False)
    depth: int = key(100, "best candidates kept a question, in runs", changes_results=False)

    def __post_init__(self):
        check_choice("evaluation.metric", self.metric, MEASURES)
        whole = all(type(minimum) is int and minimum > 0 for minimum in self.min_questions)
        check(whole, f"evaluation.min_questions={self.min_questions} must be whole numbers of questions, above 0")
        check(self.batch_size > 0 and self.depth > 0, "evaluation.batch_size and depth must be positive")
