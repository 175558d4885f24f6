"""What a sharded model is doing."""

IDLE, TRAIN, EVAL, HELD = range(4)
