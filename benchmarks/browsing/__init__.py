"""A living fleet behind a real hub, and a browser that looks at its pages."""
