"""The engine without files: one chat, four samples, and the log probability of each answer.

    python examples/engine_in_process.py [JOB]

The job file gives the model and the chat template; its inputs are not read.
"""

import sys
from pathlib import Path

from batchgen import Request, RunConfig, SamplingParams, load_spec
from batchgen.executor.start import start_engine
from batchgen.io.reader import InputRow
from batchgen.loader import load_model, prompt_builder
from batchgen.seeds import sample_seed

QUESTION = "Name three things that float on water. Answer in one line."


def main(path: Path) -> None:
    spec = load_spec(path)
    model = load_model(spec, path.parent, progress=lambda done, total: None)
    engine = start_engine(spec, model, RunConfig(out=Path("unused"), max_num_seqs=4))

    chat = InputRow(row_key="float", where="", messages=[{"role": "user", "content": QUESTION}])
    prompt = tuple(prompt_builder(spec, model).build(chat))
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=32, logprobs=0)
    requests = [Request("float", index, sample_seed(7, "float", index), prompt, params) for index in range(4)]

    # They come back as they end; the bytes of each are its own, whatever the order and whoever else was running.
    for completion in sorted(engine.generate(requests), key=lambda completion: completion.sample_index):
        print(f"{completion.sample_index}  {sum(completion.logprobs or ()):8.3f}  {completion.text!r}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "jobs" / "quickstart.yaml")
