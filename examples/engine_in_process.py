"""The engine without files: one chat, four samples, and the log probability of each answer.

    python examples/engine_in_process.py [JOB]

The job file gives the model and the chat template; its inputs are not read.
"""

import sys
from pathlib import Path

from batchgen import Engine, SamplingParams, load_spec

QUESTION = "Name three things that float on water. Answer in one line."


def main(path: Path) -> None:
    spec = load_spec(path)
    chat = [{"role": "user", "content": QUESTION}]
    params = SamplingParams(n=4, temperature=0.8, top_p=0.95, max_tokens=32, logprobs=0)
    with Engine.open(spec.resolved()["model"], numerics=spec.numerics, max_num_seqs=4) as engine:
        for rollout in engine.generate({"float": chat}, params, seed=7):
            answer = rollout.completion
            print(f"{answer.sample_index}  {sum(answer.logprobs or ()):8.3f}  {answer.text!r}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "jobs" / "quickstart.yaml")
