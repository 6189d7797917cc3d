"""Hashes of content: a row's leaf, a shard's digest, the root of a run, the hash of sampling parameters.

They look at values alone, so compression, row groups, file sizes and Arrow's choice of types cannot be seen.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterable

import pyarrow as pa
import rfc8785
import xxhash

from batchgen.io.canonical import batches, encode_rows, schema_bytes
from batchgen.records import LATER_FIELDS, SamplingParams

ROW_HASH = "row_hash"


def leaves(table: pa.Table) -> list[bytes]:
    """The leaf of each row, 16 bytes: xxh3_128 (big-endian, as XXH3 prints it) of the row's canonical bytes.

    Covers the names, types and values of every column but row_hash, whether or not `table` has that one.
    """
    if ROW_HASH in table.column_names:
        table = table.drop_columns([ROW_HASH])
    tag = xxhash.xxh3_128_digest(schema_bytes(table.schema))
    found: list[bytes] = []
    for batch in batches(table):
        found += map(xxhash.xxh3_128_digest, encode_rows(batch, tag))
    return found


def shard_digest(shard_leaves: Iterable[bytes]) -> str:
    """SHA-256 (hex) of a shard's leaves, one after another."""
    return hashlib.sha256(b"".join(shard_leaves)).hexdigest()


class MerkleTree:
    """The SHA-256 Merkle root of a run's leaves; the tree of RFC 6962.

    A leaf's node is SHA-256(0x00 leaf), a parent's SHA-256(0x01 left right); the left child of n leaves holds
    the largest power of two below n. No leaves: SHA-256 of nothing.

    Stretches of leaves may come in any order. Two finished siblings are replaced by their parent at once, so memory
    is O(log n) for each stretch whose neighbours are still to come.
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], bytes] = {}  # (level, index): the subtree of leaves index << level ...

    def add(self, position: int, new_leaves: Iterable[bytes]) -> None:
        """The leaves `position`, `position` + 1, ...; each position once."""
        sha256 = hashlib.sha256  # a local name: this bounds the speed of verify
        level, nodes = 0, [sha256(b"\0" + leaf).digest() for leaf in new_leaves]
        while nodes:
            if position & 1:
                self._place(level, position, nodes.pop(0))
                position += 1
            if len(nodes) & 1:
                self._place(level, position + len(nodes) - 1, nodes.pop())
            nodes = [sha256(b"\1" + left + right).digest() for left, right in zip(nodes[::2], nodes[1::2], strict=True)]
            level, position = level + 1, position >> 1

    def _place(self, level: int, index: int, node: bytes) -> None:
        while (sibling := self._nodes.pop((level, index ^ 1), None)) is not None:
            left, right = (sibling, node) if index & 1 else (node, sibling)
            node = hashlib.sha256(b"\1" + left + right).digest()
            level, index = level + 1, index >> 1
        self._nodes[level, index] = node

    def root(self, size: int) -> str:
        """Hex; of the leaves 0 .. size-1. ValueError when some of them, or others, have come."""
        nodes = sorted((index << level, level, node) for (level, index), node in self._nodes.items())
        if sum(1 << level for _, level, _ in nodes) != size or any(start >= size for start, _, _ in nodes):
            raise ValueError(f"the leaves are not those of {size} rows")
        if not nodes:
            return hashlib.sha256().hexdigest()
        *lefts, (_, _, node) = nodes
        for _, _, left in reversed(lefts):
            node = hashlib.sha256(b"\1" + left + node).digest()
        return node.hex()


def parse_root(text: str) -> str:
    """A root that someone typed. Raises ValueError for what is none."""
    if not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise ValueError(f"a root has 64 hex digits, and {text!r} is something else")
    return text.lower()


def params_hash(params: SamplingParams) -> str:
    """xxh3_128 (hex) of the RFC 8785 JSON of a sample's parameters.

    `n` is left out: a sample is the same one however many siblings it has. So is what did not exist when the first
    hashes were made, where it is as it was then.
    """
    fields = {
        name: value
        for name, value in dataclasses.asdict(params).items()
        if name != "n" and not (name in LATER_FIELDS and value is LATER_FIELDS[name])
    }
    if params.structured_outputs is not None:
        given = params.structured_outputs.kind
        fields["structured_outputs"] = {given: getattr(params.structured_outputs, given)}
    fields["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    return xxhash.xxh3_128_hexdigest(rfc8785.dumps(fields))
