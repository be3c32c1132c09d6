"""What every process needs: errors, clock, configuration, log, folder lock. Knows nothing of training."""
