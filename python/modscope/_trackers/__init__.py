"""Drop-ins for the trackers of torch: modules, memory, FSDP2."""
