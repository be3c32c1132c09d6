"""What a checkpoint is made of, and the shared memory that the agent owns and the trainer writes."""
