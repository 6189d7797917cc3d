"""Numbers and foreign text, set for reading."""

_SHORT = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))

# A control character becomes a picture of itself. So does one that turns the direction of text around: a page shows
# text from anywhere, and each piece of it keeps to its own box.
_VISIBLE: dict[int, str] = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
_VISIBLE |= {0x7F: "␡"} | dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000)), "�")
_VISIBLE |= {code: f"[U+{code:04X}]" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def shown(text: object) -> str:
    """`text` without characters that act instead of being seen."""
    return str(text).translate(_VISIBLE)


def clipped(text: str, most: int) -> str:
    """At most about `most` characters: what is too long loses its middle, and says how much that was."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … {number(len(text) - 2 * half)} characters … {text[-half:]}"


def brief(text: str, most: int) -> str:
    """The first words of `text`, at most `most` characters."""
    if len(text) <= most:
        return text
    head = text[:most]
    words = head.rsplit(maxsplit=1)
    return (words[0] if len(words) > 1 and 2 * len(words[0]) > most else head) + " …"


def number(value: int) -> str:
    """12,345"""
    return f"{value:,}"


def counted(value: int, noun: str) -> str:
    """1 row, 2,000 rows"""
    return f"{number(value)} {noun}" + "s" * (value != 1)


def compact(value: float) -> str:
    """0.25, 7.5, 120, 1.2k, 45k, 3M: three digits at most, where there are no more than that"""
    for size, letter in _SHORT:
        if value >= 0.9995 * size:
            return f"{_digits(value / size)}{letter}"
    return _digits(value)


def percent(part: int, whole: int) -> str:
    """12.5%; never 0% of something or 100% of less than all"""
    if not whole:
        return "–"
    share = 100 * part / whole
    if part and share < 0.1:
        return "<0.1%"
    if part < whole and share > 99.9:
        return ">99.9%"
    return f"{share:.1f}".removesuffix(".0") + "%"


def clock(seconds: float) -> str:
    """0.25 s, 9 s, 2 min 5 s, 3 h, 4 h 10 min, 2 d 7 h: two units at most"""
    if round(seconds, 1) < 60:
        return f"{_digits(seconds)} s"
    for unit, name, below in ((60, "min", 3600), (3600, "h", 86_400), (86_400, "d", float("inf"))):
        smaller, small = {"min": (1, "s"), "h": (60, "min"), "d": (3600, "h")}[name]
        whole, rest = divmod(round(seconds / smaller), unit // smaller)
        if whole * unit < below:
            break
    return f"{number(whole)} {name} {rest} {small}" if rest else f"{number(whole)} {name}"


def _digits(value: float) -> str:
    """Up to three of them after which zeros are left out."""
    places = 0 if value >= 100 else 1 if value >= 10 else 2
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
