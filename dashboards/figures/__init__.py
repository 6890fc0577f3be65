"""Figures: for each, one pure function computes plain data, and a thin function draws the data with Plotly."""
