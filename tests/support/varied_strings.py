"""Strings that trip tokenizers, by kind, the same in every run."""

import random
from collections.abc import Callable

_WORDS = [
    "the",
    "of",
    "and",
    "Paris",
    "don't",
    "we've",
    "I'm",
    "it'LL",
    "naïve",
    "O'Brien",
    "e-mail",
    "Mr.",
    "x1",
    "2nd",
]
_CODE = ["def f(a, *b):\n    return a[0] != b", "for (int i=0;i<10;++i) { x += y->z; }", "<div class=\"a\">\t</div>",
         "SELECT * FROM t WHERE a>=1.5e-3;",
         "a\\nb\\t%s %d {}", "#include <stdio.h>\r\n", "https://a.b/c?d=e&f=%20#g"]  # fmt: skip
_CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_end", "im_end|>", "<| im_end |>", "<s>", "</s>",
            "<repo_name>", "<|IM_END|>", "<jupyter_code>", "[INST]", "<|eot_id|>", "<<|im_end|>>"]  # fmt: skip
_NUMBERS = ["1,234.5", "007", "3.14e-10", "$19.99", "50%", "2024-01-31"]
_SPACES = [" ", "  ", "\n", "\r\n", "\t", "    ", " \n ", "\u00a0"]
_EMOJI = ["😀", "👍🏽", "👨\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "❤️", "🇫🇷", "1️⃣", "☺", "‼", "⌚"]
_RANGES = {
    "latin": [(0x20, 0x7E), (0xA0, 0x17F)],
    "cjk": [(0x4E00, 0x9FFF), (0x3040, 0x30FF), (0xAC00, 0xD7A3), (0x3000, 0x303F)],
    "rtl": [(0x590, 0x5F4), (0x600, 0x6FF), (0x200E, 0x200F), (0x202A, 0x202E)],
    "marks": [(0x61, 0x7A), (0x300, 0x36F), (0x0E00, 0x0E5B), (0x900, 0x97F)],
    "digits": [(0x30, 0x39), (0x660, 0x669), (0x966, 0x96F), (0x2150, 0x2189), (0xB2, 0xB3), (0xFF10, 0xFF19)],
    "space": [(0x9, 0xD), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x2000, 0x200B), (0x3000, 0x3000)],
    "symbols": [(0x2000, 0x2BFF), (0x1F300, 0x1FAFF), (0xFE00, 0xFE0F)],
    "any": [(0x0, 0xD7FF), (0xE000, 0x10FFFF)],
}


def varied_strings(per_kind: int = 260) -> dict[str, list[str]]:
    """Kind -> `per_kind` strings, valid Unicode, up to some 60 characters."""
    rng = random.Random(20260101)

    def joined(parts: list[str], separators: list[str], limit: int = 9) -> str:
        return "".join(rng.choice(parts) + rng.choice(separators) for _ in range(rng.randint(1, limit)))

    def from_ranges(kind: str) -> str:
        chars = [chr(rng.randint(*rng.choice(_RANGES[kind]))) for _ in range(rng.randint(1, 24))]
        return "".join(char + (" " if rng.random() < 0.1 else "") for char in chars)

    makers: dict[str, Callable[[], str]] = {
        "words": lambda: joined(_WORDS, [" ", "  ", ", ", ".\n", "\n\n", "\t"]),
        "numbers": lambda: joined([*_NUMBERS, str(rng.getrandbits(40))], [" ", "", "\n", "+", "/"]),
        "white_space": lambda: joined(["a", "b.", *_SPACES], ["", " ", "\n"]),
        "code": lambda: joined(_CODE, ["", "\n", "\n\n    ", "\t"], 4),
        "emoji": lambda: joined([*_EMOJI, "ok"], ["", " ", "\u200d"]),
        "control_look_alikes": lambda: joined([*_CONTROL, "hi", "a b"], ["", " ", "\n"]),
    }  # fmt: skip
    strings = {kind: [make() for _ in range(per_kind)] for kind, make in makers.items()}
    return strings | {kind: [from_ranges(kind) for _ in range(per_kind)] for kind in _RANGES}
