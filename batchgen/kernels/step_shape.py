"""What the host knows of a step beside its tensors."""

from typing import NamedTuple


class StepShape(NamedTuple):
    """Sizes that decide how kernels are launched. No bit depends on them."""

    singles: int  # sequences with one query token (padding among them)
    longest_query: int  # tokens of the longest query
    longest_context: int  # positions of the longest sequence; at least the true number, so that a graph can be kept
    is_padded: bool = False  # a token at position -1 is padding, and every rank has as many tokens
