"""Maintainers' validation, which does not ship: scores on measured tables, and the pages of errors."""
