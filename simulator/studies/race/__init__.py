"""Controllers of speculation on the same traffic, some of it searched for against them."""
