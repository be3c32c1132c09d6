"""The hub's JSON API and the agents' WebSocket, one module for each subject."""
