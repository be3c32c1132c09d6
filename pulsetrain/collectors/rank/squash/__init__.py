"""Of data-parallel replicas that share a device, one computes an optimizer's update for all of them."""
