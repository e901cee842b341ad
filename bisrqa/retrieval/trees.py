"""Maximum spanning trees of a multigraph, and the order in which a depth-first walk reads them.

Both take a whole batch at once, as one graph of many components. The trees are scipy's; the order
is an Euler tour whose places are found by pointer doubling, so that a path of 50,000 edges or a hub
with as many costs no more than any other tree.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from torch import Tensor


class Forest(NamedTuple):
    """The spanning trees of a graph's components."""

    component: Int[Tensor, " nodes"]
    """Which component each node is in."""
    keep: Bool[Tensor, " edges"]
    """Edges of the trees."""
    place: Int[Tensor, " nodes"]
    """Place of each node when its component is walked depth first, heavier edges first, from the
    head of its heaviest edge; 0 for the first node of each component."""


def spanning_forest(
    edge_index: Int[Tensor, "2 edges"], weight: Float[Tensor, " edges"], num_nodes: int
) -> Forest:
    """Maximum spanning tree of every component, edges taken as undirected.

    Of parallel edges the heaviest may be kept, of equal ones the first; so the result does not
    depend on what else is in the batch. A self-loop is kept if its node has nothing else, which
    would be lost otherwise.

    Args:
        edge_index: A multigraph.
        weight: Finite.
        num_nodes: So many nodes; those without edges are components of their own.
    """
    device = edge_index.device
    low, high = edge_index.amin(0), edge_index.amax(0)
    # Costs are ranks: different, so that ties are settled here, and never 0, which scipy takes
    # for no edge at all.
    order = torch.sort(weight, descending=True, stable=True).indices
    cost = torch.empty_like(order)
    cost[order] = torch.arange(1, len(order) + 1, device=device)
    single = order[_first_of_each((low * num_nodes + high)[order])]
    loop = low == high
    between = single[~loop[single]]
    table = coo_array(
        (
            cost[between].double().cpu().numpy(),
            (low[between].cpu().numpy(), high[between].cpu().numpy()),
        ),
        shape=(num_nodes, num_nodes),
    ).tocsr()
    kept = torch.from_numpy(minimum_spanning_tree(table).data.astype(np.int64)).to(device)
    keep = torch.zeros(len(order), dtype=torch.bool, device=device)
    keep[order[kept - 1]] = True
    tree = order[torch.sort(kept).values - 1]  # heaviest first
    place = depth_first(edge_index[:, tree], num_nodes)
    alone = torch.ones(num_nodes, dtype=torch.bool, device=device)
    alone[edge_index[:, tree].flatten()] = False
    keep[single[loop[single] & alone[low[single]]]] = True
    return Forest(_components(edge_index, num_nodes), keep, place)


def depth_first(tree: Int[Tensor, "2 branches"], num_nodes: int) -> Int[Tensor, " nodes"]:
    """Place of each node in a depth-first walk of its tree.

    Args:
        tree: Edges of a forest, in the order in which branches are taken; each tree is walked
            from the head of its first edge.
        num_nodes: So many nodes.
    """
    count = tree.shape[1]
    place = torch.zeros(num_nodes, dtype=torch.long, device=tree.device)
    if not count:
        return place
    # Branch b is the arcs b (as given) and count + b (back).
    source, target = torch.cat([tree, tree.flip(0)], 1)
    component = _components(tree, num_nodes)
    root = tree[0, _first_of_each(component[tree[0]])]
    branch = torch.arange(count, device=tree.device).repeat(2)
    # A first tour, with branches in any order, tells which end of each is the parent.
    rank = _tour(source, branch, root)
    down = rank < rank.roll(count)
    # The second leaves every node by its heaviest branch first, and by the way to its parent last.
    rank = _tour(source, branch + count * (~down), root)
    down_rank = torch.where(down, rank, -1)
    # How many steps down each tour has made up to each arc.
    tour = component[source]
    order = torch.argsort(tour * (2 * count) + rank)
    steps = down[order].long().cumsum(0)
    first = torch.searchsorted(tour[order], tour[order])
    before = torch.where(first > 0, steps[first - 1], 0)
    at = torch.empty_like(steps)
    at[order] = steps - before
    arcs = (down_rank >= 0).nonzero().squeeze(1)
    place[target[arcs]] = at[arcs]
    return place


def _components(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> Int[Tensor, " nodes"]:
    head, tail = edge_index.cpu().numpy()
    table = coo_array((np.ones(len(head)), (head, tail)), shape=(num_nodes, num_nodes))
    found = connected_components(table.tocsr(), directed=False)[1]
    return torch.from_numpy(found.astype(np.int64)).to(edge_index.device)


def _tour(source: Tensor, priority: Tensor, root: Tensor) -> Int[Tensor, " arcs"]:
    """Place of each arc in the Euler tour of its tree.

    Args:
        source: Node that each arc leaves; arc i and arc ``i + count`` are the two ways of a branch.
        priority: Arcs out of a node are taken in this order, round and round.
        root: Node that each tree's tour starts from.
    """
    arcs = len(source)
    order = torch.argsort(source * (int(priority.max()) + 1) + priority)
    ordered = source[order]
    last = torch.ones(arcs, dtype=torch.bool, device=source.device)
    last[:-1] = ordered[1:] != ordered[:-1]
    start = torch.searchsorted(ordered, ordered)
    following = torch.arange(1, arcs + 1, device=source.device)
    following = torch.where(last, start, following.clamp_max(arcs - 1))
    turn = torch.empty_like(order)
    turn[order] = order[following]  # the arc that leaves the same node next
    after = turn.roll(-(arcs // 2))  # having come by an arc: the one behind its way back
    # The tour ends where it would start again.
    starts = order[torch.searchsorted(ordered, root)]
    ends = torch.isin(after, starts)
    end = torch.arange(arcs, device=source.device)[ends]
    after = after.clone()
    after[end] = end
    left = (~ends).long()
    for _ in range(max(arcs - 1, 1).bit_length()):
        left = left + left[after]
        after = after[after]
    # Steps to the end become steps from the start.
    return left[starts[_index_of(after[starts], after)]] - left


def _index_of(keys: Tensor, values: Tensor) -> Tensor:
    """Place in ``keys`` of each value; each is there once."""
    order = torch.argsort(keys)
    return order[torch.searchsorted(keys[order], values)]


def _first_of_each(value: Int[Tensor, " rows"]) -> Int[Tensor, " distinct"]:
    """Row where each distinct value comes first, in order of the rows."""
    order = torch.sort(value, stable=True)
    new = torch.ones(len(value), dtype=torch.bool, device=value.device)
    new[1:] = order.values[1:] != order.values[:-1]
    return torch.sort(order.indices[new]).values
