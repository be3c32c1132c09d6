"""What is measured on the machine where it happens."""
