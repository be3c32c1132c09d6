"""What a rank shows without a line added to its script: steps, phases and numbers that are inferred."""
