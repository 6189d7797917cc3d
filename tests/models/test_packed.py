import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.bitwise import assert_bitwise
from support.tiny_models import tiny_config, tiny_weights, write_tiny

from batchgen.errors import ModelError
from batchgen.kernels.packing import PackedWeight, unpack
from batchgen.models.checkpoint import open_checkpoint
from batchgen.models.files import source_digest
from batchgen.models.packed import LAYOUT, PackedWeights
from batchgen.models.weights import Checkpoint


def load(model: Path, cache: Path) -> PackedWeights:
    return PackedWeights.open_or_build(lambda: open_checkpoint(model), cache, source_digest(model))


def load_again(model: Path, cache: Path) -> PackedWeights:
    """Fails if the checkpoint is opened."""

    def forbidden() -> Checkpoint:
        raise AssertionError("the cache was not used")

    return PackedWeights.open_or_build(forbidden, cache, source_digest(model))


def assert_same(a: PackedWeights, b: PackedWeights) -> None:
    assert (a.config, a.weights_digest) == (b.config, b.weights_digest)
    assert list(a.tensors) == list(b.tensors)
    for name, tensor in a.tensors.items():
        assert_bitwise(tensor, b[name], name)


def cache_file(cache: Path) -> Path:
    (file,) = cache.glob("*.packed")
    return file


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_what_is_packed(tmp_path: Path, cache: Path, family: str, tied: bool) -> None:
    raw = tiny_config(family, tie_word_embeddings=tied)
    weights = tiny_weights(raw)
    packed = load(write_tiny(tmp_path / "model", family, tie_word_embeddings=tied), cache)
    expected = {"embed", "final_norm"} | (set() if tied else {"lm_head"})
    for i in range(2):
        layer = f"model.layers.{i}."
        expected |= {f"layers.{i}.{name}" for name in ("input_norm", "qkv", "o", "post_norm", "gate_up", "down")}
        linear = {
            "qkv": [f"self_attn.{part}_proj.weight" for part in "qkv"],
            "o": ["self_attn.o_proj.weight"],
            "gate_up": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
            "down": ["mlp.down_proj.weight"],
        }
        vector = {"input_norm": ["input_layernorm.weight"], "post_norm": ["post_attention_layernorm.weight"]}
        if family == "qwen2":
            vector["qkv_bias"] = [f"self_attn.{part}_proj.bias" for part in "qkv"]
        if family == "qwen3":
            vector |= {"q_norm": ["self_attn.q_norm.weight"], "k_norm": ["self_attn.k_norm.weight"]}
        for name, parts in linear.items():
            whole = torch.cat([weights[layer + part] for part in parts])
            assert_bitwise(unpack(PackedWeight(packed[f"layers.{i}.{name}"], len(whole))), whole, name)
        for name, parts in vector.items():
            expected.add(f"layers.{i}.{name}")
            assert_bitwise(packed[f"layers.{i}.{name}"], torch.cat([weights[layer + p] for p in parts]).float(), name)
    assert packed.tensors.keys() == expected
    assert_bitwise(unpack(PackedWeight(packed["embed"], raw["vocab_size"])), weights["model.embed_tokens.weight"])
    if not tied:
        assert_bitwise(unpack(PackedWeight(packed["lm_head"], raw["vocab_size"])), weights["lm_head.weight"])
    assert_bitwise(packed["final_norm"], weights["model.norm.weight"].float())


def test_the_second_start_maps_the_same(tiny_llama: Path, cache: Path) -> None:
    first = load(tiny_llama, cache)
    checkpoint = open_checkpoint(tiny_llama)
    assert (first.config, first.weights_digest) == (checkpoint.config, checkpoint.weights_digest())
    second = load_again(tiny_llama, cache)
    assert_same(first, second)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in second.tensors.values())
    assert [p.name for p in cache.iterdir() if p.name != ".lock"] == [cache_file(cache).name]


def test_a_write_to_a_mapped_tensor_cannot_reach_the_file(tiny_llama: Path, cache: Path) -> None:
    first = load(tiny_llama, cache)
    before = cache_file(cache).read_bytes()
    first["final_norm"].zero_()
    assert cache_file(cache).read_bytes() == before


def damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    for at in (0, len(content) // 2, len(content) - 45, len(content) - 35, len(content) - 20):
        yield f"a bit flipped at {at}", content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]
    for size in (0, 39, 40, len(content) // 2, len(content) - 1):
        yield f"cut to {size}", content[:size]
    yield "grown", content + b"\0"
    yield "empty pages", bytes(len(content))
    yield "end kept, middle gone", content[:4096] + bytes(len(content) - 8192) + content[-4096:]


def test_a_damaged_cache_is_built_again(tiny_llama: Path, cache: Path) -> None:
    whole = load(tiny_llama, cache)
    good = cache_file(cache).read_bytes()
    for what, bad in damages(good):
        cache_file(cache).unlink()  # the old mapping stays valid
        next_file = cache / f"{source_digest(tiny_llama)}-{LAYOUT}.packed"
        next_file.write_bytes(bad)
        with pytest.warns(RuntimeWarning, match="building it again"):
            assert_same(load(tiny_llama, cache), whole)
        assert next_file.read_bytes() == good, what
        assert_same(load_again(tiny_llama, cache), whole)


def test_a_changed_model_of_the_same_size_and_time_is_another_model(tmp_path: Path, cache: Path) -> None:
    model = write_tiny(tmp_path / "model")
    before = load(model, cache)
    file = model / "model.safetensors"
    stat, content = file.stat(), bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.stat().st_mtime_ns == stat.st_mtime_ns
    after = load(model, cache)
    assert after.weights_digest != before.weights_digest == load_again(write_tiny(tmp_path / "b"), cache).weights_digest


def test_a_changed_config_is_another_model(tmp_path: Path, cache: Path) -> None:
    model = write_tiny(tmp_path / "model", rope_theta=10000.0)
    before = load(model, cache)
    (model / "config.json").write_text((model / "config.json").read_text().replace("10000.0", "50000.0"))
    after = load(model, cache)
    assert after.config.rope_theta == 50000.0
    assert after.weights_digest != before.weights_digest


def test_the_file_of_another_model_under_this_name_is_refused(tmp_path: Path, tiny_llama: Path, cache: Path) -> None:
    other = write_tiny(tmp_path / "other", seed=1)
    load(other, cache)
    cache_file(cache).rename(cache / f"{source_digest(tiny_llama)}-{LAYOUT}.packed")
    with pytest.warns(RuntimeWarning, match="is of another model"):
        loaded = load(tiny_llama, cache)
    assert loaded.weights_digest == open_checkpoint(tiny_llama).weights_digest()


def test_a_cache_that_cannot_be_written_leaves_the_weights_in_memory(tmp_path: Path, tiny_llama: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(RuntimeWarning, match="stay in memory"):
        held = load(tiny_llama, tmp_path / "file" / "cache")
    assert_same(held, load(tiny_llama, tmp_path / "cache"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_cache(tmp_path: Path, tiny_llama: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o500)
    with pytest.warns(RuntimeWarning, match="stay in memory"):
        load(tiny_llama, tmp_path / "cache")


def test_a_full_disk_leaves_nothing_behind(tiny_llama: Path, cache: Path) -> None:
    """A limit on the size of files stands for the disk."""
    code = (
        "import resource, signal, sys, warnings; from pathlib import Path; sys.path.insert(0, 'tests');"
        "warnings.simplefilter('ignore'); from models.test_packed import load;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000));"
        "print(load(Path(sys.argv[1]), Path(sys.argv[2])).weights_digest)"
    )
    command = [sys.executable, "-P", "-c", code, str(tiny_llama), str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == open_checkpoint(tiny_llama).weights_digest()
    assert [p.name for p in cache.iterdir()] == [".lock"]


def test_leftovers_of_killed_processes_are_removed(tiny_llama: Path, cache: Path) -> None:
    cache.mkdir()
    (cache / ".packed-abc").write_bytes(b"half")
    load(tiny_llama, cache)
    assert not (cache / ".packed-abc").exists()


def test_a_model_at_fault_is_no_fault_of_the_cache(tmp_path: Path, cache: Path) -> None:
    model = write_tiny(tmp_path / "model")
    (model / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="cannot be read as safetensors"):  # and no warning, which would be an error
        load(model, cache)


def test_two_processes_at_once(tiny_llama: Path, cache: Path) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, 'tests');"
        "from models.test_packed import load; print(load(Path(sys.argv[1]), Path(sys.argv[2])).weights_digest)"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(tiny_llama), str(cache)]
    root = Path(__file__).parents[2]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) for _ in range(2)]
    digests = {process.communicate()[0].strip() for process in both}
    assert digests == {open_checkpoint(tiny_llama).weights_digest()}
    load_again(tiny_llama, cache)
