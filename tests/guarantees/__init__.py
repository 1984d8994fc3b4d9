"""The guarantees of the contract, proved on a real process: killed, filled, cut, flooded."""
