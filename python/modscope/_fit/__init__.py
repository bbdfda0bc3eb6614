"""Whether a job fits a GPU, and the levers that would make it fit. Needs no torch."""
