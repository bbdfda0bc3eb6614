"""Virtual ranks: process groups, collectives, the links between GPUs."""
