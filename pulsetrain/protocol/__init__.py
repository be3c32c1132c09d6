"""How agent, hub and clients speak: messages, the HTTP client, access."""
