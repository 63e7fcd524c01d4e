"""The fifteen tasks of the paper's downstream table, with its protocol as far as it is known.

arXiv:2603.15031, table 3, gives the scores and no protocol. It follows Kimi Linear's recipe, whose
report (arXiv:2510.26692, section 5.4) says: likelihoods of the answers for MMLU, GPQA-Diamond and
C-Eval, text for all else, GPQA-Diamond the mean of eight runs, in a framework derived from this
harness. The shots are those of the same framework in Kimi K2's report (arXiv:2507.20534, table 4),
which takes likelihoods for HellaSwag, ARC-Challenge and CMMLU too, as the harness does. Where
neither says anything the harness's own settings hold, and `source` says so.
"""

import re
from collections.abc import Sequence
from typing import Any

from attnres.evaluation.task import Task

BASELINE, ATTN_RES = "paper: baseline", "paper: AttnRes"
LIKELIHOOD = "likelihoods: arXiv:2510.26692, section 5.4"
TEXT = "text: arXiv:2510.26692, section 5.4"
K2_LIKELIHOOD = "likelihoods: arXiv:2507.20534, section 4.2 (2510.26692: text)"
SHOTS = "shots: arXiv:2507.20534, table 4"
OF_THE_HARNESS = "shots: the harness's own"


def _cmath_answer(doc: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Whether the first number of the answer is the right one."""
    found = re.search(r"-?\d+(?:\.\d+)?(?:/\d+)?", results[0].replace(",", ""))
    return {"exact_match": float(found is not None and found[0] == doc["golden"].strip())}


CMATH = {  # the harness has no such task; the answers stand without reasoning
    "task": "cmath",
    "dataset_path": "weitianwen/cmath",
    "fewshot_split": "validation",
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "问题：{{question}}\n答案：",  # noqa: RUF001  Chinese has this colon
    "doc_to_target": "{{golden}}",
    "target_delimiter": "",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 64, "do_sample": False},
    "process_results": _cmath_answer,
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
MGSM = tuple(
    f"mgsm_native_cot_{language}"
    for language in ("bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")
)


def _task(name: str, spec: Any, n_shots: int | None, metric: str, *words: Any, **more: Any) -> Task:
    *source, baseline, attn_res = words
    return Task(
        name=name,
        spec=spec,
        n_shots=n_shots,
        metric=metric,
        source="; ".join(source),
        reported={BASELINE: baseline, ATTN_RES: attn_res},
        **more,
    )


PAPER: tuple[Task, ...] = (
    _task("mmlu", "mmlu", 5, "acc", LIKELIHOOD, SHOTS, 73.5, 74.6),
    _task(
        "mmlu_pro", "mmlu_pro", 5, "exact_match,custom-extract", TEXT, SHOTS, 52.2, 52.2
    ),
    _task(
        "gpqa_diamond", "gpqa_diamond_n_shot", 5, "acc", LIKELIHOOD, SHOTS, 36.9, 44.4, n_runs=8
    ),
    _task("bbh", "bbh_cot_fewshot", 3, "exact_match,get-answer", TEXT, SHOTS, 76.3, 78.0),
    _task("arc_challenge", "arc_challenge", 0, "acc_norm", K2_LIKELIHOOD, SHOTS, 64.6, 65.7),
    _task("hellaswag", "hellaswag", 5, "acc_norm", K2_LIKELIHOOD, SHOTS, 83.2, 83.4),
    _task("triviaqa", "triviaqa", 5, "exact_match,remove_whitespace", TEXT, SHOTS, 69.9, 71.8),
    _task("gsm8k", "gsm8k_cot", 8, "exact_match,flexible-extract", TEXT, SHOTS, 81.7, 82.4),
    _task(
        "mgsm",
        MGSM,
        8,
        "exact_match,flexible-extract",
        TEXT,
        "shots: arXiv:2210.03057, which made the task",
        64.9,
        66.1,
    ),
    _task("math", "minerva_math", 4, "exact_match", TEXT, SHOTS, 53.5, 57.1),
    _task("cmath", CMATH, 6, "exact_match", TEXT, SHOTS, 84.7, 85.1, version="1"),
    _task(
        "humaneval", "humaneval", 0, "pass@1,create_test", TEXT, OF_THE_HARNESS, 59.1, 62.2,
        runs_code=True,
    ),
    _task(
        "mbpp", "mbpp", 3, "pass_at_1", TEXT, OF_THE_HARNESS, 72.0, 73.9, runs_code=True,
    ),
    _task("cmmlu", "cmmlu", 5, "acc", K2_LIKELIHOOD, SHOTS, 82.0, 82.9),
    _task("ceval", "ceval-valid", 5, "acc", LIKELIHOOD, SHOTS, 79.6, 82.5),
)  # fmt: skip
