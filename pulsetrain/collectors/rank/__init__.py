"""Inside the training process: phases, steps, collectives, written into a ring."""
