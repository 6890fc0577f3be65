"""One run: scenario -> build -> simulate -> records -> metrics and invariants."""
