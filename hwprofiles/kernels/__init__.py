"""How long a kernel of each family takes: one module of formulas a family."""
