"""The tiny models are worth testing with: what they say depends on every weight, and outsiders can load them."""

from pathlib import Path

import pytest
import torch
from support.tiny_models import FAMILIES, SPECIAL, tiny_config, tiny_tokenizer, tiny_weights, write_tiny

PROMPT = "What is the name of it?"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_far_from_flat_and_text_wanders(tmp_path: Path, family: str, tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(write_tiny(tmp_path, family, tie_word_embeddings=tied)).float()
    ids = torch.tensor([tiny_tokenizer().encode(PROMPT).ids])
    with torch.no_grad():
        logits = model(ids).logits[0]
        for _ in range(24):
            ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert 2 < logits.std(dim=-1).mean() < 5
    chance = logits.softmax(dim=-1)
    entropy = -(chance * chance.log()).sum(dim=-1)
    assert entropy.mean() < 4  # a flat one would be near 5.7
    assert entropy.mean() > 1  # and a decided one gives every sampler the same token
    assert len(set(ids[0, -24:].tolist())) >= 6


def test_a_seed_is_a_model() -> None:
    config = tiny_config("llama")
    a, again, b = tiny_weights(config, 1), tiny_weights(config, 1), tiny_weights(config, 2)
    assert all(torch.equal(a[name], again[name]) for name in a)
    assert not any(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("text", ["", PROMPT, " the  end\n\n", "naïve 🙂 漢字", "\x00\x7f", "for(int i=0;i<n;++i){}"])
def test_the_tokenizer_gives_every_text_back(text: str) -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_tokenizer_merges_and_knows_its_special_tokens() -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.encode(" the").tokens == ["Ġthe"]
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2]
    assert tokenizer.encode("<|im_end|>").ids == [2]
    assert tokenizer.get_vocab_size() == 288


def test_transformers_renders_its_chat_template(tiny_llama: Path) -> None:
    from transformers import AutoTokenizer

    messages = [{"role": "user", "content": "hi"}]
    text = AutoTokenizer.from_pretrained(tiny_llama).apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
