"""What torch asks of a CUDA device: functions, memory, streams, properties."""
