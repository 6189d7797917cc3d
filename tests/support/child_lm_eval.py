"""The lm-evaluation-harness in a process of its own: child_lm_eval.py PLAN; prints what it found as JSON.

PLAN is JSON: the Parquet file, how many documents, the folder for the files of each run, and runs: [name, model,
model_args, batch_size].
The harness sets up logging, seeds and warnings as it likes; here that concerns nobody else.
"""

import json
import sys
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

import batchgen.integrations.lm_eval  # noqa: F401  registers the model


def tasks(data: str) -> list[dict[str, Any]]:
    """One task of each kind of request, of a local file."""
    shared: dict[str, Any] = {
        "dataset_path": "parquet",
        "dataset_kwargs": {"data_files": {"test": data}},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
    }
    choice: dict[str, Any] = {
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "doc_to_target": "right",
        "target_delimiter": "",
        "num_fewshot": 2,
        "fewshot_split": "test",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    rolling: dict[str, Any] = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{prompt}} {{answer}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    }
    greedy: dict[str, Any] = {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"}],
    }
    sampled = {**greedy, "repeats": 2, "generation_kwargs": {"temperature": 0.8, "top_p": 0.9, "max_gen_toks": 8}}
    named = {"choice": choice, "rolling": rolling, "greedy": greedy, "sampled": sampled}
    return [{"task": name, **shared, **task} for name, task in named.items()]


def run(plan: dict[str, Any], name: str, model: str, args: dict[str, Any], batch_size: int) -> dict[str, Any]:
    tracker = EvaluationTracker(output_path=f"{plan['files']}/{name}")
    found = simple_evaluate(
        model=model,
        model_args=args,
        tasks=tasks(plan["data"]),
        batch_size=batch_size,
        limit=plan["limit"],
        device="cpu",
        bootstrap_iters=0,
        evaluation_tracker=tracker,
        task_manager=TaskManager(include_defaults=False),  # thousands, which take long to read
    )
    assert found
    answers = {name: [each["resps"] for each in samples] for name, samples in found["samples"].items()}
    tracker.save_results_aggregated({}, found["samples"])
    for task, samples in found["samples"].items():
        tracker.save_results_samples(task, samples)
    about = {key: value for key, value in found["config"].items() if key.startswith("batchgen_")}
    return {"results": found["results"], "answers": answers, "about": about}


if __name__ == "__main__":
    plan = json.loads(sys.argv[1])
    sys.stdout, out = sys.stderr, sys.stdout
    print(json.dumps({name: run(plan, name, *rest) for name, *rest in plan["runs"]}, default=str), file=out)
