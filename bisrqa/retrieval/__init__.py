"""The walk that scores nodes, and the subgraph that is cut from its scores."""
