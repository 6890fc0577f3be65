"""Figures: each is a pure function to plain data, and a thin one from data to a Plotly figure."""
