"""A finished run as the input of the next job: its files, once all of their hashes and its root have been checked."""

from dataclasses import dataclass

from batchgen.errors import InputError, RunError
from batchgen.io.hashing import MerkleTree
from batchgen.io.manifest import part_name, read_manifest
from batchgen.io.shard_check import check_shards
from batchgen.object_path import StoreError
from batchgen.places import Place


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The file of a shard."""

    path: Place
    label: str  # rows/part-00000.parquet
    digest: str  # of the shard's leaves: it does not change when the file is written anew
    first: int  # of its rows, in the whole run


def source_files(run: Place, root: str | None, where: str) -> tuple[str, list[SourceFile]]:
    """(root, files in order) of the finished run at `run`, every row of which was hashed again.

    Raises InputError at `where` when it is no finished run, when its files are not those of its root, or when that is
    not `root`, where one is given.
    """
    try:
        manifest = read_manifest(run)
        if not manifest.finished or manifest.root is None:
            hint = f"finish it first: batchgen run its job with --out {run}"
            raise InputError("the source run is not finished", where=where, hint=hint)
        tree, files, first = MerkleTree(), [], 0
        for shard, leaves, wrong in check_shards(run, manifest, manifest.shards):
            if wrong:
                hint = f"batchgen verify {run} says all that is wrong"
                raise InputError(f"the source run changed: {wrong[0]}", where=where, hint=hint)
            tree.add(first, leaves)
            files.append(SourceFile(run / part_name(shard.index), part_name(shard.index), shard.digest, first))
            first += len(leaves)
        found = tree.root(manifest.plan.num_samples)
    except StoreError as error:
        raise InputError(error.message, where=error.where, hint=error.hint) from None
    except RunError as error:
        raise InputError(f"the source run cannot be used: {error.message}", where=where, hint=error.where) from None
    if found != manifest.root:
        raise InputError(
            f"the source run changed: its rows give {found}, its manifest says {manifest.root}", where=where
        )
    if root not in (None, found):
        hint = "make it again as it was, or take its new root into the job"
        raise InputError(
            f"the source run changed: its root is {found}, and the job names {root}", where=where, hint=hint
        )
    return found, files
