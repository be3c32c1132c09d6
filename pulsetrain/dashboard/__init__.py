"""The dashboard: one file for each page. What a page shows is computed in ``models``, without Streamlit."""
