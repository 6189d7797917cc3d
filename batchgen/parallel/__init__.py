"""Ranks that share the experts of a model: who holds which, and how rows travel to them and back.

    mesh.py        the ranks: how they find each other, and the collectives that they use
    placement.py   which rank holds which expert; pure
    eplb.py        a better placement for a measured load; pure
    exchange.py    what a MoE layer calls: dispatch and combine, on one rank or over many
    experts.py     the placements of all layers, and the moves between two of them

Rows are copied, never added: no sum is taken on the way, so no bit depends on what stands in these files.
"""
