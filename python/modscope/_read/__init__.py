"""Read one capture: its types, snapshots and figures, and the words for them."""
