"""One chart: the least page with a chart that Streamlit makes. `streamlit run` reads this file."""

import streamlit as st

st.set_page_config(layout="wide")
st.write("One chart")
bars = {"type": "bar", "data": [3, 1, 4, 1, 5, 9, 2, 6]}
axes = {"xAxis": {"type": "category", "data": list("abcdefgh")}, "yAxis": {}}
st.echarts_chart({"animation": False, **axes, "series": [bars]}, theme=None, renderer="svg")
