"""``modscope predict --epoch``: whether any batch of a whole epoch runs out of memory, and which one."""
