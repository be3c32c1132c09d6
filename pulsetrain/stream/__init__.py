"""What a record is, how it travels, where it rests. Imports nothing else of Pulsetrain."""
