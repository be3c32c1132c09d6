"""What the page Timeline shows: lanes, arrows and bubbles, and the bytes that the canvas reads."""
