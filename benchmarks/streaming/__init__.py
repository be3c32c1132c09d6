"""Parts of the stream benchmark."""
