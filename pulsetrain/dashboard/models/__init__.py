"""What a page shows, computed from tables and JSON: pure functions, tested without Streamlit."""
