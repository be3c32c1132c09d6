"""One chart: the least page that Streamlit and Plotly make. `streamlit run` reads this file."""

import plotly.graph_objects as go
import streamlit as st

st.set_page_config(layout="wide")
st.write("One chart")
st.plotly_chart(go.Figure(go.Bar(x=list(range(8)), y=[3, 1, 4, 1, 5, 9, 2, 6])))
