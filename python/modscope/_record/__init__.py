"""Write captures: ``record``, ``modscope run`` in the script's process and in those that it starts."""
